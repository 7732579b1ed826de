"""Overrides of runs, as the activities apply them: read once per digest and process, their policy parsed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from temporalio.exceptions import ApplicationError

from turngate.domain import contract
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.crashes import report_crash
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, Rule, parse_policy
from turngate.store.database import Connection
from turngate.store.runs import overrides, runs

MAX_CACHED: Final = 64
UNREADABLE: Final = Rule(
    name="own-rules-unreadable",
    verdict="ask",
    tools=["*"],
    reason="This run's own policy cannot be read by this worker, so a person is asked. Fork the run, or update the worker.",
)


@dataclass(frozen=True)
class Overrides:
    """The overrides of a run with their policy parsed; ``policy`` None: the app's rules apply to the run."""

    values: RunOverrides
    policy: Policy | None


@dataclass
class OverridesCache:
    """The overrides that were read lately. They are immutable: a digest always means the same ones."""

    _cached: dict[str, Overrides] = field(default_factory=dict)

    async def of_run(self, conn: Connection, run: runs.Run) -> Overrides | None:
        """Return the run's overrides; None: it has none.

        Raises ApplicationError ``configuration``, not retryable, when the store does not have them: without them it is not
        known what the run may do.
        """
        if run.world is None:
            return None
        cached = self._cached.get(run.world)
        if cached is None:
            values = await overrides.get(conn, run.world)
            if values is None:
                why = f"the store does not have what run {run.id!r} has of its own ({run.world}); is this another database?"
                raise ApplicationError(why, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True)
            cached = self._cached[run.world] = Overrides(values, _parsed(values))
            while len(self._cached) > MAX_CACHED:
                self._cached.pop(next(iter(self._cached)))
        return cached


def _parsed(values: RunOverrides) -> Policy | None:
    """Return its policy; a policy that a worker of another release can't read asks a person about every call (fail closed)."""
    if values.policy is None:
        return None
    try:
        return parse_policy(values.policy, source="of the run")
    except ConfigurationError as error:
        report_crash("a run's own policy cannot be read", error, overrides=values.digest)
        return Policy(rule=[UNREADABLE])
