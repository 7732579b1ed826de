"""Policy as lines of a terminal: rules in their order, an explanation, the report of a backtest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from turngate.cli import terminal
from turngate.domain.policy.policy import Answer
from turngate.policies.backtest import Report
from turngate.policies.judge_reports import DIFFERENCES, JudgeReport
from turngate.text.plain_text import Piece, plain_line
from turngate.wire.policy import PRECEDENCE, Explanation, PolicyView, RuleView, ShadowReport

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
        tools = ", ".join(str(each) for each in _listed(rule.rule.get("tools")))
        rest = {name: value for name, value in rule.rule.items() if name not in _NAMED}
        terminal.line(("       tools ", "dim"), _line(tools), *_rest(rest))


def show_policy(policy: PolicyView) -> None:
    """Print the rules of each source, and the order of evaluation."""
    stored = policy.stored
    if stored is None:
        terminal.line(("stored rules", "bold"), "  none")
    else:
        summary = (
            f"  version {stored.version} by {_line(stored.changed_by)} at {stored.created_at}  {_line(stored.comment)}"
        )
        terminal.line(("stored rules", "bold"), summary.rstrip())
        if stored.problem:
            terminal.line(("  cannot be read, so every call needs approval: ", "bold red"), _line(stored.problem))
        show_rules(stored.rules)
    for file in policy.files:
        terminal.line("")
        where = file.file or "rules given in code"
        terminal.line((_line(where), "bold"), f"  for {', '.join(file.agents)}; published {file.published_at}")
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
    counted = ", ".join(f"{report.answers[answer]:,} {word}" for answer, word in _ANSWERED)
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
        f": {who} said allow of {report.said('allow'):,}, ask of {report.said('ask'):,}",
    )
    for pair in DIFFERENCES:
        answer, by_people = pair
        number, rate = report.pairs[pair], report.rate(pair)
        share = (
            "" if rate is None else f" ({rate:.1%} of {report.said(answer, decided_only=True):,} that people decided)"
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


_ANSWERED: Final[tuple[tuple[Answer, str], ...]] = (("allow", "allowed"), ("ask", "asked"), ("deny", "denied"))


def _show_calls(places: Sequence[tuple[str, str]], number: int) -> None:
    for run_id, tool_call_id in places:
        terminal.line(("      ", ""), (f"{run_id} {_line(tool_call_id)}", "dim"))
    if number > len(places):
        terminal.line((f"      … {number - len(places):,} more", "dim"))


def _rest(rest: dict[str, Any]) -> Iterable[Piece]:
    for name, value in rest.items():
        yield (f"  {name} ", "dim")
        yield _line(json.dumps(value, ensure_ascii=False))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _line(text: str) -> str:
    return plain_line(text, 300)
