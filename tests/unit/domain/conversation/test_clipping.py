"""What the model is shown of a result that is too large, and the whole that it can read on."""

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
    """A result whose JSON text has exactly so many characters."""
    made = Ok(value={"text": "x" * (chars - len('{"text":""}'))})
    assert len(whole_text(made)) == chars
    return made


def test_the_limit_is_exact():
    """A result of the limit's length is shown whole, one character more is not."""
    assert clipped(of_chars(LIMIT), limit=LIMIT) == (of_chars(LIMIT), None)
    shown, whole = clipped(of_chars(LIMIT + 1), limit=LIMIT)
    assert isinstance(shown, Ok)
    assert (shown.value["truncated"], shown.value["total_chars"]) == (True, LIMIT + 1)
    assert whole == whole_text(of_chars(LIMIT + 1))


def test_the_shown_part_is_head_and_tail_with_the_way_to_the_rest():
    """Both ends together are as long as the limit, the id is that of the stored whole, and the hint says where to go on."""
    result = Ok(value={"lines": [f"line {number}" for number in range(1_000)]})
    shown, whole = clipped(result, limit=LIMIT)
    assert isinstance(shown, Ok)
    assert whole is not None
    head, tail = str(shown.value["head"]), str(shown.value["tail"])
    assert (whole.startswith(head), whole.endswith(tail), len(head) + len(tail)) == (True, True, LIMIT)
    assert len(head) > len(tail) > 0
    assert shown.value["result_id"] == result_digest(whole)
    assert f"{READ_RESULT}(result_id, offset={len(head)})" in str(shown.value["how_to_read_the_rest"])
    assert json.loads(whole) == result.value


def test_a_failure_keeps_its_kind_and_what_it_says():
    """The model reads which failure it is and why; its fields are shown as a success would be."""
    result = Failure(kind="declined", reason="No stock.", fields={"reason": "No stock.", "rows": ["r" * 50] * 100})
    shown, whole = clipped(result, limit=LIMIT)
    assert isinstance(shown, Failure)
    assert (shown.kind, shown.reason, shown.fields["truncated"]) == ("declined", "No stock.", True)
    assert whole is not None
    assert json.loads(whole) == result.fields
    told = json.loads(wire_text(shown))["error"]
    assert (told["kind"], told["message"], told["result_id"]) == ("declined", "No stock.", result_digest(whole))


def test_a_failures_long_reason_does_not_pass_the_bound():
    """It stands in the fields, too, where it can be read on."""
    words = "because " * 10_000
    shown, whole = clipped(Failure(kind="declined", reason=words, fields={"reason": words}), limit=LIMIT)
    assert isinstance(shown, Failure)
    assert shown.reason == f"{words[:MAX_CLIPPED_REASON]}…"
    assert len(wire_text(shown)) < LIMIT + MAX_CLIPPED_REASON + 500
    assert whole is not None
    assert json.loads(whole) == {"reason": words}


@pytest.mark.parametrize(
    "make", [lambda text: Ok(value={"t": text}), lambda text: Failure(kind="k", fields={"t": text})]
)
def test_i9_half_a_surrogate_pair_is_mended(make):
    """I9: a file name that is not UTF-8 can be neither hashed nor stored; a whole pair stays the character it is."""
    shown, whole = clipped(make("a\ud800b😀\x00" * LIMIT), limit=LIMIT)
    assert whole is not None
    assert json.loads(whole) == {"t": "a?b😀\x00" * LIMIT}
    assert result_digest(whole) in wire_text(shown)
    wire_text(shown).encode()


@given(VALUES, st.booleans())
def test_any_result_is_clipped_alike_every_time(value: dict[str, Any], failed: bool):
    """A retry shows and stores the same: the very result when it fits, else the two ends of the whole, up to the limit."""
    result = Failure(kind="k", reason="r", fields=value) if failed else Ok(value=value)
    shown, whole = clipped(result, limit=LIMIT)
    assert clipped(result, limit=LIMIT) == (shown, whole)
    if whole is None:
        assert shown is result
    else:
        body = shown.value if isinstance(shown, Ok) else shown.fields
        assert whole == whole_text(result)
        assert len(str(body["head"])) + len(str(body["tail"])) == LIMIT < body["total_chars"] == len(whole)


@given(TEXT.map(lambda text: text * 3), st.integers(min_value=1, max_value=40))
def test_parts_make_the_whole_wherever_they_are_cut(text: str, size: int):
    """Cut within an escape or between the halves of an emoji, the parts put together are the whole, exactly."""
    whole = whole_text(Ok(value={"text": text}))
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    read = [json.loads(wire_text(Ok(value={"text": part})))["text"] for part in parts]
    assert "".join(read) == whole


def test_an_agent_that_cannot_read_on_is_not_sent_to():
    """The shown part is the same, the whole is kept, and no tool is named that would not take its id."""
    result = of_chars(5 * LIMIT)
    with_reader, without = (clipped(result, limit=LIMIT, reads_on=reads_on) for reads_on in (True, False))
    assert with_reader[1] == without[1] == whole_text(result)
    assert isinstance(with_reader[0], Ok)
    assert isinstance(without[0], Ok)
    assert READ_RESULT not in str(without[0].value)
    differing = {key for key, value in with_reader[0].value.items() if without[0].value[key] != value}
    assert differing == {"how_to_read_the_rest"}


def test_a_text_that_nobody_keeps_is_shortened_in_its_middle():
    """Both ends stay, as long as the limit together, and it says how much is missing; a text that fits is the very same."""
    text = "".join(f"{number:04}" for number in range(1_000))
    short = shortened(text, limit=LIMIT)
    head, said, tail = short.split("\n")
    assert (text.startswith(head), text.endswith(tail), len(head) + len(tail)) == (True, True, LIMIT)
    assert "3000 characters" in said
    assert shortened(text, limit=len(text)) is text
