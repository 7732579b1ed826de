"""How much of its budgets a run has used, with its sub-agents' usage, for people."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from turngate.domain.agents.app import Limits
from turngate.domain.runs import budgets
from turngate.domain.runs.budgets import MILLION, Budget
from turngate.store import agents
from turngate.store.clock import as_text, from_text
from turngate.store.database import Connection
from turngate.store.runs import calls, subtree_usage
from turngate.store.runs.runs import Run
from turngate.store.runs.subtree_usage import SubtreeUsage


@dataclass(frozen=True, kw_only=True)
class BudgetUse:
    """One budget. ``used``: by the run and its sub-agents; ``below``: of that, by the sub-agents. ``most`` None: no limit.

    ``extended``: people raised ``most`` while the run was live.
    """

    budget: Budget
    used: Decimal
    below: Decimal = Decimal()
    most: Decimal | None = None
    extended: bool = False


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What a run used, and until when it may run; None: no time limit. The limits are the agent's published ones."""

    uses: list[BudgetUse]
    until: str | None


async def budgets_of(conn: Connection, run: Run) -> Budgets:
    """Return the budgets of a run that matter: those with a limit, and tokens and cost if any were used."""
    agent = await agents.get(conn, run.agent)
    limits = None if agent is None else agent.run_limits
    below, call_count = await subtree_usage.of(conn, run.id), await calls.count(conn, run.id)
    until = None
    if limits is not None and limits.wall_time is not None:
        until = as_text(budgets.deadline(from_text(run.created_at), limits.wall_time, run.granted))
    uses = [
        _use(run, "tokens", run.tokens_used, below.tokens, None if limits is None else limits.tokens),
        _cost(run, below, limits),
        _use(run, "tool_calls", call_count, below.tool_calls, None if limits is None else limits.tool_calls),
        _use(run, "steps", run.step, 0, None if limits is None else limits.steps),
    ]
    always = {"tokens", "cost"}
    return Budgets(
        uses=[each for each in uses if each.most is not None or (each.budget in always and each.used)], until=until
    )


def _use(run: Run, budget: Budget, own: Decimal | int, below: Decimal | int, limit: Decimal | int | None) -> BudgetUse:
    return BudgetUse(
        budget=budget,
        used=Decimal(own) + Decimal(below),
        below=Decimal(below),
        most=None if limit is None else budgets.extended(budget, Decimal(limit), run.granted),
        extended=any(each.budget == budget for each in run.granted),
    )


def _cost(run: Run, below: SubtreeUsage, limits: Limits | None) -> BudgetUse:
    own, theirs = Decimal(run.cost_micros) / MILLION, Decimal(below.cost_micros) / MILLION
    return _use(run, "cost", own, theirs, None if limits is None else limits.cost)
