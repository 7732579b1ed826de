"""Timetables: an error names the field with the typo, and Temporal gets the meaning that the person wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from turngate.domain.agents.schedules import Timetable, check_cron, cron_lines

THEN = datetime(2026, 5, 1, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "lines"),
    [
        ("0 8 * * 1-5", ["0 8 * * 1-5"]),
        (" */15  9-17/2,20 1,31 * * ", ["*/15 9-17/2,20 1,31 * *"]),
        ("0 0 * JAN-mar,dec sun,fri-Sun", ["0 0 * 1-3,12 0,5-7"]),
        # Cron fires when either day fits; Temporal needs both to fit if one expression has both.
        ("30 6 13 * fri", ["30 6 13 * *", "30 6 * * 5"]),
        ("0 0 */2 * 1", ["0 0 */2 * 1"]),
        ("0 0 31 2-3 *", ["0 0 31 2-3 *"]),
        ("0 0 29 2 *", ["0 0 29 2 *"]),
    ],
)
def test_an_expression_keeps_its_meaning_in_temporal(cron: str, lines: list[str]) -> None:
    """Names become numbers, Sunday may end a range, and two days become two lines."""
    check_cron(cron)
    assert list(cron_lines(cron)) == lines


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "minute: 60 is not 0 to 59"),
        ("0 24 * * *", "hour: 24 is not 0 to 23"),
        ("0 0 0 * *", "day of month: 0 is not 1 to 31"),
        ("0 0 * 13 *", "month: 13 is not 1 to 12 or jan to dec"),
        ("0 0 * * 8", "day of week: 8 is not 0 to 7 or sun to sat"),
        ("0 0 * * mon-foo", "day of week: foo"),
        ("jan * * * *", "minute: jan"),
        ("5-1 * * * *", "minute: 5-1 runs backwards"),
        ("*/0 * * * *", "minute: */0 has a step of 0"),
        ("5/10 * * * *", "minute: '5/10'"),
        ("1,,2 * * * *", "minute: ''"),
        ("*-5 * * * *", "minute: '*-5'"),
        ("٣ * * * *", "minute: '٣'"),
        ("0 0 31 2,4,6 *", "no day 31 in month 2,4,6"),
    ],
)
def test_an_error_names_the_field_with_the_typo(cron: str, message: str) -> None:
    """What the grammar lacks is refused, naming the field and its range; so is an expression that would never fire."""
    with pytest.raises(ValueError, match=r"^cron") as refused:
        check_cron(cron)
    assert message in str(refused.value)
    with pytest.raises(ValidationError):
        Timetable(cron=cron)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cron": "0 8 * * *", "every_seconds": 5},
        {"every_seconds": 0},
        {"every_seconds": 5, "time_zone": "Europe/Berlin"},
        {"every_seconds": 5, "starts_at": THEN, "ends_at": THEN},
        {"every_seconds": 5, "starts_at": THEN.replace(tzinfo=None)},
        {"every_seconds": 5, "jitter_seconds": -1},
        {"every_seconds": 5, "ends_at": "9999-12-31T23:59:59-10:00"},
        {"cron": "0 8 * * *", "time_zone": "../etc"},
        {"every_seconds": 5, "often": True},
    ],
)
def test_a_timetable_is_cron_or_an_interval(fields: dict[str, Any]) -> None:
    """Not both; bounds must be in order and instants need a zone."""
    with pytest.raises(ValidationError):
        Timetable(**fields)


@pytest.mark.parametrize(
    ("timetable", "says"),
    [
        (Timetable(cron="0 8 * * 1-5", time_zone="Europe/Berlin"), "at 0 8 * * 1-5 (Europe/Berlin)"),
        (Timetable(every_seconds=21_600, jitter_seconds=90), "every 6h, up to 90s later"),
        (
            Timetable(every_seconds=172_800, starts_at=THEN, ends_at=THEN.replace(year=2027)),
            "every 2d, from 2026-05-01 08:00:00 UTC, until 2027-05-01 08:00:00 UTC",
        ),
    ],
)
def test_a_timetable_is_described_in_words(timetable: Timetable, says: str) -> None:
    """In the largest unit that fits; its JSON round-trips."""
    assert timetable.says == says
    assert Timetable.model_validate_json(timetable.model_dump_json()) == timetable
