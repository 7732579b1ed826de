"""The door to a tool's handler: one call in one transaction, with what is on record about it and what may be written.

:class:`Door` reads and writes; :mod:`turngate.activities.execution.checks` decides, check by check, whether it opens. Only a
:class:`Redeemed` lets a handler start; every other result means that it does not (I2, I3, I6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Self

from temporalio.exceptions import ApplicationError

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.rules import RulesInForce
from turngate.activities.execution import settlement
from turngate.activities.execution.preflight import Findings, Inspection, Purpose
from turngate.activities.execution.redemption import AskAgain, Settled, UnknownEnd
from turngate.activities.execution.settlement import CallResult, Start
from turngate.activities.planning.control_calls import read_control_call
from turngate.activities.planning.origins import StepOrigins
from turngate.activities.planning.requests import Question, rendered_summary, request_id_of, still_waiting_call
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.contract import RunToolInput
from turngate.domain.digest import derived_id, idempotency_key
from turngate.domain.origins.origin import OF_AN_EDIT, Origins
from turngate.domain.policy.always_asked import MAY_HAVE_HAPPENED, REPEATED_BY_EDIT, asked_as_repeat, wider_by_edit
from turngate.domain.policy.policy import Verdict
from turngate.domain.requests import ExecutionState, RequestKind
from turngate.domain.text.durations import exact_span, span
from turngate.domain.tools import results
from turngate.domain.tools.defaults import agree, stored
from turngate.domain.tools.external import is_external
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.known_tools import KnownTool
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store import evidence
from turngate.store.clock import from_text, now
from turngate.store.connection import Connection, note
from turngate.store.events import events
from turngate.store.policy import grants, totals
from turngate.store.requests import requests
from turngate.store.requests.requests import DEPENDS_ON_NOTHING, Request
from turngate.store.runs import calls, executions, runs

OTHER_CALL: Final = "the call or its tool is not what was shown when it was allowed; send it again"
MOVED_ON = "another attempt moved this execution on; looking again"
NO_ONES: Final = frozenset({"pending", "expired", "cancelled"})
"""How a request is as no person's answer leaves it."""
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

    ``request``: the last that was opened about the call; None: no person was asked. ``all_requests``: every one.
    ``execution``: None while the call was never let through. ``known_tool``: None when this worker's app no longer has it.
    ``findings``: of author's code that was called because an earlier redemption wanted an inspection; None: of none.
    ``end``: how the start of this very attempt ended, of which no one knows whether it took effect; None: it brings no such news.
    ``stored_rules``, ``is_last_open``, ``may_have_happened``: as on record. ``places``: where its paths led
    when it was judged last.
    """

    engine: Engine
    conn: Connection
    order: RunToolInput
    run: runs.Run
    call: calls.Call
    execution: executions.Execution | None
    agent: Agent
    known_tool: Tool | None
    request: Request | None = None
    all_requests: Sequence[Request] = ()
    findings: Findings | None = None
    end: UnknownEnd | None = None
    stored_rules: tuple[int, bool]
    is_last_open: bool
    may_have_happened: bool
    places: dict[str, str] = field(default_factory=dict, init=False)
    _permission: Permission | None = field(default=None, init=False)
    _rules: RulesInForce | None = field(default=None, init=False)

    @classmethod
    async def at(
        cls,
        engine: Engine,
        conn: Connection,
        order: RunToolInput,
        findings: Findings | None = None,
        end: UnknownEnd | None = None,
    ) -> Self:
        """Bring a call to the door. Raises LookupError when it was never planned."""
        on_record = await executions.on_record(conn, order.run_id, order.call)
        if on_record is None:
            raise LookupError(f"no planned call {order.call!r} in run {order.run_id!r}")
        agent, call = await engine.agent_of(conn, on_record.run), on_record.call
        repeats = call.edited_input is not None and await executions.edit_may_have_happened(conn, call)
        return cls(
            engine=engine,
            conn=conn,
            order=order,
            run=on_record.run,
            call=call,
            execution=on_record.execution,
            agent=agent,
            known_tool=engine.tool(agent, call.tool_name),
            request=_last_request(on_record),
            all_requests=on_record.requests,
            findings=findings,
            end=end,
            stored_rules=on_record.stored_rules,
            is_last_open=on_record.is_last_open,
            may_have_happened=on_record.may_have_happened or repeats,
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
    def is_edited(self) -> bool:
        """Whether a person's arguments run in place of the model's."""
        return self.call.edited_input is not None

    @property
    def approval_is_stale(self) -> bool:
        """Whether the approval is too old to count, and no precondition says that everything is still as it was."""
        approval = self.approval
        if approval is None or not is_stale(approval):
            return False
        return approval.depends_on is None or not self.tool.precondition_keeps_fresh

    @property
    def grant_needs_look(self) -> bool:
        """Whether a grant lets processes start that may run more than the arguments say: scripts, which it doesn't hold."""
        tool = self.tool
        return self.verdict.grant_id is not None and tool.confinement is not None and tool.precondition is not None

    @property
    def approved_with(self) -> str | None:
        """What the call depended on when it was approved, as JSON: nothing, for what a grant holds. None: that isn't compared."""
        if self.approval is not None:
            return self.approval.precondition
        return DEPENDS_ON_NOTHING if self.grant_needs_look else None

    @property
    def first_answered(self) -> Request | None:
        """The request whose answer let the call start first, also once its outcome was asked about; None: no one was asked."""
        return _newest_before_start(self.call, self.all_requests)

    def other_confinement(self, request: Request | None) -> str | None:
        """Return how this worker would confine the call's processes, if that isn't what a request showed; None: it is.

        Of a call that no one was asked about: if they would run unconfined. The call was judged before, so it can be decoded.
        """
        confine = self.tool.confinement
        if confine is None:
            return None
        if request is None or request.process_confinement is None:
            now = confine(self.call.decoded_by(self.tool))
            return None if now.confined else now.text
        # Of the arguments that were shown: a person who edits them may give the call the network.
        now = confine(self.tool.decode(request.input))
        return None if now.text == request.process_confinement.text else now.text

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
        request = self.request
        if self.call.disposition == "run":
            return self.call.digest, None
        if self.call.disposition != "ask" or request is None or request.decision_id is None:
            return None
        if request.kind != "approval" or request.status != "approved":
            return None
        if request.verb != "edit":
            return request.digest, request
        decision = await requests.decision(self.conn, request.decision_id)
        return None if decision is None else (decision.digest, request)

    async def require_logged_answer(self) -> None:
        """Raise ApplicationError, not retryable, where the log doesn't have what lets the call start or end (I15).

        That is the answer to its request, or an earlier start. If the store has another, no one knows whether a person let the
        call run, so nothing is done in their name, and the run fails.
        """
        request, execution = self.request, self.execution
        if execution is None and (request is None or request.status in NO_ONES):
            return
        rows: list[tuple[str, Mapping[str, Any]]] = [("calls", vars(self.call))]
        if request is not None:
            rows.append(("requests", vars(request)))
            if request.decision_id is not None and request.verb != "approve":
                decision = await requests.decision(self.conn, request.decision_id)
                rows += [] if decision is None else [("decisions", vars(decision))]
            if request.approvals > 1:
                approvals = await requests.of_request(self.conn, request.id)
                rows += [("approvals", vars(each)) for each in approvals]
        if execution is not None:
            rows.append(("executions", vars(execution)))
        ids = {each.id for each in self.all_requests}
        different = await evidence.call_difference(self.conn, self.call, rows, request_ids=ids)
        if different is not None:
            why = (
                f"what lets call {self.call.tool_call_id} run was changed in the database past Turngate, or no one gave it "
                f"({different.problem}): nothing was done because of it. `turngate audit verify` says what was changed"
            )
            raise ApplicationError(why, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True)

    async def judge(self, digest: str, *, decided: bool) -> Verdict | Failure:
        """Return what policy says now of the bytes about to run, or why they must not: not what was shown, or denied.

        An approval still counts when policy has changed since, unless a rule denies the call now (ADR 0014). ``decided``: a
        person approved it, or its handler was let through before; then an unattended run is no reason to refuse it.
        """
        tool, raw_input = self.known_tool, self.call.running_input
        if tool is None:
            return not_run("the tool is no longer there")
        if self.call.digest_with(tool) != digest:
            return not_run(OTHER_CALL)
        try:
            params = self.call.decoded_by(tool)
            if not agree(self.call.left_out, tool.defaults_of(raw_input, params)):
                return not_run(OTHER_CALL)
            if tool.kind == "signal" and self.is_edited:  # that of the model was read when it was planned
                read_control_call(self.engine, tool, params)
        except InvalidToolInput as problem:
            return results.invalid_input(str(problem), problem.problem)
        rules = await self.rules()
        verdict = rules.verdict(
            tool,
            params,
            raw_input,
            defaults=self.call.left_out,
            origins=await self._origins_for(rules),
            decided=decided,
            may_have_happened=self.may_have_happened,
        )
        self.places = verdict.places
        if verdict.answer == "deny":
            return results.denied(verdict.rule, verdict.reason)
        return asked_as_repeat(verdict) if self.is_edited and self.may_have_happened else verdict

    async def rules(self) -> RulesInForce:
        """Return the rules in force for the run, as this transaction sees them."""
        if self._rules is None:
            self._rules = await self.engine.rules(self.conn, self.run, glance=self.stored_rules)
        return self._rules

    async def take_allowance(self) -> bool:
        """Take what the verdict counts: a use of the grant, the call's share of a total; True when that is nothing.

        False when another writer took the last use, or the total would be exceeded. The call is then judged without it.
        """
        verdict, call_id = self.verdict, self.call.tool_call_id
        if verdict.answer != "allow":
            return True
        if verdict.share is not None and not await totals.take(self.conn, verdict.share):
            self._rules = (await self.rules()).without(verdict)
            return False
        if verdict.grant_id is not None:
            if not await grants.take_use(self.conn, verdict.grant_id, run_id=self.run.id, tool_call_id=call_id):
                if verdict.share is not None:
                    await totals.give_back(self.conn, verdict.share)
                self._rules = (await self.rules()).without(verdict)
                return False
            payload = {"grant_id": verdict.grant_id, "tool_call_id": call_id, "tool": self.tool.name}
            await events.append(self.conn, self.run.id, [("grant.used", payload)])
        elif verdict.share is not None:
            payload = {"rule": verdict.rule, "tool_call_id": call_id, "tool": self.tool.name}
            await events.append(self.conn, self.run.id, [("total.counted", payload)])
        return True

    async def judge_without_grant(self) -> Failure | None:
        """Judge the call as if the grant that allows it did not exist. Returns as :meth:`authorize`."""
        self._rules = (await self.rules()).without(self.verdict)
        return await self.authorize()

    def inspection(self, purpose: Purpose) -> Inspection:
        """Return what author's code has to be asked before the call may start."""
        return Inspection(agent=self.agent, run=self.run, call=self.call, tool=self.tool, purpose=purpose)

    @property
    def lacks_secrets(self) -> bool:
        """Whether the call refers to secrets that are not resolved yet."""
        resolved = self.findings is not None and self.findings.secrets is not None
        return not resolved and bool(self.tool.manifest.references_in(self.call.running_input))

    # What may be written

    async def refuse(self, failure: Failure) -> Settled:
        """Settle the call with a failure in place of running it."""
        request = None if self.execution is not None else self.request
        approved = request.id if request is not None and request.status == "approved" else None
        await settlement.refuse(self.conn, self.call, failure, approved=approved)
        return Settled()

    async def refuse_edit(self, failure: Failure) -> Settled | AskAgain:
        """Settle the call with a failure; of edited arguments that do not fit the tool, ask about the model's own again."""
        if self.is_edited and failure.kind == "input_validation_error":
            return await self.ask_about_original(failure)
        return await self.refuse(failure)

    async def settle(self, result: Ok | Failure, *, by: str | None = None) -> Settled:
        """Settle the call with a result that no handler of this attempt returned; the caller ends its execution.

        ``by``: where the result comes from (``probe``, ``report``); None: the engine itself.
        """
        await settlement.settle(self.conn, self.call, CallResult.of(self.engine, self.run, result), by=by)
        return Settled()

    async def open(self) -> Start:
        """Redeem: write the execution row, unique by call and by decision. From now on the call counts as started."""
        start, new = self._opening()
        await executions.begin(self.conn, new)
        return start

    async def open_to_handler(self) -> None:
        """Redeem as :meth:`open`, with the event of the handler's start. Nothing follows in the transaction."""
        start, new = self._opening()
        await settlement.tell_started(self.conn, self.call, start, writes=executions.begin_writes(new), last=True)

    def _opening(self) -> tuple[Start, executions.NewExecution]:
        permission = self.permission
        decision_id = None if permission.approval is None else permission.approval.decision_id
        new = executions.NewExecution(
            run_id=self.run.id,
            tool_call_id=self.call.tool_call_id,
            digest=permission.digest,
            decision_id=decision_id,
            idempotency_key=idempotency_key(self.run.id, self.call.tool_call_id),
            worker=None if is_external(self.run.agent) else self.engine.worker,
            build=None if is_external(self.run.agent) else self.engine.build,
            repeat_key=self.call.running_key,
        )
        if permission.approval is None:
            note(self.conn, "ask.avoided", rule=permission.verdict.rule, grant=permission.verdict.grant_id)
        by = None if permission.approval is None else permission.approval.decided_by
        return Start(attempt=1, decision_id=decision_id, by=by, digest=permission.digest), new

    async def end_previous_start(self, state: ExecutionState, *, partial_output: str = "") -> None:
        """End the start of an earlier attempt; raises LookupError when it is no longer as it was read.

        On PostgreSQL two attempts may look at a call at once. One that was thought lost may store its result, or the next
        start may begin, after this one has read the row.
        """
        if not await executions.finish_start(
            self.conn, self.previous_start, state=state, partial_output=partial_output
        ):
            raise LookupError(MOVED_ON)

    async def ask_again(self, why: str = "") -> AskAgain:
        """Open another request for a call whose approval no longer counts; that approval is never redeemed.

        What the call depends on has changed since, or may have: the approval is older than its rule allows, and no
        precondition says otherwise. Safe to repeat: the same approval leads to the same request.
        """
        approval, findings = self.approval, self.findings or Findings()
        if approval is None:
            raise LookupError(f"no one approved call {self.call.tool_call_id!r}")
        question = replace(
            await self._question(why or _why_again(approval, findings.precondition)),
            digest=self.permission.digest,
            agent_words=approval.agent_words,
            replaces=approval,
        )
        return AskAgain(await question.ask(self.conn))

    def stricter_terms(self) -> str | None:
        """Return in what policy is stricter with the edited call than it was with the call that was shown; None: in nothing."""
        approval = self.approval
        if approval is None or approval.verb != "edit":
            return None
        if self.verdict.rule == MAY_HAVE_HAPPENED and approval.repeat_key != self.call.running_key:
            return REPEATED_BY_EDIT
        return self.verdict.stricter_than(self._planned_verdict, approval.ask_terms) or self.wider_by_edit(approval)

    def wider_by_edit(self, edited: Request) -> str | None:
        """Return in what the edited call may reach more than the one that the request showed; None: in nothing."""
        tool = self.tool
        return wider_by_edit(
            tool.manifest,
            self.call.running_input,
            original=edited.input,
            confinement=None if tool.confinement is None else tool.confinement(self.call.decoded_by(tool)),
            original_confinement=edited.process_confinement,
        )

    def asking(self, verdict: Verdict) -> Verdict:
        """Return the verdict that asks about an edited call: this one, or as planned if this one lets it run."""
        return self._planned_verdict if verdict.answer == "allow" else verdict

    async def ask_about_edit(self, verdict: Verdict, why: str) -> AskAgain:
        """Open another request for an edited call, under the terms that its own arguments need, or else as planned."""
        edited = self.request
        if edited is None:
            raise LookupError(f"no one edited call {self.call.tool_call_id!r}")
        verdict = self.asking(verdict)
        stored = verdict.model_dump_json(exclude_defaults=True)
        digests = await self._set_verdict(stored)
        question = replace(
            await self._question(f"{why} {verdict.reason}".strip(), verdict),
            digest=self.call.digest_with(self.tool),
            agent_words=edited.agent_words,
            replaces=edited,
        )
        return AskAgain(await question.ask(self.conn, **digests))

    def defaults_of_edit(self) -> str | None:
        """Return what the edited call leaves out (JSON), if that isn't what the person who edited it was shown.

        The API has no code of the tool's: it knows what the schema says. None, too, where the edit doesn't fit the tool.
        """
        try:
            now = self.tool.defaults_of(self.call.running_input, self.call.decoded_by(self.tool))
        except InvalidToolInput:
            return None
        return None if agree(self.call.left_out, now) else stored(now) or ""

    async def ask_about_defaults(self, defaults: str) -> AskAgain | Settled:
        """Open another request for an edited call, with what it really leaves out."""
        edited_input, defaults_or_none = self.call.edited_input, defaults or None
        await calls.set_edited_input(
            self.conn, self.run.id, self.call.tool_call_id, edited_input, defaults=defaults_or_none
        )
        self.call = replace(self.call, defaults=defaults_or_none)
        verdict = await self.judge(self.call.digest_with(self.tool), decided=True)
        if isinstance(verdict, Failure):
            return await self.refuse_edit(verdict)
        return await self.ask_about_edit(
            verdict, "The tool fills in other values than the person who edited it was shown."
        )

    async def ask_about_original(self, problem: Failure) -> AskAgain:
        """Open another request for the model's own arguments: those that a person put in their place do not fit the tool.

        Only a worker has the tool's own types, so the API took an edit that it could not check.
        """
        edited = self.request
        if edited is None:
            raise LookupError(f"no one edited call {self.call.tool_call_id!r}")
        requests_of_call = await requests.of_call(self.conn, self.run.id, self.call.tool_call_id, kind="approval")
        defaults = next((each.defaults for each in requests_of_call if each.input == self.call.input), None)
        await calls.set_edited_input(self.conn, self.run.id, self.call.tool_call_id, None, defaults=defaults)
        self.call = replace(self.call, edited_input=None, defaults=defaults)
        question = replace(
            await self._question(
                f"The arguments that a person sent in their place do not fit the tool: {problem.reason}"
            ),
            agent_words=edited.agent_words,
            summary=edited.summary,
            preview=edited.shown_preview,
            precondition=edited.precondition,
            replaces=edited,
        )
        return AskAgain(await question.ask(self.conn, digests=evidence.digests_of_call(self.call)))

    async def ask_question_again(self, problem: str) -> AskAgain:
        """Ask a question again, because the answer does not fit the tool's own type."""
        answered = self.request
        if answered is None:
            raise LookupError(f"no one answered call {self.call.tool_call_id!r}")
        question = replace(
            await self._question(f"The answer that {answered.decided_by} gave does not fit: {problem}"),
            kind="question",
            agent_words=answered.agent_words,
            summary=answered.summary,
            preview=answered.shown_preview,
            precondition=None,
            replaces=answered,
        )
        return AskAgain(await question.ask(self.conn))

    async def ask_overruled(self, verdict: Verdict) -> AskAgain:
        """Open a request for a call that policy allowed when it was planned, and no longer does.

        The call has no execution, in this very transaction. From here on it waits for a person, as if it had been asked
        for at once.
        """
        rule = self._planned_verdict.rule
        verdict = verdict.model_copy(update={"overruled": rule})
        reason = f"It was allowed by {rule!r} when the model asked for it, and is not any more. {verdict.reason}"
        question = await self._question(reason, verdict)
        stored = verdict.model_dump_json(exclude_defaults=True)
        return AskAgain(await question.ask(self.conn, **await self._set_verdict(stored)))

    async def _set_verdict(self, verdict: str) -> dict[str, Any]:
        """Store that the call waits for a person, by this verdict (JSON); returns the digests for the log."""
        await calls.set_disposition(self.conn, self.run.id, self.call.tool_call_id, "ask", verdict)
        changed = replace(self.call, disposition="ask", verdict=verdict)
        return {"digests": evidence.digests_of_call(changed)}

    async def _question(self, reason: str, verdict: Verdict | None = None) -> Question:
        """Return a question about the call, with what author's code was found to say of it; ``verdict`` None: as planned."""
        findings = self.findings or Findings()
        return Question(
            run=self.run,
            agent=self.agent,
            call=self.call,
            tool=self.tool,
            verdict=verdict or self._planned_verdict,
            reason=reason,
            summary=findings.summary or await rendered_summary(self.tool, self.call.running_input, self.call.left_out),
            preview=findings.preview,
            precondition=findings.precondition,
            origins=await self._origins(),
        )

    async def _origins_for(self, rules: RulesInForce) -> Origins | None:
        """Return where the arguments that are to run come from, as rules see them; None: not known, or no rule asks."""
        if self.is_edited:
            return OF_AN_EDIT
        return await self._origins() if rules.need_origins(self.tool) else None

    async def _origins(self) -> Origins | None:
        """Return where the arguments that are to run come from; None: not known."""
        return await StepOrigins(self.engine, self.run, self.agent, self.call.step).of(self.conn, self.tool, self.call)

    @property
    def _planned_verdict(self) -> Verdict:
        return Verdict.model_validate_json(self.call.verdict)

    async def has_resolution(self) -> bool:
        """Tell whether a person said that the call's last start did not happen, so that it may start again."""
        request = self.request
        if request is None or request.kind != "outcome" or request.decision_id is None:
            return False
        decision = await requests.decision(self.conn, request.decision_id)
        return decision is not None and decision.outcome == "did_not_happen"

    def wait_for(self, request: Request) -> AskAgain:
        """Return the call as it waits for the answer to a request that was opened before."""
        return AskAgain(still_waiting_call(self.run, self.agent, self.shown_tool, request))

    @property
    def shown_tool(self) -> Tool:
        """The call's tool; where this worker has none, one of its name, for a question about the call."""
        return self.known_tool or KnownTool(name=self.call.tool_name).stand_in()


def _last_request(on_record: executions.OnRecord) -> Request | None:
    """Return the last request about a call. What happened to a lost start is asked once for each."""
    call, execution = on_record.call, on_record.execution
    if call.disposition == "run" and execution is None:
        return None
    if execution is not None and execution.state == "unknown":
        outcome = resolution_request_id(execution)
        return next((each for each in on_record.requests if each.id == outcome), None)
    return _newest_before_start(call, on_record.requests)


def _newest_before_start(call: calls.Call, of_call: Sequence[Request]) -> Request | None:
    """Return the newest request about whether a call may run, found by ids that follow from each other, and not by any clock.

    A request about an approval that no longer counts replaces the one before.
    """
    by_id = {request.id: request for request in of_call}
    kinds: tuple[RequestKind, ...] = ("approval", "question")
    first = (request_id_of(call.run_id, call.tool_call_id, kind) for kind in kinds)
    last = next((by_id[request_id] for request_id in first if request_id in by_id), None)
    while last is not None and requests.again_id(last) in by_id:
        last = by_id[requests.again_id(last)]
    return last


def resolution_request_id(lost: executions.Execution) -> str:
    """Return the id of the request about a lost start. Each start has its own: a call may be lost again."""
    return derived_id("rq", lost.run_id, lost.tool_call_id, "outcome", str(lost.attempts))


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
        if approval.verb == "edit":
            return f"{approval.decided_by} edited this, and what it depends on now is not what was shown: {change}"
        return f"{approved}, but what it depends on changed before it could run: {change}"
    age = span((now() - from_text(approval.decided_at)).total_seconds())
    approved = f"{approved} {age} ago, and its rule lets an approval count for {exact_span(lasts)}"
    if approval.depends_on is None:
        return f"{approved}. Nothing tells whether what it depends on has changed since."
    if approval.depends_on == precondition:
        return f"{approved}. What is known of what it depends on has not changed; other things may have."
    return f"{approved}. What it depends on has changed since: {change}"


def _clipped(precondition: str | None) -> str:
    text = "nothing" if precondition is None else precondition
    return text if len(text) <= MAX_PRECONDITION_CHARS else f"{text[:MAX_PRECONDITION_CHARS]}…"
