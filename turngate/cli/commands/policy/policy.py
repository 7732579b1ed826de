"""``turngate policy``: check, explain and try rules, here or at a running API; show and change the stored rules."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.commands.policy.trials import Trial, ask_now, backtested, explained, recorded, tools_by_agent
from turngate.cli.commands.policy.views import (
    backtest_json,
    show_backtest,
    show_explanation,
    show_judge,
    show_policy,
    show_rules,
    show_shadow,
)
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir, Url, instant_of
from turngate.cli.policy_files import read_policy, read_text
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy
from turngate.policies.explain import in_order, rule_views
from turngate.policies.lint import doubts
from turngate.text.plain_text import plain, plain_line

MOST_ROWS: Final = 50

app = typer.Typer(no_args_is_help=True, help="The rules that judge each call: check, explain, try, store.")

RulesFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file (TOML).")]
AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="Your app as MODULE:NAME, to judge with its tools.", show_default=False),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only runs that began since: 2026-05-01, or 7d.", show_default=False)
]


@app.command()
def check(file: RulesFile, app_name: AppOption = None) -> None:
    """Read a policy file, list its rules in the order of evaluation, and warn of rules with no or an unexpected effect.

    Exit code: 0, or 1 when the file cannot be read.
    """
    try:
        policy = read_policy(file)
    except ConfigurationError as error:
        terminal.error(plain(error.message))
        raise typer.Exit(EXIT_WENT_WRONG) from None
    show_rules(rule_views(in_order(("file", policy))))
    number = _warn(policy, app_name, str(file))
    terminal.note(f"{len(policy.rule)} rule(s), {number} warning(s); version {policy.version}")


@app.command()
def explain(
    tool: Annotated[str, typer.Option(help="The tool of the call.")],
    args: Annotated[str, typer.Option(metavar="JSON|@FILE", help="The call's arguments.")] = "{}",
    agent: Annotated[
        str | None, typer.Option(help="The agent that makes the call.", show_default="the one that has the tool")
    ] = None,
    workspace: Annotated[Path | None, typer.Option(help="The run's directory.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(help="Judge with this file only, without a server.", show_default=False)
    ] = None,
    app_name: AppOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Explain the policy's answer to a call: which rule gives it, and why each other rule does not apply.

    Without --file and --app it asks the running API, which knows the stored rules, the app's file and the valid grants.
    """
    text = read_text(Path(args[1:]), what="--args") if args.startswith("@") else args
    directory = None if workspace is None else str(workspace.absolute())
    if file is None and app_name is None:
        with find_api(data_dir, url).client() as client:
            explanation = client.explain_policy(tool, args=text, agent=agent, workspace=directory)
    else:
        rules = None if file is None else read_policy(file)
        explanation = explained(tool, text, agent=agent, workspace=directory, rules=rules, app_name=app_name)
    if as_json:
        terminal.raw(explanation.model_dump_json())
    else:
        show_explanation(explanation)


@app.command()
def backtest(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A policy file (TOML). Without one, only the judge is tried."),
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, help="Use at most so many calls, the newest.")] = 100_000,
    examples: Annotated[int, typer.Option(min=0, max=1_000, help="List up to so many calls of each change.")] = 20,
    app_name: AppOption = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Ask this model as a judge now. Each call costs money.", show_default=False),
    ] = None,
    criteria: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What the judge may allow.", show_default="those of --app's judge"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm to ask about more than 50 calls.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Try a file's rules, or the judge, on stored calls, and report what would have been different.

    The file's rules replace all others; with --app, the tools' own `ask` counts too. The judge's answers are compared with
    people's decisions: the answers it gave when the calls were made, or with --judge the answers that a model gives now, for
    at most the newest 1,000 calls. Reads the store directly, runs no tool and stores nothing.
    """
    policy = None if file is None else read_policy(file)
    begun = None if since is None else instant_of(since, "--since")
    report = None
    if policy is not None:
        report = asyncio.run(
            backtested(policy, data_dir=data_dir, since=begun, limit=limit, examples=examples, app_name=app_name)
        )
    trial = Trial(
        data_dir=data_dir, since=begun, limit=limit, examples=examples, app_name=app_name, criteria=criteria, yes=yes
    )
    judged = asyncio.run(recorded(trial) if judge is None else ask_now(judge, trial))
    if as_json:
        rules = {} if report is None else backtest_json(report)
        terminal.raw(json.dumps({**rules, "judge": judged.as_json()}))
        return
    if report is not None:
        show_backtest(report)
    if report is None or judged.judged:
        show_judge(judged)


@app.command()
def show(
    source: Annotated[bool, typer.Option("--source", help="Print the text of the stored rules, for editing.")] = False,
    version: Annotated[int | None, typer.Option(min=1, help="Show this version of the stored rules.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Show the rules in force: the stored rules, those of each app's file, and the order of evaluation."""
    with find_api(data_dir, url).client() as client:
        policy = client.get_policy()
        stored = policy.stored if version is None else client.get_policy_version(version)
    if source:
        terminal.raw("" if stored is None else stored.source.rstrip("\n"))
    elif version is not None and stored is not None:
        terminal.raw(stored.model_dump_json()) if as_json else show_rules(stored.rules)
    elif as_json:
        terminal.raw(policy.model_dump_json())
    else:
        show_policy(policy)


@app.command("set")
def set_rules(
    file: RulesFile,
    comment: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    if_version: Annotated[
        int | None,
        typer.Option(
            min=0, help="Change the rules only if this version is in force.", show_default="the one in force now"
        ),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Put a file's rules in force instead of the stored rules. Needs an admin."""
    policy = read_policy(file)
    _warn(policy, None, str(file))
    with find_api(data_dir, url).client() as client:
        based_on = client.get_policy().version if if_version is None else if_version
        stored = client.put_policy(read_text(file), if_version=based_on, comment=comment)
    terminal.line(("✓ ", "bold"), f"version {stored.version} is in force: {len(stored.rules)} rule(s)")


@app.command()
def history(as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List the versions of the stored rules, newest first."""
    with find_api(data_dir, url).client() as client:
        page = client.list_policy_versions(limit=MOST_ROWS)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    rows = [
        (str(each.version), each.created_at, plain_line(each.changed_by, 60), plain_line(each.comment, 120))
        for each in page.items
    ]
    terminal.table(("VERSION", "AT", "BY", "COMMENT"), rows)
    if not rows:
        terminal.note("no rules were ever stored; only the apps' files count")
    elif page.next_cursor:
        terminal.note(f"the newest {MOST_ROWS}")


@app.command()
def revert(
    version: Annotated[int, typer.Argument(min=1, help="The version to go back to.")],
    comment: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Put the rules of an earlier version in force again, as a new version. Needs an admin."""
    with find_api(data_dir, url).client() as client:
        stored = client.revert_policy(version, if_version=client.get_policy().version, comment=comment)
    terminal.line(("✓ ", "bold"), f"version {stored.version} is in force, with the rules of version {version}")


@app.command()
def shadow(
    rule: Annotated[str | None, typer.Option(help="Report only this shadow rule.", show_default=False)] = None,
    since: Since = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Report what rules with shadow = true would have changed if they had counted."""
    begun = None if since is None else instant_of(since, "--since")
    with find_api(data_dir, url).client() as client:
        report = client.get_shadow_report(rule=rule, since=begun)
    if as_json:
        terminal.raw(report.model_dump_json())
    else:
        show_shadow(report)


def _warn(policy: Policy, app_name: str | None, source: str) -> int:
    """Print a warning for each doubtful rule, and return their number."""
    warnings = doubts(policy, None if app_name is None else tools_by_agent(app_name))
    for doubt in warnings:
        terminal.note(("warning: ", "bold yellow"), f"{source}: {plain_line(doubt.rule)}: {plain_line(doubt.message)}")
    return len(warnings)
