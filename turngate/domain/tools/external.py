"""Calls from outside: a tool that another program runs, and whether it may is decided here. Pure.

Each such call is a run of its own, by a built-in agent that bears its source's name and has that one tool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from turngate.domain.text.json_text import without_half_pairs
from turngate.domain.tools.tool import MAX_NAME, NAME_PATTERN, Effect, acceptable_name

AGENT_PREFIX: Final = "external-"
SOURCE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
MODEL: Final = "external:call"
"""What a run of such a call has for a model: nothing is asked, the call was sent."""
MAX_TIMEOUT_SECONDS: Final = 7 * 86_400


class ExternalTool(BaseModel):
    """A tool as the program that runs it describes it. All of it is that program's claim, shown to people as such.

    ``parameters``: JSON Schema of an object. ``ask``: as a declared tool's own: False lets a call run that no rule covers, if
    the sender's token says that this counts; None asks. ``timeout_seconds``: how long it may take from its start to
    its report.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=rf"^{NAME_PATTERN.pattern}$")]
    description: Annotated[str, Field(max_length=10_000, pattern=r"^[^\u0000]*$")] = ""
    parameters: dict[str, JsonValue] = {"type": "object"}
    effect: Effect = "once"
    ask: bool | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_SECONDS)] = 600


MAX_MESSAGES: Final = 200
MAX_MESSAGE_CHARS: Final = 20_000
MAX_CONVERSATION_CHARS: Final = 200_000


class ExternalMessage(BaseModel):
    """A message of the conversation that a call was made in, as the program that makes the call tells it.

    ``author``: ``person``: what the program was asked, or told later; ``tool``: what the tool named ``tool`` returned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    author: Literal["person", "tool"]
    text: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
    tool: Annotated[str, Field(max_length=MAX_NAME)] = ""


CONVERSATION: Final[TypeAdapter[tuple[ExternalMessage, ...]]] = TypeAdapter(tuple[ExternalMessage, ...])


def within_bounds(messages: Sequence[ExternalMessage]) -> tuple[ExternalMessage, ...]:
    """Return the part of a conversation that may be sent: what the program was asked first, and the newest messages."""
    first = next((each for each in messages if each.author == "person"), None)
    left = MAX_CONVERSATION_CHARS - MAX_MESSAGE_CHARS
    newest: list[ExternalMessage] = []
    for each in reversed(messages[-(MAX_MESSAGES - 1) :]):
        left -= len(each.text)
        if left < 0:
            break
        newest.append(each)
    newest.reverse()
    return tuple(newest) if first is None or any(each is first for each in newest) else (first, *newest)


def message(author: Literal["person", "tool"], text: str, *, tool: str = "") -> ExternalMessage:
    """Return a message of a conversation, cut where it is too long, with what can't be stored replaced."""
    plain = without_half_pairs(text[:MAX_MESSAGE_CHARS]).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return ExternalMessage(author=author, text=plain, tool=acceptable_name(tool) if tool else "")


def agent_of_source(source: str) -> str:
    """Return the name that a source's calls go by in policy, grants, inbox and log."""
    return AGENT_PREFIX + source


def is_external(agent: str) -> bool:
    """Tell whether an agent's name is that of a source of calls from outside."""
    return agent.startswith(AGENT_PREFIX)


def source_of(agent: str) -> str:
    """Return the source that an external agent's name stands for."""
    return agent.removeprefix(AGENT_PREFIX)
