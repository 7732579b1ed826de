"""Control calls: what a call asks of the loop around the model. Small values; they pass through workflows.

The tool only says what it wants. The engine carries it out after policy has allowed the call and, if a rule asks, a
person has approved it. On the wire a control call is still a ``signal``, and so is the kind of its tool.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

MAX_WAIT = timedelta(days=366)
WAITS: Final = "wait_until"
"""The ``signal`` of a call that waits on a timer."""


class _ControlCall(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Finish(_ControlCall):
    """End the run as completed with this answer, once the step's other calls are settled."""

    signal: Literal["finish"] = "finish"
    answer: str


class WaitUntil(_ControlCall):
    """Hold this call on a durable timer: ``until`` an instant, or for ``seconds``. The step continues when it is over.

    At most ``MAX_WAIT``. An instant that has passed, or neither of both: it is over at once.
    """

    signal: Literal["wait_until"] = WAITS
    until: AwareDatetime | None = None
    seconds: float | None = Field(default=None, ge=0, le=MAX_WAIT.total_seconds())


class HandOff(_ControlCall):
    """From the next step on, another agent of the app answers this conversation: its instructions, tools and model."""

    signal: Literal["hand_off"] = "hand_off"
    agent: str


class SwitchModel(_ControlCall):
    """From the next step on, another model (``provider:name``) answers."""

    signal: Literal["switch_model"] = "switch_model"
    model: str


ControlCall = Annotated[Finish | WaitUntil | HandOff | SwitchModel, Field(discriminator="signal")]
