"""Agents, and how those above a run are named."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from turngate.wire.view import View

PATH_MARK: Final = " \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "


def agents_path(path: str, agent: str) -> str:
    """Return an agent behind those above it, as people read it, with a mark between them; the agent alone at the top."""
    return PATH_MARK.join(path.split("/")) if "/" in path else agent


class ModelChoice(View):
    """A model that people are offered for a run. ``stands_for``: of a profile, ``PROVIDER:NAME``; empty: an agent's own model."""

    name: str
    stands_for: str = ""


class AgentView(View):
    """An agent as its worker published it.

    ``sub_agent_of``: the agents whose calls it answers; empty for one that the app offers to people itself.
    """

    name: str
    version: str
    model: str
    description: str
    tools: list[str]
    published_at: str
    sub_agent_of: list[str] = Field(default_factory=list)
