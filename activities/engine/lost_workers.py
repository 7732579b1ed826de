"""What kills or freezes the worker that judges it, again and again, ends its run instead of being retried forever (I14).

Planning a step and redeeming a call read what others wrote: a model's calls, a tool's schema, a person's edit. What is known
to take forever is bounded (DESIGN I14); this is for the rest, and for rules and previews that a builder wrote.

A first attempt costs nothing. One that repeats an earlier attempt appends an event before it judges, and another when it has
judged. The first one without the second means that its worker was lost there. A worker that is lost while it judges for many
runs does not say which one did it, so the next attempt of each of them judges alone, and only such attempts count. One
that judged to its end shows that judging doesn't kill, so only those after it count. Where other runs lose workers that this one
was not on, workers die without its help, and it may lose more of them (docs/adr/0032).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turngate.activities.engine.engine import Engine
from turngate.domain.errors import UnavailableError
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import calls, errors

WORKER_LOST: Final = "worker_lost"
REPEATED: Final = "attempt.repeated"
ENDED: Final = "attempt.ended"
MOST_LOST: Final = 3
"""Attempts, each alone and one after the other, that lose their worker at one place."""
MOST_LOST_AMID_OTHERS: Final = 6
"""The same, while other runs lose workers elsewhere."""
LOST_WORKER: Final = "worker lost while the tool ran"
"""How the store's record of errors says that a call lost its worker."""
LOSSES_WITHIN: Final = timedelta(minutes=10)
MOST_LOSSES_SEEN: Final = 500
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
    order = f"{info.workflow_run_id}/{info.activity_id}"
    attempt = {"place": place, "order": order, "attempt": info.attempt, "worker": engine.worker}
    async with engine.database.read() as conn:
        lost = await _lost_before(conn, run_id, attempt)
        is_last = await _are_too_many(conn, run_id, lost)
        judged = None if call is None else await calls.get(conn, run_id, call)
    if is_last:
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


async def _are_too_many(conn: Connection, run_id: str, lost: list[dict[str, Any]]) -> bool:
    """Tell whether so many attempts lost their worker that the run ends."""
    alone = sum(bool(each["alone"]) for each in lost)
    if alone < MOST_LOST or alone >= MOST_LOST_AMID_OTHERS:
        return alone >= MOST_LOST
    own = {each.get("worker", "") for each in lost}
    rows = await errors.saying(conn, (LOST_WORKER,), since=as_text(now() - LOSSES_WITHIN), limit=MOST_LOSSES_SEEN)
    return not any(row.run_id != run_id and row.worker not in own for row in rows)


async def _append(engine: Engine, run_id: str, event: events.NewEvent) -> None:
    async with engine.database.write() as conn:
        await events.append(conn, run_id, [event])
