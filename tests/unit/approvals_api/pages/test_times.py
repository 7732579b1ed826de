"""Times on pages without JavaScript: with their zone, and with their day unless it is the reader's."""

from datetime import UTC, datetime

import pytest

from turngate.approvals_api.pages.templating import clock, due, ours, sentence
from turngate.wire.people import keep

NOW = datetime(2026, 11, 2, 13, 54, tzinfo=UTC)


@pytest.mark.parametrize(
    ("instant", "words"),
    [
        ("2026-11-02T14:03:00.000000+00:00", ("14:03 UTC", "in 9 min")),
        ("2026-11-03T14:03:00.000000+00:00", ("2026-11-03 14:03 UTC", "in 1 d")),
        ("2026-11-02T13:03:00.000000+00:00", ("13:03 UTC", "now")),
    ],
)
def test_a_time_that_is_due_says_when_and_in_how_long(instant: str, words: tuple[str, str]) -> None:
    """Never a length of time alone."""
    html = str(due(instant, NOW))
    assert f'data-day="2026-11-02" data-minutes>{words[0]}</time> (<time' in html
    assert html.endswith(f">{words[1]}</time>)")


def test_a_time_of_day_under_its_day_leaves_the_day_out() -> None:
    """As in the log, whose headings name the days."""
    assert str(clock("2026-11-02T14:03:00.000000+00:00")).endswith('data-day="2026-11-02">14:03:00 UTC</time>')


def test_a_sentence_keeps_the_seconds_that_it_names() -> None:
    """The script leaves them out where the sentence does."""
    assert " data-minutes" not in sentence("from 2026-11-02 14:03:00 UTC")
    assert " data-minutes" in sentence("at 2026-11-02 14:03 UTC")


def test_the_times_in_an_error_are_the_readers_and_its_text_is_escaped() -> None:
    """On one line or several."""
    words = "<b> has claimed it until 2026-11-02 14:03 UTC: wait"
    for html in (ours(words), sentence(words)):
        assert "&lt;b&gt; has claimed it until <time " in html
        assert "data-minutes>2026-11-02 14:03 UTC</time>: wait" in html


@pytest.mark.usefixtures("own_names")
def test_what_turngate_says_names_people() -> None:
    """Errors name those whom a row calls by an id, and those who were erased by what is left of it."""
    ann, gone = "p-0123456789abcdef", "p-fedcba9876543210"
    keep({ann: "<Ann>", gone: None})
    for html in (ours(f"{ann} saved it before {gone}"), sentence(f"{ann} saved it before {gone}")):
        assert "&lt;Ann&gt; saved it before erased person fedcba" in html
