"""Schedules: when an agent is started by the clock, and what becomes of a fire that finds the run before it still live.

Pure. Temporal computes the fire times; here it is only checked that what it is given means what a person takes it for.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from turngate.domain.agents.cron import check_cron

Overlap = Literal["skip", "buffer_one", "allow"]
"""What becomes of a fire while the schedule's last run lives: it is skipped, it waits for that run's end (one does, the
others are skipped), or it opens a run beside it."""

FireOutcome = Literal["opened", "waiting", "skipped", "missed"]
"""``opened``: its run is recorded. ``waiting``: for the end of a run. ``skipped``: a run was live, or the schedule was
paused meanwhile. ``missed``: nobody was there to take it within the catch-up window."""

MAX_EVERY_SECONDS: Final = 365 * 86_400
MAX_JITTER_SECONDS: Final = 86_400
MIN_CATCH_UP_SECONDS: Final = 10
"""Temporal's own minimum (https://docs.temporal.io/schedule#catchup-window)."""
MAX_CATCH_UP_SECONDS: Final = 30 * 86_400
DEFAULT_CATCH_UP_SECONDS: Final = 600
ID_PREFIX: Final = "sched_"
"""How a schedule's id begins, and its name does not: either finds it."""


def _checked_cron(cron: str) -> str:
    check_cron(cron)
    return cron


class Timetable(BaseModel):
    """When a schedule fires: by ``cron`` in ``time_zone``, or every so many seconds, counted from 1970 in UTC.

    ``cron``: five fields: minute, hour, day of month, month, day of week. ``time_zone``: an IANA name. ``starts_at``,
    ``ends_at``: no fire before, none after; None: no such bound. ``jitter_seconds``: each fire is put off by a random time
    up to this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cron: Annotated[str, Field(max_length=200), AfterValidator(_checked_cron)] | None = None
    time_zone: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")] = "UTC"
    every_seconds: Annotated[int, Field(ge=1, le=MAX_EVERY_SECONDS)] | None = None
    starts_at: AwareDatetime | None = None
    ends_at: AwareDatetime | None = None
    jitter_seconds: Annotated[int, Field(ge=0, le=MAX_JITTER_SECONDS)] = 0

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if (self.cron is None) == (self.every_seconds is None):
            raise ValueError("give either cron or every_seconds")
        if self.cron is None and self.time_zone != "UTC":
            raise ValueError("time_zone goes with cron: every_seconds counts from 1970 in UTC")
        if self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise ValueError("ends_at has to come after starts_at")
        return self

    @property
    def says(self) -> str:
        """The timetable in words."""
        words = (
            f"at {self.cron} ({self.time_zone})" if self.cron is not None else f"every {_span(self.every_seconds or 0)}"
        )
        if self.starts_at is not None:
            words += f", from {self.starts_at.isoformat()}"
        if self.ends_at is not None:
            words += f", until {self.ends_at.isoformat()}"
        return words + (f", up to {_span(self.jitter_seconds)} later" if self.jitter_seconds else "")


def _span(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
