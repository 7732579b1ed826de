"""A run's overrides: what it has instead of its agent's instructions and tools and its app's policy. Pure.

Given when a run is forked or replayed, stored once by digest, and honoured by the activities: nothing of it enters a
workflow. What is None is as the agent or the app has it.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from turngate.domain.agents.app import Agent
from turngate.domain.digest import framed_sha256
from turngate.domain.tools.toolkit import Toolkit


class RunOverrides(BaseModel):
    """What a run has of its own.

    ``agent``: whose instructions and tools these are; another one, who takes over or answers a call, has its own.
    ``instructions``: in place of the agent's. ``tools``: the names of those of its toolkit that it keeps. ``policy``: TOML
    that replaces the app's rules, the stored ones and every grant, for the run and its sub-agents.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    policy: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing in it is the run's own."""
        return self.instructions is None and self.tools is None and self.policy is None

    @property
    def digest(self) -> str:
        """Hex SHA-256; the same overrides have the same one, in later releases that know more of them, too."""
        return framed_sha256(self.model_dump_json(exclude_none=True))

    def for_agent(self, name: str) -> RunOverrides:
        """Return what is left of it for a run that begins with this agent."""
        return self if name == self.agent else RunOverrides(agent=name, policy=self.policy)

    def seen_by(self, agent: Agent) -> Agent:
        """Return the agent as the run has it. Tools that the agent does not have any more are not there."""
        if agent.name != self.agent or (self.instructions is None and self.tools is None):
            return agent
        tools, names = agent.toolkit, self.tools
        if names is not None:
            tools = Toolkit.from_list([tool for tool in agent.toolkit if tool.name in names])
        instructions = agent.instructions if self.instructions is None else self.instructions
        return replace(agent, instructions=instructions, toolkit=tools)
