"""Which model answers, and how: a spec (``provider:name``), what it is told beside the conversation. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ReasoningEffort = Literal["minimal", "low", "medium", "high"]


class ModelOptions(BaseModel):
    """How a model is to answer; None leaves it to the provider."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    reasoning_effort: ReasoningEffort | None = None
