"""Budgets: what a run may use, checked before each model request. A budget that is used up ends the run, or asks for more.

What a sub-agent's run uses counts for every run above it, and it may use no more than they have left; only steps are each
run's own. Runs that work at the same time may exceed a budget by the one response each that reaches it.

To ask, the engine makes a call of its own, to ``extend_budget``, which policy judges like any other: a rule says who may
extend the budget, or that no one may. The call comes after those of the last step and is in no message: the model doesn't
see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from temporalio.exceptions import ApplicationError

from turngate import Tool, ToolContext, tool
from turngate.activities.engine.costs import lacks_price
from turngate.activities.engine.engine import Engine
from turngate.activities.engine.rules import RulesInForce
from turngate.activities.engine.run_step import RunStep
from turngate.activities.planning.planner import Admitted, planned_row
from turngate.activities.planning.requests import Question, ready_call, request_id_of, waiting_call
from turngate.domain import contract
from turngate.domain.agents.app import Agent, Limits
from turngate.domain.contract import PlannedCall
from turngate.domain.conversation.messages import ToolCallPart
from turngate.domain.digest import derived_id
from turngate.domain.origins.origin import Origins
from turngate.domain.runs import budgets
from turngate.domain.runs.budgets import (
    AFTER_THE_STEP,
    EXTEND_BUDGET,
    MILLION,
    Budget,
    ExtendBudget,
    Extension,
    UsedUp,
    exact,
)
from turngate.domain.text.sentences import sentences
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.results import Failure
from turngate.domain.tools.summary import describe
from turngate.store.clock import from_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.evidence import planned_digests
from turngate.store.requests import requests
from turngate.store.runs import calls, runs, subtree_usage, working_time
from turngate.store.runs.subtree_usage import NOTHING_BELOW, SubtreeUsage


@dataclass(frozen=True)
class RunUsage:
    """What a run has used. ``calls_made``: by its model, counted where there is a limit of them.

    ``below``: what its sub-agents used, and theirs. ``name``: the run, as the subject of a sentence.
    """

    run: runs.Run
    calls_made: int = 0
    below: SubtreeUsage = NOTHING_BELOW
    name: str = "The run"

    @classmethod
    async def read(cls, conn: Connection, run: runs.Run, limits: Limits, *, name: str = "The run") -> RunUsage:
        """Return the run's usage with that of its sub-agents."""
        calls_made = 0 if limits.tool_calls is None else await calls.count(conn, run.id)
        return cls(run, calls_made, await subtree_usage.of(conn, run.id), name)

    def used_up(self, limits: Limits, step: int) -> UsedUp | None:
        """Return the first budget that leaves nothing for this step; None: the run may continue.

        A response may exceed a budget; then it is the last one.
        """
        return (
            self._steps(limits, step)
            or self._tool_calls(limits)
            or self._tokens(limits)
            or self._cost(limits)
            or self._deadline(limits)
        )

    async def out_of_time(self, conn: Connection, limits: Limits) -> UsedUp | None:
        """Return the working time if none of it is left. Needs the store only if so long has passed since the run began."""
        if limits.wall_time is None:
            return None
        at = now()
        if at - from_text(self.run.created_at) < limits.wall_time:
            return None
        time = await working_time.of(conn, self.run, limits.wall_time, at)
        if time.left:
            return None
        why = f"{self.name} worked for more than {time.most}, which is all the time it has."
        usual = limits.wall_time.total_seconds()
        return _used_up("wall_time", time.used.total_seconds(), time.most.total_seconds(), usual, why)

    @property
    def _with_others(self) -> str:
        return self.name if self.below == NOTHING_BELOW else f"{self.name} with its sub-agents"

    def _steps(self, limits: Limits, step: int) -> UsedUp | None:
        most = budgets.extended("steps", Decimal(limits.steps), self.run.granted)
        if step <= most:
            return None
        return _used_up("steps", step - 1, most, limits.steps, f"{self.name} reached its limit of {most:,f} steps.")

    def _tool_calls(self, limits: Limits) -> UsedUp | None:
        if limits.tool_calls is None:
            return None
        most = budgets.extended("tool_calls", Decimal(limits.tool_calls), self.run.granted)
        used = self.calls_made + self.below.tool_calls
        if used < most:
            return None
        why = f"{self._with_others} made {used:,} of the {most:,f} tool calls that it may make."
        return _used_up("tool_calls", used, most, limits.tool_calls, why)

    def _tokens(self, limits: Limits) -> UsedUp | None:
        if limits.tokens is None:
            return None
        most = budgets.extended("tokens", Decimal(limits.tokens), self.run.granted)
        used = self.run.tokens_used + self.below.tokens
        if used < most:
            return None
        why = f"{self._with_others} used {used:,} of the {most:,f} tokens that it may use."
        return _used_up("tokens", used, most, limits.tokens, why)

    def _cost(self, limits: Limits) -> UsedUp | None:
        if limits.cost is None:
            return None
        most = budgets.extended("cost", limits.cost, self.run.granted)
        used = Decimal(self.run.cost_micros + self.below.cost_micros) / MILLION
        if used < most:
            return None
        why = f"{self._with_others} used tokens for {used:f} of the {most:f} that they may cost."
        return _used_up("cost", used, most, limits.cost, why)

    def _deadline(self, limits: Limits) -> UsedUp | None:
        if limits.deadline is None:
            return None
        began, at = from_text(self.run.created_at), now()
        until = budgets.deadline(began, limits.deadline, self.run.granted)
        if at < until:
            return None
        why = f"{self.name} began more than {until - began} ago, and its deadline is over."
        usual = limits.deadline.total_seconds()
        return _used_up("wall_time", (at - began).total_seconds(), (until - began).total_seconds(), usual, why)


def _used_up(
    budget: Budget, used: float | Decimal, limit: float | Decimal, usual: float | Decimal, reason: str
) -> UsedUp:
    return UsedUp(budget=budget, used=exact(used), limit=exact(limit), usual=exact(usual), reason=reason)


async def extension_call(engine: Engine, step: RunStep) -> PlannedCall | None:
    """Return the call that has to be settled before the model may be asked; None: every budget has something left.

    Safe to repeat: it is the same call until it has its result.

    Raises:
        ApplicationError: ``run_failed``, not retryable: a budget is used up, and more was refused or is not to be asked
            for, or a budget of a run above this one is used up; ``details[0]`` is its class. ``configuration``: a limit of
            cost, and a model without a price.
    """
    run, agent, limits = step.run, step.agent, step.agent.limits
    _require_price(engine, run, agent)
    usage = RunUsage(run)
    is_shared = limits.tokens is not None or limits.cost is not None or limits.tool_calls is not None
    if is_shared or run.parent_run_id is not None:  # all else is in the run's row: no transaction in each step for that
        async with engine.database.read() as conn:
            await _require_left_above(engine, conn, run)
            usage = await RunUsage.read(conn, run, limits)
    over = usage.used_up(limits, step.number)
    if over is None and limits.wall_time is not None:
        async with engine.database.read() as conn:
            over = await usage.out_of_time(conn, limits)
    if over is None:
        return None
    if limits.when_used_up == "end" or run.is_dry:
        raise _run_failed(over)
    async with engine.database.write() as conn:
        return await _ask_for_more(engine, conn, step, over)


async def _require_left_above(engine: Engine, conn: Connection, run: runs.Run) -> None:
    """Refuse a sub-agent's step when a run above it has used up a budget.

    If that run may ask for more, it does so itself, before its own next step. Steps are each run's own.
    """
    for each in await subtree_usage.above(conn, run):
        agent = engine.agents.get(each.agent)
        if agent is None:
            continue
        _require_price(engine, run, agent)
        usage = await RunUsage.read(conn, each, agent.limits, name=f"The run of {each.agent!r}")
        over = usage.used_up(agent.limits, 0) or await usage.out_of_time(conn, agent.limits)
        if over is not None:
            raise _run_failed(over.model_copy(update={"reason": f"Nothing is left for this sub-agent. {over.reason}"}))


async def _ask_for_more(engine: Engine, conn: Connection, step: RunStep, over: UsedUp) -> PlannedCall:
    """Return the engine's call for more of a budget, and write it down, unless an earlier attempt has."""
    run, agent, tool = step.run, step.agent, engine.built_in.find(EXTEND_BUDGET)
    if tool is None:
        raise LookupError(f"this engine has no {EXTEND_BUDGET!r}")
    if not await runs.advance(conn, run.id, step=run.step):
        raise ApplicationError(f"run {run.id} has ended; nothing is extended any more", "conflict")
    before = await calls.by_engine(conn, run.id, run.step, EXTEND_BUDGET)
    for call in before:
        if call.result is None:
            request = await requests.get(conn, request_id_of(run.id, call.tool_call_id, "approval"))
            return ready_call(call, tool) if request is None else waiting_call(run, agent, tool, request)
        refusal = call.settled_result
        if isinstance(refusal, Failure) and ExtendBudget.model_validate_json(call.input).budget == over.budget:
            by = refusal.fields.get("operator")
            raise _run_failed(over, f"{refusal.kind} by {by}" if by else refusal.kind)
    admitted, policy_version = _judged_call(await engine.rules(conn, run), tool, over, len(before))
    verdict = admitted.verdict
    if verdict.answer == "deny":
        raise _run_failed(over, f"denied by rule {verdict.rule!r}")
    call = planned_row(run, run.step, admitted, policy_version)
    await calls.insert_planned(conn, [call])
    payload = {"budget": over.budget, "used": str(over.used), "limit": str(over.limit)}
    digests = events.digests(**planned_digests([call]))
    used_up_event = ("budget.used_up", {**payload, "tool_call_id": call.tool_call_id, **digests})
    if verdict.answer == "allow":
        await events.append(conn, run.id, [used_up_event])
        return ready_call(call, tool)
    question = Question(
        run=run,
        agent=agent,
        call=call,
        tool=tool,
        verdict=verdict,
        reason=f"{over.reason} {verdict.reason}".strip(),
        summary=describe(tool.manifest, call.input),
        preview=Preview(kind="text", text=_preview_text(over)),
    )
    return await question.ask(conn, after=[used_up_event])


def _judged_call(rules: RulesInForce, tool: Tool, over: UsedUp, number: int) -> tuple[Admitted, str]:
    """Return the engine's call with policy's verdict on it, and the policy's version.

    Its id is derived, so that a retry makes the same call. ``number``: how many such calls this step has already.
    """
    run, params = rules.run, over.asked_for()
    raw_input = params.model_dump_json()
    verdict = rules.verdict(tool, params, raw_input, origins=Origins())  # the engine's own values: none is doubtful
    if verdict.terms.decisions is None and verdict.terms.quorum == 1:
        # An answer in place of the call would extend nothing.
        terms = verdict.terms.model_copy(update={"decisions": ["approve", "edit", "reject"]})
        verdict = verdict.model_copy(update={"terms": terms})
    call_id = derived_id("extend", run.id, str(run.step), over.budget, str(number))
    call = ToolCallPart(tool_call_id=call_id, tool_name=tool.name, input=raw_input)
    return Admitted(call, AFTER_THE_STEP + number, tool, params, verdict), rules.policy.version


def _preview_text(over: UsedUp) -> str:
    more = budgets.with_unit(over.budget, over.usual)
    return (
        f"{over.reason}\nApproving lets it use {more} more (edit the amount to give another); rejecting ends the run."
    )


def _run_failed(over: UsedUp, refusal: str = "") -> ApplicationError:
    # Nothing of what people wrote with a refusal: this passes through workflow history (I8). The call has it.
    why = sentences(over.reason, f"More of it was refused: {refusal}") if refusal else over.reason
    return ApplicationError(why, over.error_class, type=contract.ERROR_RUN_FAILED, non_retryable=True)


def _require_price(engine: Engine, run: runs.Run, agent: Agent) -> None:
    if not lacks_price(engine, agent, run.model):
        return
    raise ApplicationError(
        f"agent {agent.name!r} has a limit of cost, and {run.model!r} has no price: add it to App(prices=…)",
        "configuration",
        type=contract.ERROR_CONFIGURATION,
        non_retryable=True,
    )


def extend_budget_tool(database: Database) -> Tool:
    """Return the engine's own tool that extends a budget of the run it is called in."""

    @tool(name=EXTEND_BUDGET, effect="idempotent")
    async def extend_budget(params: ExtendBudget, ctx: ToolContext) -> dict[str, str]:
        """Let the run use more of a budget that it has used up."""
        granted = Extension(call=ctx.tool_call_id, budget=params.budget, by=params.extend_by, at=now())
        async with database.write() as conn:
            await runs.extend(conn, ctx.run_id, granted)
        return {"budget": params.budget, "extended_by": budgets.with_unit(params.budget, params.extend_by)}

    return extend_budget
