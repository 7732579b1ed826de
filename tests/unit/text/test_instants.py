"""Instants in words: each names its zone."""

from datetime import UTC, datetime, timedelta, timezone

from turngate.domain.text.instants import in_utc
from turngate.text.instants import minute, second

STORED = "2026-11-02T10:00:07.250000+00:00"


def test_an_instant_for_anyone_is_in_utc() -> None:
    """Whatever its offset was."""
    assert in_utc(STORED) == "2026-11-02 10:00 UTC"
    assert (
        in_utc(datetime(2026, 11, 2, 12, tzinfo=timezone(timedelta(hours=2))), "seconds") == "2026-11-02 10:00:00 UTC"
    )


def test_an_instant_in_a_terminal_has_the_readers_offset() -> None:
    """It is the same instant, and none is a dash."""
    assert datetime.fromisoformat(second(STORED)) == datetime(2026, 11, 2, 10, 0, 7, tzinfo=UTC)
    assert datetime.fromisoformat(minute(STORED)) == datetime(2026, 11, 2, 10, tzinfo=UTC)
    assert minute(None) == "-"
