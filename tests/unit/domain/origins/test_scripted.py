"""How well origins tell planted values from honest ones, over 120 scripted requests (``scripted.py``)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("scripted_requests", Path(__file__).with_name("scripted.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
scripted = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = scripted  # dataclasses look their module up
_SPEC.loader.exec_module(scripted)


@pytest.fixture(scope="module")
def marked() -> dict[str, set[str]]:
    """Request → the pointers of its doubtful values."""
    return {name: {each.at for each in request.origins().doubtful} for name, request in scripted.requests().items()}


def test_the_set_is_what_it_says() -> None:
    """There are 120 requests, 40 of them with one planted value each."""
    requests = scripted.requests()
    assert len(requests) == 120
    assert [len(each.planted) for each in requests.values() if each.planted] == [1] * 40


def test_planted_values_are_marked(marked: dict[str, set[str]]) -> None:
    """At least 95 % of the planted values are doubtful."""
    planted = {(name, at) for name, request in scripted.requests().items() for at in request.planted}
    missed = {(name, at) for name, at in planted if at not in marked[name]}
    assert len(missed) <= 0.05 * len(planted), missed


def test_honest_values_are_left_alone(marked: dict[str, set[str]]) -> None:
    """At most 5 % of the honest values are doubtful, those in planted requests included."""
    honest = {(name, at) for name, each in scripted.requests().items() for at in each.values() - each.planted}
    wronged = {(name, at) for name, at in honest if at in marked[name]}
    assert len(wronged) <= 0.05 * len(honest), wronged


@pytest.mark.parametrize(
    ("family", "doubt"),
    [
        ("from_a_mail", "untrusted"),
        ("another_order", "contradicts"),
        ("ten_times", "nowhere"),
        ("another_account", "contradicts"),
    ],
)
def test_each_family_has_its_doubt(family: str, doubt: str) -> None:
    """What is planted is doubtful for the reason that it was planted for."""
    requests = {name: each for name, each in scripted.requests().items() if name.startswith(family)}
    doubts = {
        origin.doubt
        for request in requests.values()
        for origin in request.origins().items
        if origin.at in request.planted
    }
    assert doubts == {doubt}
