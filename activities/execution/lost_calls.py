"""Calls that started and have no known end: what a retry may do, and who is asked what happened to them (DESIGN §3.6, I3).

The worker was lost while the handler ran; or the handler of a ``once`` call ended in a way that doesn't say whether it took
effect (:class:`UnknownEnd`). The checks below are passed in order, as those of :mod:`turngate.activities.execution.checks` are;
a call that passes all of them starts once more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pydantic import JsonValue
from temporalio.exceptions import ApplicationError

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import Where, note
from turngate.activities.engine.lost_workers import LOST_WORKER
from turngate.activities.execution.door import MOVED_ON, Door, not_run, resolution_request_id
from turngate.activities.execution.redemption import AskAgain, Redeemed, Redemption, Settled, Stopped, UnknownEnd
from turngate.activities.execution.settlement import Start, tell_started
from turngate.activities.planning.requests import open_request, ready_call, waiting_call
from turngate.domain.contract import RunToolInput
from turngate.domain.requests import LostStart
from turngate.domain.runs.inbox import urgent_at
from turngate.domain.text.bounds import head
from turngate.domain.tools import results
from turngate.domain.tools.defaults import complete_text, for_readers
from turngate.domain.tools.probes import DidNotHappen, Happened, ProbeAnswer
from turngate.domain.tools.results import Failure, Ok, as_object
from turngate.domain.tools.summary import check_text
from turngate.domain.tools.tool import ToolManifest
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.live import progress
from turngate.store.requests import requests
from turngate.store.runs import errors, executions

MAX_STARTS = 5
"""How many workers a call may lose while others are lost without it; a ``once`` one only where its probe allows it."""

STARTS_SEEN: Final = 200
"""Of a run's newest starts: the lost one is among them."""
MAX_PROGRESS_BYTES: Final = 2_000
MOST_LOST: Final = 2
"""Workers that a call may lose if it alone loses them (I14)."""
STOPPED_WORKER: Final = "worker stopped while the tool ran"
"""How a start is on record whose worker said that it stops; a lost one is there as LOST_WORKER."""
BEFORE_FIRST_START: Final = timedelta(minutes=10)
"""Losses of other calls count from so long before a call's first start."""
MOST_LOSSES_SEEN: Final = 500
MOST_CALLS_SEEN: Final = 50
ENDED_UNKNOWN: Final = "the end of a call says nothing"
"""How a start is on record whose handler ended so, if its tool's probe lets the call start again."""
WHICH: Final = "It may or may not have taken effect: which?"
NEVER_REPORTED: Final = "Its run ended while it ran, and it never reported back."
LOST_RULE, ENDED_RULE = "engine:lost-worker", "engine:unknown-outcome"


async def resume(door: Door) -> Redemption:
    """Return what happens to a call whose handler was started before, and which has no result."""
    if door.end is not None and door.end.attempt != door.previous_start.attempts:
        return Settled()  # another attempt has moved the call on, and only its end counts
    await name_the_tool(door)
    for check in CHECKS:
        redemption = await check(door)
        if redemption is not None:
            return redemption
    return await start_again(door)


async def name_the_tool(door: Door) -> None:
    """Note which tool and call lost their worker; from the second time on, that the tool may kill it (I14)."""
    lost, call = door.previous_start, door.call
    if lost.state != "executing" or door.end is not None:
        return
    losses = await losses_of(door)
    if not losses.is_new:
        return
    where = Where(run_id=call.run_id, step=call.step, tool_call_id=call.tool_call_id, attempt=lost.attempts)
    worker = lost.worker or "an unknown worker"
    of_call = f"while {call.tool_name!r} ran (call {call.tool_call_id}"
    message = f"The worker {worker} was lost {of_call}). Any worker may be lost once."
    if losses.count > 1:
        message = (
            f"The worker was lost {losses.count} times {of_call}; last on {worker}). The tool may kill it: look at the worker's "
            "log and its limit of memory."
        )
    process = (lost.worker or "", lost.build or "")
    await note(door.conn, door.engine, LOST_WORKER, message, where, process=process, tool=call.tool_name)


async def note_orderly_stop(engine: Engine, where: Where, tool_name: str) -> None:
    """Note that this worker stops in order while a handler runs, as in a deploy: that start doesn't count against its call."""
    message = f"The worker was stopped in order while {tool_name!r} ran (call {where.tool_call_id})."
    async with engine.database.write() as conn:
        await note(conn, engine, STOPPED_WORKER, message, where, tool=tool_name)


@dataclass(frozen=True)
class Losses:
    """The starts of a call that lost their worker, and those of other calls around that time (ADR 0047).

    ``count``: with the one at hand, and with those whose end was unknown. ``is_new``: that one was lost, not stopped in order,
    and is not noted yet. ``workers``: the processes that were lost with it. ``others``: other call → the processes lost with it.
    """

    count: int
    is_new: bool
    workers: frozenset[str]
    others: Mapping[tuple[str, str], frozenset[str]]

    @property
    def blame_the_call(self) -> bool:
        """Whether only this call explains them: no other call lost a worker elsewhere, or lost all of these workers, too."""
        return all(workers < self.workers for workers in self.others.values())

    @property
    def are_too_many(self) -> bool:
        """Whether the call may not start again."""
        return self.count >= (MOST_LOST if self.blame_the_call else MAX_STARTS)


async def losses_of(door: Door) -> Losses:
    """Return what is on record about lost workers since this call first started, and for a while before."""
    lost, this = door.previous_start, (door.call.run_id, door.call.tool_call_id)
    since = as_text(from_text(lost.started_at) - BEFORE_FIRST_START)
    says = (LOST_WORKER, STOPPED_WORKER, ENDED_UNKNOWN)
    rows = await errors.saying(door.conn, says, since=since, limit=MOST_LOSSES_SEEN)
    by_call: defaultdict[tuple[str, str], list[errors.StoredError]] = defaultdict(list)
    for row in rows:
        by_call[row.run_id, row.tool_call_id or ""].append(row)
    own = by_call.pop(this, [])
    is_new = door.end is None and lost.attempts not in {row.attempt for row in own}
    workers = _lost_with(own) | ({lost.worker or ""} if is_new else frozenset())
    return Losses(
        count=lost.attempts - sum(row.says == STOPPED_WORKER for row in own),
        is_new=is_new,
        workers=workers,
        others=await _with_unseen(door.conn, {key: _lost_with(each) for key, each in by_call.items()}, workers),
    )


def _lost_with(rows: Sequence[errors.StoredError]) -> frozenset[str]:
    return frozenset(row.worker for row in rows if row.says == LOST_WORKER)


async def _with_unseen(
    conn: Connection, others: dict[tuple[str, str], frozenset[str]], workers: frozenset[str]
) -> dict[tuple[str, str], frozenset[str]]:
    """Return the other calls with the one of these workers that each was lost with, if no one has looked at it since."""
    for key, execution in (await executions.of_calls(conn, list(others)[:MOST_CALLS_SEEN])).items():
        if execution.state == "executing" and execution.worker in workers:
            others[key] |= {execution.worker}
    return others


async def ask_probe(door: Door) -> Redemption | None:
    """Have the author's code of a ``once`` tool asked first, between two transactions.

    Its probe: did the lost call take effect? And ``check_with``: how does a person find out?
    """
    tool = door.known_tool
    if door.findings is not None or door.previous_start.state != "executing" or tool is None:
        return None
    has_code = tool.probe is not None or callable(tool.check_with)
    return door.inspection("lost") if has_code and tool.effect == "once" else None


async def wait_for_answer(door: Door) -> Redemption | None:
    """Wait for the person who is asked what happened; only their answer lets the call start again."""
    if door.previous_start.state != "unknown" or await door.has_resolution():
        return None
    if door.request is None:
        raise LookupError(f"no one was asked what happened to call {door.call.tool_call_id!r}")
    return door.wait_for(door.request)


async def take_probed_result(door: Door) -> Redemption | None:
    """Settle a ``once`` call with the result that its probe found, as if its handler had returned it."""
    probed = _probed(door)
    if not _is_lost_once(door) or not isinstance(probed, Happened):
        return None
    await door.end_previous_start("succeeded")
    return await door.settle(Ok(value=as_object(probed.result)), by="probe")


async def close_stopped(door: Door) -> Redemption | None:
    """Close a call that its probe says did not happen, and whose run is being interrupted."""
    if door.end is None or not door.end.stopped or not isinstance(_probed(door), DidNotHappen):
        return None
    await door.end_previous_start("failed", partial_output=door.end.partial_output)
    why = f"{door.call.tool_name!r} was stopped when the run was interrupted, and did not take effect: its tool has checked."
    return await door.refuse(Failure(kind="nothing_happened", reason=why))


async def ask_a_person(door: Door) -> Redemption | None:
    """Ask a person what happened to a ``once`` call, unless its probe says that the first start will never take effect.

    This comes before any look at whether the call could run again: even if it could not, whether it has run is not known.
    """
    if not _is_lost_once(door):
        return None
    # A call that kills its workers is for a person to look at, whatever its probe says.
    may_start = isinstance(_probed(door), DidNotHappen) and not (await losses_of(door)).are_too_many
    return None if may_start else await ask_resolution(door)


async def limit_starts(door: Door) -> Redemption | None:
    """End a call that may be repeated after its second lost worker; after more only where others are lost without it (I14)."""
    if door.previous_start.state == "unknown" or door.call.effect == "once":
        return None
    losses, name = await losses_of(door), door.call.tool_name
    if not losses.are_too_many:
        return None
    why = (
        f"{name!r}: its worker was lost {losses.count} times while it ran, so it was not started again. It may be what stops the "
        "worker, and may have done part of its work. Do not send the same call again."
    )
    await door.end_previous_start("unknown")
    return await door.refuse(Failure(kind="execution_error", reason=why))


async def start_in_next_attempt(door: Door) -> Redemption | None:
    """Let a call that its probe says did not happen start in an activity of its own: the time of this one is used up."""
    if door.end is None:
        return None
    call = door.call
    where = Where(run_id=call.run_id, step=call.step, tool_call_id=call.tool_call_id, attempt=door.end.attempt)
    message = f"{door.end.why} Its probe says that it did not happen, so it starts again (call {call.tool_call_id})."
    await note(door.conn, door.engine, ENDED_UNKNOWN, message, where, tool=call.tool_name)
    return AskAgain(ready_call(call, door.shown_tool))


async def refuse_changed_call(door: Door) -> Redemption | None:
    """Settle a call that is no longer what was let through, would be confined otherwise, or that policy denies now."""
    problem = await door.judge(door.previous_start.digest, decided=True)
    if not isinstance(problem, Failure):
        if door.other_confinement(door.first_answered) is None:
            return None
        problem = not_run("the worker confines it otherwise than when it was allowed; send it again")
    if (
        door.previous_start.state == "unknown"
    ):  # a person said that it did not happen, so the problem says all there is to say
        await executions.resolve_unknown(
            door.conn, run_id=door.run.id, tool_call_id=door.call.tool_call_id, state="failed"
        )
        return await door.refuse(problem)
    if isinstance(_probed(door), DidNotHappen):
        await door.end_previous_start("failed")
        return await door.refuse(problem)
    await door.end_previous_start("unknown")
    why = f"{results.outcome_unknown(door.call.tool_name).reason} It was not started again: {problem.reason}"
    return await door.refuse(Failure(kind="unknown", reason=why))


async def stop_here(door: Door) -> Redemption | None:
    """Start nothing in a run that someone has interrupted or paused, whether its workflow knows of it or not."""
    return None if door.run.may_start else Stopped()


async def resolve_secrets(door: Door) -> Redemption | None:
    """Have the secrets resolved that the call refers to; fail it when one is gone."""
    if door.known_tool is None or not door.tool.references:
        return None
    if door.findings is None or (door.lacks_secrets and door.findings.refusal is None):
        return door.inspection("lost")
    if door.findings.refusal is None:
        return None
    if door.previous_start.state == "unknown":
        await executions.resolve_unknown(
            door.conn, run_id=door.run.id, tool_call_id=door.call.tool_call_id, state="failed"
        )
    else:
        await door.end_previous_start("failed")
    return await door.refuse(door.findings.refusal)


CHECKS: Final[tuple[Callable[[Door], Awaitable[Redemption | None]], ...]] = (
    ask_probe,
    wait_for_answer,
    take_probed_result,
    close_stopped,
    ask_a_person,
    limit_starts,
    refuse_changed_call,
    start_in_next_attempt,
    stop_here,
    resolve_secrets,
)
"""In the order in which a lost call meets them."""


async def start_again(door: Door) -> Redeemed:
    """Let the handler start once more, under the same key."""
    lost, request = door.previous_start, door.request
    decision_id = None if request is None else request.decision_id
    begun = await executions.begin_again(
        door.conn, lost, decision_id=decision_id, worker=door.engine.worker, build=door.engine.build
    )
    if not begun:
        raise LookupError(MOVED_ON)
    by = None if request is None else request.decided_by
    start = Start(attempt=lost.attempts + 1, decision_id=decision_id, by=by, digest=lost.digest)
    await tell_started(door.conn, door.call, start)
    secrets = {} if door.findings is None else door.findings.secrets or {}
    approved = door.first_answered
    return Redeemed(
        door.tool,
        door.run,
        door.call,
        door.call.running_input,
        lost.idempotency_key,
        attempt=start.attempt,
        secrets=secrets,
        precondition=None if approved is None else approved.precondition,
        places=door.places,
    )


async def ask_resolution(door: Door, *, why: str | None = None, rule: str = LOST_RULE) -> AskAgain:
    """Mark the start as unknown and open an ``outcome`` request for it. ``why``, ``rule``: how it ended, and what asks.

    None: as the door's ``end`` says; without one, its worker was lost. What its handler had reported before it was stopped stays
    with the execution. Raises LookupError when the execution is no longer as it was read: no one is asked about a call that has a
    result.
    """
    run, call, lost, approval, partial = door.run, door.call, door.previous_start, door.request, ""
    if door.end is not None:
        why, rule, partial = door.end.why, ENDED_RULE, door.end.partial_output
    same = _as_it_runs(door)
    start = await _lost_start(door, why)  # its progress is found for as long as the call counts as executing
    await door.end_previous_start("unknown", partial_output=partial or lost.partial_output)
    created_at = now()
    request = requests.Request(
        id=resolution_request_id(lost),
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        kind="outcome",
        status="pending",
        agent=run.agent,
        tool_name=call.tool_name,
        manifest=approval.manifest if approval else _manifest(door).model_dump_json(),
        input=call.running_input,
        defaults=call.defaults,
        masked_input=call.masked_input,
        digest=call.digest,
        rule=rule,
        reason=f"{why or results.WORKER_LOST} {_probe_failure(door)}{WHICH}",
        risk="high",
        agent_words=approval.agent_words if approval else "",
        preview_kind=approval.preview_kind if approval else None,
        preview=approval.preview if approval else None,
        not_by=approval.not_by if approval else None,
        expires_at=None,
        created_at=as_text(created_at),
        urgent_at=as_text(urgent_at(created_at, None, "high")),
        path=run.path,
        origins=approval.origins if approval else None,
        summary=same.summary if same else None,
        precondition=approval.precondition if approval else None,
        confinement=approval.confinement if approval else None,
        lost_start=start.model_dump_json(),
        nonce=call.nonce,
    )
    payload = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "request_id": request.id}
    await open_request(door.conn, request, after=[("execution.unknown", payload)])
    return AskAgain(waiting_call(run, door.agent, door.shown_tool, request))


async def ask_at_end(engine: Engine, conn: Connection, execution: executions.Execution) -> None:
    """Ask what happened to a ``once`` call that still counts as executing when its run ends: its worker never reported back."""
    order = RunToolInput(run_id=execution.run_id, call=execution.tool_call_id)
    end = UnknownEnd(attempt=execution.attempts, why=NEVER_REPORTED, stopped=True)
    try:
        door = await Door.at(engine, conn, order, end=end)
    except ApplicationError:  # this worker's app no longer has the agent; its run must end all the same
        await executions.finish(conn, run_id=order.run_id, tool_call_id=order.call, state="unknown")
    else:
        await ask_resolution(door)


async def _lost_start(door: Door, why: str | None) -> LostStart:
    """Return what is known of the start that was lost, and how to check whether it took effect. ``why``: how it ended."""
    lost, call_id = door.previous_start, door.call.tool_call_id
    starts = await events.newest(door.conn, door.run.id, "execution.started", limit=STARTS_SEEN)
    at = next((each.created_at for each in starts if each.payload.get("tool_call_id") == call_id), lost.started_at)
    lines = (await progress.newest_of_executing(door.conn, door.run.id, limit=1)).get(call_id, [])
    return LostStart(
        idempotency_key=lost.idempotency_key,
        attempt=lost.attempts,
        started_at=at,
        worker=lost.worker,
        build=lost.build,
        progress=head(_words(lines[-1].payload), MAX_PROGRESS_BYTES) if lines else None,
        progress_at=lines[-1].created_at if lines else None,
        check_with=_check_text(door),
        why=why,
    )


def _words(payload: JsonValue) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)


def _check_text(door: Door) -> str | None:
    """Return how to check the call, as its tool says; the author's function was asked before."""
    tool = door.known_tool
    if tool is None or tool.check_with is None:
        return None
    if not isinstance(tool.check_with, str):
        return None if door.findings is None else door.findings.check_with
    masked = complete_text(tool.manifest.masked_input(door.call.running_input).text, for_readers(door.call.left_out))
    return check_text(tool.manifest, masked, tool.check_with, door.previous_start.idempotency_key)


async def waiting_resolution(door: Door) -> AskAgain | None:
    """Return the call as it waits for the answer to what happened to it; None when it does not."""
    if door.call.result is not None or door.execution is None or door.execution.state != "unknown":
        return None
    return None if door.request is None else door.wait_for(door.request)


def _is_lost_once(door: Door) -> bool:
    """Tell whether the call must not be repeated, and what happened to it is not known."""
    return door.previous_start.state != "unknown" and door.call.effect == "once"


def _as_it_runs(door: Door) -> requests.Request | None:
    """Return the request that showed the arguments with which the call runs; None: it was edited, or no one was asked."""
    request = door.request
    return request if request is not None and request.input == door.call.running_input else None


def _probe_failure(door: Door) -> str:
    """Return that the tool's own check failed, in a sentence; empty: it didn't."""
    why = "" if door.findings is None else door.findings.probe_failed
    return f"Its tool's own check failed ({why}). This was logged. " if why else ""


def _probed(door: Door) -> ProbeAnswer:
    return None if door.findings is None else door.findings.probed


def _manifest(door: Door) -> ToolManifest:
    """Return what to show of a tool that ran without an approval; of one that is gone, only its name is known."""
    if door.known_tool is not None:
        return door.known_tool.manifest
    return ToolManifest(
        name=door.call.tool_name, description="", kind="local", parameters={"type": "object"}, success={}, effect="once"
    )
