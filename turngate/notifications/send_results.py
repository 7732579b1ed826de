"""The result of one attempt, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Literal, assert_never

FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(hours=6)
GROWTH: Final = 3.0
GIVE_UP_AFTER: Final = timedelta(hours=24)
MAX_REFUSALS: Final = 5
"""Attempts of a message that its receiver refuses. A few, because what it refuses is fixed while someone looks."""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """The receiver has it."""

    answer: str


@dataclass(frozen=True, kw_only=True)
class Unreachable:
    """It was not taken: no answer, an error on the other side, or "later". ``retry_after``: the receiver's own wish."""

    answer: str
    retry_after: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The receiver answered that it does not want this message. ``for_good``: nor any other (410 Gone)."""

    answer: str
    for_good: bool = False


SendResult = Delivered | Unreachable | Refused


@dataclass(frozen=True, kw_only=True)
class Next:
    """What follows: the delivery's status from now on, and when a ``waiting`` one is sent again."""

    status: Literal["delivered", "waiting", "failed"]
    due: datetime


def next_of(result: SendResult, *, attempts: int, created_at: datetime, at: datetime, spread: float) -> Next:
    """Return what follows from an attempt. ``attempts``: made so far, this one included. ``spread``: 0 to 1, by chance."""
    match result:
        case Delivered():
            return Next(status="delivered", due=at)
        case Refused() if result.for_good or attempts >= MAX_REFUSALS:
            return Next(status="failed", due=at)
        case Refused():
            due = at + pause(attempts, spread)
        case Unreachable():
            due = at + max(pause(attempts, spread), min(result.retry_after or timedelta(), LONGEST_PAUSE))
        case _:
            assert_never(result)
    return Next(status="waiting" if due <= created_at + GIVE_UP_AFTER else "failed", due=due)


def pause(attempts: int, spread: float) -> timedelta:
    """Return how long to wait after so many attempts: 5 s, 15 s, 45 s, … 6 h, each up to a fifth shorter or longer.

    Spread, so that receivers that come back are not met by everybody in the same second.
    """
    grown = FIRST_PAUSE.total_seconds() * GROWTH ** min(attempts - 1, 20)
    seconds = min(grown, LONGEST_PAUSE.total_seconds()) * (0.8 + 0.4 * spread)
    return min(max(timedelta(seconds=seconds), FIRST_PAUSE), LONGEST_PAUSE)


def retry_after(header: str | None, at: datetime) -> timedelta | None:
    """Read ``Retry-After`` (RFC 9110 §10.2.3): seconds or a date; None when there is none that can be read."""
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdecimal():
        return timedelta(seconds=min(int(header.strip()[:9]), LONGEST_PAUSE.total_seconds()))
    try:
        named = parsedate_to_datetime(header)
    except ValueError:
        return None
    aware = named if named.tzinfo else named.replace(tzinfo=UTC)
    return max(aware - at, timedelta())
