"""Control calls: finish, wait, hand off to another agent, switch the model. The engine carries them out.

Each is a few lines over ``control_call_tool``. Write your own the same way: the parameters, and what they mean.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, create_model, model_validator

from turngate import Finish, HandOff, SwitchModel, Tool, WaitUntil, control_call_tool
from turngate.domain.tools.control_calls import MAX_WAIT


class FinishParams(BaseModel):
    """The answer."""

    model_config = ConfigDict(extra="forbid")

    answer: str = Field(min_length=1, description="The final answer, as the user will read it.")


finish = control_call_tool(
    name="finish",
    description="End the task with this final answer. Nothing more runs after it.",
    params=FinishParams,
    interpret=lambda params: Finish(answer=params.answer),
)


class WaitParams(BaseModel):
    """Until when: an instant, or so many seconds from now."""

    model_config = ConfigDict(extra="forbid")

    until: AwareDatetime | None = Field(
        default=None, description="An instant with its offset: 2026-11-30T09:00:00+01:00."
    )
    seconds: float | None = Field(
        default=None, ge=0, le=MAX_WAIT.total_seconds(), description="Or: so many seconds from now."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> WaitParams:
        if (self.until is None) == (self.seconds is None):
            raise ValueError("give either until or seconds")
        return self


wait_until = control_call_tool(
    name="wait_until",
    description="Wait for an instant, or for some time, at no cost. The wait outlives restarts. At most a year.",
    params=WaitParams,
    interpret=lambda params: WaitUntil(until=params.until, seconds=params.seconds),
)


def hand_off(*agents: str) -> Tool:
    """Return the tool ``hand_off``: another of the app's agents (one of these names) continues with the conversation."""
    names = Literal[agents]  # type: ignore[valid-type]  # the names are known when the app is built
    params = create_model(
        "HandOffParams",
        __config__=ConfigDict(extra="forbid"),
        agent=(names, Field(description="Who continues. They see the whole conversation.")),
    )
    return control_call_tool(
        name="hand_off",
        description="Hand this conversation over to a colleague, who answers in your place from now on.",
        params=params,
        interpret=lambda params: HandOff(agent=params.model_dump()["agent"]),
    )


def switch_model(*models: str) -> Tool:
    """Return the tool ``switch_model``: another model (one of these ``provider:name``) answers from the next step on."""
    specs = Literal[models]  # type: ignore[valid-type]
    params = create_model(
        "SwitchModelParams",
        __config__=ConfigDict(extra="forbid"),
        model=(specs, Field(description="The model that continues.")),
    )
    return control_call_tool(
        name="switch_model",
        description="Let another model continue with this task, such as a stronger one when it turns out to be hard.",
        params=params,
        interpret=lambda params: SwitchModel(model=params.model_dump()["model"]),
    )
