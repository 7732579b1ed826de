"""Agents, their models, and the path of agents that leads to a sub-agent."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from turngate.wire.view import View

PATH_MARK: Final = " \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "


def agents_path(path: str, agent: str) -> str:
    """Return the agents of a path, outermost first, with a mark between them; just ``agent`` for a run without a parent."""
    return PATH_MARK.join(path.split("/")) if "/" in path else agent


class ModelChoice(View):
    """A model that a run can use. ``stands_for``: a profile's model, ``PROVIDER:NAME``; empty: this is an agent's own model."""

    name: str
    stands_for: str = ""


class AgentView(View):
    """An agent as its worker published it.

    ``sub_agent_of``: the agents whose calls it answers; empty for an agent that people can start.
    """

    name: str
    version: str
    model: str
    description: str
    tools: list[str]
    published_at: str
    sub_agent_of: list[str] = Field(default_factory=list)
