"""Planning: every call of a response is classified once, and the verdict is stored. Policy decides; nothing runs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import at_call
from turngate.activities.engine.external_agents import rejected_before
from turngate.activities.engine.preconditions import look
from turngate.activities.engine.rules import RulesInForce
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.history import History
from turngate.activities.planning.control_calls import read_control_call
from turngate.activities.planning.origins import QUICK, StepOrigins
from turngate.activities.planning.requests import Question, ready_call, take_summary, waiting_call
from turngate.domain.contract import MAX_CALLS_PER_STEP, PlannedCall, StepPlan
from turngate.domain.conversation.malformed import problem_in
from turngate.domain.conversation.messages import Message, ToolCallPart
from turngate.domain.conversation.secret_texts import secret_texts
from turngate.domain.digest import call_digest, repeat_key
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs.budgets import EXTEND_BUDGET
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import Finish
from turngate.domain.tools.defaults import Defaults, constant_text, stored
from turngate.domain.tools.external import is_external
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.runtime import telemetry
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events.events import NewEvent
from turngate.store.evidence import opening_event
from turngate.store.policy import judgements
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, runs

UNFINISHED = {"length", "content_filter", "refusal"}
"""Finish reasons of a response that is not complete; truncated arguments can be valid JSON (DESIGN §13)."""
MALFORMED_KINDS = {"unknown_tool", "input_validation_error"}
QUICK_CALLS: Final = 3
QUICK_CHARS: Final = 16 * 1024
"""Calls, and characters of all their arguments, up to which a response may be planned before it is stored."""


@dataclass(frozen=True)
class StepResponse:
    """A model's response to a step, to be planned. ``corrective``: what tells the model that its response is unusable.

    ``history``: what the model was just sent; None: an earlier attempt asked it.
    """

    step: RunStep
    message: Message
    finish_reason: str
    corrective: str | None = None
    history: History | None = None


@dataclass
class PlannedStep:
    """What one transaction writes: call rows, inbox requests, events, and the plan for the workflow.

    ``problems``: of each call, the kind of failure that left nothing to run; None: there was something to run.
    """

    plan: StepPlan = field(default_factory=lambda: StepPlan(final=False))
    calls: list[calls.Call] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    to_settle: list[PlannedCall] = field(default_factory=list)
    problems: list[str | None] = field(default_factory=list)

    def make_plan(self, corrective: str | None, *, malformed: bool, signals: bool) -> None:
        """Set the plan. ``signals``: a call asks something of the run."""
        self.plan = StepPlan(
            final=False,
            calls=tuple(self.to_settle),
            malformed=malformed,
            problem=self._problem(corrective) if malformed else "",
            signals=signals,
        )

    def supersede(self, *, by: str) -> None:
        """End what would wait for a person: someone has sent a newer message while the model answered."""
        ended = {request.tool_call_id: request for request in self.requests}
        at = as_text(now())
        self.requests = [replace(each, status="superseded", decided_at=at) for each in self.requests]
        closing = results.superseded(by).model_dump_json()
        self.calls = [
            replace(each, result=closing, settled_at=at) if each.tool_call_id in ended else each for each in self.calls
        ]
        for call_id, request in ended.items():
            payload: dict[str, object] = {"request_id": request.id, "tool_call_id": call_id, "by": by, "at": at}
            self.events.append(("request.superseded", payload))
        self.to_settle = [each for each in self.to_settle if each.call not in ended]
        self.plan = self.plan.model_copy(update={"calls": tuple(self.to_settle)})

    def _problem(self, corrective: str | None) -> str:
        """Return what was wrong with a response without a usable call: kinds of failures with counts, and no content."""
        if corrective is not None:
            return problem_in(corrective)
        counts = Counter(kind for kind in self.problems if kind is not None)
        return ", ".join(f"{kind} ({count})" for kind, count in counts.items())


WellFormed = tuple[Tool, Any, Defaults]
"""The tool of a call that policy may look at, its decoded parameters, and in what these differ from the arguments."""


@dataclass(frozen=True)
class Admitted:
    """A call that is well-formed and not denied. ``position``: among the calls of its step, from 0.

    ``defaults``: in what its handler gets something else than is written.
    """

    call: ToolCallPart
    position: int
    tool: Tool
    params: Any
    verdict: Verdict
    defaults: Defaults = ()


@dataclass(frozen=True)
class Closed:
    """A call that is closed without running and without asking; ``verdict``: None when it never reached policy.

    ``defaults``: as of :class:`Admitted`; empty, too, when it is not well-formed.
    """

    call: ToolCallPart
    position: int
    failure: Failure
    verdict: Verdict | None = None
    defaults: Defaults = ()


Classified = Admitted | Closed


class Planner:
    """Classifies the calls of one response."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def plan(self, conn: Connection, response: StepResponse) -> PlannedStep:
        """Return everything to store for this response's calls. Reads the store, writes nothing."""
        step, planned = response.step, PlannedStep()
        telemetry.hide(self._secrets(response))
        origins = self.origins(response)
        rules, classified = await self.classify(conn, response, origins)
        classified = await with_judgements(conn, rules, classified)
        for each in classified:
            row = self.with_secrets(step, planned_row(step.run, step.number, each, rules.policy.version))
            planned.calls.append(row)
            if isinstance(each, Closed):
                planned.problems.append(each.failure.kind)
                planned.events.append(("call.closed", _closed_payload(each)))
                continue
            planned.problems.append(None)
            if each.verdict.answer == "allow":
                planned.to_settle.append(ready_call(row, each.tool))
                continue
            with at_call(row.tool_call_id, step.number):
                question = await self._question(step, row, each, response.message.text)
            request = replace(question, origins=await origins.of(conn, each.tool, row)).request()
            planned.requests.append(request)
            planned.events.append(opening_event(request))
            planned.to_settle.append(waiting_call(step.run, step.agent, each.tool, request))
        planned.make_plan(
            response.corrective,
            malformed=all(kind in MALFORMED_KINDS for kind in planned.problems),  # a response without calls is, too
            signals=any(isinstance(each, Admitted) and each.tool.kind == "signal" for each in classified),
        )
        return planned

    def is_quick(self, response: StepResponse) -> bool:
        """Tell whether a response may be planned before it is stored: soon, and by the engine's own code alone (ADR 0037)."""
        step, tool_calls, history = response.step, response.message.calls, response.history
        if self.engine.judge is not None or step.run.is_dry or step.run.parent_run_id is not None:
            return False
        if history is None or not history.whole or len(history.recent) > QUICK:
            return False
        if len(tool_calls) > QUICK_CALLS or sum(len(each.input) for each in tool_calls) > QUICK_CHARS:
            return False
        tools = [self.engine.tool(step.agent, each.tool_name) for each in tool_calls]
        return not any(tool is not None and tool.has_planning_code for tool in tools)

    def with_secrets(self, step: RunStep, row: calls.Call) -> calls.Call:
        """Return a call with the declaration of its tool, if the call may hold secrets. A closed call may quote them, too."""
        tool = self.engine.tool(step.agent, row.tool_name)
        if tool is None or not (tool.manifest.has_secrets or tool.manifest.masked_input(row.input).secrets):
            return row
        return replace(row, manifest=tool.manifest.model_dump_json())

    def _secrets(self, response: StepResponse) -> frozenset[str]:
        """Return the secret texts in the calls of a response: the code of their tools may log them."""
        known = {
            each.tool_name: self.engine.tool(response.step.agent, each.tool_name) for each in response.message.calls
        }
        tools = {name: tool.manifest for name, tool in known.items() if tool is not None}
        return secret_texts(response.message, lambda part: tools.get(part.tool_name))

    def origins(self, response: StepResponse) -> StepOrigins:
        """Return what finds where the arguments of this response's calls come from."""
        step = response.step
        return StepOrigins(self.engine, step.run, step.agent, step.number, response.history)

    async def classify(
        self, conn: Connection, response: StepResponse, origins: StepOrigins
    ) -> tuple[RulesInForce, list[Classified]]:
        """Return the rules in force, and what they say about each call, in the model's order; without the judge."""
        step, calls_made = response.step, response.message.calls
        read = [self.well_formed(response, position) for position in range(len(calls_made))]
        keys = [key_of(call, each) for call, each in zip(calls_made, read, strict=True)]
        refused = await calls.refusals_by_key(conn, step.run.id, keys) if step.number > 1 else {}
        if keys and is_external(step.run.agent) and (rejected := await rejected_before(conn, step.run)) is not None:
            refused = dict.fromkeys(keys, rejected)  # such a run has one call
        rules = await self.engine.rules(conn, step.run)
        classified: list[Classified] = []
        finishes = ""
        for position, (call, well_formed, key) in enumerate(zip(calls_made, read, keys, strict=True)):
            if finishes:
                reason = f"{finishes!r} came before it in the same response, and nothing runs after that."
                classified.append(Closed(call, position, Failure(kind="cancelled", reason=reason)))
                continue
            with at_call(call.tool_call_id, step.number):
                if isinstance(well_formed, Failure):
                    classified.append(Closed(call, position, well_formed))
                    continue
                tool, params, defaults = well_formed
                of_call = await origins.for_rules(conn, rules, tool, call.input)
                verdict = rules.verdict(tool, params, call.input, defaults=defaults, origins=of_call)
            admitted = Admitted(call, position, tool, params, verdict, defaults)
            closed = _closed(admitted, refused.get(key))
            classified.append(closed or admitted)
            if closed is None and tool.kind == "signal":
                control_call = read_control_call(self.engine, tool, params)
                finishes = tool.name if isinstance(control_call, Finish) else ""
        return rules, classified

    def well_formed(self, response: StepResponse, position: int) -> WellFormed | Failure:
        """Return the tool, decoded parameters and defaults of a call that policy may look at, or what is wrong with it."""
        call, step, finish_reason = response.message.calls[position], response.step, response.finish_reason
        agent = step.agent
        if finish_reason in UNFINISHED:
            reason = (
                f"The response ended early ({finish_reason}), so none of its calls ran. Send the call again, whole."
            )
            return Failure(kind="cancelled", reason=reason)
        if position >= MAX_CALLS_PER_STEP:
            return Failure(
                kind="cancelled", reason=f"A response may make {MAX_CALLS_PER_STEP} calls; this one came after."
            )
        tool = self.engine.tool(agent, call.tool_name)
        if tool is None or tool.name == EXTEND_BUDGET:
            return results.unknown_tool(call.tool_name, agent.toolkit.names)
        if tool.kind == "provider" or (tool.kind == "local" and tool.handler is None):
            return results.non_local(tool.name, tool.kind)
        try:
            with at_call(call.tool_call_id, step.number):
                params, defaults = tool.decode_new(call.input)
            for name in tool.manifest.references_in(call.input):
                if name not in tool.references:
                    return results.unknown_secret(tool.name, name, tool.references)
            if tool.kind == "signal":
                read_control_call(self.engine, tool, params)
        except InvalidToolInput as invalid:
            return results.invalid_input(str(invalid), invalid.problem)
        return tool, params, defaults

    async def _question(self, step: RunStep, row: calls.Call, admitted: Admitted, agent_words: str) -> Question:
        """Return the question to a person about this call, with what its tool shows of it."""
        run, verdict, tool = step.run, admitted.verdict, admitted.tool
        taken = await look(self.engine, tool, admitted.params, run, row.tool_call_id)
        return Question(
            run=run,
            agent=step.agent,
            call=row,
            tool=tool,
            verdict=verdict,
            reason=verdict.reason,
            kind="question" if tool.kind == "interaction" else "approval",
            agent_words=agent_words,
            summary=await take_summary(tool, admitted.params, row.running_input, row.left_out),
            preview=taken.preview,
            precondition=taken.precondition,
        )


def _closed(admitted: Admitted, before: Failure | None) -> Closed | None:
    """Return a call that is closed without running and without asking, or None.

    ``before``: the refusal of an identical call before.
    """
    verdict = admitted.verdict
    if verdict.answer == "deny":
        failure = results.denied(verdict.rule, verdict.reason)
    elif before is not None:
        failure = results.repeated(before)
    else:
        return None
    return Closed(admitted.call, admitted.position, failure, verdict, admitted.defaults)


def key_of(call: ToolCallPart, well_formed: WellFormed | Failure) -> str:
    """Return a key equal for calls whose handlers get the same."""
    return _key(call, () if isinstance(well_formed, Failure) else well_formed[2])


def _key(call: ToolCallPart, defaults: Defaults) -> str:
    return repeat_key(call.tool_name, constant_text(call.input, defaults))


async def with_judgements(conn: Connection, rules: RulesInForce, classified: Sequence[Classified]) -> list[Classified]:
    """Return the same calls with what the judge said about them before this transaction; it is not asked here."""
    if rules.judge is None:
        return list(classified)
    by_call = await judgements.of_calls(conn, rules.run.id, [each.call.tool_call_id for each in classified])
    judged: list[Classified] = []
    for each in classified:
        if isinstance(each, Closed):
            judged.append(each)
            continue
        digest = planned_digest(rules.run, each, rules.policy.version)
        verdict = with_judgement(each.verdict, by_call.get(each.call.tool_call_id), rules.judge, digest=digest)
        judged.append(replace(each, verdict=verdict))
    return judged


def planned_digest(run: runs.Run, classified: Classified, policy_version: str) -> str:
    """Return the digest of a call as it is planned; of a closed one without its tool."""
    return call_digest(
        tool_name=classified.call.tool_name,
        manifest_digest="" if isinstance(classified, Closed) else classified.tool.manifest.digest,
        raw_input=classified.call.input,
        run_id=run.id,
        tool_call_id=classified.call.tool_call_id,
        policy_version=policy_version,
        nonce=run.nonce,
        defaults=stored(classified.defaults),
    )


def planned_row(run: runs.Run, step: int, classified: Classified, policy_version: str) -> calls.Call:
    """Return a call as it is stored when it is planned."""
    call, closed = classified.call, isinstance(classified, Closed)
    disposition: calls.Disposition = "closed"
    if not isinstance(classified, Closed):
        disposition = "run" if classified.verdict.answer == "allow" else "ask"
    return calls.Call(
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        step=step,
        position=classified.position,
        tool_name=call.tool_name,
        input=call.input,
        repeat_key=_key(call, classified.defaults),
        disposition=disposition,
        verdict="" if classified.verdict is None else classified.verdict.model_dump_json(exclude_defaults=True),
        digest=planned_digest(run, classified, policy_version),
        policy_version=policy_version,
        effect="" if isinstance(classified, Closed) else classified.tool.effect,
        result=classified.failure.model_dump_json() if isinstance(classified, Closed) else None,
        settled_at=as_text(now()) if closed else None,
        defaults=stored(classified.defaults),
        nonce=run.nonce,
    )


def _closed_payload(closed: Closed) -> dict[str, object]:
    payload: dict[str, object] = {"tool_call_id": closed.call.tool_call_id, "tool": closed.call.tool_name}
    payload["kind"] = closed.failure.kind
    return payload if closed.verdict is None else payload | {"rule": closed.verdict.rule}
