"""What the models that a run asks take of its budgets, and of the budgets of the runs above it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from turngate.activities.engine.engine import Engine
from turngate.domain.agents.app import Agent
from turngate.domain.conversation.messages import Usage
from turngate.domain.runs.budgets import is_free
from turngate.store.connection import Connection, Meter, note
from turngate.store.runs import runs, subtree_usage


@dataclass(frozen=True)
class ModelUse:
    """What one model took. ``spec``: ``provider:name`` or a profile's name."""

    spec: str
    usage: Usage


def lacks_price(engine: Engine, agent: Agent, spec: str) -> bool:
    """Tell whether a model may not be asked: its agent's cost is limited, and the model has no price."""
    return agent.limits.cost is not None and spec not in engine.prices and not is_free(spec)


def cost_micros(engine: Engine, spec: str, usage: Usage) -> int:
    """Return what a response cost, in millionths; 0 for a model without a price."""
    price = engine.prices.get(spec)
    return 0 if price is None else price.micros(usage)


@contextmanager
def timed_request(meter: Meter | None, spec: str) -> Iterator[None]:
    """Count a request to a model, with how long it took and how it ended; nothing where nothing counts."""
    if meter is None:
        yield
        return
    began, outcome = time.perf_counter(), "failed"
    try:
        yield
        outcome = "answered"
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        seconds = time.perf_counter() - began
        meter.count([("model.requested", {"model": spec, "outcome": outcome, "seconds": seconds})])


async def spend(engine: Engine, conn: Connection, run: runs.Run, step: int, use: ModelUse) -> bool:
    """Count what a model took that is not the one that answers the step; call it before the transaction's events.

    False when the run has ended since: this is an attempt that was thought lost.
    """
    usage = use.usage
    used = runs.Used(tokens=usage.input_tokens + usage.output_tokens, cost_micros=cost_micros(engine, use.spec, usage))
    if not await runs.advance(conn, run.id, step=step, used=used):
        return False
    await subtree_usage.add(conn, run, subtree_usage.SubtreeUsage(tokens=used.tokens, cost_micros=used.cost_micros))
    note(conn, "model.used", model=use.spec, usage=usage, cost_micros=used.cost_micros)
    return True
