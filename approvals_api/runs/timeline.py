"""When what happened in a run, in seconds from its start: requests to the model, waits for people, calls that ran.

Reads times only: a run of 10,000 steps costs as many statements as one of two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from turngate.approvals_api.lookups import existing_run
from turngate.domain.tools.external import is_external
from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.runs import timeline as store
from turngate.store.runs.runs import Run
from turngate.store.runs.timeline import CallTimes, Interruption, RequestTimes, RunTimes

SpanKind = Literal["model", "person", "tool"]
BAD: Final = frozenset({"failed", "unknown", "rejected", "expired", "cancelled", "not run"})
"""How spans end that someone may look for."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that took time. ``begin``, ``end``: seconds from the run's start; ``is_open``: it has not ended.

    ``kind``: what was waited for: the model, a person, a tool. ``name``: the model's or tool's name, or ``pause``. ``ended``:
    how, in a word; empty while it is open. ``by``: who decided; None: no one. ``place``: of the call in its step, from 1; 0:
    it belongs to no call. ``failures``: when requests to the model failed on the way. ``attempts``: how often the tool started.
    """

    kind: SpanKind
    step: int
    name: str
    begin: float
    end: float
    is_open: bool = False
    ended: str = ""
    by: str | None = None
    place: int = 0
    request_id: str | None = None
    child_run_id: str | None = None
    failures: tuple[float, ...] = ()
    attempts: int = 1
    tokens: int = 0

    @property
    def is_bad(self) -> bool:
        """Whether it ended as one would rather not have it."""
        return self.ended in BAD

    @property
    def was_repeated(self) -> bool:
        """Whether it took more than one attempt."""
        return bool(self.failures) or self.attempts > 1


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A run's spans by step, and in a step by call. ``seconds``: how long the run took, or has been running."""

    run: Run
    seconds: float
    spans: list[Span]

    def within(self, begin: float, end: float) -> list[Span]:
        """Return the spans that are at least partly in this time."""
        return [each for each in self.spans if each.begin <= end and each.end >= begin]


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run as it was read. ``now``: when open spans end, if it is live."""

    run: Run
    times: RunTimes
    now: datetime


async def recorded_run(conn: Connection, run_id: str, now: datetime) -> RecordedRun:
    """Return what is stored of a run's times. Raises NotFoundError."""
    return RecordedRun(run=await existing_run(conn, run_id), times=await store.of_run(conn, run_id), now=now)


def timeline_of(recorded: RecordedRun) -> Timeline:
    """Return the timeline of a run. Of a long run it takes a while: call it in a thread."""
    run = recorded.run
    end = recorded.now if run.ended_at is None else from_text(run.ended_at)
    clock = _RunClock(run, recorded.times, max(end, from_text(run.created_at)))
    spans = sorted(clock.spans(), key=lambda each: (each.step, each.place, each.begin))
    return Timeline(run=run, seconds=clock.at(None), spans=spans)


class _RunClock:
    """The rows of one run, with its clock."""

    def __init__(self, run: Run, times: RunTimes, end: datetime) -> None:
        self._run = run
        self._times = times
        self._start = from_text(run.created_at)
        self._end = end

    def at(self, instant: str | None) -> float:
        """Return an instant in seconds from the start; None: the end. Clocks of other machines may be late: never below 0."""
        moment = self._end if instant is None else from_text(instant)
        return max(0.0, (moment - self._start) / timedelta(seconds=1))

    def spans(self) -> Iterator[Span]:
        """Yield all spans, in no order."""
        calls_by_step: defaultdict[int, list[CallTimes]] = defaultdict(list)
        for call in self._times.calls:
            calls_by_step[max(1, call.step)].append(call)
        requests_by_call: defaultdict[str, list[RequestTimes]] = defaultdict(list)
        for request in self._times.requests:
            requests_by_call[request.tool_call_id].append(request)
        pauses = list(self._pauses())
        for step, calls in calls_by_step.items():
            for place, call in enumerate(calls, 1):
                yield from self._of_call(step, place, call, requests_by_call[call.tool_call_id])
        if not is_external(self._run.agent):
            yield from self._of_model(calls_by_step, pauses)
        yield from pauses

    def _of_call(self, step: int, place: int, call: CallTimes, opened: Iterable[RequestTimes]) -> Iterator[Span]:
        span = Span(kind="tool", step=step, name=call.tool_name, place=place, begin=0.0, end=0.0)
        for each in opened:
            yield replace(
                span,
                kind="person",
                begin=self.at(each.created_at),
                end=self.at(each.decided_at),
                is_open=each.status == "pending",
                ended="" if each.status == "pending" else each.status,
                by=each.decided_by,
                request_id=each.id,
            )
        if call.started_at is not None:
            is_open = call.ended_at is None and call.state == "executing"
            yield replace(
                span,
                begin=self.at(call.started_at),
                end=self.at(None if is_open else call.ended_at or call.settled_at),
                is_open=is_open,
                ended="" if is_open else call.state or "",
                child_run_id=call.child_run_id,
                attempts=call.attempts or 1,
            )
        elif call.disposition == "closed":
            moment = self.at(call.settled_at)
            yield replace(span, begin=moment, end=moment, ended="not run")

    def _of_model(self, calls_by_step: dict[int, list[CallTimes]], pauses: list[Span]) -> Iterator[Span]:
        failures: defaultdict[int, list[float]] = defaultdict(list)
        for each in self._times.interruptions:
            if each.kind == "model.retrying" and each.step is not None:
                failures[each.step].append(self.at(each.at))
        free_at, step = 0.0, 0
        for taken in self._times.steps:
            step = taken.step
            yield Span(
                kind="model",
                step=step,
                name=taken.model,
                begin=_after(pauses, free_at, self.at(taken.created_at)),
                end=self.at(taken.created_at),
                ended="answered",
                failures=tuple(failures[step]),
                tokens=taken.input_tokens + taken.output_tokens,
            )
            # What the engine asks after a step (for more of a budget) is settled after the step is closed.
            settled = [self.at(each.settled_at) for each in calls_by_step.get(step, [])]
            free_at = max([self.at(taken.closed_at), *settled])
        asks = self._run.ended_at is None and self._run.paused_at is None
        if asks and free_at < self.at(None):
            yield Span(
                kind="model",
                step=step + 1,
                name=self._run.model,
                begin=_after(pauses, free_at, self.at(None)),
                end=self.at(None),
                is_open=True,
                failures=tuple(failures[step + 1]),
            )

    def _pauses(self) -> Iterator[Span]:
        paused: Interruption | None = None
        for each in self._times.interruptions:
            if each.kind == "run.paused":
                paused = each
            elif each.kind == "run.resumed" and paused is not None:
                yield self._pause(paused, each)
                paused = None
        if paused is not None:
            yield self._pause(paused, None)

    def _pause(self, paused: Interruption, resumed: Interruption | None) -> Span:
        before = [each.step for each in self._times.steps if each.created_at <= paused.at]
        return Span(
            kind="person",
            step=max(before, default=1),
            name="pause",
            begin=self.at(paused.at),
            end=self.at(None if resumed is None else resumed.at),
            is_open=resumed is None and self._run.ended_at is None,
            ended="" if resumed is None else "resumed",
            by=paused.by if resumed is None else resumed.by,
        )


def _after(pauses: Iterable[Span], begin: float, end: float) -> float:
    """Return when the model was asked: after the last pause in this time, since a paused run asks nothing."""
    return max([begin, *(each.end for each in pauses if begin <= each.end <= end)])
