"""What the models that a run asks take of its budgets, and of the budgets of the runs above it."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError

from activities.engine.engine import Engine
from turngate.domain.agents.app import Agent
from turngate.domain.conversation.messages import Usage
from turngate.store.database import Connection
from turngate.store.runs import runs, subtree_usage


def lacks_price(engine: Engine, agent: Agent, spec: str) -> bool:
    """Tell whether a model may not be asked: its agent's cost is limited, and nobody says what it costs."""
    return agent.limits.cost is not None and spec not in engine.prices


def cost_micros(engine: Engine, spec: str, usage: Usage) -> int:
    """Return what a response cost, in millionths; 0 for a model whose price nobody gave."""
    price = engine.prices.get(spec)
    if price is None:
        return 0
    return price.micros(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)


async def spend(
    engine: Engine, conn: Connection, run: runs.Run, *, step: int, spec: str, usage: Usage, too_late: str
) -> None:
    """Count what another model took than the one that answers the step; before the transaction's events.

    Raises ApplicationError ``conflict``, retryable, when the run has ended since: an attempt that was thought lost.
    ``too_late``: what does not happen any more then.
    """
    used = runs.Used(tokens=usage.input_tokens + usage.output_tokens, cost_micros=cost_micros(engine, spec, usage))
    if not await runs.advance(conn, run.id, step=step, used=used):
        raise ApplicationError(f"run {run.id} has ended; {too_late}", "conflict")
    await subtree_usage.add(conn, run, subtree_usage.UsedBelow(tokens=used.tokens, cost_micros=used.cost_micros))
