"""What every activity stands on, made once per worker process by the composition root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import svcs
from temporalio.exceptions import ApplicationError

from activities.own_worlds import OwnWorlds
from activities.rules import RulesInForce, StoredRules, in_force
from turngate.domain import contract
from turngate.domain.agents import Agent
from turngate.domain.budgets import Price
from turngate.domain.policy import Policy
from turngate.domain.toolkit import Toolkit
from turngate.domain.tools import Tool
from turngate.models.port import LanguageModel
from turngate.store.database import Connection, Database
from turngate.store.runs import Run


class ModelResolver(Protocol):
    """Turns a model's spec (``provider:name``) into the model."""

    def resolve(self, spec: str) -> LanguageModel:
        """Return the model; raises ConfigurationError when there is no such provider."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The store, the builder's agents and policy (as the app gives it), their services, and the models."""

    database: Database
    agents: Mapping[str, Agent]
    policy: Policy
    services: svcs.Registry
    models: ModelResolver
    prices: Mapping[str, Price] = field(default_factory=dict)
    """What models cost, by ``provider:name``."""
    policy_file: Path | None = None
    """Where ``policy`` was read from; None: it was given as a value."""
    stored_rules: StoredRules = field(default_factory=StoredRules)
    own_worlds: OwnWorlds = field(default_factory=OwnWorlds)
    built_in: Toolkit = field(default_factory=Toolkit.of)
    """The engine's own tools, found by every agent under their names unless it declares one of the same name."""

    async def rules(self, conn: Connection, run: Run) -> RulesInForce:
        """Return the rules in force for a run now: the app's, the stored ones and the standing grants.

        A run's own policy stands in place of all of them. No grant counts beside it: it was given for a call as other
        rules judge it.
        """
        own = await self.own_worlds.of_run(conn, run)
        if own is not None and own.policy is not None:
            return RulesInForce(policy=own.policy)
        return await in_force(conn, self.policy, self.stored_rules, run, policy_file=self.policy_file)

    def tool(self, agent: Agent, name: str) -> Tool | None:
        """Return the tool of this name: the agent's, or the engine's own; None when there is none."""
        return agent.toolkit.find(name) or self.built_in.find(name)

    async def agent_of(self, conn: Connection, run: Run) -> Agent:
        """Return the agent that works on the run, with what the run has of its own. Raises as :meth:`agent`."""
        own = await self.own_worlds.of_run(conn, run)
        agent = self.agent(run.agent)
        return agent if own is None else own.world.seen_by(agent)

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
