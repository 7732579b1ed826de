"""Which agent and model continue a run after one of its steps: a control call may have handed it over or switched its model.

A fallback model doesn't count: a fork or dry run starts with the model that was chosen.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Final

from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.store.runs import calls
from turngate.store.runs.runs import Run

LED_BY: Final = ("run.started", "run.handed_off", "run.model_switched")
MAX_CHANGES: Final = 1_000
"""How many hand-offs and model switches are read, the newest of each."""


@dataclass(frozen=True, kw_only=True)
class Lead:
    """Who takes a run's next step. ``model`` None: the agent's own, as it is published."""

    agent: str
    model: str | None


async def lead_after(conn: Connection, run: Run, step: int) -> Lead:
    """Return who continued after a step of the run; step 0 is its beginning. A later control call may have changed that."""
    changes = [each for kind in LED_BY for each in await events.newest(conn, run.id, kind, limit=MAX_CHANGES)]
    lead = Lead(agent=run.agent, model=run.chosen_model)
    for event in sorted(changes, key=lambda each: each.run_seq):
        if event.type == "run.started":
            lead = Lead(agent=str(event.payload["agent"]), model=str(event.payload["model"]))
            continue
        if await _after(conn, run, event) > step:
            break
        to = str(event.payload["to"])
        lead = Lead(agent=to, model=None) if event.type == "run.handed_off" else replace(lead, model=to)
    return lead


async def _after(conn: Connection, run: Run, event: Event) -> int:
    """Return the step after which a change applies: that of its call, or the newest one when a person made it."""
    if "tool_call_id" not in event.payload:
        return int(event.payload["step"])
    call = await calls.get(conn, run.id, str(event.payload["tool_call_id"]))
    return sys.maxsize if call is None else call.step
