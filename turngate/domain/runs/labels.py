"""Labels: what Temporal knows of a run besides its id. They say how the run is found there, and how soon its work starts.

Gateway, workflows and activities take all of it from here. A label changes no decision: the store decides (ADR 0030), and a
server without search attributes, priorities or fairness runs the same runs in another order (ADR 0058).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from turngate.domain.tools.external import is_external

# How soon work starts, on Temporal's scale from 1 to 5. What has no number counts as 3 there.

DECIDED: Final = 1
"""What a person has just decided: the call they allowed, the step after it, an order to pause or to stop."""
ATTENDED: Final = 2
"""Runs that someone waits for."""
UNATTENDED: Final = 3
DRY_RUN: Final = 5

AGENT: Final = "agent"
SOURCE: Final = "source"
STARTER: Final = "starter"
SCHEDULE: Final = "schedule"
ATTRIBUTES: Final = (AGENT, SOURCE, STARTER, SCHEDULE)
"""The search attributes, each of the type Keyword. Temporal keeps their values until its retention ends: none is content."""

MOST_KEY_BYTES: Final = 64
"""Temporal refuses a longer fairness key."""
_DIGEST_CHARS: Final = 16

Source = Literal["start", "schedule", "sub-agent", "message", "retry", "fork", "dry-run", "external-call"]
"""How the run came about."""


class LabelledRun(Protocol):
    """What labels read of a run; a row of the store has it."""

    @property
    def agent(self) -> str:
        """Return the agent's name."""

    @property
    def attended(self) -> bool:
        """Tell whether someone watches the inbox."""

    @property
    def schedule_id(self) -> str | None:
        """Return the schedule that opened the run; None: none did."""

    @property
    def parent_run_id(self) -> str | None:
        """Return the run whose call this run answers; None: it is no sub-agent's."""

    @property
    def replay_of_run_id(self) -> str | None:
        """Return the run whose recorded results answer the calls of a dry run; None: it is none."""

    @property
    def forked_from_run_id(self) -> str | None:
        """Return the run that this one forks or retries; None: it has none."""

    @property
    def is_retry(self) -> bool:
        """Tell a retry from a fork."""


@dataclass(frozen=True, kw_only=True)
class RunLabels:
    """The labels of one run. ``starter``: a pseudonym, never a name. ``schedule``: an id. None: it has none.

    ``priority``: of its work, unless a person has just decided.
    """

    agent: str
    source: Source
    priority: int
    starter: str | None = None
    schedule: str | None = None

    @property
    def attributes(self) -> dict[str, str]:
        """Return the search attributes that have a value, by name."""
        values = {
            AGENT: self.agent,
            SOURCE: self.source,
            STARTER: self.starter,
            SCHEDULE: self.schedule,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def fairness_key(self) -> str:
        """Return by what places are shared: within one priority, each agent gets its turn."""
        return _fitting(self.agent)


def labels_of(run: LabelledRun, *, starter: str | None = None) -> RunLabels:
    """Return the labels of a run. ``starter``: a pseudonym."""
    return RunLabels(
        agent=run.agent,
        source=_source_of(run),
        priority=_priority_of(run),
        starter=starter,
        schedule=run.schedule_id,
    )


def pseudonym(salt: str, name: str) -> str:
    """Return what is always the same for a person in one store, and means nothing without its salt."""
    return f"person-{hmac.new(salt.encode(), name.encode(), hashlib.sha256).hexdigest()[:12]}"


def _source_of(run: LabelledRun) -> Source:
    if run.replay_of_run_id is not None:
        return "dry-run"
    if run.parent_run_id is not None:
        return "sub-agent"
    if run.schedule_id is not None:
        return "schedule"
    if run.forked_from_run_id is not None:
        return "retry" if run.is_retry else "fork"
    return "external-call" if is_external(run.agent) else "start"


def _priority_of(run: LabelledRun) -> int:
    if run.replay_of_run_id is not None:
        return DRY_RUN
    return ATTENDED if run.attended else UNATTENDED


def _fitting(key: str) -> str:
    """Return a key that Temporal takes; a longer one keeps its beginning, and differs from others by a digest."""
    if len(key.encode()) <= MOST_KEY_BYTES:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_CHARS]
    beginning = key.encode()[: MOST_KEY_BYTES - _DIGEST_CHARS - 1].decode(errors="ignore")
    return f"{beginning}-{digest}"
