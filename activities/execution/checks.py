"""The checks that a call passes at the door, in one order. A check returns what redemption comes to, or None to pass.

A call that passes all of them starts: the execution row is written, and its handler, control call, sub-agent or sender takes
over. What each check writes is part of the caller's write transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from activities.engine.engine import Engine
from activities.engine.preconditions import idempotency_key
from activities.execution import delegation, external_calls, lost_calls
from activities.execution.door import Door, not_run
from activities.execution.preflight import Findings
from activities.execution.redemption import Redeemed, Redemption, Settled
from activities.execution.settlement import run_failure, tell_started
from activities.planning.control_calls import is_finish
from turngate.domain.contract import RunToolInput
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools import results
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.runs import executions

Check = Callable[[Door], Awaitable[Redemption | None]]


async def redeem(engine: Engine, conn: Connection, order: RunToolInput, findings: Findings | None = None) -> Redemption:
    """Let a call through the door, or settle it without running. The caller's write transaction holds all of it.

    ``findings``: of the :class:`Inspection` that an earlier redemption came to; None the first time.
    """
    door = await Door.at(engine, conn, order, findings)
    for check in CHECKS:
        redemption = await check(door)
        if redemption is not None:
            return redemption
    return await let_through(door)


async def keep_result(door: Door) -> Redemption | None:
    """Leave a call its result: an earlier attempt's answer was lost on the way."""
    if door.call.result is None:
        return None
    return Settled(finishes=is_finish(door.call), raises=run_failure(door.known_tool, door.call.settled_result))


async def refuse_dry_run(door: Door) -> Redemption | None:
    """Refuse a call of a dry run: planning has closed every one, and none may ever run."""
    return await door.refuse(results.diverged(door.call.tool_name)) if door.run.is_dry else None


async def resume_start(door: Door) -> Redemption | None:
    """Resume a call that was let through before and has no result, in place of letting it through again."""
    if door.execution is None:
        return None
    kind = "" if door.known_tool is None else door.known_tool.kind
    if kind in {"signal", "agent"}:
        return await delegation.resume(door)
    if kind == "external":
        return await external_calls.resume(door)
    if door.execution.state == "failed":
        # Its handler was stopped, and the run was not closed after it: its workflow was terminated (Temporal then cancels
        # its activities, as for an interrupt) or lost. The run was recovered, so how far the handler came is not known.
        await executions.reopen_stopped(door.conn, run_id=door.run.id, tool_call_id=door.call.tool_call_id)
        door.execution = replace(door.execution, state="executing")
    return await lost_calls.resume(door)


async def wait_for_sender(door: Door) -> Redemption | None:
    """Let an external call wait until its sender is there to run it; until then nothing is redeemed."""
    if door.known_tool is None or door.tool.kind != "external" or await external_calls.is_wanted(door):
        return None
    return external_calls.UNWANTED


async def repeat_question(door: Door) -> Redemption | None:
    """Return the question that :func:`require_allow` opened before, when the answer of that attempt was lost."""
    if door.known_tool is None or door.order.decision_id is not None or door.call.disposition != "ask":
        return None
    return await door.earlier_question()


async def require_permission(door: Door) -> Redemption | None:
    """Require an approval or an allowing verdict for the bytes about to run, and a policy that does not deny them now."""
    problem = await door.authorize()
    return None if problem is None else await door.refuse(problem)


async def keep_to_workspaces(door: Door) -> Redemption | None:
    """Refuse a call of a run that may not work in its workspace, by where the path leads now."""
    workspace = door.run.workspace
    if workspace is None or door.tool.kind != "local":
        return None
    why = await asyncio.to_thread(door.engine.workspaces.refusal, workspace)
    return None if why is None else await door.refuse(not_run(why))


async def obey_hooks(door: Door) -> Redemption | None:
    """Refuse a call that a before-hook forbids, or whose precondition could not be checked."""
    refusal = None if door.findings is None else door.findings.refusal
    return None if refusal is None else await door.refuse(refusal)


async def follow_replacement(door: Door) -> Redemption | None:
    """Send a call whose approval was replaced to the request that replaced it."""
    return await door.replacement()


async def inspect_first(door: Door) -> Redemption | None:
    """Have the hooks and an approved call's precondition asked before the start, between two transactions (ADR 0010).

    If the approval is too old, also have prepared what a person is shown when they are asked again.
    """
    approval, stale = door.approval, door.approval_is_stale
    if door.findings is not None and (door.findings.for_question or not stale):
        return None
    checks_precondition = approval is not None and door.tool.precondition is not None
    if door.agent.hooks or checks_precondition or (stale and has_more_to_show(door.tool)):
        inspection = door.inspection("question" if stale else "start")
        return inspection if approval is None else replace(inspection, approved_with=approval.precondition)
    return None


async def require_fresh_approval(door: Door) -> Redemption | None:
    """Ask again when the approval is older than its rule allows, and no precondition says that nothing has changed."""
    return await door.ask_again() if door.approval_is_stale else None


async def require_same_precondition(door: Door) -> Redemption | None:
    """Ask again when what the call depends on has changed since it was approved."""
    if door.approval is None or door.findings is None or door.findings.precondition == door.approval.precondition:
        return None
    return await door.ask_again()


async def use_grant(door: Door) -> Redemption | None:
    """Take a use of the grant that allows the call, here, where nothing comes between that and the start (ADR 0014)."""
    if door.approval is not None:
        return None
    while door.verdict.grant_id is not None:
        if await door.take_grant(door.verdict.grant_id):
            return None
        # Another writer took the last use since the grants were read: judge the call as if the grant did not exist.
        problem = await door.authorize()
        if problem is not None:
            return await door.refuse(problem)
    return None


async def require_allow(door: Door) -> Redemption | None:
    """Ask a person when policy no longer allows a call that it allowed when it was planned (ADR 0014).

    A rule may have been stored since, or the grant revoked, expired or used up by the calls beside this one. The judge is
    not asked again: what it said of these very bytes counts.
    """
    if door.approval is not None or door.verdict.answer == "allow":
        return None
    planned = Verdict.model_validate_json(door.call.verdict).judged if door.call.verdict else None
    verdict = with_judgement(door.verdict, planned, (await door.rules()).judge, digest=door.call.digest)
    if verdict.answer == "allow":
        return None
    if has_more_to_show(door.tool) and (door.findings is None or not door.findings.for_question):
        return door.inspection("question")
    return await door.ask_overruled(verdict)


CHECKS: Final[tuple[Check, ...]] = (
    keep_result,
    refuse_dry_run,
    resume_start,
    wait_for_sender,
    repeat_question,
    require_permission,
    keep_to_workspaces,
    obey_hooks,
    follow_replacement,
    inspect_first,
    require_fresh_approval,
    require_same_precondition,
    use_grant,
    require_allow,
)
"""In the order in which a call meets them."""


async def let_through(door: Door) -> Redemption:
    """Open the door, and let what answers the call take over."""
    begun = await door.open()
    match door.tool.kind:
        case "signal":
            return await delegation.take_control_call(door, begun)
        case "agent":
            return await delegation.delegate(door, begun)
        case "external":
            return await external_calls.hand_out(door, begun)
    await tell_started(door.conn, door.call, begun)
    key = idempotency_key(door.run.id, door.call.tool_call_id)
    return Redeemed(door.tool, door.run, door.call, door.call.running_input, key)


def has_more_to_show(tool: Tool) -> bool:
    """Tell whether a person who is asked about a call of this tool is shown more than its arguments."""
    return tool.preview is not None or tool.precondition is not None
