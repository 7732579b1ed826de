"""The playground of ``turngate dev``: calls that no model made, and the scripts of scripted models, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.conversation.messages import Message
from turngate.domain.tools.defaults import Defaults
from turngate.domain.tools.tool import ToolManifest
from turngate.wire.people import Says
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
    ``defaults``: what the call leaves out. ``request``: what people would see; None: no one is asked. ``problem``: why it could
    not be tried.
    """

    model_config = ConfigDict(frozen=True)

    answer: str = ""
    rule: str = ""
    reason: Says = ""
    risk: str = ""
    digest: str = ""
    failure: str = ""
    judged: bool = False
    defaults: Defaults = ()
    request: RequestDetail | None = None
    problem: str = ""


class PaceOrder(BaseModel):
    """Whether each run pauses after each answer of a scripted model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    one_step_at_a_time: bool


class ScriptEntry(BaseModel):
    """A response of a script, or one of the cases of a response.

    ``place``: its path and line. ``when``: of a case. ``calls``: tools and arguments. ``notes``: what else the model does.
    ``steps``: the steps of the run that took it. ``is_next``: the next request takes it, or one of its cases.
    """

    model_config = ConfigDict(frozen=True)

    place: str
    when: str = ""
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    is_next: bool = False


class ScriptRequest(BaseModel):
    """A request of a run to its model. ``place``: the entry that it took; empty: none fits, ``why_not`` says why.

    ``differs``: the run has another answer than the script has there now. ``step`` None: the request that comes next.
    """

    model_config = ConfigDict(frozen=True)

    step: int | None
    place: str = ""
    why_not: str = ""
    differs: bool = False


class ScriptSteps(BaseModel):
    """A script of an agent, and what a run took of it. ``model``: its spec. ``problem``: why it can't be read.

    ``of_agent``: the specs of every script that may answer for the agent, as its model or as a fallback. ``left_out``: earlier
    requests.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    of_agent: tuple[str, ...] = ()
    problem: str = ""
    entries: tuple[ScriptEntry, ...] = ()
    requests: tuple[ScriptRequest, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class RunMessages:
    """A run's conversation. ``closed``: its messages up to the newest closed step, with the run's step if it is an answer of it.

    ``open``: the answer of the step whose calls aren't settled, and its number. ``asks_again``: the run continues.
    """

    closed: Sequence[tuple[int | None, Message]]
    open: tuple[int, Message] | None = None
    asks_again: bool = False


class Playground(Protocol):
    """The app under development, as the pages reach it. ``error``: why its files as they are now can't be loaded.

    ``one_step_at_a_time``: each run pauses after each answer of a scripted model.
    """

    error: str
    tools: Mapping[str, Sequence[ToolManifest]]
    one_step_at_a_time: bool

    def script_steps(self, agent: str, script: str = "", run: RunMessages | None = None) -> ScriptSteps | None:
        """Return a script of an agent; None: no model of it plays one.

        ``script``: its spec; one that the agent doesn't have: its first. ``run``: whose requests are looked up in it.
        """

    async def set_pace(self, order: PaceOrder) -> None:
        """Let runs pause after each answer, or not."""

    async def try_call(self, order: TrialOrder) -> Trial:
        """Plan the call as for a run, and return what would happen to it."""
