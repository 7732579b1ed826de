"""What runs have of their own, as the activities honour it: read once per digest and process, its policy parsed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import structlog
from temporalio.exceptions import ApplicationError

from turngate.domain import contract
from turngate.domain.agents.overrides import World
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, Rule, parse_policy
from turngate.store.database import Connection
from turngate.store.runs import overrides, runs

log = structlog.get_logger(__name__)

KEPT: Final = 64
UNREADABLE: Final = Rule(
    name="own-rules-unreadable",
    verdict="ask",
    tools=["*"],
    reason="This run's own policy cannot be read by this worker, so a person is asked. Fork the run, or update the worker.",
)


@dataclass(frozen=True)
class OwnWorld:
    """A world with its policy parsed; ``policy`` None: the run lives under the app's rules."""

    world: World
    policy: Policy | None


@dataclass
class OwnWorlds:
    """The worlds that were looked at lately. They are immutable: a digest always means the same one."""

    _kept: dict[str, OwnWorld] = field(default_factory=dict)

    async def of_run(self, conn: Connection, run: runs.Run) -> OwnWorld | None:
        """Return what the run has of its own; None: nothing.

        Raises ApplicationError ``configuration``, not retryable, when the store does not have it: without it nobody knows
        what the run may do.
        """
        if run.world is None:
            return None
        found = self._kept.get(run.world)
        if found is None:
            world = await overrides.get(conn, run.world)
            if world is None:
                why = f"the store does not have what run {run.id!r} has of its own ({run.world}); is this another database?"
                raise ApplicationError(why, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True)
            found = self._kept[run.world] = OwnWorld(world, _parsed(world))
            while len(self._kept) > KEPT:
                self._kept.pop(next(iter(self._kept)))
        return found


def _parsed(world: World) -> Policy | None:
    """Return its policy; one that a worker of another release cannot read asks for everything (fail closed)."""
    if world.policy is None:
        return None
    try:
        return parse_policy(world.policy, source="of the run")
    except ConfigurationError as error:
        log.exception("a run's own policy cannot be read", world=world.digest, problem=error.message)
        return Policy(rule=[UNREADABLE])
