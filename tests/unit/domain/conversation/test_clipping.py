"""What the model sees of a result that is too large, and how the whole can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.conversation.clipping import (
    MAX_CLIPPED_REASON,
    READ_RESULT,
    clipped,
    result_digest,
    shortened,
    whole_text,
)
from turngate.domain.tools.results import Failure, Ok, wire_text

LIMIT = 1_000
TEXT = st.text(st.characters(codec=None), max_size=60) | st.text(max_size=60).map(lambda text: text * 60)
VALUES: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(max_size=9), st.none() | st.integers() | st.lists(TEXT, max_size=3) | TEXT, max_size=5
)


def of_chars(chars: int) -> Ok:
    """Return a result whose JSON text has exactly that many characters."""
    result = Ok(value={"text": "x" * (chars - len('{"text":""}'))})
    assert len(whole_text(result)) == chars
    return result


def test_the_limit_is_exact():
    """A result of the limit's length is shown whole; one more character and it is clipped."""
    assert clipped(of_chars(LIMIT), limit=LIMIT) == (of_chars(LIMIT), None)
    excerpt, whole = clipped(of_chars(LIMIT + 1), limit=LIMIT)
    assert isinstance(excerpt, Ok)
    assert (excerpt.value["truncated"], excerpt.value["total_chars"]) == (True, LIMIT + 1)
    assert whole == whole_text(of_chars(LIMIT + 1))


def test_an_excerpt_has_head_tail_and_how_to_read_the_rest():
    """Both ends together have the limit's length, the id is the stored whole's, and the hint says where to continue."""
    result = Ok(value={"lines": [f"line {number}" for number in range(1_000)]})
    excerpt, whole = clipped(result, limit=LIMIT)
    assert isinstance(excerpt, Ok)
    assert whole is not None
    head, tail = str(excerpt.value["head"]), str(excerpt.value["tail"])
    assert (whole.startswith(head), whole.endswith(tail), len(head) + len(tail)) == (True, True, LIMIT)
    assert len(head) > len(tail) > 0
    assert excerpt.value["result_id"] == result_digest(whole)
    assert f"{READ_RESULT}(result_id, offset={len(head)})" in str(excerpt.value["how_to_read_the_rest"])
    assert json.loads(whole) == result.value


def test_a_failure_keeps_its_kind_and_reason():
    """The model reads which failure it is and why; the fields are clipped as a success would be."""
    result = Failure(kind="declined", reason="No stock.", fields={"reason": "No stock.", "rows": ["r" * 50] * 100})
    excerpt, whole = clipped(result, limit=LIMIT)
    assert isinstance(excerpt, Failure)
    assert (excerpt.kind, excerpt.reason, excerpt.fields["truncated"]) == ("declined", "No stock.", True)
    assert whole is not None
    assert json.loads(whole) == result.fields
    error = json.loads(wire_text(excerpt))["error"]
    assert (error["kind"], error["message"], error["result_id"]) == ("declined", "No stock.", result_digest(whole))


def test_a_failures_long_reason_is_bounded():
    """The whole reason is in the fields too, where the model can read it."""
    words = "because " * 10_000
    excerpt, whole = clipped(Failure(kind="declined", reason=words, fields={"reason": words}), limit=LIMIT)
    assert isinstance(excerpt, Failure)
    assert excerpt.reason == f"{words[:MAX_CLIPPED_REASON]}…"
    assert len(wire_text(excerpt)) < LIMIT + MAX_CLIPPED_REASON + 500
    assert whole is not None
    assert json.loads(whole) == {"reason": words}


@pytest.mark.parametrize(
    "make", [lambda text: Ok(value={"t": text}), lambda text: Failure(kind="k", fields={"t": text})]
)
def test_i9_half_a_surrogate_pair_is_replaced(make):
    """I9: a file name that is not UTF-8 can be neither hashed nor stored; a whole pair stays one character."""
    excerpt, whole = clipped(make("a\ud800b😀\x00" * LIMIT), limit=LIMIT)
    assert whole is not None
    assert json.loads(whole) == {"t": "a?b😀\x00" * LIMIT}
    assert result_digest(whole) in wire_text(excerpt)
    wire_text(excerpt).encode()


@given(VALUES, st.booleans())
def test_any_result_is_clipped_alike_every_time(value: dict[str, Any], failed: bool):
    """A retry shows and stores the same: the result itself if it fits, else both ends of the whole, up to the limit."""
    result = Failure(kind="k", reason="r", fields=value) if failed else Ok(value=value)
    excerpt, whole = clipped(result, limit=LIMIT)
    assert clipped(result, limit=LIMIT) == (excerpt, whole)
    if whole is None:
        assert excerpt is result
    else:
        body = excerpt.value if isinstance(excerpt, Ok) else excerpt.fields
        assert whole == whole_text(result)
        assert len(str(body["head"])) + len(str(body["tail"])) == LIMIT < body["total_chars"] == len(whole)


@given(TEXT.map(lambda text: text * 3), st.integers(min_value=1, max_value=40))
def test_parts_make_the_whole_wherever_they_are_cut(text: str, size: int):
    """Parts cut inside an escape or between the halves of an emoji still join to exactly the whole."""
    whole = whole_text(Ok(value={"text": text}))
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    read = [json.loads(wire_text(Ok(value={"text": part})))["text"] for part in parts]
    assert "".join(read) == whole


def test_an_agent_without_read_result_gets_no_hint_to_it():
    """The excerpt is the same and the whole is stored, but no tool is named that would refuse its id."""
    result = of_chars(5 * LIMIT)
    with_reader, without = (clipped(result, limit=LIMIT, reads_on=reads_on) for reads_on in (True, False))
    assert with_reader[1] == without[1] == whole_text(result)
    assert isinstance(with_reader[0], Ok)
    assert isinstance(without[0], Ok)
    assert READ_RESULT not in str(without[0].value)
    differing = {key for key, value in with_reader[0].value.items() if without[0].value[key] != value}
    assert differing == {"how_to_read_the_rest"}


def test_a_text_that_is_not_stored_is_shortened_in_its_middle():
    """Both ends stay, with the limit's length together, and say how much is missing; a text that fits is unchanged."""
    text = "".join(f"{number:04}" for number in range(1_000))
    short = shortened(text, limit=LIMIT)
    head, note, tail = short.split("\n")
    assert (text.startswith(head), text.endswith(tail), len(head) + len(tail)) == (True, True, LIMIT)
    assert "3000 characters" in note
    assert shortened(text, limit=len(text)) is text
