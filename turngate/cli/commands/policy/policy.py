"""``turngate policy``: check, explain and try rules, here or at a running API; show and change the stored rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.commands.policy.trials import (
    Trial,
    ask_now,
    backtested,
    explained,
    recorded,
    tools_by_agent,
)
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir, Url, instant_of
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, VerdictKind
from turngate.policies.backtest import JUDGED_ALONE, Report
from turngate.policies.explain import in_order, rule_views
from turngate.policies.judge_reports import DIFFERENCES, JudgeReport
from turngate.policies.lint import doubts
from turngate.runtime.policy_files import checked_source, read_policy, read_text
from turngate.text.instants import second
from turngate.text.plain_text import Piece, plain, plain_line
from turngate.text.presentation import default_lines
from turngate.wire.decisions import DecidedItem
from turngate.wire.orders import PolicyQuestion, RuleOrder
from turngate.wire.policy import (
    PRECEDENCE,
    Explanation,
    PolicyProposal,
    PolicyVersionDetail,
    PolicyView,
    RulePreview,
    RuleView,
    ShadowReport,
)

MOST_ROWS: Final = 50

app = typer.Typer(no_args_is_help=True, help="The rules that judge each call: check, explain, try, store.")

RulesFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file (TOML).")]
RuleFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file with one [[rule]] (TOML).")]
Replacing = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The stored rule that it replaces.", show_default="the one of its name, or none"),
]
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
    question = PolicyQuestion(tool=tool, args=text, agent=agent, workspace=directory)
    if file is None and app_name is None:
        with find_api(data_dir, url).client() as client:
            explanation = client.explain_policy(question)
    else:
        rules = None if file is None else read_policy(file)
        explanation = explained(question, rules=rules, app_name=app_name)
    if as_json:
        terminal.document(explanation.model_dump_json())
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
    trial = Trial(
        data_dir=data_dir, since=begun, limit=limit, examples=examples, app_name=app_name, criteria=criteria, yes=yes
    )
    report = None if policy is None else asyncio.run(backtested(policy, trial))
    judged = asyncio.run(recorded(trial) if judge is None else ask_now(judge, trial))
    if as_json:
        rules = {} if report is None else backtest_json(report)
        terminal.raw(json.dumps({**rules, "judge": judged.as_json()}))
        return
    if report is not None:
        show_backtest(report)
        if policy is not None and any(rule.total is not None for rule in policy.rule):
            terminal.note(JUDGED_ALONE)
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
        terminal.document(stored.model_dump_json()) if as_json else show_rules(stored.rules)
    elif as_json:
        terminal.document(policy.model_dump_json())
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
    _show_stored(stored, f": {len(stored.rules)} rule(s)")


@app.command()
def preview(
    file: RuleFile,
    replacing: Replacing = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Show what one rule would change if it were enforced, over the newest 1,000 calls. Needs an admin.

    Calls that people decided otherwise than the rule would come first.
    """
    with find_api(data_dir, url).client() as client:
        report = client.preview_policy_rule(checked_source(file), replacing=replacing)
    if as_json:
        terminal.document(report.model_dump_json())
    else:
        show_preview(report)


@app.command()
def offer(
    request: Annotated[str, typer.Argument(help="A request.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Print the narrowest rule that covers calls like a request's, if people approved many and stopped none. Needs an admin.

    The output is TOML, for `turngate policy preview` and `put`.
    """
    with find_api(data_dir, url).client() as client:
        offered = client.get_policy_offer(request)
    if as_json:
        terminal.document(offered.model_dump_json())
        return
    terminal.note(_line(f"{offered.approved} approved: {offered.says}"))
    terminal.raw(offered.toml.rstrip("\n"))


@app.command()
def put(
    file: RuleFile,
    mode: Annotated[
        Literal["shadow", "enforce"],
        typer.Option(help="shadow: only record what the rule would do; enforce: let it count."),
    ] = "shadow",
    replacing: Replacing = None,
    comment: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Store one rule among the stored rules; the text of the others stays as it is. Needs an admin."""
    source = checked_source(file)
    with find_api(data_dir, url).client() as client:
        stored = client.store_policy_rule(RuleOrder(rule=source, mode=mode, replacing=replacing, comment=comment))
    _show_stored(stored, f": {len(stored.rules)} rule(s)")


@app.command()
def enforce(
    name: Annotated[str, typer.Argument(help="The stored rule.")],
    comment: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    answer_waiting: Annotated[
        bool,
        typer.Option(
            "--answer-waiting", help="Also approve the requests that it would answer now, each by its own decision."
        ),
    ] = False,
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Make a stored shadow rule count. Needs an admin.

    Exit code: 1 if a request that waits could not be approved; the line says why.
    """
    done: list[DecidedItem] = []
    with find_api(data_dir, url).client() as client:
        stored = client.enforce_policy_rule(name, comment=comment)
        _show_stored(stored, f": {_line(name)} counts now")
        waiting = client.list_waiting_for_rule(name) if answer_waiting and stored.proposal is None else None
        if waiting is not None and waiting.requests:
            digests = {each.request_id: each.digest for each in waiting.requests}
            done = client.decide_requests(digests, verb="approve", message=waiting.reason).items
    for each in done:
        outcome = "approved" if each.problem is None else str(each.problem.get("detail", "not decided"))
        terminal.line("  ", (each.request_id, "dim"), f"  {_line(outcome)}")
    if waiting is not None and waiting.more:
        terminal.note("more requests wait: run the command again")
    if any(each.problem is not None for each in done):
        raise typer.Exit(EXIT_WENT_WRONG)


@app.command()
def history(as_json: AsJson = False, data_dir: DataDir = None, url: Url = None) -> None:
    """List the versions of the stored rules, newest first."""
    with find_api(data_dir, url).client() as client:
        page = client.list_policy_versions(limit=MOST_ROWS)
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in page.items]))
        return
    rows = [
        (str(each.version), second(each.created_at), plain_line(each.by, 120), plain_line(each.comment, 120))
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
    _show_stored(stored, f", with the rules of version {version}")


@app.command()
def confirm(
    proposal: Annotated[int, typer.Argument(min=1, help="Its number, from `turngate policy show`.")],
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Put the rules in force that another admin proposed. Needs an admin."""
    with find_api(data_dir, url).client() as client:
        stored = client.confirm_policy(proposal)
    _show_stored(stored, f": {len(stored.rules)} rule(s)")


@app.command()
def refuse(
    proposal: Annotated[int, typer.Argument(min=1, help="Its number, from `turngate policy show`.")],
    data_dir: DataDir = None,
    url: Url = None,
) -> None:
    """Refuse rules that were proposed, or withdraw your own. Needs an admin."""
    with find_api(data_dir, url).client() as client:
        client.refuse_policy(proposal)
    terminal.line(("✓ ", "bold"), f"proposal {proposal} is refused; the rules in force stay")


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
        terminal.document(report.model_dump_json())
    else:
        show_shadow(report)


def _show_stored(stored: PolicyVersionDetail, what: str) -> None:
    """Print that a version is in force, or that it waits for a second admin."""
    if stored.proposal is None:
        terminal.line(("✓ ", "bold"), f"version {stored.version} is in force{what}")
        return
    terminal.line(
        ("not in force yet: ", "bold yellow"),
        f"another admin has to confirm it: turngate policy confirm {stored.proposal}",
    )


def _show_proposal(proposal: PolicyProposal) -> None:
    terminal.line("")
    terminal.line(
        ("waits for a second admin", "bold yellow"),
        f"  proposal {proposal.number} by {_line(proposal.proposed_by)} at {second(proposal.created_at)}",
        f"  {_line(proposal.comment)}",
    )
    terminal.line("  ", _line(proposal.why))
    for word, names in (("adds", proposal.added), ("changes", proposal.changed), ("removes", proposal.removed)):
        if names:
            terminal.line(f"  {word} ", ", ".join(_line(each) for each in names))
    show_rules(proposal.rules)


def _warn(policy: Policy, app_name: str | None, source: str) -> int:
    """Print a warning for each doubtful rule, and return their number."""
    warnings = doubts(policy, None if app_name is None else tools_by_agent(app_name))
    for doubt in warnings:
        terminal.warning(f"{source}: {doubt.rule}: {doubt.message}")
    return len(warnings)


STYLE: Final = {"allow": "green", "ask": "yellow", "deny": "bold red", "depends": "yellow"}
MARK: Final = {"yes": "●", "no": "·", "unclear": "?"}
_NAMED: Final = frozenset({"name", "verdict", "shadow", "tools", "reason"})


def show_rules(rules: Sequence[RuleView]) -> None:
    """Print rules in the order of evaluation, each with the calls that it applies to."""
    for rule in rules:
        shadow = ("  shadow", "magenta") if rule.shadow else ""
        terminal.line(
            f"{rule.place:>3}  ", (rule.verdict.ljust(5), STYLE[rule.verdict]), "  ", (_line(rule.name), "bold"), shadow
        )
        terminal.line("       ", _line(rule.says))
        tools = ", ".join(str(each) for each in _as_list(rule.rule.get("tools")))
        rest = {name: value for name, value in rule.rule.items() if name not in _NAMED}
        terminal.line(("       tools ", "dim"), _line(tools), *_other_conditions(rest))
        if rule.total_used is not None:
            terminal.line(("       total so far ", "dim"), rule.total_used)


def show_policy(policy: PolicyView) -> None:
    """Print the rules of each source, and the order of evaluation."""
    stored = policy.stored
    if stored is None:
        terminal.line(("stored rules", "bold"), "  none")
    else:
        summary = (
            f"  version {stored.version} by {_line(stored.by)} at {second(stored.created_at)}  {_line(stored.comment)}"
        )
        terminal.line(("stored rules", "bold"), summary.rstrip())
        if stored.problem:
            terminal.line(("  cannot be read, so every call needs approval: ", "bold red"), _line(stored.problem))
        show_rules(stored.rules)
    if policy.proposed is not None:
        _show_proposal(policy.proposed)
    for file in policy.files:
        terminal.line("")
        where = file.file or "rules given in code"
        terminal.line((_line(where), "bold"), f"  for {', '.join(file.agents)}; published {second(file.published_at)}")
        show_rules(file.rules)
    terminal.line("")
    for place, text in enumerate(PRECEDENCE, 1):
        terminal.line((f"{place}. {text}", "dim"))


def show_explanation(explanation: Explanation) -> None:
    """Print the answer, then every rule and grant with its reason."""
    terminal.line(
        (explanation.answer, STYLE[explanation.answer]),
        f"  by {_line(explanation.rule)}  ",
        (f"risk {explanation.risk}", "dim"),
    )
    if explanation.reason:
        terminal.line("  ", _line(explanation.reason))
    if explanation.terms is not None and (terms := explanation.terms.model_dump(mode="json", exclude_defaults=True)):
        terminal.line(("  terms ", "dim"), _line(json.dumps(terms, ensure_ascii=False)))
    if explanation.shadow is not None:
        terminal.line(
            ("  with shadow rules: ", "magenta"), f"{explanation.shadow.answer} by {_line(explanation.shadow.rule)}"
        )
    for piece in default_lines(explanation.defaults):
        terminal.line("  ", piece)
    for rule in explanation.rules:
        mark = "▶" if rule.decides else MARK[rule.match]
        named = f"{_line(rule.name)} ({rule.source}{', shadow' if rule.shadow else ''})"
        terminal.line(
            f"  {mark} ", (rule.verdict.ljust(5), STYLE[rule.verdict]), f" {named}: ", (_line(rule.why), "dim")
        )
    for grant in explanation.grants:
        mark = MARK["yes" if grant.covers else "no"]
        terminal.line(f"  {mark} grant {grant.id} by {_line(grant.created_by)}: ", (_line(grant.why), "dim"))
    for note in explanation.notes:
        terminal.note(_line(note))


def show_backtest(report: Report) -> None:
    """Print what the rules would have answered to past calls, and what changes."""
    counted = ", ".join(f"{report.answers[answer]:,} {word}" for answer, word in _ANSWER_WORDS)
    terminal.line((f"{report.looked_at:,} calls", "bold"), f": {counted}")
    for (answer, rule), number in report.by_rule.most_common():
        terminal.line("  ", (answer.ljust(5), STYLE[answer]), f" {number:>7,}  {_line(rule)}")
    changed = report.changes.total()
    terminal.line("")
    terminal.line(
        (f"{changed:,} would get another answer", "bold"), f"; {report.same_answer:,} the same answer by another rule"
    )
    for change, number in report.changes.most_common():
        terminal.line(
            "  ", (change.was, STYLE[change.was]), " → ", (change.now, STYLE[change.now]), f"  {number:,}  ",
            (_line(change.tool), "bold"), f"  by {_line(change.now_rule)}, was {_line(change.was_rule)}",
        )  # fmt: skip
        _show_calls(report.examples[change], number)
    for why, number in report.unjudged.most_common():
        terminal.line((f"{number:,} could not be judged: {why}", "yellow"))


def backtest_json(report: Report) -> dict[str, Any]:
    """Return a report for programs."""
    return {
        "looked_at": report.looked_at,
        "answers": dict(report.answers),
        "by_rule": [
            {"answer": answer, "rule": rule, "calls": number} for (answer, rule), number in report.by_rule.most_common()
        ],
        "same_answer_by_another_rule": report.same_answer,
        "changes": [
            {
                **vars(change),
                "calls": number,
                "examples": [{"run_id": run, "tool_call_id": call} for run, call in report.examples[change]],
            }
            for change, number in report.changes.most_common()
        ],
        "unjudged": dict(report.unjudged),
    }


def show_judge(report: JudgeReport) -> None:
    """Print how the judge's answers differ from people's decisions. Calls that it would have let run against them come first."""
    who = "the judge" if report.model is None else f"the judge {_line(report.model)}"
    terminal.line(
        (f"{report.judged:,} calls", "bold"),
        f": {who} said allow of {report.count('allow'):,}, ask of {report.count('ask'):,}",
    )
    for pair in DIFFERENCES:
        answer, by_people = pair
        number, rate = report.pairs[pair], report.rate(pair)
        share = (
            "" if rate is None else f" ({rate:.1%} of {report.count(answer, decided_only=True):,} that people decided)"
        )
        style = "bold" if number else "dim"
        if number and pair == DIFFERENCES[0]:
            style = "bold red"
        line = f"judge {answer}, person {by_people}: {number:,}{share}"
        terminal.line("  ", (line, style))
        if number:
            _show_calls(report.examples.get(pair, []), number)
    for problem, number in report.problems.most_common():
        terminal.line((f"  {number:,} without an answer: {problem}", "yellow"))


def show_preview(report: RulePreview) -> None:
    """Print what a rule would change, decisions that contradict it first."""
    terminal.line((_line(report.says), "bold"))
    for warning in report.warnings:
        terminal.warning(warning)
    which = f"of the last {report.looked_at:,} calls" + (f" of {_line(report.tool)}" if report.tool else "")
    if not report.changes:
        terminal.line(f"{which}, none would have got another answer")
    for change in report.changes:
        terminal.line(
            f"{which}, {change.calls:,} change: ",
            (change.was, STYLE[change.was]),
            " → ",
            (change.now, STYLE[change.now]),
        )
        counted = (
            f"people approved {change.approved:,}, edited {change.edited:,} and rejected {change.rejected:,} of them"
        )
        terminal.line("  ", counted)
        if change.against_at_most is not None:
            bound = f"at most {change.against_at_most:.1%} of such calls would be decided otherwise (95 % confidence)"
            terminal.line("  ", (bound, "bold red" if change.against else ""))
        for call in change.examples:
            named = call.decision or ("not decided" if call.request_id else "not asked")
            terminal.line("    ", (named.ljust(11), "dim"), f" {_line(call.tool)} {_line(call.input)}")
        if change.calls > len(change.examples):
            terminal.line((f"    … {change.calls - len(change.examples):,} more", "dim"))
    if report.unjudged:
        terminal.line((f"{report.unjudged:,} could not be judged", "yellow"))
    if not report.whole:
        terminal.line((f"only the newest {report.looked_at:,} calls were judged: it took too long", "yellow"))


def show_shadow(report: ShadowReport) -> None:
    """Print what shadow rules would have changed."""
    bound = "" if report.whole else ", the newest; older ones were not checked"
    terminal.line((f"{report.looked_at:,} calls", "bold"), f" checked{bound}")
    for change in report.changes:
        terminal.line(
            "  ", (change.was, STYLE[change.was]), " → ", (change.would_be, STYLE[change.would_be]),
            f"  {change.calls:,} by {_line(change.rule)}",
        )  # fmt: skip
        _show_calls([(each.run_id, each.tool_call_id) for each in change.examples], change.calls)
    if not report.changes:
        terminal.line("no shadow rule would have changed anything")


_ANSWER_WORDS: Final[tuple[tuple[VerdictKind, str], ...]] = (("allow", "allowed"), ("ask", "asked"), ("deny", "denied"))


def _show_calls(places: Sequence[tuple[str, str]], number: int) -> None:
    for run_id, tool_call_id in places:
        terminal.line(("      ", ""), (f"{run_id} {_line(tool_call_id)}", "dim"))
    if number > len(places):
        terminal.line((f"      … {number - len(places):,} more", "dim"))


def _other_conditions(rest: dict[str, Any]) -> Iterable[Piece]:
    for name, value in rest.items():
        yield (f"  {name} ", "dim")
        yield _line(json.dumps(value, ensure_ascii=False))


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _line(text: str) -> str:
    return plain_line(text, 300)
