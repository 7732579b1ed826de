"""How much of its budgets a run has used, with its sub-agents' usage, for people."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from turngate.domain.agents.app import Limits
from turngate.domain.runs import budgets
from turngate.domain.runs.budgets import MILLION, Budget
from turngate.domain.text.durations import span
from turngate.domain.text.instants import in_utc
from turngate.store import agents
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.runs import calls, subtree_usage, working_time
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
    """What a run used, its deadline, and how long it may still work, in words; None: no limit.

    The limits are the agent's published ones.
    """

    uses: list[BudgetUse]
    until: str | None
    left: str | None


async def budgets_of(conn: Connection, run: Run) -> Budgets:
    """Return the budgets of a run that matter: those with a limit, and tokens and cost if any were used."""
    agent = await agents.get(conn, run.agent)
    limits = None if agent is None else agent.run_limits
    below, call_count = await subtree_usage.of(conn, run.id), await calls.count(conn, run.id)
    until = None
    if limits is not None and limits.deadline is not None:
        until = as_text(budgets.deadline(from_text(run.created_at), limits.deadline, run.granted))
    uses = [
        _use(run, "tokens", run.tokens_used, below.tokens, None if limits is None else limits.tokens),
        _cost(run, below, limits),
        _use(run, "tool_calls", call_count, below.tool_calls, None if limits is None else limits.tool_calls),
        _use(run, "steps", run.step, 0, None if limits is None else limits.steps),
    ]
    always = {"tokens", "cost"}
    return Budgets(
        uses=[each for each in uses if each.most is not None or (each.budget in always and each.used)],
        until=until,
        left=await _time_left(conn, run, limits),
    )


async def _time_left(conn: Connection, run: Run, limits: Limits | None) -> str | None:
    if limits is None or limits.wall_time is None or run.status != "running":
        return None
    return span((await working_time.of(conn, run, limits.wall_time, now())).left.total_seconds())


async def time_words(conn: Connection, run: Run) -> str | None:
    """Return how much time a live run has left, for the person whom it waits for; None: as much as it takes."""
    spent = await budgets_of(conn, run)
    words = []
    if spent.left is not None:
        words.append(f"At {in_utc(now())} it had {spent.left} left for its own work. Waiting doesn't count.")
    if spent.until is not None and run.status == "running":
        words.append(f"Its deadline is at {in_utc(spent.until)}.")
    return " ".join(words) or None


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
