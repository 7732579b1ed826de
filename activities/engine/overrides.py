"""Overrides of runs, as the activities apply them: read once per digest and process, their policy parsed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from temporalio.exceptions import ApplicationError

from turngate.domain import contract
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.crashes import report_crash
from turngate.domain.errors import ConfigurationError, UnreadableContentError
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

        Raises ApplicationError ``configuration``, not retryable, when the store does not have them as they were stored: then no
        one knows what the run may do.
        """
        if run.world is None:
            return None
        cached = self._cached.get(run.world)
        if cached is None:
            cached = self._cached[run.world] = await _read(conn, run.world)
            while len(self._cached) > MAX_CACHED:
                self._cached.pop(next(iter(self._cached)))
        return cached


async def _read(conn: Connection, digest: str) -> Overrides:
    try:
        values = await overrides.get(conn, digest)
    except UnreadableContentError as error:
        raise _unknown(str(error)) from None
    if values is None:
        raise _unknown("what the run has of its own was erased")
    return Overrides(values, _parsed(values))


def _unknown(why: str) -> ApplicationError:
    return ApplicationError(why, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True)


def _parsed(values: RunOverrides) -> Policy | None:
    """Return its policy; a policy that a worker of another release can't read asks a person about every call (fail closed)."""
    if values.policy is None:
        return None
    try:
        return parse_policy(values.policy, source="of the run")
    except ConfigurationError as error:
        report_crash("a run's own policy cannot be read", error, overrides=values.digest)
        return Policy(rule=[UNREADABLE])
