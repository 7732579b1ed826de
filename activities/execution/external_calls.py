"""Redemption of calls from outside: the door opens for one attempt of the sender, which runs the call and reports.

Nothing of such a call runs here (ADR 0024). The workflow comes to the door when the sender is there to start the call, again
when its report has come, and again when the time for a report is over.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from turngate.activities.execution import lost_calls
from turngate.activities.execution.door import Door
from turngate.activities.execution.redemption import Redeemed, Redemption, Waits
from turngate.activities.execution.settlement import Start, end_state, tell_started
from turngate.domain.contract import Wait
from turngate.domain.text.sentences import as_sentence
from turngate.domain.tools.failures import MAX_REASON_CHARS
from turngate.domain.tools.results import Failure
from turngate.store.clock import as_text, from_text, now
from turngate.store.runs import external_calls

NO_REPORT = "The program that was to run it never reported its result."

DONT_SAY: Final = frozenset({"execution_error", "timeout"})
"""Kinds of reported failures that don't say whether the call took effect (I3). A kind of the sender's own is a declared one."""

UNWANTED = Waits(Wait(news=True))
"""The call may run, and its sender is not there to run it yet."""


async def is_wanted(door: Door) -> bool:
    """Tell whether the sender is there to start the call. Until it is, nothing is redeemed: an approval is used once."""
    call = await external_calls.get(door.conn, door.run.id)
    return call is not None and call.wanted_by is not None


async def hand_out(door: Door, start: Start) -> Waits:
    """Let the attempt that wants the call run it, until its deadline. The execution row is written already (I2, I3)."""
    await tell_started(door.conn, door.call, start)
    return await _let_run(door)


async def resume(door: Door) -> Redemption:
    """Return what happens to a call that was handed out: its report, more waiting, or a question to a person.

    That our own worker was lost meanwhile says nothing about a call that runs elsewhere.
    """
    outside = await external_calls.get(door.conn, door.run.id)
    if door.previous_start.state == "executing" and outside is not None and outside.deadline_at is not None:
        report = outside.reported
        if isinstance(report, Failure) and report.kind in DONT_SAY and door.call.effect == "once":
            await external_calls.take_back(door.conn, door.run.id)
            why = as_sentence(f"The program that ran it reported {report.kind}: {report.reason[:MAX_REASON_CHARS]}")
            return await lost_calls.ask_resolution(door, why=why, rule=lost_calls.ENDED_RULE)
        if report is not None:
            await door.end_previous_start(end_state(report))
            return await door.settle(report, by="report")
        deadline = from_text(outside.deadline_at)
        if now() < deadline:
            return Waits(Wait(until=deadline, news=True))
        return await _give_up(door)
    if await door.has_resolution() and not await is_wanted(door):
        return UNWANTED
    redemption = await lost_calls.resume(door)
    return await _let_run(door) if isinstance(redemption, Redeemed) else redemption


async def _give_up(door: Door) -> Redemption:
    """Take back a call that was not reported in time; what happened to a ``once`` call, a person is asked."""
    await external_calls.take_back(door.conn, door.run.id)
    if door.call.effect == "once":
        return await lost_calls.ask_resolution(door, why=NO_REPORT, rule="engine:no-report")
    await door.end_previous_start("failed")
    late = f"{door.call.tool_name!r} was started outside, and no result was reported in time."
    return await door.refuse(Failure(kind="timeout", reason=late))


async def _let_run(door: Door) -> Waits:
    deadline = now() + door.tool.timeout
    await external_calls.hand_out(door.conn, door.run.id, deadline_at=as_text(deadline))
    # A moment more than the sender has: what it reports at the very end must be in the store before we look.
    return Waits(Wait(until=deadline + timedelta(seconds=1), news=True))
