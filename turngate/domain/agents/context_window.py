"""How much of a conversation a model is shown: what it takes of the model's window, and where it may be cut. Pure.

No tokenizer is loaded: every provider has its own, and none is needed to know when to cut. What a model reported of its
last request counts as it is, and what was added since is estimated on the high side.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turngate.domain.conversation.history import unanswered_calls
from turngate.domain.conversation.messages import FilePart, Message, Part, ToolCallPart, ToolResultPart
from turngate.domain.tools.results import wire_text
from turngate.domain.tools.tool import ToolManifest

BYTES_PER_TOKEN: Final = 3
"""UTF-8 bytes of text that count as a token. English prose has more than four, code about three, Chinese three a letter."""
PART_TOKENS: Final = 8
"""For what surrounds a part: roles, brackets, ids."""
IMAGE_TOKENS: Final = 1_600
"""For any image: about the most that providers count for one they have not scaled up."""
FILE_TOKENS: Final = 4_000
"""For any other file: some pages of it. What a provider then reports corrects it with the next response."""
LEFT_AFTER_A_CUT: Final = 0.5
"""Of what made a cut necessary. Less would throw away what still fits, more would cut, and pay, at every other step."""
LEAST_GAIN: Final = 0.1
"""Of what is sent, that a cut has to cover: a summary that stands for hardly anything is not worth its price."""


class Context(BaseModel):
    """What happens to a conversation that comes near its model's window, or does not fit into it.

    Shares are of the window, 0 to 1, and None leaves that out: without both, a conversation that does not fit fails its run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    window: int | None = Field(default=None, ge=1)
    """Tokens that the model takes; None: what is known of the model. Where nothing is, its refusals say when to cut."""
    compact_at: float | None = Field(default=0.75, gt=0, le=1)
    """From this share on, a summary replaces all but the newest messages."""
    trim_at: float | None = Field(default=0.9, gt=0, le=1)
    """From this share on, where there is no summary, the oldest messages are left out."""
    keep: int = Field(default=20, ge=2)
    """The newest messages, which stay as they are unless they are too much by themselves."""
    summary_model: str | None = None
    """Who writes summaries (``provider:name``); None: the run's own model."""
    summary_chars: int = Field(default=20_000, ge=100)
    """A longer summary is not one, and is not used."""
    summary_timeout: timedelta = Field(default=timedelta(minutes=2), gt=timedelta(0))
    """For writing one; the step waits for it."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.compact_at is not None and self.trim_at is not None and self.compact_at > self.trim_at:
            raise ValueError("compact_at is at most trim_at: messages would be left out before they are summarised")
        return self


def text_tokens(text: str) -> int:
    """Return an estimate, on the high side, of what a text takes."""
    return -(-len(text.encode(errors="surrogatepass")) // BYTES_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Return an estimate, on the high side, of what a message takes.

    Text, reasoning, calls and results: by their bytes, as the model reads them. Images and files: a constant each, however
    large. What providers keep for themselves (``provider_options``) counts nothing: only they know what it takes.
    """
    return PART_TOKENS + sum(PART_TOKENS + _part_tokens(part) for part in message.parts)


def _part_tokens(part: Part) -> int:
    match part:
        case ToolCallPart():
            return text_tokens(part.tool_name) + text_tokens(part.input)
        case ToolResultPart():
            return text_tokens(wire_text(part.result, edited_input=part.edited_input))
        case FilePart():
            return IMAGE_TOKENS if part.type == "image" else FILE_TOKENS
        case _:
            return text_tokens(part.text)


def tools_tokens(tools: Sequence[ToolManifest]) -> int:
    """Return an estimate, on the high side, of what the descriptions of tools take."""
    return sum(
        PART_TOKENS + text_tokens(tool.name) + text_tokens(tool.description) + text_tokens(json.dumps(tool.parameters))
        for tool in tools
    )


def safe_cuts(messages: Sequence[Message], steps: Sequence[Hashable | None]) -> list[int]:
    """Return the places where a conversation may be cut, in order: place n parts message n from the one before it.

    Never between a call and its result, never after a call that is still open, never inside a step, and never at an end.

    Args:
        messages: oldest first.
        steps: for each message the step it belongs to; None: to none, such as what a person said.
    """
    return [place for place in range(1, len(messages)) if _is_safe(messages, steps, place)]


def _is_safe(messages: Sequence[Message], steps: Sequence[Hashable | None], place: int) -> bool:
    if messages[place].role == "tool" or (steps[place] is not None and steps[place - 1] == steps[place]):
        return False
    turn = place - 1
    while turn > 0 and messages[turn].role == "tool":
        turn -= 1
    return not unanswered_calls(messages[turn:place])


def chosen_cut(costs: Sequence[int], safe: Sequence[int], *, keep: int, room: float) -> int | None:
    """Return the safe place to cut at; None: there is none.

    The last one before the newest ``keep`` messages, if what remains fits ``room`` (tokens); else the first later one from
    which it fits; else the last one.
    """
    left = [0] * (len(costs) + 1)
    for place in range(len(costs) - 1, -1, -1):
        left[place] = left[place + 1] + costs[place]
    usual = max((place for place in safe if place <= len(costs) - keep), default=0)
    fitting = (place for place in safe if place >= max(usual, 1) and left[place] <= room)
    return next(fitting, safe[-1] if safe else None)


def is_worth_it(costs: Sequence[int], place: int, *, sent: int) -> bool:
    """Tell whether a cut at this place takes a tenth of what is sent away."""
    return sum(costs[:place]) >= LEAST_GAIN * sent
