"""Grants: a pattern matches exactly the call it was made from, and nothing that only looks like it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import GrantPattern, exact_pattern
from turngate.domain.text.json_pointers import decode_arguments


def fits(pattern: GrantPattern, raw: str, tool: str = "pay") -> bool:
    return pattern.fits(tool, decode_arguments(raw))


def granted(raw: str, *free: str) -> GrantPattern:
    """Return the pattern of calls like this one, as read back from the store."""
    pattern = exact_pattern("pay", decode_arguments(raw), open_arguments=list(free))
    return GrantPattern.model_validate_json(pattern.model_dump_json())


CALL = '{"to": "ann", "cents": 5}'


@pytest.mark.parametrize(
    ("free", "raw", "fit"),
    [
        pytest.param([], CALL, True, id="the very call"),
        pytest.param([], '{ "cents":5,"to":"ann" }', True, id="the same JSON otherwise written"),
        pytest.param([], '{"to": "\\u0061nn", "cents": 5}', True, id="the same text, escaped"),
        pytest.param([], '{"to": "ann", "cents": 6}', False, id="another value"),
        pytest.param([], '{"to": "ann", "cents": "5"}', False, id="text in place of a number"),
        pytest.param([], '{"to": "ann", "cents": 5.0}', False, id="a fraction in place of a whole number"),
        pytest.param([], '{"to": "ann", "cents": true}', False, id="true in place of a number"),
        pytest.param([], '{"to": "ann ", "cents": 5}', False, id="a space more"),
        pytest.param([], '{"to": "\u0430nn", "cents": 5}', False, id="a letter that looks the same"),
        pytest.param([], '{"to": "ann"}', False, id="an argument less"),
        pytest.param([], '{"to": "ann", "cents": 5, "memo": null}', False, id="an argument more, though null"),
        pytest.param([], '{"to": "ann", "cents": 6, "cents": 5}', False, id="a value given twice"),
        pytest.param([], '["to", "ann"]', False, id="no object"),
        pytest.param(["cents"], '{"to": "ann", "cents": 6}', True, id="open: another value"),
        pytest.param(["cents"], '{"to": "ann", "cents": {"a": [1]}}', True, id="open: a value of any kind"),
        pytest.param(["cents"], '{"to": "ann"}', True, id="open: left out"),
        pytest.param(["cents"], '{"to": "bob", "cents": 5}', False, id="open: the other is still fixed"),
        pytest.param(["cents"], '{"to": "ann", "cents": 5, "memo": 1}', False, id="open: one more is not"),
    ],
)
def test_a_pattern_matches_the_call_it_was_made_from(free: list[str], raw: str, fit: bool) -> None:
    """Fixed arguments match one value and its type; open ones match any; an unnamed argument never matches."""
    assert fits(granted(CALL, *free), raw) is fit


def test_a_pattern_is_of_one_tool() -> None:
    """The same arguments of another tool are another call, whatever prefix the names share."""
    assert fits(granted(CALL), CALL)
    assert not any(fits(granted(CALL), CALL, tool=name) for name in ("Pay", "pay ", "pay_all", "p*"))


@pytest.mark.parametrize(
    ("raw", "other"),
    [
        ('{"a": 0.1}', '{"a": 0.10000000000000001}'),
        ('{"a": 12345678901234567890}', '{"a": 12345678901234567891}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": [1]}', '{"a": [1, 1]}'),
        ('{"a": {"b": 1}}', '{"a": {"b": 1, "c": null}}'),
        ('{"a": {"b": 1}}', '{"a": {"b": true}}'),
        ('{"a": null}', '{"a": false}'),
        ('{"a": 0}', '{"a": false}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": ""}', '{"a": null}'),
        ('{"a": {"b": 1}}', '{"a": {"b": 2, "b": 1}}'),
    ],
)
def test_values_that_another_reader_might_take_for_the_same_differ(raw: str, other: str) -> None:
    """Numbers compare to their last digit, lists in order, objects key by key; values of different types never match."""
    assert fits(granted(raw), raw)
    assert not fits(granted(raw), other)


@pytest.mark.parametrize(
    ("raw", "free", "says"),
    [
        pytest.param("[1]", [], "JSON object", id="no object"),
        pytest.param('{"a": 1}', ["b"], "no argument 'b'", id="an open argument that is not there"),
        pytest.param('{"a": 1, "a": 2}', [], "'a'", id="a value given twice"),
        pytest.param('{"a": 1e999}', [], "'a'", id="a number that JSON readers take for infinite"),
        pytest.param('{"a": {"b": 0.12345678901234567890}}', [], "'a'", id="more digits than a number holds"),
    ],
)
def test_a_call_without_an_exact_form_cannot_be_granted(raw: str, free: list[str], says: str) -> None:
    """Arguments that a pattern can't hold exactly are refused when it is made, not matched loosely later."""
    with pytest.raises(InvalidInputError, match=says) as refused:
        granted(raw, *free)
    assert refused.value.error_code == "invalid_grant"


_FRACTIONS = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)  # no -0.0
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _FRACTIONS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=4)


@pytest.mark.exhaustive
@given(ARGUMENTS, ARGUMENTS)
def test_a_grant_of_a_call_fits_that_call_and_no_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    """For any two calls: the pattern of the first fits it, and the second only if their JSON is the same text."""
    text = json.dumps(one, sort_keys=True)
    assert fits(granted(text), text)
    assert fits(granted(text), json.dumps(other)) is (text == json.dumps(other, sort_keys=True))
