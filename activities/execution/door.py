"""The door to a tool's handler: one call in one transaction, with what is on record about it and what may be written.

:class:`Door` reads and writes; :mod:`activities.execution.checks` decides, check by check, whether it opens. Only a
:class:`Redeemed` lets a handler start; every other result means that it does not (I2, I3, I6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from activities.engine.engine import Engine
from activities.engine.preconditions import idempotency_key
from activities.engine.rules import RulesInForce
from activities.execution import settlement
from activities.execution.preflight import Findings, Inspection, Purpose
from activities.execution.redemption import AskAgain, Settled
from activities.execution.settlement import CallResult, Start
from activities.planning.requests import Question, again_id, request_id_of, waiting_call
from turngate.domain.agents.app import Agent
from turngate.domain.contract import RunToolInput
from turngate.domain.policy.policy import Verdict
from turngate.domain.requests import ExecutionState
from turngate.domain.text.durations import exact_span, span
from turngate.domain.tools import results
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.clock import from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.policy import grants
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, runs

MOVED_ON = "another attempt moved this execution on; looking again"
MAX_PRECONDITION_CHARS = 300
"""Of a precondition, in the reason why a person is asked again."""


@dataclass(frozen=True)
class Permission:
    """What lets a call run: policy allowed it, or a person approved it.

    ``digest``: of the bytes it is for. ``approval``: the approved request; None when policy allowed it. ``verdict``:
    policy's, as it is now.
    """

    digest: str
    approval: Request | None
    verdict: Verdict


@dataclass(kw_only=True)
class Door:
    """One call at the door. It lives as long as the write transaction that it was opened in.

    ``execution``: None while the call was never let through. ``known_tool``: None when this worker's app no longer has it.
    ``findings``: of author's code that was called because an earlier redemption wanted an inspection; None: of none.
    """

    engine: Engine
    conn: Connection
    order: RunToolInput
    run: runs.Run
    call: calls.Call
    execution: executions.Execution | None
    agent: Agent
    known_tool: Tool | None
    findings: Findings | None = None
    _permission: Permission | None = field(default=None, init=False)
    _rules: RulesInForce | None = field(default=None, init=False)

    @classmethod
    async def at(cls, engine: Engine, conn: Connection, order: RunToolInput, findings: Findings | None = None) -> Self:
        """Bring a call to the door. Raises LookupError when it was never planned."""
        run = await runs.get(conn, order.run_id)
        planned = await executions.with_call(conn, order.run_id, order.call)
        if run is None or planned is None:
            raise LookupError(f"no planned call {order.call!r} in run {order.run_id!r}")
        call, execution = planned
        agent = await engine.agent_of(conn, run)
        return cls(
            engine=engine,
            conn=conn,
            order=order,
            run=run,
            call=call,
            execution=execution,
            agent=agent,
            known_tool=engine.tool(agent, call.tool_name),
            findings=findings,
        )

    @property
    def tool(self) -> Tool:
        """The call's tool. Raises LookupError where there is none; a call without a tool gets no permission."""
        if self.known_tool is None:
            raise LookupError(f"this worker has no tool {self.call.tool_name!r}")
        return self.known_tool

    @property
    def previous_start(self) -> executions.Execution:
        """The call's execution, begun by an earlier attempt. Raises LookupError when there was none."""
        if self.execution is None:
            raise LookupError(f"call {self.call.tool_call_id!r} was never started")
        return self.execution

    @property
    def permission(self) -> Permission:
        """What lets the call run. Raises LookupError before :meth:`authorize` has found it."""
        if self._permission is None:
            raise LookupError(f"call {self.call.tool_call_id!r} has no permission to run")
        return self._permission

    @property
    def approval(self) -> Request | None:
        """The request in which a person approved the call; None when policy allowed it."""
        return self.permission.approval

    @property
    def verdict(self) -> Verdict:
        """Policy's verdict on the call, as it is now."""
        return self.permission.verdict

    @property
    def approval_is_stale(self) -> bool:
        """Whether the approval is too old to count, and no precondition says that everything is still as it was."""
        approval = self.approval
        return approval is not None and approval.precondition is None and is_stale(approval)

    # What is on record

    async def authorize(self) -> Failure | None:
        """Find what lets the call run, and keep it as its permission; or return why nothing does.

        There has to be an approval or an allowing verdict on record, for the very bytes that are about to run, and policy
        must not deny them now.
        """
        permitted = await self._permitted()
        if permitted is None:
            return not_run("no approval or allowing rule for it is on record")
        digest, approval = permitted
        verdict = await self.judge(digest, decided=approval is not None)
        if isinstance(verdict, Failure):
            return verdict
        self._permission = Permission(digest, approval, verdict)
        return None

    async def _permitted(self) -> tuple[str, Request | None] | None:
        """Return the digest that was allowed or approved, with the approved request; None: nothing was."""
        if self.call.disposition == "run" and self.order.decision_id is None:
            return self.call.digest, None
        if self.call.disposition != "ask" or self.order.decision_id is None:
            return None
        request = await requests.by_decision(self.conn, self.order.decision_id)
        if request is None or (request.run_id, request.tool_call_id) != (self.call.run_id, self.call.tool_call_id):
            return None
        if request.kind != "approval" or request.status != "approved":
            return None
        if request.verb != "edit":
            return request.digest, request
        decision = await requests.decision(self.conn, self.order.decision_id)
        return None if decision is None else (decision.digest, request)

    async def judge(self, digest: str, *, decided: bool) -> Verdict | Failure:
        """Return what policy says now of the bytes about to run, or why they must not: not what was shown, or denied.

        An approval still counts when policy has changed since, unless a rule denies the call now (ADR 0014). ``decided``: a
        person approved it, or its handler was let through before; then an unattended run is no reason to refuse it.
        """
        tool, raw_input = self.known_tool, self.call.running_input
        if tool is None:
            return not_run("the tool is no longer there")
        if self.call.digest_with(tool, raw_input) != digest:
            return not_run("the call or its tool is not what was shown when it was allowed; send it again")
        try:
            params = tool.decode(raw_input)
        except InvalidToolInput as problem:
            return results.invalid_input(str(problem), problem.problem)
        rules = await self.rules()
        verdict = rules.verdict(tool, params, raw_input, decided=decided)
        return results.denied(verdict.rule, verdict.reason) if verdict.answer == "deny" else verdict

    async def rules(self) -> RulesInForce:
        """Return the rules in force for the run, as this transaction sees them."""
        if self._rules is None:
            self._rules = await self.engine.rules(self.conn, self.run)
        return self._rules

    async def take_grant(self, grant_id: str) -> bool:
        """Take a use of a grant; False when another writer took the last one. The call is then judged without it."""
        if await grants.take_use(self.conn, grant_id, run_id=self.run.id, tool_call_id=self.call.tool_call_id):
            payload = {"grant_id": grant_id, "tool_call_id": self.call.tool_call_id, "tool": self.tool.name}
            await events.append(self.conn, self.run.id, [("grant.used", payload)])
            return True
        self._rules = (await self.rules()).without(grant_id)
        return False

    def inspection(self, purpose: Purpose) -> Inspection:
        """Return what author's code has to be asked before the call may start."""
        return Inspection(agent=self.agent, run=self.run, call=self.call, tool=self.tool, purpose=purpose)

    # What may be written

    async def refuse(self, failure: Failure) -> Settled:
        """Settle the call with a failure in place of running it."""
        await settlement.refuse(self.conn, self.call, failure)
        return Settled()

    async def settle(self, result: Ok | Failure, *, by: str | None = None) -> Settled:
        """Settle the call with a result that no handler of this attempt returned; the caller ends its execution.

        ``by``: where the result comes from (``probe``, ``report``); None: the engine itself.
        """
        await settlement.settle(self.conn, self.call, CallResult.of(self.engine, self.run, result), by=by)
        return Settled()

    async def open(self) -> Start:
        """Redeem: write the execution row, unique by call and by decision. From now on the call counts as started."""
        permission, decision_id = self.permission, self.order.decision_id
        await executions.begin(
            self.conn,
            executions.NewExecution(
                run_id=self.run.id,
                tool_call_id=self.call.tool_call_id,
                digest=permission.digest,
                decision_id=decision_id,
                idempotency_key=idempotency_key(self.run.id, self.call.tool_call_id),
            ),
        )
        by = None if permission.approval is None else permission.approval.decided_by
        return Start(attempt=1, decision_id=decision_id, by=by, digest=permission.digest)

    async def end_previous_start(self, state: ExecutionState, *, partial_output: str = "") -> None:
        """End the start of an earlier attempt; raises LookupError when it is no longer as it was read.

        On PostgreSQL two attempts may look at a call at once. One that was thought lost may store its result, or the next
        start may begin, after this one has read the row.
        """
        if not await executions.finish_start(
            self.conn, self.previous_start, state=state, partial_output=partial_output
        ):
            raise LookupError(MOVED_ON)

    async def ask_again(self) -> AskAgain:
        """Open another request for a call whose approval no longer counts; that approval is never redeemed.

        What the call depends on has changed since, or may have: the approval is older than its rule allows, and no
        precondition says otherwise. Safe to repeat: the same approval leads to the same request.
        """
        approval, findings = self.approval, self.findings or Findings()
        if approval is None:
            raise LookupError(f"no one approved call {self.call.tool_call_id!r}")
        question = Question(
            run=self.run,
            agent=self.agent,
            call=self.call,
            tool=self.tool,
            verdict=Verdict.model_validate_json(self.call.verdict),
            reason=_why_again(approval, findings.precondition),
            digest=self.permission.digest,
            agent_words=approval.agent_words,
            preview=findings.preview,
            precondition=findings.precondition,
            replaces=approval,
        )
        return AskAgain(await question.ask(self.conn))

    async def ask_overruled(self, verdict: Verdict) -> AskAgain:
        """Open a request for a call that policy allowed when it was planned, and no longer does.

        The call has no execution, in this very transaction. From here on it waits for a person, as if it had been asked
        for at once.
        """
        rule, findings = Verdict.model_validate_json(self.call.verdict).rule, self.findings or Findings()
        verdict = verdict.model_copy(update={"overruled": rule})
        question = Question(
            run=self.run,
            agent=self.agent,
            call=self.call,
            tool=self.tool,
            verdict=verdict,
            reason=f"It was allowed by {rule!r} when the model asked for it, and is not any more. {verdict.reason}",
            preview=findings.preview,
            precondition=findings.precondition,
        )
        stored = verdict.model_dump_json(exclude_defaults=True)
        await calls.set_disposition(self.conn, self.run.id, self.call.tool_call_id, "ask", stored)
        return AskAgain(await question.ask(self.conn))

    async def earlier_question(self) -> AskAgain | None:
        """Return the request that :meth:`ask_overruled` opened in an attempt whose answer was lost; None: it did not."""
        if Verdict.model_validate_json(self.call.verdict).overruled is None:
            return None
        return await self._waiting_for(request_id_of(self.run.id, self.call.tool_call_id, "approval"))

    async def replacement(self) -> AskAgain | None:
        """Return the request that replaced the call's approval, if there is one already.

        From then on only that one counts, even if everything has changed back: an operator has it on their screen.
        """
        approval = self.approval
        if approval is None or (approval.precondition is None and approval.ask_terms.fresh_for_seconds is None):
            return None  # no request replaces such an approval
        return await self._waiting_for(again_id(approval))

    async def _waiting_for(self, request_id: str) -> AskAgain | None:
        request = await requests.get(self.conn, request_id)
        return None if request is None else AskAgain(waiting_call(self.run, self.agent, self.tool, request))


def is_stale(approval: Request) -> bool:
    """Tell whether an approval is older than the rule that asked for it lets one count.

    Of an approval that several people gave, the one that completed it is its age: before, there was nothing to redeem.
    """
    lasts = approval.ask_terms.fresh_for_seconds
    if lasts is None or approval.decided_at is None:
        return False
    return now() - from_text(approval.decided_at) > timedelta(seconds=lasts)


def not_run(why: str) -> Failure:
    """Return the failure of a call that was stopped before it started."""
    return Failure(kind="execution_error", reason=f"The call did not run: {why}.")


def _why_again(approval: Request, precondition: str | None) -> str:
    """Return why the approval no longer counts, in words for the person who is asked again."""
    approved, lasts = f"{approval.decided_by} approved this", approval.ask_terms.fresh_for_seconds
    change = f"it was {_clipped(approval.precondition)}, and is now {_clipped(precondition)}."
    if not is_stale(approval) or approval.decided_at is None or lasts is None:
        return f"{approved}, but what it depends on changed before it could run: {change}"
    age = span((now() - from_text(approval.decided_at)).total_seconds())
    approved = f"{approved} {age} ago, and its rule lets an approval count for {exact_span(lasts)}"
    if approval.precondition is None:
        return f"{approved}. Nothing tells whether what it depends on has changed since."
    return f"{approved}. What it depends on has changed since: {change}"


def _clipped(precondition: str | None) -> str:
    text = "nothing" if precondition is None else precondition
    return text if len(text) <= MAX_PRECONDITION_CHARS else f"{text[:MAX_PRECONDITION_CHARS]}…"
