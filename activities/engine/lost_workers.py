"""What kills or freezes the worker that judges it, again and again, ends its run instead of being retried forever (I14).

Planning a step and redeeming a call read what others wrote: a model's calls, a tool's schema, a person's edit. What is known
to take forever is bounded (DESIGN I14); this is for the rest, and for rules and previews that a builder wrote.

A first attempt costs nothing. One that repeats an earlier attempt appends an event before it judges, and another when it has
judged. The first one without the second means that its worker was lost there. A worker that is lost while it judges for many
runs does not say which one did it, so the next attempt of each of them judges alone, and only such attempts count. One
that judged to its end shows that judging doesn't kill, so only those after it count (docs/adr/0032).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.engine.engine import Engine
from turngate.domain.errors import UnavailableError
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls

WORKER_LOST: Final = "worker_lost"
REPEATED: Final = "attempt.repeated"
ENDED: Final = "attempt.ended"
MOST_LOST: Final = 3
"""Attempts, each alone and one after the other, that lose their worker at one place."""
SEEN_AT_ONCE: Final = 200
"""Of a run's newest such events. Its calls are few, and each is given up after a handful."""


@asynccontextmanager
async def judging(engine: Engine, run_id: str, place: str, *, call: str | None = None) -> AsyncIterator[None]:
    """Judge inside the block. ``place``: what is judged, in words for people, such as ``the plan of step 3``.

    ``call``: the call that is judged, if it is one; the error names its tool.

    Raises:
        ApplicationError: ``worker_lost``, not retryable: workers were lost here too often.
    """
    info = activity.info()
    if info.attempt == 1:
        yield
        return
    # Each order of an activity counts for itself; of one order there is one attempt at a time.
    attempt = {"place": place, "order": f"{info.workflow_run_id}/{info.activity_id}", "attempt": info.attempt}
    async with engine.database.read() as conn:
        lost = await _lost_before(conn, run_id, attempt)
        judged = None if call is None else await calls.get(conn, run_id, call)
    if sum(each["alone"] for each in lost) >= MOST_LOST:
        of_tool = "" if judged is None else f", of the tool {judged.tool_name!r}"
        why = (
            f"{len(lost)} workers in a row were killed or froze at one place: {place}{of_tool}. It is not tried again. The "
            "log of the worker, or its limit of memory, may say what happens there."
        )
        raise ApplicationError(why, WORKER_LOST, type=WORKER_LOST, non_retryable=True)
    async with engine.judged_alone if lost else nullcontext():
        await _append(engine, run_id, (REPEATED, {**attempt, "alone": bool(lost)}))
        try:
            yield
        finally:
            with suppress(UnavailableError):  # then this one counts as lost, and the next one finds out
                await _append(engine, run_id, (ENDED, attempt))


async def _lost_before(conn: Connection, run_id: str, attempt: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the attempts of the same order that began at this place and did not end, since the last one that did."""

    async def here(kind: str) -> list[dict[str, Any]]:
        payloads = [event.payload for event in await events.newest(conn, run_id, kind, limit=SEEN_AT_ONCE)]
        return [each for each in payloads if (each["order"], each["place"]) == (attempt["order"], attempt["place"])]

    last_ended = max((each["attempt"] for each in await here(ENDED)), default=0)
    return [each for each in await here(REPEATED) if each["attempt"] > last_ended]


async def _append(engine: Engine, run_id: str, event: events.NewEvent) -> None:
    async with engine.database.write() as conn:
        await events.append(conn, run_id, [event])
