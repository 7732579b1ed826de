"""What an edit changes: every difference, each at its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.text.changes import MAX_CHANGES, MAX_PLACE_CHARS, Changes, change_lines, changes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def texts(edits: Changes) -> list[tuple[str, str | None, str | None]]:
    return [(each.at, each.was and each.was.text, each.now and each.now.text) for each in edits.items]


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ({"cents": 1200}, {"cents": 12000}, [("/cents", "1200", "12000")]),
        ({"a": 1, "b": 2}, {"b": 2}, [("/a", "1", None)]),
        ({"b": 2}, {"a/~": [], "b": 2}, [("/a~1~0", None, "[]")]),
        ({"to": ["x", "y"]}, {"to": ["x", "z", "w"]}, [("/to/1", "y", "z"), ("/to/2", None, '"w"')]),
        ({"n": "1"}, {"n": 1}, [("/n", '"1"', "1")]),
        ({"n": True}, {"n": 1}, [("/n", "true", "1")]),
        ({"n": ""}, {"n": "x"}, [("/n", '""', '"x"')]),
        ({"n": "null"}, {"n": None}, [("/n", '"null"', "null")]),
        ({"a": {"b": 1}}, {"a": [1]}, [("/a", '{"b": 1}', "[1]")]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        (1, 2, [("", "1", "2")]),
    ],
)
def test_each_change_has_its_place_and_both_values(was: Any, now: Any, expected: list[Any]) -> None:
    """What is new, gone, another value or another kind of value; the order of names is no change."""
    assert texts(changes(json.dumps(was), json.dumps(now))) == expected


def test_the_way_a_number_is_written_is_a_change() -> None:
    """``1.10`` and ``1.1`` are two ways to write the arguments, and a person changed one to the other."""
    assert texts(changes('{"rate": 1.10}', '{"rate": 1.1}')) == [("/rate", "1.10", "1.1")]
    assert not changes('{"rate": 1.10}', '{ "rate":1.10 }')


def test_text_that_is_no_plain_json_is_one_value() -> None:
    """Neither what is not JSON nor a name that is there twice is taken apart."""
    assert texts(changes("{", "{}")) == [("", "{", "{}")]
    doubled = '{"a": 1, "a": 2}'
    assert texts(changes(doubled, '{"a": 2}')) == [("", doubled, '{"a": 2}')]


def test_only_what_differs_in_a_long_text_is_marked() -> None:
    """The difference has what is around it on both sides."""
    (change,) = changes(*(json.dumps(f"{'a ' * 500}{each}{' b' * 500}") for each in ("one", "six"))).items
    assert change.was is not None
    assert change.now is not None
    assert (change.was.part, change.now.part) == ("one", "six")
    assert (change.was.before, change.was.after) == (f"…{'a ' * 30}", f"{' b' * 30}…")


def test_lines_that_stay_between_changed_ones_are_no_change() -> None:
    """Three edited lines of 3,000 are three changes, not all that lies between them; each has its line's number."""
    old = [f"line {number % 7}\n" for number in range(3_000)]
    new = [*old[:100], "one\n", *old[101:1_500], "two\n", *old[1_500:2_900], *old[2_901:]]
    edits = changes(json.dumps({"text": "".join(old)}), json.dumps({"text": "".join(new)})).items
    assert [(each.at, each.line) for each in edits] == [("/text", 101), ("/text", 1_501), ("/text", 2_901)]
    assert [(each.was and each.was.text, each.now and each.now.text) for each in edits] == [
        ("line 2\n", "one\n"),
        (None, "two\n"),
        ("line 2\n", None),
    ]


@pytest.mark.parametrize("count", [1, 21, 101, MAX_CHANGES, MAX_CHANGES + 1, 2_000])
def test_no_change_is_cut_or_left_out(count: int) -> None:
    """However many and however long they are: of what no page can list place by place, the whole texts are compared."""
    was, now = [f"old {number}" for number in range(count)], [f"{number} {'y' * 50}" for number in range(count)]
    now[-1] = f"{'z' * 10_000} the end"
    edits = changes(json.dumps(was), json.dumps(now))
    assert edits.count == count
    assert edits.items == (*edits.first, *edits.others)
    printed = "\n".join(change_lines(edits))
    assert all(each in printed for each in (*was[:-1], *now))


def test_places_with_long_names_are_compared_as_texts() -> None:
    """A long name is not repeated for each of its members."""
    was, now = (json.dumps({"n" * (MAX_PLACE_CHARS // 10): [each] * 50}) for each in (1, 2))
    edits = changes(was, now)
    (change,) = edits.items
    assert (change.at, edits.count) == ("", 50)
    assert change.now is not None
    assert change.now.part == ", ".join("2" * 50)


@given(VALUES, VALUES)
def test_nothing_that_differs_is_left_out(was: Any, now: Any) -> None:
    """There is a change exactly when the values differ, one for a place and line, and its two sides differ."""
    edits = changes(json.dumps(was), json.dumps(now))
    assert bool(edits) == (json.dumps(was, sort_keys=True) != json.dumps(now, sort_keys=True))
    assert len({(each.at, each.line) for each in edits.items}) == len(edits.items)
    assert all(each.was != each.now for each in edits.items)


@pytest.mark.parametrize(
    "hostile", ["[" * 190 + "]" * 190, '{"a": ' * 150 + "1" + "}" * 150, '"' + "a" * 1_900_000 + '"']
)
def test_i14_hostile_arguments_are_bounded(hostile: str) -> None:
    """Deep and long values are compared, and what is shown is no longer than they are."""
    edits = changes(hostile, '{"order": "A-1"}')
    assert edits
    assert sum(len(each.was.text) for each in edits.items if each.was) <= len(hostile)
