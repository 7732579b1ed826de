"""I6 and I12 as bytes: which calls a digest distinguishes, and what counts as the same call again."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from turngate.domain.digest import call_digest, derived_id, framed_sha256, keyed_sha256, repeat_key

CALL = {
    "tool_name": "pay",
    "manifest_digest": "m1",
    "raw_input": '{"cents": 5}',
    "run_id": "run_1",
    "tool_call_id": "c1",
    "policy_version": "p1",
    "nonce": "n",
    "defaults": "[]",
}


def test_framing_is_length_then_bytes() -> None:
    """The digest is SHA-256 over each field's byte length (8 bytes, big-endian) and UTF-8 text: others can recompute it."""
    framed = b"\0\0\0\0\0\0\0\x03\xe2\x82\xac" + b"\0\0\0\0\0\0\0\x02ab"
    assert framed_sha256("€", "ab") == hashlib.sha256(framed).hexdigest()


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_i6_no_two_lists_of_fields_share_their_bytes(one: list[str], other: list[str]) -> None:
    """I6: moving a character from one field to the next changes the digest."""
    assert (framed_sha256(*one) == framed_sha256(*other)) is (one == other)


@pytest.mark.parametrize("field", list(CALL))
def test_i6_every_part_of_a_call_is_in_its_digest(field: str) -> None:
    """I6: another tool, manifest, byte of input, run, call or policy is another digest."""
    assert call_digest(**{**CALL, field: CALL[field] + " "}) != call_digest(**CALL)


def test_a_digest_with_a_nonce_is_an_hmac() -> None:
    """The nonce is the HMAC's key, so the digest can't be tried without it."""
    expected = hmac.new(b"n", b"\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\1b", hashlib.sha256).hexdigest()
    assert keyed_sha256("n", "a", "b") == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [1, 2]}', '{ "b":[1,2],"a":1 }'),
        ('{"a": {"x": 1, "y": 2}}', '{"a":\n{"y": 2, "x": 1}}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ('{"a": "\\/"}', '{"a": "/"}'),
        ("not json", "not json"),
        ("", ""),
    ],
)
def test_i12_the_same_call_in_other_words_is_a_repeat(one: str, other: str) -> None:
    """I12: order of keys, spacing and escapes do not make a refused call a new one."""
    assert repeat_key("pay", one) == repeat_key("pay", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": null}', "{}"),
        ('{"a": "x"}', '{"a": "x "}'),
        ("git status", "git  status"),
        ("not json", "not json "),
    ],
)
def test_i12_another_value_is_another_call(one: str, other: str) -> None:
    """I12: a person is asked about a call with another value; text that is not JSON is compared byte by byte."""
    assert repeat_key("pay", one) != repeat_key("pay", other)


def test_i12_the_tool_counts() -> None:
    """I12: the same arguments for another tool are another call."""
    assert repeat_key("pay", "{}") != repeat_key("look", "{}")


@pytest.mark.parametrize(
    "raw_input",
    [
        pytest.param('{"a": "\\ud800"}', id="half a surrogate pair"),
        pytest.param("[" * 100_000, id="deeper than the parser goes"),
        pytest.param('{"a":' * 5_000 + "1" + "}" * 5_000, id="valid, and deeper than the parser goes"),
        pytest.param("9" * 5_000, id="more digits than Python converts"),
        pytest.param('{"a": 1e999}', id="infinite"),
        pytest.param('{"a": NaN}', id="not a number"),
        pytest.param("\x00", id="NUL"),
    ],
)
def test_i9_no_text_of_the_model_breaks_the_key(raw_input: str) -> None:
    """I9: the key is computed before a call is known to be valid, so no model text may make it raise."""
    assert len(repeat_key("pay", raw_input)) == 64


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_i12_keys_are_equal_exactly_when_values_are(one: object, other: object) -> None:
    """I12: over JSON values without fractions the key is neither too coarse nor too fine."""
    spaced = json.dumps(one, indent=2, ensure_ascii=False)
    assert repeat_key("pay", spaced) == repeat_key("pay", json.dumps(one))
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    assert repeat_key("pay", json.dumps(one)) != repeat_key("pay", json.dumps(other))


def test_derived_ids_are_the_same_on_every_retry() -> None:
    """The same fields give the same id in every process; it names its kind and fits the store's 64 characters."""
    assert derived_id("rq", "run_1", "c1", "approval") == derived_id("rq", "run_1", "c1", "approval")
    assert derived_id("rq", "run_1", "c1", "approval") != derived_id("rq", "run_1", "c1", "outcome")
    assert derived_id("msg", "x").startswith("msg_")
    assert len(derived_id("rq", "x" * 1000)) == len("rq_") + 24
