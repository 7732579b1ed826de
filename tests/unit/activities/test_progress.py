"""What a handler emits is bounded in size and number, whatever it is and wherever it comes from."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.activities.execution.progress import BUFFERED, MAX_EVENT_BYTES, ProgressBuffer, event_text
from turngate.store.live.progress import NewProgress


class Spiteful:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.exhaustive
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=8,
    )
)
def test_json_is_unchanged(value):
    """Any small JSON value reads back equal, except for characters that no database or wire accepts."""
    text = event_text(value)
    if len(json.dumps(value, ensure_ascii=False)) < MAX_EVENT_BYTES // 4:
        assert json.loads(text) == json.loads(
            json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )


@pytest.mark.exhaustive
@given(st.text(min_size=0, max_size=9_000) | st.text('\x00\x1b"\\\ud800é€😀', min_size=3_000, max_size=6_000))
def test_a_text_of_any_length_and_kind_fits(text):
    """At most 4 KiB of JSON in UTF-8: the beginning of the text, and an ellipsis if it is not all."""
    event = event_text(text)
    assert len(event.encode()) <= MAX_EVENT_BYTES
    decoded = json.loads(event)
    corrected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert decoded == corrected or (decoded[-1] == "…" and len(decoded) > 500)


@pytest.mark.parametrize(
    ("junk", "begins"),
    [
        (float("nan"), "nan"),
        ({"at": {1, 2}}, "{'at': {1, 2}}"),
        (b"\x00\xff", "b'\\x00\\xff'"),
        (CYCLE, "[[...]]"),
        (Spiteful(), "<Spiteful>"),
        ([Spiteful()], "<list>"),
        (nested(100_000), "<list>"),
        (nested(900), "[[["),
        (nested(40), "[[["),
        ({("a", 1): 2}, "{('a', 1): 2}"),
        (10**5_000, "<int>"),
        (["x" * 9_000], '["xxx'),
        ({"é" * 3_000: 1}, '{"é'),
        (object, "<class 'object'>"),
    ],
    ids=range(14),
)
def test_what_is_not_json_or_too_much_becomes_text(junk, begins):
    """Nothing raises: another type, NaN, a cycle, a hostile class, thousands of levels, a number of 5,000 digits."""
    event = event_text(junk)
    assert len(event.encode()) <= MAX_EVENT_BYTES
    decoded = json.loads(event)
    assert isinstance(decoded, str)
    assert decoded.startswith(begins)


def test_a_full_buffer_drops_the_oldest_and_says_how_many():
    """The newest 256 stay in order; the first one says how many are missing before it; the next batch starts at zero."""
    buffer = ProgressBuffer()
    assert [buffer.put(str(number)) for number in range(1_000)] == [True] + [False] * 999
    taken = buffer.take()
    assert [each.text for each in taken] == [str(number) for number in range(1_000 - BUFFERED, 1_000)]
    assert [each.dropped for each in taken] == [1_000 - BUFFERED] + [0] * (BUFFERED - 1)
    assert not buffer.put("next")  # the writer took a batch and will look again
    assert buffer.take() == [NewProgress("next", 0)]
    assert buffer.take() == []
    assert buffer.put("again")  # it found nothing and went


def test_events_that_could_not_be_written_count_as_dropped():
    """The next row counts a lost batch, including what that batch had missed."""
    buffer = ProgressBuffer(2)
    for number in range(5):
        buffer.put(str(number))
    buffer.lost(buffer.take())
    buffer.put("5")
    assert buffer.take() == [NewProgress("5", 5)]


def test_after_the_end_nothing_is_stored():
    """A thread that outlives its tool emits into the void."""
    buffer = ProgressBuffer()
    assert not buffer.close()
    assert not buffer.put("late")
    assert buffer.take() == []


def test_threads_lose_nothing_uncounted():
    """Eight threads and a reader: every event is taken or counted, and exactly one writer is called for at a time."""
    buffer = ProgressBuffer(16)
    wanted: list[int] = []
    everyone = threading.Barrier(8)

    def emit() -> None:
        everyone.wait()
        wanted.append(sum(buffer.put("x") for _ in range(2_000)))

    threads = [threading.Thread(target=emit) for _ in range(8)]
    for thread in threads:
        thread.start()
    seen = ended = 0
    while any(thread.is_alive() for thread in threads):
        if batch := buffer.take():
            seen += len(batch) + batch[0].dropped
        else:
            ended += 1
    while batch := buffer.take():
        seen += len(batch) + batch[0].dropped
    assert seen == 16_000
    assert 1 <= sum(wanted) <= ended + 1
