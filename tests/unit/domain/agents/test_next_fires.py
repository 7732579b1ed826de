"""The next fires of a timetable, as a person sees them before it is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.agents.schedules import Timetable, has_fire, next_fires

THEN = datetime(2026, 3, 27, 12, 30, tzinfo=UTC)  # a Friday, two days before summer time begins in Berlin


def fires_of(count: int = 3, after: datetime = THEN, **timetable: Any) -> list[str]:
    return [f"{each:%m-%d %H:%M}" for each in next_fires(Timetable(**timetable), after, count)]


@pytest.mark.parametrize(
    ("timetable", "expected"),
    [
        ({"cron": "0 8 * * 1-5"}, ["03-30 08:00", "03-31 08:00", "04-01 08:00"]),
        ({"cron": "*/20 12 * * *"}, ["03-27 12:40", "03-28 12:00", "03-28 12:20"]),
        ({"cron": "0 8 * * sun"}, ["03-29 08:00", "04-05 08:00", "04-12 08:00"]),
        ({"cron": "0 8 * * 7"}, ["03-29 08:00", "04-05 08:00", "04-12 08:00"]),
        ({"cron": "0 8 28 * 1"}, ["03-28 08:00", "03-30 08:00", "04-06 08:00"]),
        ({"cron": "0 0 29 2 *"}, ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
        ({"cron": "0 8 * * *", "time_zone": "Europe/Berlin"}, ["03-28 07:00", "03-29 06:00", "03-30 06:00"]),
        ({"cron": "30 2 * * *", "time_zone": "Europe/Berlin"}, ["03-28 01:30", "03-30 00:30", "03-31 00:30"]),
        ({"every_seconds": 6 * 3600}, ["03-27 18:00", "03-28 00:00", "03-28 06:00"]),
        ({"every_seconds": 3600, "starts_at": THEN + timedelta(days=1)}, ["03-28 13:00", "03-28 14:00", "03-28 15:00"]),
        ({"every_seconds": 3600, "starts_at": THEN + timedelta(minutes=30)}, ["03-27 13:00", "03-27 14:00", "03-27 15:00"]),
        ({"every_seconds": 3600, "ends_at": THEN + timedelta(minutes=90)}, ["03-27 13:00", "03-27 14:00"]),
        ({"cron": "0 8 * * *", "ends_at": THEN}, []),
        ({"cron": "0 8 * * *", "starts_at": datetime.max.replace(tzinfo=UTC)}, []),
        ({"every_seconds": 60, "starts_at": datetime.min.replace(tzinfo=UTC)}, ["03-27 12:31", "03-27 12:32", "03-27 12:33"]),
    ],
)  # fmt: skip
def test_the_next_fires_are_those_of_the_timetable(timetable: dict[str, Any], expected: list[str]) -> None:
    """Cron with either of two days, in a zone whose clock is put forward, and an interval counted from 1970, within bounds."""
    assert fires_of(**timetable) == expected


def test_a_time_that_a_clock_shows_twice_fires_twice() -> None:
    """Where the clock is put back, 2:30 comes twice."""
    autumn = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert fires_of(2, autumn, cron="30 2 * * *", time_zone="Europe/Berlin") == ["10-25 00:30", "10-25 01:30"]


@given(
    st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.sampled_from(["0 8 * * 1-5", "*/7 * 1,15 * 3", "59 23 31 12 *"]),
)
def test_fires_come_in_order_and_after_the_instant(instant: datetime, cron: str) -> None:
    """Whatever the instant: later than it, each later than the one before, each at a whole minute."""
    fires = next_fires(Timetable(cron=cron, time_zone="America/New_York"), instant, 5)
    assert len(fires) == 5
    assert [instant, *fires] == sorted({instant, *fires})
    assert not any(each.second or each.microsecond for each in fires)


@given(
    st.integers(0, 4_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.sampled_from(["0 8 * * 1-5", "0 0 * * *", "30 2 * * *", "59 23 31 12 *", "0 0 29 2 *"]),
)
def test_i13_a_timetable_has_its_fires_and_no_other_instant(instant: datetime, cron: str) -> None:
    """I13: each of its next fires, at midnight and where a clock shows a time twice, too; none of the instants beside them."""
    times = Timetable(cron=cron, time_zone="America/New_York")
    fires = next_fires(times, instant, 3)
    beside = [each + timedelta(seconds=by) for each in fires for by in (-60, -1, 1e-6, 60)]
    assert [has_fire(times, each) for each in (*fires, *beside)] == [True] * 3 + [False] * 12
