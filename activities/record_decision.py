"""Activity ``record_decision``: the workflow's decision, written into the store.

An edit is checked here as the edited call, with the tool's own types and the policy, because only a worker has them.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

from pydantic import ValidationError
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.engine.engine import Engine
from activities.engine.preconditions import precondition
from activities.planning.control_calls import read_control_call
from turngate.domain import contract
from turngate.domain.contract import DecideInput, RecordDecisionInput, RecordedDecision
from turngate.domain.digest import framed_sha256
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.requests import STATUS_OF_VERB, RequestStatus
from turngate.domain.tools import results
from turngate.domain.tools.failures import InvalidToolInput, describe_validation
from turngate.domain.tools.results import MAX_DEPTH, Ok, as_object, is_deeper
from turngate.store.clock import as_text, from_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.policy import grants
from turngate.store.requests import claims, requests
from turngate.store.runs import calls, executions, runs
from turngate.store.tables import decisions

GRANTING_VERBS: Final = frozenset({"approve", "edit"})


class RecordDecision:
    """Writes decisions into the store, with everything that follows from them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.RECORD_DECISION)
    async def record_decision(self, order: RecordDecisionInput) -> RecordedDecision:
        """Write one decision and what follows from it; returns who holds the request.

        Safe to repeat. When the store already holds another decision (recorded just before a crash ate its answer),
        that one is returned and nothing changes.

        Raises:
            ApplicationError: ``invalid_edit``, not retryable: the edited call does not fit or is denied; nothing saved.
        """
        decision = order.decision
        depends_on = await self._precondition_of_edit(decision)
        async with self._engine.database.write() as conn:
            request = await requests.get(conn, decision.request_id)
            if request is None:
                raise LookupError(f"no request {decision.request_id!r}")
            if request.status != "pending":
                return await _holder(conn, request)
            order = order.model_copy(update={"at": _decided_at(order, request)})
            if decision.verb == "approve" and request.quorum > 1 and not await _is_last(conn, request, order):
                return RecordedDecision(
                    decision_id=decision.decision_id, verb="approve", status="pending", by=decision.by
                )
            status = STATUS_OF_VERB[decision.verb]
            await self._apply(conn, request, decision)
            if depends_on is not None:
                await requests.set_precondition(conn, request.id, depends_on)
            await _win(conn, request, order, status)
            payload = await _decision_payload(conn, request, decision, status)
            granted = await self._grant(conn, request, decision)
            await events.append(conn, order.run_id, [("request.decided", payload), *granted])
        return RecordedDecision(
            decision_id=decision.decision_id,
            verb=decision.verb,
            status=status,
            by=decision.by,
            outcome=decision.outcome,
        )

    async def _apply(self, conn: Connection, request: requests.Request, decision: DecideInput) -> None:
        """Write what the decision means for the call: its edited input, or its result when it will not run."""
        if decision.verb == "approve":
            return
        content = await requests.decision(conn, decision.decision_id)
        message = content.message if content else ""
        args = content.args if content else None
        run_id, call_id = request.run_id, request.tool_call_id
        match decision.verb:
            case "edit":
                await self._apply_edit(conn, request, decision, args or "")
            case "reject":
                await calls.settle(conn, run_id, call_id, results.rejected(decision.by, message))
            case "respond" if request.kind == "outcome":
                await _apply_resolution(conn, request, decision, args)
            case "respond":
                answer = {"operator_response": message} if args is None else as_object(_parsed(args))
                if request.kind == "question":
                    self._check_answer(request, args or "")
                await calls.settle(conn, run_id, call_id, Ok(value=answer))

    async def _precondition_of_edit(self, decision: DecideInput) -> str | None:
        """Return what the edited call depends on, as it is when a person sends it; None when its tool does not say.

        Taken here, because the first one was that of the model's own arguments, and outside the transaction, because it
        is author's code. Arguments that do not fit are refused later, in one place.
        """
        if decision.verb != "edit":
            return None
        async with self._engine.database.read() as conn:
            request = await requests.get(conn, decision.request_id)
            content = await requests.decision(conn, decision.decision_id)
            run = None if request is None else await runs.get(conn, request.run_id)
            tool = None if request is None else await self._engine.tool_of_request(conn, request)
        if request is None or run is None or request.precondition is None:
            return None
        if tool is None:
            return None
        try:
            params = tool.decode((content.args if content else None) or "")
            return await precondition(self._engine, tool, params, run, request.tool_call_id)
        except InvalidToolInput:
            return None
        except Exception as error:  # noqa: BLE001 - author's code: it differs from what is seen later, so it is asked again
            return json.dumps({"precondition_failed": type(error).__name__})

    async def _apply_edit(
        self, conn: Connection, request: requests.Request, decision: DecideInput, edited: str
    ) -> None:
        """Check the edited call as if the model had sent it, and store what will run (I6)."""
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        tool = await self._engine.tool_of_request(conn, request)
        if call is None or tool is None:
            raise _invalid_edit(f"the tool {request.tool_name!r} is no longer there")
        try:
            params = tool.decode(edited)
            if tool.kind == "signal":
                read_control_call(self._engine, tool, params)
        except InvalidToolInput as problem:
            raise _invalid_edit(str(problem)) from None
        run = await runs.get(conn, request.run_id)
        if run is None:
            raise _invalid_edit(f"the run {request.run_id!r} is no longer there")
        rules = await self._engine.rules(conn, run)
        verdict = rules.verdict(tool, params, edited, decided=True)
        if verdict.answer == "deny":
            raise _invalid_edit(f"the edited call is denied by policy rule {verdict.rule!r}: {verdict.reason}")
        await calls.set_edited_input(conn, request.run_id, request.tool_call_id, edited)
        digest = call.digest_with(tool, edited)
        await conn.execute(update(decisions).where(decisions.c.id == decision.decision_id).values(digest=digest))

    async def _grant(self, conn: Connection, request: requests.Request, decision: DecideInput) -> list[events.NewEvent]:
        """Store the grant that this decision asks for; an edited call is granted as it was edited."""
        content = await requests.decision(conn, decision.decision_id) if decision.verb in GRANTING_VERBS else None
        if content is None or content.grant_wanted is None:
            return []
        wanted = WantedGrant.model_validate_json(content.grant_wanted)
        stored = await grants.create(
            conn,
            wanted,
            grants.Origin(
                created_by=decision.by,
                role=decision.role,
                run_id=request.run_id,
                agent=request.agent,
                request_id=request.id,
            ),
            key=decision.decision_id,
        )
        grant = {"grant_id": stored.id, "by": decision.by, "tool": stored.tool_name, "scope": stored.scope}
        bounds = {"max_uses": stored.max_uses, "expires_at": stored.expires_at, "digest": framed_sha256(stored.pattern)}
        return [("grant.created", {**grant, **bounds})]

    def _check_answer(self, request: requests.Request, answer: str) -> None:
        tool = self._engine.tool(self._engine.agent(request.agent), request.tool_name)
        if tool is None:
            return
        try:
            tool.success.validate_json(answer)
        except ValidationError as error:
            raise _invalid_edit(describe_validation(error)) from None


def _decided_at(order: RecordDecisionInput, request: requests.Request) -> datetime:
    """Return when the person decided, for the record: that is the age of an approval, however late a worker stored it.

    By the clock of the API's machine, so held between the request's opening and the workflow's own time.
    """
    return max(min(order.decision.sent_at, order.at), from_text(request.created_at))


async def _decision_payload(
    conn: Connection, request: requests.Request, decision: DecideInput, status: RequestStatus
) -> dict[str, object]:
    """Return what the log stores of a decision: who, as whom, what, and which bytes; not the message."""
    payload: dict[str, object] = {
        "request_id": request.id,
        "decision_id": decision.decision_id,
        "verb": decision.verb,
        "status": status,
        "by": decision.by,
        "role": decision.role,
        "outcome": decision.outcome,
        "digest": request.digest,
    }
    if decision.machine:
        payload["machine"] = True
    edit = await requests.decision(conn, decision.decision_id) if decision.verb == "edit" else None
    return payload if edit is None else {**payload, "edited_digest": edit.digest}


async def _is_last(conn: Connection, request: requests.Request, order: RecordDecisionInput) -> bool:
    """Count an approval of a request that needs several; True when it completes them, and so decides.

    Safe to repeat: an approval that is counted already, by this very decision, is counted once.
    """
    decision = order.decision
    counted = await requests.approval_of_decision(conn, decision.decision_id)
    if counted is not None:
        return False
    content = await requests.decision(conn, decision.decision_id)
    if any(each.decided_by == decision.by for each in await requests.of_request(conn, request.id)):
        raise ApplicationError(
            f"{decision.by} has approved this already; {request.quorum} different people have to",
            type="already_approved",
            non_retryable=True,
        )
    count = await requests.add_approval(
        conn,
        requests.Approval(
            request_id=request.id,
            decided_by=decision.by,
            decision_id=decision.decision_id,
            message=content.message if content else "",
            created_at=as_text(order.at),
        ),
    )
    if count >= request.quorum:
        return True
    by = {"request_id": request.id, "decision_id": decision.decision_id, "by": decision.by, "role": decision.role}
    counts = {"approvals": count, "quorum": request.quorum, "digest": request.digest}
    await events.append(conn, order.run_id, [("request.approved_once", {**by, **counts})])
    # They have done their part: their claim must not hold up the people who are still needed.
    await claims.release(conn, request.id, by=decision.by, anyones=False)
    return False


async def _win(conn: Connection, request: requests.Request, order: RecordDecisionInput, status: RequestStatus) -> None:
    decision = order.decision
    ending = requests.Ending(
        status=status, at=order.at, decision_id=decision.decision_id, verb=decision.verb, by=decision.by
    )
    try:
        await requests.settle(conn, request.id, ending)
    except IntegrityError as error:
        raise _invalid_edit(
            "this decision id was used for another request; send the decision under a new one"
        ) from error


async def _apply_resolution(
    conn: Connection, request: requests.Request, decision: DecideInput, args: str | None
) -> None:
    """Write a person's answer about a call whose worker was lost."""
    run_id, call_id = request.run_id, request.tool_call_id
    match decision.outcome:
        case "happened":
            await executions.resolve_unknown(conn, run_id=run_id, tool_call_id=call_id, state="succeeded")
            value = as_object(_parsed(args)) if args else {"note": "An operator confirmed that this took effect."}
            await calls.settle(conn, run_id, call_id, Ok(value=value))
        case "tell_model":
            await calls.settle(conn, run_id, call_id, results.outcome_unknown(request.tool_name))
        case "did_not_happen":
            pass  # redemption starts it once more, on this decision
        case None:
            raise _invalid_edit("say which: happened, did_not_happen or tell_model")


async def _holder(conn: Connection, request: requests.Request) -> RecordedDecision:
    if request.decision_id is None or request.verb is None:
        raise ApplicationError(f"the request is {request.status}", type="run_ended", non_retryable=True)
    content = await requests.decision(conn, request.decision_id)
    return RecordedDecision(
        decision_id=request.decision_id,
        verb=request.verb,
        status=request.status,
        by=request.decided_by or "",
        outcome=content.outcome if content else None,
    )


def _parsed(text: str) -> object:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise _invalid_edit("the answer is not valid JSON") from None
    if is_deeper(answer, MAX_DEPTH):
        raise _invalid_edit(f"the answer nests deeper than {MAX_DEPTH} levels")
    return answer


def _invalid_edit(message: str) -> ApplicationError:
    return ApplicationError(message, type=contract.ERROR_INVALID_EDIT, non_retryable=True)
