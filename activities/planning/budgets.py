"""Budgets: what a run may use, looked at before each model request. One that is used up ends the run, or asks for more.

What a sub-agent's run uses counts for every run above it, and it may use no more than is left of theirs; only steps are
each run's own. Runs at work at the same time may exceed a budget by the one response each that reaches it.

To ask, the engine makes a call of its own, to ``extend_budget``, which policy judges like any other: a rule says who may
extend it, or that nobody may. It stands behind the calls of the last step, and in no message: the model hears nothing of it.
"""

from __future__ import annotations

from decimal import Decimal

from temporalio.exceptions import ApplicationError

from activities.engine.costs import lacks_price
from activities.engine.engine import Engine
from activities.engine.rules import RulesInForce
from activities.planning.planner import Admitted, planned_row
from activities.planning.requests import Question, ready_call, request_id_of, waiting_call
from turngate import Tool, ToolContext, tool
from turngate.domain import contract
from turngate.domain.agents.app import Agent, Limits
from turngate.domain.contract import PlannedCall
from turngate.domain.conversation.messages import ToolCallPart
from turngate.domain.digest import derived_id
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs import budgets
from turngate.domain.runs.budgets import (
    BEHIND_THE_STEP,
    EXTEND_BUDGET,
    MILLION,
    Budget,
    ExtendBudget,
    Extension,
    UsedUp,
    exact,
)
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.results import Failure
from turngate.store.clock import from_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, runs, subtree_usage
from turngate.store.runs.subtree_usage import NOTHING_BELOW, UsedBelow


def used_up(
    run: runs.Run,
    limits: Limits,
    step: int,
    *,
    calls_made: int = 0,
    below: UsedBelow = NOTHING_BELOW,
    who: str = "The run",
) -> UsedUp | None:
    """Return the first budget that leaves nothing for this step; None: the run may go on.

    A response may go beyond a budget; there is no next one then. ``calls_made``: by the run's model; looked at where there
    is a limit of them. ``below``: what its sub-agents used, and theirs. ``who``: the run, in the words of a sentence.
    """
    granted = run.granted
    steps = budgets.extended("steps", Decimal(limits.steps), granted)
    if step > steps:
        return _over("steps", step - 1, steps, limits.steps, f"{who} reached its limit of {steps:,f} steps.")
    with_others = who if below == NOTHING_BELOW else f"{who} with its sub-agents"
    if limits.tool_calls is not None:
        most, made = budgets.extended("tool_calls", Decimal(limits.tool_calls), granted), calls_made + below.tool_calls
        if made >= most:
            why = f"{with_others} made {made:,} of the {most:,f} tool calls that it may make."
            return _over("tool_calls", made, most, limits.tool_calls, why)
    if limits.tokens is not None:
        most, used = budgets.extended("tokens", Decimal(limits.tokens), granted), run.tokens_used + below.tokens
        if used >= most:
            why = f"{with_others} used {used:,} of the {most:,f} tokens that it may use."
            return _over("tokens", used, most, limits.tokens, why)
    if limits.cost is not None:
        most = budgets.extended("cost", limits.cost, granted)
        cost = Decimal(run.cost_micros + below.cost_micros) / MILLION
        if cost >= most:
            why = f"{with_others} used tokens for {cost:f} of the {most:f} that they may cost."
            return _over("cost", cost, most, limits.cost, why)
    if limits.wall_time is not None:
        began, at = from_text(run.created_at), now()
        until = budgets.deadline(began, limits.wall_time, granted)
        if at >= until:
            why = f"{who} began more than {until - began} ago, which is all the time it has."
            usual = limits.wall_time.total_seconds()
            return _over("wall_time", (at - began).total_seconds(), (until - began).total_seconds(), usual, why)
    return None


def _over(budget: Budget, used: float | Decimal, limit: float | Decimal, usual: float | Decimal, reason: str) -> UsedUp:
    return UsedUp(budget=budget, used=exact(used), limit=exact(limit), usual=exact(usual), reason=reason)


async def extension(engine: Engine, run: runs.Run, agent: Agent, step: int) -> PlannedCall | None:
    """Return the call that has to be settled before the model may be asked; None: every budget has something left.

    Safe to repeat: it is the same call until it has its result.

    Raises:
        ApplicationError: ``run_failed``, not retryable: a budget is used up, and more was refused or is not to be asked
            for, or one of a run above this one is; ``details[0]`` is its class. ``configuration``: a limit of cost, and a
            model whose price nobody gave.
    """
    _require_price(engine, run, agent)
    limits = agent.limits
    made, below = 0, NOTHING_BELOW
    shares = limits.tokens is not None or limits.cost is not None or limits.tool_calls is not None
    if shares or run.parent_run_id is not None:  # all else stands in the run's row: no transaction in each step for it
        async with engine.database.read() as conn:
            await _require_left_above(engine, conn, run)
            made, below = await _used(conn, run, limits)
    over = used_up(run, limits, step, calls_made=made, below=below)
    if over is None:
        return None
    if agent.limits.when_used_up == "end" or run.is_dry:
        raise _ended(over)
    async with engine.database.write() as conn:
        return await _asked(engine, conn, run, agent, over)


async def _used(conn: Connection, run: runs.Run, limits: Limits) -> tuple[int, UsedBelow]:
    """Return the tool calls that a run made, where they count, and what the runs below it used."""
    made = 0 if limits.tool_calls is None else await calls.count(conn, run.id)
    return made, await subtree_usage.of(conn, run.id)


async def _require_left_above(engine: Engine, conn: Connection, run: runs.Run) -> None:
    """Refuse a sub-agent's step when a run above it has used up a budget.

    Where that run asks for more of it, it does so itself, before its own next step. Steps are each run's own.
    """
    for each in await subtree_usage.above(conn, run):
        agent = engine.agents.get(each.agent)
        if agent is None:
            continue
        _require_price(engine, run, agent)
        made, below = await _used(conn, each, agent.limits)
        over = used_up(each, agent.limits, 0, calls_made=made, below=below, who=f"The run of {each.agent!r}")
        if over is not None:
            raise _ended(over.model_copy(update={"reason": f"Nothing is left for this sub-agent. {over.reason}"}))


async def _asked(engine: Engine, conn: Connection, run: runs.Run, agent: Agent, over: UsedUp) -> PlannedCall:
    tool = engine.built_in.find(EXTEND_BUDGET)
    if tool is None:
        raise LookupError(f"this engine has no {EXTEND_BUDGET!r}")
    if not await runs.advance(conn, run.id, step=run.step):
        raise ApplicationError(f"run {run.id} has ended; nothing is extended any more", "conflict")
    made = await calls.by_engine(conn, run.id, run.step, EXTEND_BUDGET)
    for call in made:
        if call.result is None:
            request = await requests.get(conn, request_id_of(run.id, call.tool_call_id, "approval"))
            return ready_call(call, tool) if request is None else waiting_call(run, agent, tool, request)
        refused = call.settled_result
        if isinstance(refused, Failure) and ExtendBudget.model_validate_json(call.input).budget == over.budget:
            by = refused.fields.get("operator")
            raise _ended(over, f"{refused.kind} by {by}" if by else refused.kind)
    rules = await engine.rules(conn, run)
    call, verdict = _call(run, tool, rules, over, len(made))
    if verdict.answer == "deny":
        raise _ended(over, f"denied by rule {verdict.rule!r}")
    await calls.insert_planned(conn, [call])
    payload = {"budget": over.budget, "used": str(over.used), "limit": str(over.limit)}
    used_up_event = ("budget.used_up", payload | {"tool_call_id": call.tool_call_id})
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
        preview=Preview(kind="text", text=_shown(over)),
    )
    return await question.ask(conn, after=[used_up_event])


def _call(run: runs.Run, tool: Tool, rules: RulesInForce, over: UsedUp, number: int) -> tuple[calls.Call, Verdict]:
    """Return the engine's call with policy's verdict on it. Its id is derived, so that a retry makes the same one."""
    asks = over.asked_for()
    raw_input = asks.model_dump_json()
    call_id = derived_id("extend", run.id, str(run.step), over.budget, str(number))
    verdict = rules.verdict(tool, asks, run, raw_input, agent=run.agent)
    if verdict.terms.decisions is None and verdict.terms.quorum == 1:
        # An answer in place of the call would extend nothing.
        terms = verdict.terms.model_copy(update={"decisions": ["approve", "edit", "reject"]})
        verdict = verdict.model_copy(update={"terms": terms})
    call = ToolCallPart(tool_call_id=call_id, tool_name=tool.name, input=raw_input)
    admitted = Admitted(tool, asks, verdict)
    return planned_row(run, run.step, BEHIND_THE_STEP + number, call, admitted, rules.policy.version), verdict


def _shown(over: UsedUp) -> str:
    more = budgets.told(over.budget, over.usual)
    return (
        f"{over.reason}\nApproving lets it use {more} more (edit the amount to give another); rejecting ends the run."
    )


def _ended(over: UsedUp, refused: str = "") -> ApplicationError:
    # Of what somebody wrote with their refusal nothing: this passes through workflow history (I8). The call has it.
    why = f"{over.reason} More of it was refused: {refused}." if refused else over.reason
    return ApplicationError(why, over.error_class, type=contract.ERROR_RUN_FAILED, non_retryable=True)


def _require_price(engine: Engine, run: runs.Run, agent: Agent) -> None:
    if not lacks_price(engine, agent, run.model):
        return
    raise ApplicationError(
        f"agent {agent.name!r} has a limit of cost, and nobody says what {run.model!r} costs: add it to App(prices=…)",
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
        return {"budget": params.budget, "extended_by": budgets.told(params.budget, params.extend_by)}

    return extend_budget
