"""How alike two calls are: by words and structure, within bounds whatever is compared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.likeness import (
    MAX_LEAVES,
    MAX_READ_CHARS,
    MAX_SHOWN_CHARS,
    MAX_TEXT_CHARS,
    MOST_FEATURES,
    Difference,
    compare,
    features,
    shape_of,
)

REFUND = {"order": "A-102", "cents": 5000, "reason": "The parcel arrived damaged", "notify": True}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


def differences(one: object, other: object) -> tuple[Difference, ...]:
    return compare(shape_of(json.dumps(one)), shape_of(json.dumps(other))).differences


def test_a_difference_says_where_and_what() -> None:
    """Each value that differs, by its place, as it was written; what only one of them has; and where a long text differs."""
    now = {"order": "A-102", "cents": 50000, "reason": "The parcel arrived damaged", "to": ["x"]}
    assert differences(REFUND, now) == (
        Difference("/cents", "5000", "50000"),
        Difference("/to/0", None, "x"),
        Difference("/notify", "true", None),
    )
    long = "word " * 50
    (difference,) = differences({"text": f"{long}one{long}"}, {"text": f"{long}two{long}"})
    assert difference.was is not None
    assert difference.was.startswith("…word ")
    assert "word one" in difference.was
    assert len(difference.was) <= MAX_SHOWN_CHARS + 2


def test_order_spacing_and_zeros_make_no_difference() -> None:
    """The same values in another order and spacing are the same call; a name that is there twice never is."""
    other = '{ "notify":true, "reason": "The parcel arrived damaged", "cents": 5000.0,\n"order":"A-102"}'
    assert compare(shape_of(json.dumps(REFUND)), shape_of(other)).same
    assert features("refund", other)[0] == features("refund", json.dumps(REFUND))[0]
    doubled = '{"cents": 1, "cents": 1}'
    assert not compare(shape_of(doubled), shape_of(doubled)).same


def test_a_text_differs_where_it_is_not_compared() -> None:
    """Two texts that differ beyond what is compared are not the same, and the difference says why nothing is shown."""
    one, other = ({"text": "a" * MAX_TEXT_CHARS + end} for end in "xy")
    (difference,) = differences(one, other)
    assert difference == Difference("/text", "differs after what is compared", "differs after what is compared")


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({**REFUND, "cents": 4900}, {**REFUND, "cents": 1}),
        ({**REFUND, "reason": "The parcel arrived late"}, {**REFUND, "reason": "Goodwill"}),
        ({**REFUND, "cents": 1}, {**REFUND, "cents": 1, "order": "B-7"}),
        ({**REFUND, "more": 1}, {**REFUND, "cents": 1, "more": 1}),
    ],
)
def test_fewer_and_smaller_differences_are_nearer(nearer: object, farther: object) -> None:
    """A near number, shared words and one difference in place of two each count."""
    this = shape_of(json.dumps(REFUND))
    near, far = (compare(shape_of(json.dumps(each)), this).likeness for each in (nearer, farther))
    assert 0 <= far < near < 1


def test_one_changed_value_leaves_a_rare_feature() -> None:
    """Calls that differ in one value, or in one more argument, share a feature of everything else; other tools share none."""
    this = set(features("refund", json.dumps(REFUND)))
    whole = features("refund", json.dumps({name: value for name, value in REFUND.items() if name != "order"}))[0]
    assert whole in this
    assert whole in features("refund", json.dumps({**REFUND, "order": "B-7"}))
    assert not this & set(features("pay", json.dumps(REFUND)))


@given(VALUES, VALUES)
def test_any_two_calls_compare(one: object, other: object) -> None:
    """Every pair has a likeness between 0 and 1; a call is the same as itself, and its features are few and always the same."""
    first, second = json.dumps(one), json.dumps(other)
    comparison = compare(shape_of(first), shape_of(second))
    assert 0 <= comparison.likeness <= 1
    assert comparison.same == (not comparison.differences)
    assert compare(shape_of(first), shape_of(first)).same
    hashes = features("tool", first)
    assert hashes == features("tool", first)
    assert 1 <= len(set(hashes)) == len(hashes) <= MOST_FEATURES
    assert all(0 <= each < 2**63 for each in hashes)


@pytest.mark.parametrize(
    "hostile",
    [
        "[" + ",".join(["1.5"] * 9_000) + "]",
        '{"a":' * 900 + "1" + "}" * 900,
        '"' + "a b " * 12_000 + '"',
        "[1e999999999, -1e99999, NaN]",
        "[1e999999, 2e999999, -1e999999]",
        "[" + "9" * 5_000 + "]",
        '{"x": "' + "\\ud800" * 1_000 + '"}',
        "{" * 40_000,
        "x" * (MAX_READ_CHARS + 1),
    ],
)
def test_i14_hostile_arguments_are_bounded(hostile: str) -> None:
    """Whatever the arguments are, they have few values and features, and are compared with others without an error."""
    shape = shape_of(hostile)
    assert len(shape.leaves) <= MAX_LEAVES
    assert len(features("tool", hostile)) <= MOST_FEATURES
    comparison = compare(shape, shape_of(json.dumps(REFUND)))
    assert 0 <= comparison.likeness < 1
    assert sum(len(each.was or "") + len(each.now or "") for each in comparison.differences) < 100_000
