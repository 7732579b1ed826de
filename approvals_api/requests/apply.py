"""What a decision leads to, written in the transaction that takes it: the call's result or edited input, the grant, the log.

No code of an app runs here: the worker's door looks at the call again before it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.reveal import unseen_secrets
from turngate.approvals_api.validation.errors import invalid
from turngate.domain.digest import call_digest, keyed_sha256
from turngate.domain.errors import ConflictError
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.requests import STATUS_OF_VERB, ExecutionState, RequestStatus, runs_the_call
from turngate.domain.runs.inbox import urgent_at
from turngate.domain.tools import results
from turngate.domain.tools.defaults import stored
from turngate.domain.tools.results import MAX_DEPTH, Ok, as_object, is_deeper
from turngate.store.clock import as_text, from_text, now
from turngate.store.connection import Connection, note
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.evidence import decision_digest, opening_event, running_digest, shown_digests
from turngate.store.policy import grants
from turngate.store.requests import claims, precedents, requests
from turngate.store.requests.requests import Decision, Request
from turngate.store.runs import calls, executions

STATE_OF_OUTCOME: Final[Mapping[str | None, ExecutionState]] = {"happened": "succeeded", "tell_model": "unknown"}
"""What a person's answer about a lost call says of its execution at once."""
STEERS: Final[Mapping[str, object]] = {"steers": True}
"""In the log's event of a decision that the model reads: who took it counts as starter of what comes after it."""
GRANTING_VERBS: Final = frozenset({"approve", "edit"})


async def count_approval(conn: Connection, request: Request, principal: Principal, decision: Decision) -> bool:
    """Count an approval of a request that needs several; True when it completes them, and so decides."""
    await requests.add_decision(conn, decision)
    count = await requests.add_approval(
        conn,
        requests.Approval(
            request_id=request.id,
            decided_by=decision.decided_by,
            decision_id=decision.id,
            message=decision.message,
            created_at=decision.created_at,
        ),
    )
    if count >= request.quorum:
        return True
    counts = {"approvals": count, "quorum": request.quorum, "digest": request.digest}
    payload = {
        "request_id": request.id,
        "content": decision_digest(decision, request.nonce),
        **shown_digests(request),
        **counts,
        **_who(principal, decision),
        **await _unseen(conn, request, decision),
    }
    await events.append(conn, request.run_id, [("request.approved_once", payload)])
    # They have done their part: their claim must not hold up the people who are still needed.
    await claims.release(conn, request.id, by=decision.decided_by, anyones=False)
    return False


async def withdraw_approval(conn: Connection, request: Request, principal: Principal) -> bool:
    """Take back the principal's approval of a request that needs several; False: they gave none.

    The caller holds the request, which is pending.
    """
    removed = await requests.remove_approval(conn, request.id, by=principal.name)
    if removed is None:
        return False
    decision_id, count = removed
    who = {"by": principal.name, "role": principal.role, "credential": principal.credential}
    counts = {"approvals": count, "quorum": request.quorum, "digest": request.digest}
    payload = {"request_id": request.id, "decision_id": decision_id, **counts, **who}
    await events.append(conn, request.run_id, [("request.approval_withdrawn", payload)])
    return True


async def take_back(conn: Connection, request: Request, principal: Principal) -> str:
    """Take back an approval whose call has not started; returns the id of the request that asks about the call again.

    The caller holds the request, as the door does before the call starts: one of them comes first. The request stays decided,
    and what it decided is never redeemed, because the door only looks at the newest request about a call (I3, I4). A grant that
    came with it ends. Raises ConflictError (``already_started``).
    """
    run_id, call_id = request.run_id, request.tool_call_id
    # Written even if nothing changes: a run that ends meanwhile settles the call before this, or sees the new request.
    await calls.set_edited_input(conn, run_id, call_id, await _input_before(conn, request), defaults=request.defaults)
    call = await calls.get(conn, run_id, call_id)
    started = await executions.get(conn, run_id, call_id)
    if call is None or call.result is not None or started is not None:
        raise ConflictError(
            "the call has started or was closed: its approval can't be taken back any more", code="already_started"
        )
    again = _asked_again(request, principal.name)
    await requests.insert_all(conn, [again])
    await precedents.remove(conn, [request.id])  # at once: it must not speak for the call that is asked about again
    who = {"by": principal.name, "role": principal.role, "credential": principal.credential}
    running = events.digests(running={call_id: running_digest(call)})
    payload = {"request_id": request.id, "decision_id": request.decision_id, "digest": request.digest, **who, **running}
    withdrawn = ("request.approval_withdrawn", payload)
    revoked = await _revoke_grant(conn, request, principal)
    await events.append(conn, run_id, [withdrawn, *revoked, opening_event(again, instead_of=request.id)])
    return again.id


async def _input_before(conn: Connection, request: Request) -> str | None:
    """Return what would run in place of the model's arguments as the request showed the call; None: those themselves."""
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    return None if call is None or call.input == request.input else request.input


def _asked_again(request: Request, by: str) -> Request:
    """Return a request like one whose approval was taken back: pending, opened now, with as much time."""
    at, expires_at, words = now(), None, f"{by}{requests.TOOK_BACK}"
    if request.expires_at is not None:
        expires_at = at + (from_text(request.expires_at) - from_text(request.created_at))
    parks = request.parked_at is not None and expires_at is None
    return replace(
        request,
        id=requests.again_id(request),
        status="pending",
        reason=request.reason if request.reason.startswith(words) else f"{words} {request.reason}".strip(),
        created_at=as_text(at),
        expires_at=None if expires_at is None else as_text(expires_at),
        urgent_at=as_text(urgent_at(at, None if parks else expires_at, request.risk)),
        parked_at=as_text(at) if parks else None,
        rungs_climbed=0,
        approvals=0,
        decision_id=None,
        verb=None,
        decided_by=None,
        decided_at=None,
        claimed_by=None,
        claimed_until=None,
    )


async def _revoke_grant(conn: Connection, request: Request, principal: Principal) -> list[events.NewEvent]:
    """End the grant that was made with the request's decision, if there is one: it allows no call from now on."""
    grant = None if request.decision_id is None else await grants.of_decision(conn, request.decision_id)
    if grant is None or grant.request_id != request.id or not await grants.revoke(conn, grant.id, by=principal.name):
        return []
    return [grants.revoked_event(grant, by=principal.name)]


async def win(conn: Connection, request: Request, principal: Principal, decision: Decision) -> RequestStatus:
    """End the request with this decision, and write what follows from it. Returns the request's status.

    The caller holds the request, which is pending, and has stored an approval that completes a quorum.
    """
    status = STATUS_OF_VERB[decision.verb]
    edited: dict[str, str] = {}
    if decision.verb == "edit":
        decision, edited = await _edit(conn, request, decision)
    closed = await _of_closed_call(conn, request, decision)
    result = await _apply(conn, request, decision, is_closed=bool(closed))
    ending = _ending(request, decision, status)
    is_stored = request.quorum > 1 and decision.verb == "approve"
    writes = requests.decision_writes(request.id, ending, None if is_stored else decision)
    granted = await _grant(conn, request, principal, decision)
    digests = events.digests(result={request.tool_call_id: result}, running=edited)
    unseen = await _unseen(conn, request, decision)
    payload = {**_payload(request, principal, decision, status), **closed}
    decided = ("request.decided", {**payload, **unseen, **digests})
    *_stored, settled = await events.append(conn, request.run_id, [decided, *granted], writes=writes)
    if not settled:
        raise LookupError(f"request {request.id!r} has ended in this very transaction")
    _note_answer(conn, request, decision)
    return status


async def approve_as_seen(
    conn: Connection, seen: Request, principal: Principal, decision: Decision
) -> RequestStatus | None:
    """End a request with an approval from which nothing else follows, in one statement, last in the transaction.

    ``seen``: the request when it was checked. None, and nothing is written: it has changed since. Returns its status. Raises
    IntegrityError when the decision's id was used.
    """
    status = STATUS_OF_VERB[decision.verb]
    writes = requests.decision_writes_as_seen(seen, _ending(seen, decision, status), decision)
    digests = events.digests(result={})
    unseen = await _unseen(conn, seen, decision)
    decided = ("request.decided", {**_payload(seen, principal, decision, status), **unseen, **digests})
    settled, *_stored = await events.append(conn, seen.run_id, [decided], writes=writes, last=True)
    if not settled:
        return None
    _note_answer(conn, seen, decision)
    return status


def _note_answer(conn: Connection, request: Request, decision: Decision) -> None:
    if conn.facts is None:
        return
    waited = decided_at(request, decision) - from_text(request.created_at)
    note(conn, "request.answered", kind=request.kind, verb=decision.verb, seconds=waited / timedelta(seconds=1))


async def replace_by_edit(conn: Connection, request: Request, decision: Decision) -> None:
    """End a request that was edited into a call which needs other terms; the edited bytes wait for the door.

    The edit is stored as it was sent, though it decides nothing.

    The caller holds the request, which is pending.
    """
    edit, running = await _edit(conn, request, decision)
    await requests.add_decision(conn, edit)
    at = now()
    if not await requests.settle(conn, request.id, requests.Ending(status="superseded", at=at)):
        raise LookupError(f"request {request.id!r} has ended in this very transaction")
    payload = {"request_id": request.id, "tool_call_id": request.tool_call_id, "edited_digest": edit.digest}
    sent: dict[str, object] = {
        "decision_id": edit.id,
        "by": edit.decided_by,
        "content": decision_digest(edit, request.nonce),
    }
    sent |= {"at": as_text(at), **STEERS, **events.digests(running=running)}
    await events.append(conn, request.run_id, [("request.superseded", {**payload, **sent})])


def decided_at(request: Request, decision: Decision) -> datetime:
    """Return the instant at which a decision ends a request."""
    return from_text(max(decision.created_at, request.created_at))


def _ending(request: Request, decision: Decision, status: RequestStatus) -> requests.Ending:
    return requests.Ending(
        status=status,
        at=decided_at(request, decision),
        decision_id=decision.id,
        verb=decision.verb,
        by=decision.decided_by,
    )


async def _apply(conn: Connection, request: Request, decision: Decision, *, is_closed: bool) -> str | None:
    """Write the call's result, if the decision is one, and return its digest. ``is_closed``: the run's end closed the call."""
    run_id, call_id = request.run_id, request.tool_call_id
    if decision.verb == "reject":
        return await calls.settle(
            conn, run_id, call_id, results.rejected(decision.decided_by, decision.message), nonce=request.nonce
        )
    if decision.verb == "respond" and request.kind == "outcome":
        return await _resolve(conn, request, decision, is_closed=is_closed)
    if decision.verb == "respond" and decision.args is None:
        return await calls.settle(
            conn, run_id, call_id, Ok(value={"operator_response": decision.message}), nonce=request.nonce
        )
    if decision.verb == "respond":
        _parsed(decision.args or "")  # the answer to a question: the door settles the call, by the tool's own type
    return None


async def _edit(conn: Connection, request: Request, decision: Decision) -> tuple[Decision, dict[str, str]]:
    """Store what will run in place of the model's arguments (I6).

    Returns the decision with the digest of that call, and for the log the digest of what is stored of it, by call.
    """
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    if call is None or decision.args is None:
        raise LookupError(f"run {request.run_id!r} has no call {request.tool_call_id!r}, or the edit has no arguments")
    tool = request.tool
    defaults = stored(tool.defaults_of_edit(decision.args, request.input, request.left_out))
    await calls.set_edited_input(conn, request.run_id, request.tool_call_id, decision.args, defaults=defaults)
    digest = call_digest(
        tool_name=request.tool_name,
        manifest_digest=tool.digest,
        raw_input=decision.args,
        run_id=request.run_id,
        tool_call_id=request.tool_call_id,
        policy_version=call.policy_version,
        nonce=request.nonce,
        defaults=defaults,
    )
    changed = replace(call, edited_input=decision.args, defaults=defaults)
    return replace(decision, digest=digest), {call.tool_call_id: running_digest(changed)}


async def _resolve(conn: Connection, request: Request, decision: Decision, *, is_closed: bool) -> str | None:
    """Write a person's answer about a call whose worker was lost, and return the digest of the call's result.

    None: ``did_not_happen``, which lets the door start it once more; or the call was closed when its run ended, and the answer
    only says what happened to it.
    """
    run_id, call_id = request.run_id, request.tool_call_id
    if decision.outcome == "happened":
        await executions.resolve_unknown(conn, run_id=run_id, tool_call_id=call_id, state="succeeded")
        note = {"note": "An operator confirmed that this took effect."}
        value = as_object(_parsed(decision.args)) if decision.args else note
        return await calls.settle(conn, run_id, call_id, Ok(value=value), nonce=request.nonce)
    if decision.outcome == "tell_model":
        start, execution = request.start_that_was_lost, await executions.get(conn, run_id, call_id)
        unknown = results.outcome_unknown(
            request.tool_name,
            None if start is None else start.why,
            partial="" if execution is None else execution.partial_output,
        )
        return await calls.settle(conn, run_id, call_id, unknown, nonce=request.nonce)
    if is_closed:
        await executions.resolve_unknown(conn, run_id=run_id, tool_call_id=call_id, state="failed")
    return None


async def _of_closed_call(conn: Connection, request: Request, decision: Decision) -> dict[str, object]:
    """Return what the log says of the execution of a call that did not happen and never will: its run's end closed it."""
    if request.kind != "outcome" or decision.outcome != "did_not_happen":
        return {}
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    is_closed = call is not None and call.result is not None
    return {"tool_call_id": request.tool_call_id, "execution": "failed"} if is_closed else {}


async def _grant(conn: Connection, request: Request, principal: Principal, decision: Decision) -> list[events.NewEvent]:
    """Store the grant that this decision asks for; an edited call is granted as it was edited."""
    if decision.verb not in GRANTING_VERBS or decision.grant_wanted is None:
        return []
    wanted = WantedGrant.model_validate_json(decision.grant_wanted)
    origin = grants.Origin(
        created_by=decision.decided_by,
        role=principal.role,
        run_id=request.run_id,
        agent=request.agent,
        request_id=request.id,
    )
    stored = await grants.create(conn, wanted, origin, key=decision.id)
    grant = {"grant_id": stored.id, "by": decision.decided_by, "tool": stored.tool_name, "scope": stored.scope}
    bounds = {
        "max_uses": stored.max_uses,
        "expires_at": stored.expires_at,
        "digest": keyed_sha256(request.nonce, stored.pattern),
    }
    digests = events.digests(grant={stored.id: row_digest("grant", vars(stored), request.nonce)})
    return [("grant.created", {**grant, **bounds, **digests})]


def _payload(request: Request, principal: Principal, decision: Decision, status: RequestStatus) -> Mapping[str, object]:
    """Return what the log stores of a decision: who, as whom, what, and which bytes; not the message."""
    payload: dict[str, object] = {
        "request_id": request.id,
        "verb": decision.verb,
        "status": status,
        "at": as_text(decided_at(request, decision)),
        "content": decision_digest(decision, request.nonce),
        **shown_digests(request),
        "outcome": decision.outcome,
        "digest": request.digest,
        **_who(principal, decision),
    }
    if decision.outcome in STATE_OF_OUTCOME:
        payload |= {"tool_call_id": request.tool_call_id, "execution": STATE_OF_OUTCOME[decision.outcome]}
    if principal.machine:
        payload["machine"] = True
    if decision.verb != "approve" and (decision.message or decision.args is not None):
        payload |= STEERS
    if principal.traceparent is not None:
        payload["traceparent"] = principal.traceparent
    return {**payload, "edited_digest": decision.digest} if decision.verb == "edit" else payload


async def _unseen(conn: Connection, request: Request, decision: Decision) -> dict[str, list[str]]:
    """Return what the log says of the secrets in a call that a decision runs unseen; nothing if there are none."""
    if not runs_the_call(request.kind, decision.verb, decision.outcome):
        return {}
    edited = decision.args if decision.verb == "edit" else None
    pointers = await unseen_secrets(conn, request, decision.decided_by, edited=edited)
    return {"unseen_secrets": pointers} if pointers else {}


def _who(principal: Principal, decision: Decision) -> dict[str, str | None]:
    return {
        "decision_id": decision.id,
        "by": decision.decided_by,
        "role": principal.role,
        "credential": principal.credential,
    }


def _parsed(text: str) -> object:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid("/args", "the answer is not valid JSON", code="invalid_edit") from None
    if is_deeper(answer, MAX_DEPTH):
        raise invalid("/args", f"the answer nests deeper than {MAX_DEPTH} levels", code="invalid_edit")
    return answer
