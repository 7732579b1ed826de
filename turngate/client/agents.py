"""Calls about agents."""

from __future__ import annotations

import httpx

from turngate.client.calls import Call, get
from turngate.wire.agents import AgentView
from turngate.wire.view import Page


def list_agents() -> Call[list[AgentView]]:
    """Return the agents that workers have published, by name."""
    return get("/agents", _agents)


def _agents(response: httpx.Response) -> list[AgentView]:
    return Page[AgentView].model_validate_json(response.content).items
