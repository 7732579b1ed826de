"""Events of runs, and what tools say in between."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from turngate.wire.view import View


class EventView(View):
    """One event. ``seq``: its place among all events; ``run_seq``: within its run."""

    seq: int
    run_seq: int
    run_id: str
    type: str
    payload: dict[str, JsonValue]
    created_at: str


class ProgressView(View):
    """What a tool said while it ran. ``n``: place within its call, from 1; ``dropped``: how many before it were left out."""

    type: Literal["call.progress"] = "call.progress"
    run_id: str
    tool_call_id: str
    n: int
    payload: JsonValue
    dropped: int
    created_at: str
