"""Deltas: the pieces in which a model's response arrives, for whoever watches it being made.

They are shown and forgotten: what is stored is the complete response, which says the same whether it was streamed or not.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DeltaKind = Literal["text", "reasoning", "tool-call"]


class Delta(BaseModel):
    """A piece of one part of a response.

    ``part``: which part, from 0, in the order in which they began. ``text``: what is added: of a tool call, to its raw
    input. ``tool_name``: of a call, as far as it is known, and empty in all deltas of a call after the one that said it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: DeltaKind
    part: int = Field(ge=0)
    text: str
    tool_name: str = ""
