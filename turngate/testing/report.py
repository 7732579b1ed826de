"""Compare a replayed run with its fixture: divergences, and the invariants that hold for every run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message
from turngate.domain.runs.fixtures import Fixture, FixtureCall, FixtureEnd, FixtureResponse
from turngate.domain.tools.results import Failure, Ok

MAX_QUOTED_CHARS: Final = 400

Kind = Literal[
    "unrecorded_request",
    "decision_refused",
    "never_expires",
    "not_asked",
    "asked",
    "verdict",
    "request_ended",
    "ran_with",
    "result",
    "call_missing",
    "run_ended",
    "not_closed_once",
    "not_reconciled",
]
"""``not_closed_once`` and ``not_reconciled`` break an invariant of the engine (I1); the others are the app's differences."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """One difference. ``tool_call_id``, ``tool``: empty if it is about the whole run."""

    kind: Kind
    message: str
    tool_call_id: str = ""
    tool: str = ""

    def __str__(self) -> str:
        """Return it as one paragraph."""
        where = f"call {self.tool_call_id} ({self.tool}): " if self.tool_call_id else ""
        return f"[{self.kind}] {where}{self.message}"


@dataclass(frozen=True, kw_only=True)
class CallReport:
    """One call, recorded and actual. ``actual`` None: it was not made again."""

    recorded: FixtureCall
    actual: FixtureCall | None


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """The report on a replayed run, whose id is ``run_id``."""

    run_id: str
    calls: tuple[CallReport, ...]
    ended: FixtureEnd
    divergences: tuple[Divergence, ...]

    def check(self) -> None:
        """Raise AssertionError, naming each, unless nothing diverged and each call was closed exactly once."""
        if self.divergences:
            lines = "\n".join(f"- {each}" for each in self.divergences)
            raise AssertionError(f"the run differs from its fixture in {len(self.divergences)} place(s):\n{lines}")


@dataclass(frozen=True, kw_only=True)
class ReplayedRun:
    """A run that was replayed, in a fixture's terms.

    ``reason``: why it ended, in its own words. ``history``: its conversation, from the first message to the last. ``seen``: the
    divergences that were noticed while it ran.
    """

    run_id: str
    responses: Sequence[FixtureResponse]
    ended: FixtureEnd
    reason: str
    history: Sequence[Message]
    seen: Sequence[Divergence] = ()


def compare(fixture: Fixture, replayed: ReplayedRun, *, any_result_of: Collection[str] = ()) -> ReplayReport:
    """Return the report on a replayed run. ``any_result_of``: names of tools whose successful results may differ."""
    actual = {call.id: call for response in replayed.responses for call in response.calls}
    calls = tuple(CallReport(recorded=call, actual=actual.get(call.id)) for call in fixture.calls.values())
    divergences = list(replayed.seen)
    for call in calls:
        divergences += _call_divergences(call.recorded, call.actual, any_result_of)
    divergences += _end_divergences(fixture.ended, replayed.ended, replayed.reason)
    divergences += _broken_invariants(actual.values(), replayed.history)
    return ReplayReport(run_id=replayed.run_id, calls=calls, ended=replayed.ended, divergences=tuple(divergences))


def _call_divergences(
    recorded: FixtureCall, actual: FixtureCall | None, any_result_of: Collection[str]
) -> list[Divergence]:
    if actual is None:
        differences: list[tuple[Kind, str]] = [("call_missing", "was recorded, and the run ended before it was made")]
    else:
        differences = [*_gate_differences(recorded, actual), *_run_differences(recorded, actual, any_result_of)]
    return [
        Divergence(kind=kind, message=message, tool_call_id=recorded.id, tool=recorded.tool)
        for kind, message in differences
    ]


def _gate_differences(recorded: FixtureCall, actual: FixtureCall) -> Iterator[tuple[Kind, str]]:
    """Yield the differences in policy's verdict and in the request."""
    rule = f"verdict {actual.verdict}, rule {actual.rule}" if actual.verdict else "policy was not asked"
    then, now = recorded.request, actual.request
    if then is not None and now is None:
        yield "not_asked", f"a person was asked then ({then.ended}), and no one is now: {rule}"
    elif then is None and now is not None:
        yield "asked", f"no one was asked then, and a person is now: {rule}"
    elif recorded.verdict != actual.verdict:
        yield "verdict", f"the verdict was {recorded.verdict} (rule {recorded.rule}), and now it is: {rule}"
    if then is not None and now is not None and then.ended != now.ended:
        yield "request_ended", f"the request was {then.ended}, and is now {now.ended}"


def _run_differences(
    recorded: FixtureCall, actual: FixtureCall, any_result_of: Collection[str]
) -> Iterator[tuple[Kind, str]]:
    """Yield the differences in the arguments that ran, and in the result."""
    if recorded.ran_with != actual.ran_with:
        yield "ran_with", _changed(recorded.ran_with, actual.ran_with)
    may_differ = recorded.tool in any_result_of and isinstance(recorded.result, Ok) and isinstance(actual.result, Ok)
    if recorded.result != actual.result and not may_differ:
        yield "result", _changed(_json(recorded.result), _json(actual.result))


def _end_divergences(recorded: FixtureEnd, actual: FixtureEnd, reason: str) -> list[Divergence]:
    if recorded == actual:
        return []
    if (recorded.status, recorded.error_class) == (actual.status, actual.error_class):
        return [Divergence(kind="run_ended", message=f"the answer: {_changed(recorded.final_text, actual.final_text)}")]
    then = " ".join(filter(None, (recorded.status, recorded.error_class)))
    now = " ".join(filter(None, (actual.status, actual.error_class)))
    return [Divergence(kind="run_ended", message=f"the run ended as {then}, and now as {now}: {reason or 'no reason'}")]


def _broken_invariants(calls: Collection[FixtureCall], history: Sequence[Message]) -> list[Divergence]:
    """Return where I1 does not hold: each call of the run has exactly one result, directly after it and in order."""
    results = Counter(part.tool_call_id for message in history for part in message.results)
    divergences = [
        Divergence(
            kind="not_closed_once",
            message=f"has {results[call.id]} result(s) in the conversation, and {'one' if call.result else 'none'} itself",
            tool_call_id=call.id,
            tool=call.tool,
        )
        for call in calls
        if results[call.id] != 1 or call.result is None
    ]
    if not is_reconciled(history):
        divergences.append(
            Divergence(kind="not_reconciled", message="a call does not have one result, directly after it and in order")
        )
    return divergences


def _json(result: Ok | Failure | None) -> str:
    return "none" if result is None else result.model_dump_json(exclude={"tag"})


def _changed(before: str | None, after: str | None) -> str:
    return f"was {_clipped(before)}, and is now {_clipped(after)}"


def _clipped(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"
