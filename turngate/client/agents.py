"""Calls about agents, and the models that their runs may be given."""

from __future__ import annotations

import httpx

from turngate.client.calls import Call, get
from turngate.wire.agents import AgentView, ModelChoice
from turngate.wire.view import Page


def list_agents() -> Call[list[AgentView]]:
    """Return the agents that workers have published, by name."""
    return get("/agents", _agents)


def list_models() -> Call[list[ModelChoice]]:
    """Return the models to choose from: profiles, then the agents' own. A run takes other ``PROVIDER:NAME`` as well."""
    return get("/models", _models)


def _agents(response: httpx.Response) -> list[AgentView]:
    return Page[AgentView].model_validate_json(response.content).items


def _models(response: httpx.Response) -> list[ModelChoice]:
    return Page[ModelChoice].model_validate_json(response.content).items
