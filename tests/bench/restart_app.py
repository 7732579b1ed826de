"""The app of the restart measurements: one agent, one gated ``once`` tool with a ledger of its starts."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel

from turngate import Agent, App, ToolContext, Toolkit, tool

LEDGER = "RESTART_LEDGER"


class Amount(BaseModel):
    cents: int


@tool(effect="once", ask=True)
async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
    """Pay an amount."""
    note(f"{ctx.run_id} {time.time()}\n")
    return {"paid": params.cents}


def note(line: str) -> None:
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as ledger:
        ledger.write(line)


MODEL = f"scripted:{Path(__file__).with_name('restart_model.yaml')}"
app = App(agents=[Agent(name="payer", instructions="Pay.", toolkit=Toolkit.of(pay), model=MODEL)])
