"""One step of a run, with the agent that takes it: what an activity passes on from hand to hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import RunScope
from turngate.store.runs.runs import Run


@dataclass(frozen=True)
class RunStep:
    """The step of this number (from 1). ``agent``: with the run's overrides."""

    run: Run
    agent: Agent
    number: int

    @property
    def scope(self) -> RunScope:
        """The step as hooks see it."""
        return RunScope(run_id=self.run.id, agent=self.agent.name, step=self.number)

    def of(self, run: Run) -> RunStep:
        """Return the same step of the run as it is now."""
        return replace(self, run=run)
