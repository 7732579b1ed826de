"""The options that say when a schedule fires, as one timetable."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import ValidationError

from turngate.cli.durations import instant_of, seconds_of
from turngate.domain.agents.schedules import (
    MAX_CATCH_UP_SECONDS,
    MAX_EVERY_SECONDS,
    MAX_JITTER_SECONDS,
    MIN_CATCH_UP_SECONDS,
    Timetable,
)
from turngate.domain.errors import ConfigurationError

OPTION_OF: Final = {
    "cron": "--cron",
    "time_zone": "--time-zone",
    "every_seconds": "--every",
    "starts_at": "--starts-at",
    "ends_at": "--ends-at",
    "jitter_seconds": "--jitter",
}


def timetable_of(
    cron: str | None, time_zone: str, every: str | None, starts_at: str | None, ends_at: str | None, jitter: str
) -> Timetable:
    """Return the timetable. Raises ConfigurationError naming the option that does not fit."""
    return _timetable(
        cron=cron,
        time_zone=time_zone,
        every_seconds=None if every is None else _span(every, "--every", 1, MAX_EVERY_SECONDS),
        starts_at=_instant(starts_at, "--starts-at"),
        ends_at=_instant(ends_at, "--ends-at"),
        jitter_seconds=_span(jitter, "--jitter", 0, MAX_JITTER_SECONDS),
    )


def catch_up_of(text: str) -> int:
    """Return ``--catch-up`` in seconds. Raises ConfigurationError."""
    return _span(text, "--catch-up", MIN_CATCH_UP_SECONDS, MAX_CATCH_UP_SECONDS)


def _timetable(**given: object) -> Timetable:
    try:
        return Timetable.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        said = str(first["msg"]).removeprefix("Value error, ")
        option = OPTION_OF.get(str(first["loc"][0])) if first["loc"] else None
        if option is None:
            said = (
                said.replace("every_seconds", "--every").replace("time_zone", "--time-zone").replace("cron", "--cron")
            )
            said = said.replace("ends_at", "--ends-at").replace("starts_at", "--starts-at")
        raise ConfigurationError(
            said if option is None else f"{option}: {said.removeprefix('cron').lstrip(':, ')}"
        ) from None


def _span(text: str, option: str, least: int, most: int) -> int:
    seconds = seconds_of(text, option)
    if not least <= seconds <= most:
        raise ConfigurationError(f"{option} {text}: from {least}s to {most // 86_400}d")
    return seconds


def _instant(text: str | None, option: str) -> datetime | None:
    """Return an instant to come. A span is none: elsewhere it means so long ago."""
    if text is None:
        return None
    if "-" not in text:
        raise ConfigurationError(f"{option} {text}: write it like 2026-05-01T08:00")
    return instant_of(text, option)
