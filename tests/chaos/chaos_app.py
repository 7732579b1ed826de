"""The app of the chaos runs: its tools record each start of their handler in a file that survives every crash.

The environment variable CHAOS_LEDGER names the ledger, a file of one JSON line per start, on disk before the handler
does anything else; the line has the arguments as the handler got them, so that what ran can be compared with what was
approved. A call with ``hold`` continues only when the file ``go-NAME`` exists beside the ledger.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

import instants
from pydantic import BaseModel

from turngate import Agent, App, Limits, Policy, Rule, ToolContext, Toolkit, sub_agent, tool
from turngate.domain.contract import RunLimits

LEDGER = "CHAOS_LEDGER"
LOOK_AGAIN_SECONDS = 0.05
EXPIRY_SECONDS = 5
GRACE_SECONDS = 2
WIRE_TIMEOUT = timedelta(seconds=1)
BANK = "Look for {idempotency_key} at the bank"
HOUR_SECONDS = 3600
"""Of a transfer: until then, its approval can be taken back."""
STEPS_PER_EXECUTION = 2
"""Each workflow continues as new after so many steps."""


class Order(BaseModel):
    """``name``: what the ledger and the ``go-`` file call this order. ``milliseconds``: what its handler takes at least."""

    name: str
    amount: int = 1
    hold: bool = False
    milliseconds: int = 0


async def start(tool_name: str, order: Order, ctx: ToolContext) -> dict[str, str]:
    ledger = Path(os.environ[LEDGER])
    line = {"tool": tool_name, "name": order.name, "run": ctx.run_id, "call": ctx.tool_call_id}
    saw = {"input": order.model_dump(), "key": ctx.idempotency_key, "pid": os.getpid(), "at": time.time()}
    instants.append_line(ledger, {**line, **saw})
    await asyncio.sleep(order.milliseconds / 1000)
    while order.hold and not ledger.with_name(f"go-{order.name}").exists():  # noqa: ASYNC110 - the word is a file
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
    return {"done": order.name}


@tool(effect="once", ask=True)
async def pay(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Pay an order."""
    return await start("pay", params, ctx)


@tool(effect="once", ask=True)
async def transfer(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Transfer what an order costs, after a grace."""
    return await start("transfer", params, ctx)


@tool(effect="once", ask=True, timeout=WIRE_TIMEOUT, check_with=BANK)
async def wire(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Wire what an order costs. The bank never answers: the time is over after the effect."""
    await start("wire", params, ctx)
    await asyncio.sleep(HOUR_SECONDS)
    return {}


@tool(effect="once", ask=True)
async def debit(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Debit what an order costs. The connection breaks after the effect."""
    await start("debit", params, ctx)
    raise ConnectionResetError


@tool(effect="once", ask=False)
async def post(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Post an order; no one is asked."""
    return await start("post", params, ctx)


@tool(effect="idempotent", ask=lambda _order: True)  # the author's code: a response is stored before this is called
async def reserve(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Reserve what an order needs."""
    return await start("reserve", params, ctx)


@tool(effect="read", ask=False)
async def look(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Look at an order."""
    return await start("look", params, ctx)


def _for_run(limits: Limits, of_run: object = Limits.for_run) -> RunLimits:
    # No agent's limit: Temporal's own suggestion is what continues long runs, and these are to be short.
    return of_run(limits).model_copy(update={"continue_as_new_after_steps": STEPS_PER_EXECUTION})  # type: ignore[operator]


if instants.DIRECTORY in os.environ:  # a process of a chaos run, not its harness
    instants.install()
    Limits.for_run = _for_run  # type: ignore[method-assign]

SCRIPT = "scripted:clerk.yaml"
TOOLS = Toolkit.of(pay, transfer, wire, debit, post, reserve, look)
CAREFUL = Rule(name="careful", verdict="ask", tools=["transfer"], grace_seconds=GRACE_SECONDS)
helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(pay), model="scripted:helper.yaml")
clerk = Agent(
    name="clerk",
    instructions="Work through the orders.",
    toolkit=Toolkit.compose(TOOLS, Toolkit.of(sub_agent(helper))),
    model=SCRIPT,
)
hasty = Agent(
    name="hasty",
    instructions="Work through the orders, and wait for no one.",
    toolkit=TOOLS,
    model=SCRIPT,
    limits=Limits(request_expiry=timedelta(seconds=EXPIRY_SECONDS)),
)
app = App(agents=[clerk, hasty], policy=Policy(rule=[CAREFUL]))
