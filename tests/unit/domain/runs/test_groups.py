"""Requests put in groups: by run, by step, and calls that are alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.requests import RequestKind
from turngate.domain.runs.groups import Group, groups_of, label


@dataclass(frozen=True)
class Waiting:
    """A request as far as groups look at it."""

    id: str
    input: str = "{}"
    tool_name: str = "refund"
    run_id: str = "r1"
    step: int | None = 1
    kind: RequestKind = "approval"
    input_digest: str | None = None


def refunds(*arguments: dict[str, Any]) -> list[Waiting]:
    return [Waiting(f"q{place}", json.dumps(each)) for place, each in enumerate(arguments)]


def ids(groups: list[Group[Waiting]]) -> list[list[str]]:
    return [[each.id for each in group.items] for group in groups]


def test_a_group_of_runs_or_steps_has_the_place_of_its_first_member():
    """The most urgent request comes first with the others of its run or step, in their order."""
    waiting = [Waiting("a", run_id="r2"), Waiting("b"), Waiting("c", run_id="r2", step=2), Waiting("d", run_id="r2")]
    assert ids(groups_of(waiting, "run")) == [["a", "c", "d"], ["b"]]
    assert ids(groups_of(waiting, "step")) == [["a", "d"], ["b"], ["c"]]


def test_what_differs_from_most_of_its_group_comes_first():
    """Of nineteen refunds two have another speed: they come first, and it is said where they differ."""
    usual = {"order": "A-1", "cents": 5, "speed": "normal", "note": "as agreed"}
    odd = {**usual, "speed": "express"}
    (group,) = groups_of(refunds(*[usual] * 9, odd, *[usual] * 8, odd), "alike")
    assert [each.id for each in group.items[:3]] == ["q9", "q18", "q0"]
    assert group.differs == {"q9": ["/speed"], "q18": ["/speed"]}
    assert group.words == "17 alike; 2 differ"


def test_arguments_that_each_call_has_to_itself_are_named_once():
    """Orders and amounts that all differ make no call odd; an amount of another account does."""
    calls = [{"order": f"A-{n}", "cents": n, "account": "ours", "note": "x"} for n in range(8)]
    (group,) = groups_of(refunds(*calls, {**calls[0], "account": "theirs"}), "alike")
    assert group.varying == ["/order", "/cents"]
    assert group.differs == {"q8": ["/account"]}
    assert group.words == "8 alike but for order, cents; 1 differs"


def test_calls_of_other_tools_or_with_mostly_other_arguments_are_no_group():
    """Another tool, another kind of request, and a call of which most differs stay apart."""
    same = json.dumps({"to": "a", "cc": "b", "body": "c"})
    other = json.dumps({"to": "x", "cc": "y", "body": "c"})
    waiting = [Waiting("a", same), Waiting("b", other), Waiting("c", same, "mail"), Waiting("d", same, kind="outcome")]
    (rest,) = groups_of(waiting, "alike")
    assert (rest.words, [each.id for each in rest.items]) == ("4 calls that are like no other", ["a", "b", "c", "d"])


def test_what_only_looks_alike_differs():
    """A number written otherwise, a list for an object, a key with a slash and a doubled key are differences."""
    pairs = [
        ('{"a":{"b":1}}', '{"a/b":1}'),
        ('{"a":["x"]}', '{"a":{"0":"x"}}'),
        ('{"a":1.0}', '{"a":1.00}'),
        ('{"a":1}', '{"a":1,"a":1}'),
        ('{"a":""}', '{"a":null}'),
    ]
    for one, other in pairs:
        for group in groups_of([Waiting("a", one), Waiting("b", one), Waiting("c", other)], "alike"):
            assert len(group.items) < 3 or "c" in group.differs, (one, other)


def test_white_space_between_arguments_is_no_difference():
    """Only values count, not how the JSON was laid out."""
    (group,) = groups_of([Waiting("a", '{"a": 1, "b": [2]}'), Waiting("b", '{"b":[2],"a":1}')], "alike")
    assert (group.varying, group.differs) == ([], {})


def test_long_or_broken_arguments_are_compared_as_a_whole():
    """Arguments that aren't JSON, have very many values or are very long: the same text is alike, and nothing fails."""
    texts = ["{", json.dumps(list(range(1_000))), json.dumps({"text": "x" * 50_000}), "[" * 100_000]
    for text in texts:
        (group,) = groups_of([Waiting("a", text), Waiting("b", text)], "alike")
        assert group.words == "2 alike"
    (group,) = groups_of([Waiting("a", "{"), Waiting("b", "{"), Waiting("c", "[[")], "alike")
    assert {name: [label(each) for each in odd] for name, odd in group.differs.items()} == {"c": ["all arguments"]}


@given(st.lists(st.sampled_from(["{}", '{"a":1}', '{"a":2}', '{"a":1,"b":[1,2]}', "nonsense", '"x"']), max_size=12))
def test_every_request_is_in_one_group(texts: list[str]):
    """Whatever the arguments are, no request is lost or there twice."""
    waiting = [Waiting(f"q{place}", text, run_id=f"r{place % 3}", step=place % 2) for place, text in enumerate(texts)]
    for by in ("run", "step", "alike"):
        assert sorted(each for group in ids(groups_of(waiting, by)) for each in group) == sorted(
            each.id for each in waiting
        )
