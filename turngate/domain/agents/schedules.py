"""Schedules: when an agent is started by the clock, and what happens to a fire that finds the run before it still live.

Pure. Temporal computes the fire times; here it is checked that a timetable means what a person takes it for.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, takewhile
from typing import Annotated, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from turngate.domain.text.instants import in_utc

# Cron expressions of five fields: checked field by field, so that an error names the place of a typo. Pure.
#
# The grammar is the common one (https://man7.org/linux/man-pages/man5/crontab.5.html): ``*``, numbers, ranges, steps,
# lists, English month and day names, and Sunday as 0 or 7. Temporal reads more (seconds, years, ``@every``); what is not in
# this grammar is refused, so that an expression means the same here, to Temporal and to its author.


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ITEM: Final = re.compile(
    r"(?:(?P<low>[0-9]{1,2}|[a-z]{3})|(?P<range>\*|[0-9a-z]{1,3}-[0-9a-z]{1,3})(?:/(?P<step>[0-9]{1,2}))?)"
)


@dataclass(frozen=True)
class _Field:
    name: str
    lowest: int
    highest: int
    words: tuple[str, ...] = ()

    def number(self, text: str, *, last: bool = False) -> int:
        """Return the number that a text stands for; as the ``last`` of a range, Sunday comes after Saturday."""
        if text in self.words:
            value = self.words.index(text) + self.lowest
            return self.highest if last and text == "sun" else value
        value = int(text) if text.isdecimal() else -1
        if not self.lowest <= value <= self.highest:
            named = f" or {self.words[0]} to {self.words[-1]}" if self.words else ""
            raise ValueError(f"cron, {self.name}: {text} is not {self.lowest} to {self.highest}{named}")
        return value

    def values(self, text: str) -> set[int]:
        """Return every value that the field's text stands for. Raises ValueError naming the field."""
        values: set[int] = set()
        for item in text.split(","):
            match = _ITEM.fullmatch(item)
            if match is None:
                forms = "5, 1-5, */10, 0-30/10, or several of these with commas"
                raise ValueError(f"cron, {self.name}: {item!r} is none of {forms}")
            if match["low"]:
                first, dash, last = match["low"], "", match["low"]
            else:
                first, dash, last = match["range"].partition("-")
            low = self.lowest if first == "*" else self.number(first)
            high = self.highest if first == "*" else self.number(last, last=bool(dash))
            step = int(match["step"] or 1)
            if low > high:
                raise ValueError(f"cron, {self.name}: {item} runs backwards: split it in two, with a comma")
            if step == 0:
                raise ValueError(f"cron, {self.name}: {item} has a step of 0")
            values.update(range(low, high + 1, step))
        return values


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


def check_cron(cron: str) -> None:
    """Raise ValueError, naming the field, unless this is a cron expression of five fields that fires at all."""
    texts = cron.lower().split()
    if len(texts) != len(_FIELDS):
        raise ValueError(
            f"cron: five fields (minute, hour, day of month, month, day of week), not {len(texts)}; such as 0 8 * * 1-5"
        )
    _minutes, _hours, days, months, _week = (field.values(text) for field, text in zip(_FIELDS, texts, strict=True))
    if texts[4] == "*" and all(min(days) > _LONGEST[month - 1] for month in months):
        raise ValueError(f"cron, day of month: there is no day {min(days)} in month {texts[3]}, so it would never fire")


def cron_lines(cron: str) -> tuple[str, ...]:
    """Return expressions that Temporal fires at exactly the times of this one.

    Where both days are given, cron fires when *either* fits, and Temporal when both do; so there it takes two.
    """
    minute, hour, day, month, week = cron.lower().split()
    month, week = _NAMED.sub(_as_number, month), _NAMED.sub(_as_number, week)
    if day.startswith("*") or week.startswith("*"):
        return (f"{minute} {hour} {day} {month} {week}",)
    return f"{minute} {hour} {day} {month} *", f"{minute} {hour} * {month} {week}"


_NAMED: Final = re.compile(r"(-?)([a-z]{3})")


def _as_number(named: re.Match[str]) -> str:
    dash, word = named.groups()
    field = _FIELDS[3] if word in _MONTHS else _FIELDS[4]
    return f"{dash}{field.number(word, last=bool(dash))}"


Overlap = Literal["skip", "buffer_one", "allow"]
"""What happens to a fire while the schedule's last run lives: it is skipped, it waits for that run's end (one does, the
others are skipped), or it opens a run beside it."""

FireStatus = Literal["opened", "waiting", "skipped", "missed"]
"""``opened``: its run is recorded. ``waiting``: for the end of a run. ``skipped``: a run was live, or the schedule was
paused meanwhile. ``missed``: no one was there to take it within the catch-up window."""

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
        try:
            _ = self.says
        except OverflowError:
            raise ValueError("starts_at and ends_at are instants of the years 1 to 9999 in UTC") from None
        return self

    @property
    def says(self) -> str:
        """The timetable in words."""
        words = (
            f"at {self.cron} ({self.time_zone})" if self.cron is not None else f"every {_span(self.every_seconds or 0)}"
        )
        if self.starts_at is not None:
            words += f", from {in_utc(self.starts_at, 'seconds')}"
        if self.ends_at is not None:
            words += f", until {in_utc(self.ends_at, 'seconds')}"
        return words + (f", up to {_span(self.jitter_seconds)} later" if self.jitter_seconds else "")


def _span(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


# The next fires, for people who write a timetable. Temporal computes the real ones; a test compares the two.

_DAYS_AHEAD: Final = 366 * 29
"""Five times 29 February can take 28 years."""
_LAST_YEAR: Final = 9980
"""Beyond it, no date is sure to have a next one."""


def next_fires(times: Timetable, after: datetime, count: int, *, days: int = _DAYS_AHEAD) -> list[datetime]:
    """Return the next times of a timetable, without its jitter: at most this many, none of them after ``ends_at``.

    ``after``: aware. ``days``: how many days of a cron expression are looked at. The time zone has to exist.
    """
    begin = after
    if times.starts_at is not None and times.starts_at > after:
        begin = times.starts_at - timedelta(microseconds=1)
    if begin.year > _LAST_YEAR:
        return []
    instants = _of_cron(times, begin, days) if times.cron is not None else _of_interval(times.every_seconds or 1, begin)
    ends_at = times.ends_at
    in_time = takewhile(lambda each: ends_at is None or each <= ends_at, instants)
    return list(islice(in_time, count))


def has_fire(times: Timetable, at: datetime) -> bool:
    """Tell whether a timetable has a fire at this very instant, without its jitter. The time zone has to exist."""
    return next_fires(times, at - timedelta(microseconds=1), 1, days=2) == [at]


def clock_changes(times: Timetable, after: datetime) -> list[str]:
    """Return what the next year's clock changes do to a timetable, a sentence each; empty: nothing."""
    begin = max(after, times.starts_at or after)
    if times.cron is None or begin.year > _LAST_YEAR:
        return []
    zone, texts = ZoneInfo(times.time_zone), times.cron.lower().split()
    minutes, hours = (field.values(text) for field, text in zip(_FIELDS[:2], texts[:2], strict=True))
    sentences: list[str] = []
    for day in _days_of_changes(zone, begin, times.ends_at):
        local = [datetime.combine(day, time(hour, minute)) for hour in sorted(hours) for minute in sorted(minutes)]
        count = {each: len(set(_instants(each, zone))) for each in local if _fits_day(texts, day)}
        for often, meaning in ((0, "does not exist, so it is skipped"), (2, "comes twice, so it fires twice")):
            named = [f"{each:%H:%M}" for each, instants in count.items() if instants == often]
            if named:
                more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
                sentences.append(f"On {day} the clocks of {times.time_zone} change: {named[0]}{more} {meaning}.")
    return sentences


_CHANGES_AHEAD: Final = 366


def _days_of_changes(zone: ZoneInfo, begin: datetime, ends_at: datetime | None) -> Iterator[date]:
    first = begin.astimezone(zone).date()
    last = first + timedelta(days=_CHANGES_AHEAD - 1)
    if ends_at is not None and ends_at.year <= _LAST_YEAR:
        last = min(last, ends_at.astimezone(zone).date())
    for number in range(first.toordinal(), last.toordinal() + 1):
        day = date.fromordinal(number)
        midnight = datetime.combine(day, time(), zone)
        if midnight.utcoffset() != datetime.combine(day + timedelta(days=1), time(), zone).utcoffset():
            yield day


def _fits_day(texts: list[str], day: date) -> bool:
    days, months, week = (field.values(text) for field, text in zip(_FIELDS[2:], texts[2:], strict=True))
    fits = day.day in days, day.isoweekday() % 7 in {each % 7 for each in week}
    # As in `cron_lines`: with both days given, either fits.
    either = not (texts[2].startswith("*") or texts[4].startswith("*"))
    return day.month in months and (any(fits) if either else all(fits))


def _of_interval(seconds: int, begin: datetime) -> Iterator[datetime]:
    for n in itertools.count(int(begin.timestamp()) // seconds + 1):
        yield datetime.fromtimestamp(n * seconds, UTC)


def _of_cron(times: Timetable, begin: datetime, days: int) -> Iterator[datetime]:
    zone = ZoneInfo(times.time_zone)
    texts = (times.cron or "").lower().split()
    minutes, hours = (field.values(text) for field, text in zip(_FIELDS[:2], texts[:2], strict=True))
    first = begin.astimezone(zone).date()
    for number in range(first.toordinal() - 1, first.toordinal() + days):
        day = date.fromordinal(number)
        if _fits_day(texts, day):
            local = (datetime.combine(day, time(hour, minute)) for hour in hours for minute in minutes)
            instants = {instant for each in local for instant in _instants(each, zone)}
            yield from (each for each in sorted(instants) if each > begin)


def _instants(local: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield when a clock of the zone shows this time: never or twice, where it is put forward or back."""
    for fold in (0, 1):
        instant = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None, fold=0) == local:
            yield instant
