"""``turngate policy``: check, explain and try rules, here or against a running API; show and change the stored ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.commands.policy.trials import Trial, asked_now, backtested, explained, recorded, tools_by_agent
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

SHOWN: Final = 50

app = typer.Typer(no_args_is_help=True, help="The rules that judge each call: check, explain, try, store.")

RulesFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file (TOML).")]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP", help="Your app as MODULE:NAME, to judge with its own tools.", show_default=False
    ),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Runs that began since: 2026-05-01, or 7d.", show_default=False)
]


@app.command()
def check(file: RulesFile, app_name: AppOption = None) -> None:
    """Read a policy file, list its rules in the order they count, and warn of rules that do not do what they say.

    Exits with 1 when it cannot be read.
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
    tool: Annotated[str, typer.Option(help="The tool that is called.")],
    args: Annotated[str, typer.Option(metavar="JSON|@FILE", help="Its arguments.")] = "{}",
    agent: Annotated[str | None, typer.Option(help="Who calls it.", show_default="the one that has the tool")] = None,
    workspace: Annotated[Path | None, typer.Option(help="The run's directory.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(help="Judge by this file alone, without a server.", show_default=False)
    ] = None,
    app_name: AppOption = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Say what policy answers to a call: by which rule, and why each other one does not speak of it.

    Without --file and --app it asks the running API: the stored rules, the app's file, and standing grants.
    """
    text = read_text(Path(args[1:]), what="--args") if args.startswith("@") else args
    directory = None if workspace is None else str(workspace.absolute())
    if file is None and app_name is None:
        with find_api(data_dir, url).client() as client:
            told = client.explain_policy(tool, args=text, agent=agent, workspace=directory)
    else:
        rules = None if file is None else read_policy(file)
        told = explained(tool, text, agent=agent, workspace=directory, rules=rules, app_name=app_name)
    if as_json:
        terminal.raw(told.model_dump_json())
    else:
        show_explanation(told)


@app.command()
def backtest(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A policy file (TOML); without one, the judge alone.")
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, help="Look at so many calls at most, the newest.")] = 100_000,
    examples: Annotated[int, typer.Option(min=0, max=1_000, help="List so many calls of each change.")] = 20,
    app_name: AppOption = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Ask this model now, as a judge; each call is paid for.", show_default=False
        ),
    ] = None,
    criteria: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What it may allow.", show_default="those of --app's judge")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask it about more than 50 calls.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Try a file's rules, or the judge, on the calls of the store: what would have been otherwise.

    The rules stand alone, in the place of all that were in force; with --app the tools' own `ask` is asked. The judge is
    held against what people decided: by what it said when the calls were made, or with --judge by what it says now, of the
    newest 1,000 at most. Reads the store itself, runs no tool and stores nothing.
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
    judged = asyncio.run(recorded(trial) if judge is None else asked_now(judge, trial))
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
    source: Annotated[bool, typer.Option("--source", help="Print the stored rules' own text, to be changed.")] = False,
    version: Annotated[int | None, typer.Option(min=1, help="That version of the stored rules.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Show the rules in force: stored ones, those of each app's file, and how they count."""
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
    comment: Annotated[str, typer.Option(help="Why, for whoever reads the history.")] = "",
    if_version: Annotated[
        int | None, typer.Option(min=0, help="Only if this version is in force.", show_default="the one in force now")
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Put a file's rules in force, in the place of the stored ones. Needs an admin."""
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
        page = client.list_policy_versions(limit=SHOWN)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    rows = [
        (str(each.version), each.created_at, plain_line(each.changed_by, 60), plain_line(each.comment, 120))
        for each in page.items
    ]
    terminal.table(("VERSION", "AT", "BY", "COMMENT"), rows)
    if not rows:
        terminal.note("no rules were ever stored; the apps' files count alone")
    elif page.next_cursor:
        terminal.note(f"the newest {SHOWN}")


@app.command()
def revert(
    version: Annotated[int, typer.Argument(min=1, help="The version to go back to.")],
    comment: Annotated[str, typer.Option(help="Why, for whoever reads the history.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Put the rules of an earlier version in force again, as a new version. Needs an admin."""
    with find_api(data_dir, url).client() as client:
        stored = client.revert_policy(version, if_version=client.get_policy().version, comment=comment)
    terminal.line(("✓ ", "bold"), f"version {stored.version} is in force, with the rules of version {version}")


@app.command()
def shadow(
    rule: Annotated[str | None, typer.Option(help="Only this shadow rule.", show_default=False)] = None,
    since: Since = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Report what rules with shadow = true would have changed, had they counted."""
    begun = None if since is None else instant_of(since, "--since")
    with find_api(data_dir, url).client() as client:
        report = client.get_shadow_report(rule=rule, since=begun)
    if as_json:
        terminal.raw(report.model_dump_json())
    else:
        show_shadow(report)


def _warn(policy: Policy, app_name: str | None, source: str) -> int:
    """Print what is doubtful; returns how much it is."""
    found = doubts(policy, None if app_name is None else tools_by_agent(app_name))
    for doubt in found:
        terminal.note(("warning: ", "bold yellow"), f"{source}: {plain_line(doubt.rule)}: {plain_line(doubt.message)}")
    return len(found)
