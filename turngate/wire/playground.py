"""The playground of ``turngate dev``: a call that no model made, and what would happen to it. Nothing runs, nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.tools.tool import ToolManifest
from turngate.wire.requests import RequestDetail

MAX_CHARS = 200_000
"""Of the arguments, and of the task."""


class TrialOrder(BaseModel):
    """A call to try. ``input``: its arguments as the model would send them. ``task``: what the agent was asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str = Field(max_length=64)
    tool: str = Field(max_length=64)
    input: str = Field(max_length=MAX_CHARS)
    task: str = Field(default="", max_length=MAX_CHARS)
    by: str


class Trial(BaseModel):
    """What would happen to it.

    ``answer``: ``allow``, ``ask`` or ``deny``; empty: it does not come to a verdict. ``failure``: what the model would read in
    place of a result, as JSON; empty: nothing is closed. ``judged``: the app has a judge, which is not asked here.
    ``request``: what people would see; None: no one is asked. ``problem``: why it could not be tried.
    """

    model_config = ConfigDict(frozen=True)

    answer: str = ""
    rule: str = ""
    reason: str = ""
    risk: str = ""
    digest: str = ""
    failure: str = ""
    judged: bool = False
    request: RequestDetail | None = None
    problem: str = ""


class Playground(Protocol):
    """The app under development, as the pages reach it. ``error``: why its files as they are now can't be loaded."""

    error: str
    tools: Mapping[str, Sequence[ToolManifest]]

    async def try_call(self, order: TrialOrder) -> Trial:
        """Plan the call as for a run, and return what would happen to it."""
