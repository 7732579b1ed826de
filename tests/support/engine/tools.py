"""Tools the engine tests run: small, real, and counting what happened to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pydantic import BaseModel

from turngate import ToolContext, tool
from turngate.domain.tools.tool import Tool


class Amount(BaseModel):
    cents: int


class Name(BaseModel):
    name: str


@dataclass
class Bench:
    """Tools and what they did. ``paid``: amounts in the order the handler started; ``gate``: holds `slow` until set."""

    paid: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pay(self) -> Tool:
        @tool(effect="once", ask=True)
        async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
            """Pay an amount."""
            self.paid.append(params.cents)
            self.keys.append(ctx.idempotency_key)
            return {"paid": params.cents}

        return pay

    @property
    def look(self) -> Tool:
        @tool(effect="read", ask=False)
        async def look(params: Name) -> str:
            """Look something up."""
            self.looked.append(params.name)
            return f"seen {params.name}"

        return look

    @property
    def slow(self) -> Tool:
        @tool(effect="once", ask=False)
        async def slow(ctx: ToolContext) -> str:
            """Work until released."""
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.started.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                ctx.partial("half done")
                self.cancelled.set()
                raise
            finally:
                self.running -= 1
            return "whole"

        return slow
