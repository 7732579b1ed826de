"""Calls from outside: a tool that another program runs, and whether it may is decided here. Pure.

Each such call is a run of its own, by a built-in agent that bears its source's name and has that one tool.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turngate.domain.tools.tool import NAME_PATTERN, Effect

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


def agent_of_source(source: str) -> str:
    """Return the name that a source's calls go by in policy, grants, inbox and log."""
    return AGENT_PREFIX + source


def is_external(agent: str) -> bool:
    """Tell whether an agent's name is that of a source of calls from outside."""
    return agent.startswith(AGENT_PREFIX)


def source_of(agent: str) -> str:
    """Return the source that an external agent's name stands for."""
    return agent.removeprefix(AGENT_PREFIX)
