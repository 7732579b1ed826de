"""The report of a chaos run, in Markdown: what was done, what was answered, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Final

import instants
from checker import ONCE, Violation
from evidence import Evidence

from turngate.store.clock import from_text

ENDS: Final = frozenset({"request.decided", "request.expired", "request.cancelled", "request.superseded"})
HEADLINES: Final = (
    ("lost", "lost runs, calls, results or requests"),
    ("twice", "`once` handlers started twice without a person's word, decisions redeemed twice"),
    ("unapproved", "effects without a matching approval"),
    ("decision", "decisions answered otherwise than they are recorded"),
    ("forged", "forged messages that counted"),
    ("conversation", "conversations not reconciled"),
    (
        "workflow",
        "workflows that disagree with the store, do not replay, or have a task failure that was never resolved",
    ),
    ("record", "other contradictions within the store"),
)


@dataclass(kw_only=True)
class Outcome:
    """One chaos run over one database. ``sent``: target and signal → times; ``hits``: instant and action → times."""

    database: str
    seed: str
    gated: int
    seconds: float
    sent: Counter[tuple[str, str]]
    hits: Counter[tuple[str, str]]
    refused: int
    away: int
    gave_up: Counter[str] = field(default_factory=Counter)
    """Processes of Temporal that ended by themselves."""
    forged: Counter[str] = field(default_factory=Counter)
    """Forged messages that Temporal took."""
    evidence: Evidence | None = None
    violations: list[Violation] = field(default_factory=list)
    broke: str = ""
    """Why it did not come to its end; empty when it did."""
    directory: str = ""
    """Its directory with all logs; empty, and removed, if nothing went wrong."""

    @property
    def good(self) -> bool:
        return not self.violations and not self.broke


def written(outcomes: Sequence[Outcome]) -> str:
    """Return the whole report."""
    verdict = "nothing wrong" if all(each.good for each in outcomes) else "SOMETHING IS WRONG"
    lines = [f"# Chaos: {sum(each.gated for each in outcomes)} gated calls, {verdict}", ""]
    for each in outcomes:
        lines += [*_one(each), ""]
    return "\n".join(lines)


def _one(of: Outcome) -> Iterable[str]:
    yield f"## {of.database}: {of.gated} gated calls in {of.seconds:.0f} s (CHAOS_SEED={of.seed})"
    yield ""
    if of.broke:
        yield f"It did not come to its end: {of.broke}"
        yield ""
    if of.evidence is not None:
        kinds = Counter(violation.kind for violation in of.violations)
        yield from (f"- **{kinds[kind]}** {words}" for kind, words in HEADLINES)
        yield ""
        yield from _facts(of.evidence)
    yield f"- forged messages that Temporal took: {of.forged.total()} ({_counts(of.forged)})"
    yield f"- starts refused because the store or Temporal was away: {of.refused}; answers that the API was away: {of.away}"
    if of.gave_up:
        yield f"- processes of Temporal that ended by themselves, and were started again: {_counts(of.gave_up)}"
    yield ""
    yield from _table(("process", "signal", "times"), _signals(of.sent))
    every = [*instants.WORKER, *instants.API]
    rows = [(each, of.hits[each, "kill"], of.hits[each, "stop"]) for each in every]
    yield from _table(("named instant", "killed there", "paused there"), rows)
    if of.violations:
        yield "What is wrong:"
        yield ""
        yield from (f"- {violation}" for violation in of.violations)
        yield ""
    if of.directory:
        yield f"Everything is kept in `{of.directory}`."


def _facts(evidence: Evidence) -> Iterable[str]:
    ended = Counter(recorded.run.status for recorded in evidence.runs.values())
    subs = sum(recorded.run.parent_run_id is not None for recorded in evidence.runs.values())
    yield f"- runs: {_counts(ended)}; {subs} of them sub-agents'"
    calls = sum(len(recorded.calls) for recorded in evidence.runs.values())
    starts = Counter(line.tool for line in evidence.ledger)
    again = len(evidence.ledger) - len({line.of for line in evidence.ledger})
    yield f"- calls: {calls}; handlers started: {_counts(starts)}; {again} of them again"
    requests = [request for recorded in evidence.runs.values() for request in recorded.requests]
    approvals = Counter(request.status for request in requests if request.kind == "approval")
    yield f"- approvals asked for: {_counts(approvals)}"
    regrets = Counter("in time" if each.http == HTTPStatus.OK else each.code for each in evidence.taken_back)
    yield f"- approvals taken back during their grace: {_counts(regrets) or 'none'}"
    yield f"- answers to decisions: {_counts(Counter(f'{answer.http:d} {answer.code}'.strip() for answer in evidence.answers))}"
    unknown = [request for request in requests if request.kind == "outcome"]
    resolutions = Counter(
        content.outcome or "?"
        for recorded in evidence.runs.values()
        for request in recorded.requests
        if request.kind == "outcome" and (content := recorded.decisions.get(request.decision_id or "")) is not None
    )
    lost = len({line.of for line in evidence.ledger if line.tool in ONCE})
    resolved = _counts(resolutions) or "none"
    yield f"- `once` calls that had an effect: {lost}; unknown outcomes: {len(unknown)}, resolved: {resolved}"
    late = sum(event.type == "execution.late" for recorded in evidence.runs.values() for event in recorded.events)
    yield f"- late results of workers that were taken for lost: {late}"
    again_new = sum(workflow.executions - 1 for workflow in evidence.workflows.values())
    failures = Counter(
        failure.partition(":")[0] for workflow in evidence.workflows.values() for failure in workflow.task_failures
    )
    seconds, after = _longest_stall(evidence)
    yield f"- the longest stall of a run that was not waiting for anyone: {seconds:.0f} s, after {after}"
    yield f"- continued as new: {again_new} times; workflow tasks that failed and succeeded later: {_counts(failures) or 'none'}"


def _longest_stall(evidence: Evidence) -> tuple[float, str]:
    """Return the longest time without an event in a run that waited for no one, and the event before it.

    Runs that were paused, or wait for sub-agents' runs, are left out.
    """
    longest = (0.0, "nothing")
    for run_id, recorded in evidence.runs.items():
        if any(call.child_run_id for call in recorded.calls) or any(e.type == "run.paused" for e in recorded.events):
            continue
        waiting: set[object] = set()
        for event, following in pairwise(recorded.events):
            request = event.payload.get("request_id")
            if event.type == "request.opened":
                waiting.add(request)
            elif event.type in ENDS:
                waiting.discard(request)
            seconds = (from_text(following.created_at) - from_text(event.created_at)).total_seconds()
            if not waiting and seconds > longest[0]:
                longest = (seconds, f"{event.type} in {run_id}, then {following.type}")
    return longest


def _signals(sent: Mapping[tuple[str, str], int]) -> list[tuple[object, ...]]:
    return [(target, number, times) for (target, number), times in sorted(sent.items()) if number != "SIGCONT"]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{times} {name}" for name, times in sorted(counts.items()))


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    yield from ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    yield ""
