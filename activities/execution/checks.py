"""The checks that a call passes at the door, in one order. A check returns what redemption comes to, or None to pass.

A call that passes all of them starts: the execution row is written, and its handler, control call, sub-agent or sender takes
over. What each check writes is part of the caller's write transaction.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pydantic import ValidationError

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import at_call
from turngate.activities.execution import delegation, external_calls, lost_calls
from turngate.activities.execution.door import Door, not_run
from turngate.activities.execution.preflight import Findings, Inspection
from turngate.activities.execution.redemption import Redeemed, Redemption, Settled, UnknownEnd, Waits
from turngate.activities.execution.settlement import run_failure
from turngate.activities.planning.control_calls import is_finish
from turngate.domain.contract import RunToolInput, Wait
from turngate.domain.digest import idempotency_key
from turngate.domain.policy.grants import NOT_GRANTED
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools import results
from turngate.domain.tools.failures import describe_validation
from turngate.domain.tools.results import Failure, Ok, as_object
from turngate.domain.tools.tool import Tool
from turngate.store.clock import from_text, now
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.runs import calls, executions

Check = Callable[[Door], Awaitable[Redemption | None]]


async def redeem(
    engine: Engine,
    conn: Connection,
    order: RunToolInput,
    findings: Findings | None = None,
    end: UnknownEnd | None = None,
) -> Redemption:
    """Let a call through the door, or settle it without running. The caller's write transaction holds all of it.

    ``findings``: of the :class:`Inspection` that an earlier redemption came to; None the first time. ``end``: of the call's own
    start in this attempt, if no one knows whether it took effect; nothing starts then.
    """
    door = await Door.at(engine, conn, order, findings, end)
    with at_call(door.call.tool_call_id, door.call.step):
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


async def require_logged_answer(door: Door) -> Redemption | None:
    """Require that the log has the answer by which the call would start or end. Raises ApplicationError as the door does."""
    await door.require_logged_answer()
    return None


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


async def wait_for_decision(door: Door) -> Redemption | None:
    """Let a call wait for as long as the store shows its request as undecided, whatever made the workflow come here (I13).

    One whose request was cancelled ends with its run, which gives it its result.
    """
    if door.call.disposition != "ask" or door.request is None:
        return None
    if door.request.status == "pending":
        return door.wait_for(door.request)
    return Settled() if door.request.status == "cancelled" else None


async def wait_out_grace(door: Door) -> Redemption | None:
    """Let an approved call wait for as long as its approval can be taken back, whatever made the workflow come here (ADR 0041).

    From here on the request is held: a take-back has come first, or comes after the start and is refused.
    """
    request = door.request
    if request is None or request.starts_at is None:
        return None
    left = from_text(request.starts_at) - now()
    if door.engine.grace and left > timedelta(0):
        return Waits(Wait(seconds=left.total_seconds(), news=True, request_id=requests.again_id(request)))
    held = await requests.hold(door.conn, request.id)
    if held != request or await requests.get(door.conn, requests.again_id(request)) is not None:
        raise LookupError("the approval was taken back as its call was about to start; looking again")
    return None


async def show_what_an_edit_leaves_out(door: Door) -> Redemption | None:
    """Ask about an edited call again where its tool fills in other values than the person who edited it was shown (I6)."""
    request = door.request
    if not door.is_edited or door.known_tool is None or request is None:
        return None
    if request.status != "superseded" and request.verb != "edit":
        return None
    defaults = door.defaults_of_edit()
    if defaults is None:
        return None
    return _look_for_question(door) or await door.ask_about_defaults(defaults)


async def ask_about_edit(door: Door) -> Redemption | None:
    """Ask about an edited call under its own terms: they are stricter, so the API ended the request that was edited (I6)."""
    request, tool = door.request, door.known_tool
    if request is None or request.status != "superseded":
        return None
    digest = "" if tool is None else door.call.digest_with(tool)
    verdict = await door.judge(digest, decided=True)
    if isinstance(verdict, Failure):
        return await door.refuse_edit(verdict)
    verdict = door.asking(verdict)  # the rules may have changed since, or it may only reach more
    wider = door.wider_by_edit(request)
    asks = f"rule {verdict.rule!r} asks about the edited one" if wider is None else f"of the edited one: {wider}"
    why = f"A person edited the call, and {asks}."
    return _look_for_question(door) or await door.ask_about_edit(verdict, why)


async def take_answer(door: Door) -> Redemption | None:
    """Settle a question with a person's answer; ask again when it does not fit the tool's own type, which only a worker has."""
    request = door.request
    if request is None or request.kind != "question" or request.status != "responded" or request.decision_id is None:
        return None
    decision = await requests.decision(door.conn, request.decision_id)
    answer = "" if decision is None or decision.args is None else decision.args
    try:
        if door.known_tool is not None:
            door.known_tool.success.validate_json(answer)
    except ValidationError as error:
        return await door.ask_question_again(describe_validation(error))
    await calls.settle(
        door.conn, door.run.id, door.call.tool_call_id, Ok(value=as_object(json.loads(answer))), nonce=door.call.nonce
    )
    return Settled()


async def require_permission(door: Door) -> Redemption | None:
    """Require an approval or an allowing verdict for the bytes about to run, and a policy that does not deny them now."""
    problem = await door.authorize()
    if problem is None:
        return None
    return await door.refuse_edit(problem)


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


async def require_same_terms(door: Door) -> Redemption | None:
    """Ask about an edited call again when policy wants more for it than for the model's own: the edit is not a way around (I6).

    The person who edited had the terms of the call that they were shown. Nor was the edited call marked there as one that may
    have happened already (I3).
    """
    stricter = door.stricter_terms()
    if stricter is None:
        return None
    by = None if door.approval is None else door.approval.decided_by
    why = f"{by} edited the call, and of the edited one: {stricter} (rule {door.verdict.rule!r})."
    return _look_for_question(door) or await door.ask_about_edit(door.verdict, why)


async def inspect_first(door: Door) -> Redemption | None:
    """Have the hooks and an approved call's precondition asked, and secrets resolved, between two transactions (ADR 0010).

    If the approval is too old, also have prepared what a person is shown when they are asked again.
    """
    approval, stale = door.approval, door.approval_is_stale
    if door.findings is not None and (door.findings.for_question or not stale):
        return None
    checks_precondition = door.approved_with is not None and door.tool.precondition is not None
    if door.agent.hooks or checks_precondition or door.lacks_secrets or (stale and has_more_to_show(door.tool)):
        inspection = door.inspection("question" if stale else "start")
        # Of an edited call, what the person saw is of the model's own arguments.
        approved_input = door.call.input if approval is not None and approval.verb == "edit" else None
        return replace(inspection, approved_with=door.approved_with, approved_input=approved_input)
    return None


async def require_fresh_approval(door: Door) -> Redemption | None:
    """Ask again when the approval is older than its rule allows, and no precondition says that nothing has changed."""
    return await door.ask_again() if door.approval_is_stale else None


async def require_same_confinement(door: Door) -> Redemption | None:
    """Ask again when this worker confines the call's processes otherwise than the person who approved it was shown (I6)."""
    approval, text = door.approval, door.other_confinement(door.request)
    if approval is None or text is None:
        return None
    why = f"{approval.decided_by} approved this, and another worker would run it, which confines it otherwise. Now: {text}"
    return _look_for_question(door) or await door.ask_again(why)


async def require_same_precondition(door: Door) -> Redemption | None:
    """Ask again when what the call depends on has changed since it was approved."""
    if door.approval is None or door.findings is None or not door.findings.changed:
        return None
    return await door.ask_again()


async def ask_about_scripts(door: Door) -> Redemption | None:
    """Judge a call that runs scripts without grants: one was given for a command, and holds no script's content (I6)."""
    looked = door.findings is not None and door.findings.changed
    if door.approval is not None or not looked or not door.grant_needs_look:
        return None
    while door.grant_needs_look:
        problem = await door.judge_without_grant()
        if problem is not None:
            return await door.refuse(problem)
    if door.verdict.answer == "allow":  # by a rule, whose author named the command
        return None
    why = f"{NOT_GRANTED[0].upper()}{NOT_GRANTED[1:]}. {door.verdict.reason}".rstrip()
    return _look_for_question(door) or await door.ask_overruled(door.verdict.model_copy(update={"reason": why}))


async def take_allowance(door: Door) -> Redemption | None:
    """Count the call for the grant or the total that allows it, where nothing comes between that and the start.

    See ADR 0014 and ADR 0040. A call that a person approved counts for neither.
    """
    if door.approval is not None:
        return None
    while not await door.take_allowance():
        # Another writer took the last use, or what was left of the total: judge the call as if there were no more of it.
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
    return _look_for_question(door) or await door.ask_overruled(verdict)


CHECKS: Final[tuple[Check, ...]] = (
    keep_result,
    refuse_dry_run,
    require_logged_answer,
    resume_start,
    lost_calls.stop_here,
    wait_for_decision,
    wait_out_grace,
    show_what_an_edit_leaves_out,
    ask_about_edit,
    wait_for_sender,
    take_answer,
    require_permission,
    keep_to_workspaces,
    obey_hooks,
    require_same_terms,
    inspect_first,
    require_fresh_approval,
    require_same_confinement,
    require_same_precondition,
    ask_about_scripts,
    take_allowance,
    require_allow,
)
"""In the order in which a call meets them."""


async def let_through(door: Door) -> Redemption:
    """Open the door, and let what answers the call take over."""
    match door.tool.kind:
        case "signal":
            return await delegation.take_control_call(door, await door.open())
        case "agent":
            return await delegation.delegate(door, await door.open())
        case "external":
            return await external_calls.hand_out(door, await door.open())
    await door.open_to_handler()
    key = idempotency_key(door.run.id, door.call.tool_call_id)
    findings = door.findings or Findings()
    return Redeemed(
        door.tool,
        door.run,
        door.call,
        door.call.running_input,
        key,
        is_last_open=door.is_last_open,
        secrets=findings.secrets or {},
        precondition=findings.precondition,
        places=door.places,
    )


def _look_for_question(door: Door) -> Inspection | None:
    """Return the look at what a person is shown besides the arguments, before they are asked; None when it isn't needed."""
    is_ready = not has_more_to_show(door.tool) or (door.findings is not None and door.findings.for_question)
    return None if is_ready else door.inspection("question")


def has_more_to_show(tool: Tool) -> bool:
    """Tell whether a person who is asked about a call of this tool is shown more than its arguments."""
    return tool.preview is not None or tool.precondition is not None or callable(tool.summary)
