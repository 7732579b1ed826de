"""What happens after an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from turngate.notifications.send_results import Delivered, Refused, Unreachable, next_of, pause, retry_after

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
AWAY = Unreachable(answer="no")


def after(outcome, attempts=1, age=timedelta(), spread=0.5):
    return next_of(outcome, attempts=attempts, created_at=AT - age, at=AT, spread=spread)


def test_pauses_grow_from_5_seconds_to_6_hours():
    """Each is three times the one before, up to a fifth shorter or longer at random, always from 5 s to 6 h."""
    assert [pause(n, 0.5).total_seconds() for n in (1, 2, 3, 4)] == [5, 15, 45, 135]
    assert (pause(2, 0).total_seconds(), pause(2, 1).total_seconds()) == (12, 18)
    for n in range(1, 100):
        for spread in (0, 0.5, 1):
            assert timedelta(seconds=5) <= pause(n, spread) <= timedelta(hours=6)


def test_a_dead_receiver_is_tried_for_24_hours():
    """Pause by pause, it fails for good between 12 and 24 hours after its creation, never later."""
    at, attempts = AT, 0
    while True:
        attempts += 1
        then = next_of(AWAY, attempts=attempts, created_at=AT, at=at, spread=0.5)
        if then.status == "failed":
            break
        at = then.due
    assert timedelta(hours=12) < at - AT <= timedelta(hours=24)
    assert 8 < attempts < 20


@pytest.mark.parametrize(
    ("outcome", "attempts", "status"),
    [
        (Delivered(answer="200"), 1, "delivered"),
        (AWAY, 50, "waiting"),
        (Refused(answer="400"), 4, "waiting"),
        (Refused(answer="400"), 5, "failed"),
        (Refused(answer="410", for_good=True), 1, "failed"),
    ],
)
def test_each_outcome_has_its_own_patience(outcome, attempts, status):
    """An unreachable receiver is retried, one that refuses gets five attempts, one that is gone no more."""
    assert after(outcome, attempts).status == status


def test_retry_after_is_honoured_up_to_the_longest_pause():
    """It makes a pause longer, never shorter, and at most the longest pause."""
    for wish, seconds in ((60, 60), (1, 5), (10_000_000, 6 * 3600)):
        wished = Unreachable(answer="429", retry_after=timedelta(seconds=wish))
        assert (after(wished).due - AT).total_seconds() == seconds


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("120", 120),
        (" 7 ", 7),
        ("9" * 5_000, 6 * 3600),
        ("Sun, 01 Mar 2026 12:01:30 GMT", 90),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0),
        ("-5", None),
        ("soon", None),
        ("٣", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    """RFC 9110 §10.2.3; anything else is ignored."""
    pause = retry_after(header, AT)
    assert (None if pause is None else pause.total_seconds()) == seconds
