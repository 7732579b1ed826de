"""Whether another model answers in place of one that failed, and which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, get_args

import pytest

from turngate.domain.agents.model_profiles import FALLS_BACK, Profile, Profiles, falls_back
from turngate.domain.errors import ConfigurationError, ModelError, ModelErrorClass
from turngate.domain.runs.budgets import Price
from turngate.models.openai.errors import Endpoint, error_of_status
from turngate.text.run_words import model_fell_back, model_switched

ENDPOINT = Endpoint(url="http://127.0.0.1", model="m")
What = Literal["falls back", "is tried again", "fails"]


def test_every_error_class_is_classified() -> None:
    """A class that is added to the errors but not to the table fails this test."""
    assert set(FALLS_BACK) == set(get_args(ModelErrorClass))


@pytest.mark.parametrize(
    ("status", "error", "what"),
    [
        (401, {}, "falls back"),
        (402, {}, "falls back"),
        (403, {}, "falls back"),
        (404, {}, "falls back"),
        (410, {}, "falls back"),
        (302, {}, "falls back"),
        (429, {"code": "insufficient_quota"}, "falls back"),
        (429, {"type": "insufficient_quota"}, "falls back"),
        (429, {"code": "rate_limit_exceeded"}, "is tried again"),
        (429, {}, "is tried again"),
        (408, {}, "is tried again"),
        (409, {}, "is tried again"),
        (500, {}, "is tried again"),
        (503, {}, "is tried again"),
        (529, {}, "is tried again"),
        (400, {}, "fails"),
        (422, {}, "fails"),
        (413, {}, "fails"),
        (400, {"code": "context_length_exceeded"}, "fails"),
    ],
)
def test_a_refusal_falls_back_is_tried_again_or_fails(status: int, error: Mapping[str, Any], what: What) -> None:
    """An error does exactly one of the three; only one that is tried again carries the provider's Retry-After."""
    body = json.dumps({"error": {"message": "no", **error}}).encode()
    error = error_of_status(status, {"retry-after": "7"}, body, ENDPOINT)
    assert (falls_back(error), error.retryable) == (what == "falls back", what == "is tried again")
    assert error.retry_after_seconds == (7 if what == "is tried again" else None)


def test_a_passing_error_never_falls_back() -> None:
    """Temporal retries it, whatever its class. A model that can't be asked at all does fall back."""
    for each in FALLS_BACK:
        assert not falls_back(ModelError("no", error_class=each, retryable=True))
    assert falls_back(ConfigurationError("no key"))


PROFILES = Profiles(
    {
        "a": Profile(name="a", model="p:a", fallback=("b", "p:c"), price=Price(input=Decimal(1), output=Decimal(1))),
        "b": Profile(name="b", model="p:b", fallback=("p:d",)),
    }
)


@pytest.mark.parametrize(
    ("spec", "fell_back_from", "more", "to"),
    [
        ("a", None, (), "b"),
        ("b", "a", (), "p:d"),
        ("p:d", "a", (), "p:c"),
        ("p:c", "a", (), None),
        ("p:c", "a", ("p:e",), "p:e"),
        ("p:e", "a", ("p:e",), None),
        ("b", None, (), "p:d"),
        ("p:x", None, (), None),
        ("p:x", None, ("a",), "a"),
        ("a", None, ("a",), "b"),
        ("p:gone", "a", ("p:e",), "p:e"),  # the file was changed while the run lived
        ("p:gone", "p:e", ("p:e",), None),
    ],
)
def test_the_next_model_is_the_next_of_the_list(
    spec: str, fell_back_from: str | None, more: tuple[str, ...], to: str | None
) -> None:
    """A profile's own list is tried first, then the agent's; no model is asked twice."""
    assert PROFILES.after(spec, fell_back_from=fell_back_from, more=more) == to


def test_an_apps_price_overrides_a_profiles_own() -> None:
    """A profile without a price costs what its model costs; a model without a price stays without one."""
    cheap, dear = Price(input=Decimal(1), output=Decimal(1)), Price(input=Decimal(9), output=Decimal(9))
    assert PROFILES.prices({"p:b": dear}) == {"p:b": dear, "a": cheap, "b": dear}
    assert PROFILES.prices({"a": dear}) == {"a": dear}


def test_the_terminal_says_which_model_continues_and_why() -> None:
    """It names who switched, or what was wrong, on one line, whatever text the provider sent."""
    names = {"from": "a", "to": "b"}
    assert model_switched(names) == "model b continues instead of a"
    assert model_switched({**names, "by": "ada"}) == "model b continues instead of a, switched by ada"
    line = model_fell_back({**names, "error_class": "permission", "message": "no\x1b[31m\ncredit"})
    assert line == "model b stands in for a, which cannot be used (permission: no⟨U+001B⟩[31m ⏎ credit)"
