"""The app of two tenants that share their processes: one agent, one tool that asks no one."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from turngate import Agent, App, Toolkit, tool


class Words(BaseModel):
    text: str


@tool(effect="read", ask=False)
async def note(params: Words) -> Words:
    """Note words."""
    return params


MODEL = f"scripted:{Path(__file__).with_name('neighbour_model.yaml')}"
app = App(agents=[Agent(name="clerk", instructions="Note.", toolkit=Toolkit.of(note), model=MODEL)])
