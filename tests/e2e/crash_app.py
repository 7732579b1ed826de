"""The app of the crash tests: tools that write down each start of their handler where no crash of ours reaches.

The environment variable CRASH_LEDGER names the ledger, a file of one JSON line per start, on disk before the handler
does anything else. A call with ``hold`` goes on only when the file ``go-NAME`` stands beside the ledger.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from pydantic import BaseModel

from turngate import Agent, App, ToolContext, Toolkit, tool

LEDGER = "CRASH_LEDGER"
LOOK_AGAIN_SECONDS = 0.05


class Order(BaseModel):
    """``name``: what the ledger and the ``go-`` file call this order. ``seconds``: how long its handler takes at least."""

    name: str
    hold: bool = False
    seconds: float = 0.0


async def start(tool_name: str, order: Order, ctx: ToolContext) -> dict[str, str]:
    ledger = Path(os.environ[LEDGER])
    line = {"tool": tool_name, "name": order.name, "run": ctx.run_id, "call": ctx.tool_call_id}
    text = json.dumps({**line, "key": ctx.idempotency_key, "pid": os.getpid()}) + "\n"
    # One write of O_APPEND: two workers never mix their lines.
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)
    await asyncio.sleep(order.seconds)
    while order.hold and not ledger.with_name(f"go-{order.name}").exists():  # noqa: ASYNC110 - the word is a file
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
    return {"done": order.name}


@tool(effect="once", ask=True)
async def pay(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Pay an order."""
    return await start("pay", params, ctx)


@tool(effect="once", ask=False)
async def post(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Post an order; nobody is asked."""
    return await start("post", params, ctx)


@tool(effect="idempotent", ask=True)
async def reserve(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Reserve what an order needs."""
    return await start("reserve", params, ctx)


@tool(effect="read", ask=False)
async def look(params: Order, ctx: ToolContext) -> dict[str, str]:
    """Look at an order."""
    return await start("look", params, ctx)


app = App(
    agents=[
        Agent(
            name="clerk",
            instructions="Work through the orders.",
            toolkit=Toolkit.of(pay, post, reserve, look),
            model="scripted:clerk.yaml",
        )
    ]
)
