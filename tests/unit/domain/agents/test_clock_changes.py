"""What is said before of fires in hours that a clock change skips or repeats."""

from datetime import UTC, datetime

import pytest

from turngate.domain.agents.schedules import Timetable, clock_changes

WINTER = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "sentences"),
    [
        (
            "30 2 * * *",
            "Europe/Berlin",
            [
                "On 2027-03-28 the clocks of Europe/Berlin change: 02:30 does not exist, so it is skipped.",
                "On 2027-10-31 the clocks of Europe/Berlin change: 02:30 comes twice, so it fires twice.",
            ],
        ),
        (
            "*/30 * * * *",
            "America/New_York",
            [
                "On 2027-03-14 the clocks of America/New_York change: 02:00 (and 1 more) does not exist, so it is skipped.",
                "On 2027-11-07 the clocks of America/New_York change: 01:00 (and 1 more) comes twice, so it fires twice.",
            ],
        ),
        ("30 9 * * *", "Europe/Berlin", []),
        ("30 2 * * 1", "Europe/Berlin", []),
        ("30 2 * * *", "UTC", []),
    ],
)
def test_a_schedule_names_the_hours_that_a_clock_change_skips_or_repeats(
    cron: str, zone: str, sentences: list[str]
) -> None:
    """For the next year, with the day, the zone and what happens."""
    assert clock_changes(Timetable(cron=cron, time_zone=zone), WINTER) == sentences


def test_only_changes_before_the_end_are_named() -> None:
    """A timetable that ends in summer meets the spring's change alone; one that begins in the last year meets none."""
    ending = Timetable(cron="30 2 * * *", time_zone="Europe/Berlin", ends_at=datetime(2027, 6, 1, tzinfo=UTC))
    assert [each[:13] for each in clock_changes(ending, WINTER)] == ["On 2027-03-28"]
    late = Timetable(cron="30 2 * * *", time_zone="Asia/Tokyo", starts_at=datetime(9999, 12, 31, 23, tzinfo=UTC))
    assert clock_changes(late, WINTER) == []
