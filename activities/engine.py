"""What every activity stands on, made once per worker process by the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import svcs
from temporalio.exceptions import ApplicationError

from turngate.domain import contract
from turngate.domain.agents import Agent
from turngate.domain.policy import Policy
from turngate.domain.toolkit import Toolkit
from turngate.domain.tools import Tool
from turngate.models.port import LanguageModel
from turngate.store.database import Database


class ModelResolver(Protocol):
    """Turns a model's spec (``provider:name``) into the model."""

    def resolve(self, spec: str) -> LanguageModel:
        """Return the model; raises ConfigurationError when there is no such provider."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The store, the builder's agents and policy, their services, and the models."""

    database: Database
    agents: Mapping[str, Agent]
    policy: Policy
    services: svcs.Registry
    models: ModelResolver
    built_in: Toolkit = field(default_factory=Toolkit.of)
    """The engine's own tools, found by every agent under their names unless it declares one of the same name."""

    def tool(self, agent: Agent, name: str) -> Tool | None:
        """Return the tool of this name: the agent's, or the engine's own; None when there is none."""
        return agent.toolkit.find(name) or self.built_in.find(name)

    def agent(self, name: str) -> Agent:
        """Return an agent; raises a non-retryable ApplicationError when this worker's app has none of that name."""
        agent = self.agents.get(name)
        if agent is None:
            known = ", ".join(sorted(self.agents))
            raise ApplicationError(
                f"this worker's app has no agent {name!r} (it has: {known})",
                "configuration",
                type=contract.ERROR_CONFIGURATION,
                non_retryable=True,
            )
        return agent
