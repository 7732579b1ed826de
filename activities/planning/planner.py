"""Planning: every call of a response is classified once, and the verdict is stored. Policy decides; nothing runs here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from activities.engine.engine import Engine
from activities.engine.external_agents import rejected_before
from activities.engine.preconditions import precondition_or_failure
from activities.engine.rules import RulesInForce
from activities.planning.control_calls import read_signal
from activities.planning.requests import Question, opened, previewed, ready_call, waiting_call
from turngate.domain.agents.app import Agent
from turngate.domain.contract import MAX_CALLS_PER_STEP, PlannedCall, StepPlan
from turngate.domain.conversation.malformed import problem_in
from turngate.domain.conversation.messages import Message, ToolCallPart
from turngate.domain.digest import call_digest, repeat_key
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs.budgets import EXTEND_BUDGET
from turngate.domain.tools import results
from turngate.domain.tools.external import is_external
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events.events import NewEvent
from turngate.store.policy import judgements
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, runs

UNFINISHED = {"length", "content_filter", "refusal"}
"""Finish reasons of a response that is not complete; truncated arguments can be valid JSON (DESIGN §13)."""
MALFORMED_KINDS = {"unknown_tool", "input_validation_error"}


@dataclass
class PlannedStep:
    """What one transaction writes: call rows, inbox requests, events, and the plan for the workflow."""

    plan: StepPlan
    calls: list[calls.Call] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)


@dataclass(frozen=True)
class Admitted:
    """A call that is well-formed and not denied: its tool, decoded parameters and verdict."""

    tool: Tool
    params: Any
    verdict: Verdict


@dataclass(frozen=True)
class Closed:
    """A call that is closed without running and without asking; ``verdict``: None when it never reached policy."""

    failure: Failure
    verdict: Verdict | None = None


class Planner:
    """Classifies the calls of one response."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def plan(
        self,
        conn: Connection,
        run: runs.Run,
        agent: Agent,
        step: int,
        message: Message,
        finish_reason: str,
        corrective: str | None,
    ) -> PlannedStep:
        """Return everything to store for this response's calls. Reads the store, writes nothing.

        ``corrective``: what the model is told of a response that nothing can be made of.
        """
        planned = PlannedStep(plan=StepPlan(final=False))
        to_settle: list[PlannedCall] = []
        kinds: list[str | None] = []
        rules, admissions = await self.admissions(conn, run, agent, step, message, finish_reason)
        admissions = await judged_admissions(conn, rules, run, message, admissions)
        for position, (call, admitted) in enumerate(zip(message.calls, admissions, strict=True)):
            row = planned_row(run, step, position, call, admitted, rules.policy.version)
            planned.calls.append(row)
            if isinstance(admitted, Closed):
                kinds.append(admitted.failure.kind)
                closed = {"tool_call_id": call.tool_call_id, "tool": call.tool_name, "kind": admitted.failure.kind}
                if admitted.verdict is not None:
                    closed["rule"] = admitted.verdict.rule
                planned.events.append(("call.closed", closed))
                continue
            kinds.append(None)
            if admitted.verdict.answer == "allow":
                to_settle.append(ready_call(row, admitted.tool))
                continue
            question = await self._question(run, agent, row, admitted, message.text)
            request = question.request()
            planned.requests.append(request)
            planned.events.append(opened(request))
            to_settle.append(waiting_call(run, agent, admitted.tool, request))
        malformed = all(kind in MALFORMED_KINDS for kind in kinds)  # an empty response has no calls: malformed too
        wrong = Counter(kind for kind in kinds if kind is not None)
        planned.plan = StepPlan(
            final=False,
            calls=tuple(to_settle),
            malformed=malformed,
            problem=problem_of(wrong, corrective) if malformed else "",
            signals=any(isinstance(each, Admitted) and each.tool.kind == "signal" for each in admissions),
        )
        return planned

    async def admissions(
        self, conn: Connection, run: runs.Run, agent: Agent, step: int, message: Message, finish_reason: str
    ) -> tuple[RulesInForce, list[Admitted | Closed]]:
        """Return the rules in force, and what they say of each call, in the model's order; without the judge."""
        keys = [repeat_key(call.tool_name, call.input) for call in message.calls]
        refused = await calls.refusals_by_key(conn, run.id, keys) if step > 1 else {}
        if keys and is_external(run.agent) and (before := await rejected_before(conn, run)) is not None:
            refused = dict.fromkeys(keys, before)  # such a run has one call
        rules = await self.engine.rules(conn, run)
        return rules, [
            self._admit(run, agent, rules, call, position, finish_reason, refused.get(key))
            for position, (call, key) in enumerate(zip(message.calls, keys, strict=True))
        ]

    def _admit(
        self,
        run: runs.Run,
        agent: Agent,
        rules: RulesInForce,
        call: ToolCallPart,
        position: int,
        finish_reason: str,
        refused: Failure | None,
    ) -> Admitted | Closed:
        """Return the call's tool and verdict, or why it is closed without running and without asking."""
        found = self.well_formed(agent, call, position, finish_reason)
        if isinstance(found, Failure):
            return Closed(found)
        tool, params = found
        verdict = rules.verdict(tool, params, run, call.input, agent=agent.name)
        if verdict.answer == "deny":
            return Closed(results.denied(verdict.rule, verdict.reason), verdict)
        if refused is not None:
            return Closed(results.repeated(refused), verdict)
        return Admitted(tool, params, verdict)

    def well_formed(
        self, agent: Agent, call: ToolCallPart, position: int, finish_reason: str
    ) -> tuple[Tool, Any] | Failure:
        """Return the tool and the decoded parameters of a call that policy may look at, or what is wrong with it."""
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
            params = tool.decode(call.input)
            if tool.kind == "signal":
                read_signal(self.engine, tool, params)
        except InvalidToolInput as invalid:
            return results.invalid_input(str(invalid), invalid.problem)
        return tool, params

    async def _question(
        self, run: runs.Run, agent: Agent, row: calls.Call, admitted: Admitted, agent_words: str
    ) -> Question:
        """Return the question to a person about this call, with what its tool shows of it."""
        verdict, tool = admitted.verdict, admitted.tool
        return Question(
            run=run,
            agent=agent,
            call=row,
            tool=tool,
            verdict=verdict,
            reason=verdict.reason,
            kind="question" if tool.kind == "interaction" else "approval",
            agent_words=agent_words,
            preview=await previewed(tool, admitted.params, run.workspace),
            precondition=await precondition_or_failure(self.engine, tool, admitted.params, run, row.tool_call_id),
        )


async def judged_admissions(
    conn: Connection, rules: RulesInForce, run: runs.Run, message: Message, admissions: Sequence[Admitted | Closed]
) -> list[Admitted | Closed]:
    """Return the same with what the judge said of them before this transaction; it is not asked here."""
    if rules.judge is None:
        return list(admissions)
    said = await judgements.of_calls(conn, run.id, [call.tool_call_id for call in message.calls])
    found: list[Admitted | Closed] = []
    for call, admitted in zip(message.calls, admissions, strict=True):
        if isinstance(admitted, Admitted):
            digest = planned_digest(run, call, admitted, rules.policy.version)
            verdict = with_judgement(admitted.verdict, said.get(call.tool_call_id), rules.judge, digest=digest)
            found.append(replace(admitted, verdict=verdict))
        else:
            found.append(admitted)
    return found


def planned_digest(run: runs.Run, call: ToolCallPart, admitted: Admitted | Closed, policy_version: str) -> str:
    """Return the digest of a call as it is planned; of a closed one without its tool."""
    return call_digest(
        tool_name=call.tool_name,
        manifest_digest="" if isinstance(admitted, Closed) else admitted.tool.manifest.digest,
        raw_input=call.input,
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        policy_version=policy_version,
    )


def planned_row(
    run: runs.Run,
    step: int,
    position: int,
    call: ToolCallPart,
    admitted: Admitted | Closed,
    policy_version: str,
) -> calls.Call:
    """Return a call as it is stored when it is planned."""
    closed = isinstance(admitted, Closed)
    disposition: calls.Disposition = "closed"
    if not isinstance(admitted, Closed):
        disposition = "run" if admitted.verdict.answer == "allow" else "ask"
    return calls.Call(
        run_id=run.id,
        tool_call_id=call.tool_call_id,
        step=step,
        position=position,
        tool_name=call.tool_name,
        input=call.input,
        repeat_key=repeat_key(call.tool_name, call.input),
        disposition=disposition,
        verdict="" if admitted.verdict is None else admitted.verdict.model_dump_json(exclude_defaults=True),
        digest=planned_digest(run, call, admitted, policy_version),
        policy_version=policy_version,
        effect="" if isinstance(admitted, Closed) else admitted.tool.effect,
        result=admitted.failure.model_dump_json() if isinstance(admitted, Closed) else None,
        settled_at=as_text(now()) if closed else None,
    )


def problem_of(wrong: Counter[str], corrective: str | None) -> str:
    """Return what was wrong with a response nothing could be run from, in kinds and counts: no content of it."""
    if corrective is not None:
        return problem_in(corrective)
    return ", ".join(f"{kind} ({count})" for kind, count in wrong.items())
