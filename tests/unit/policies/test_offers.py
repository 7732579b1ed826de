"""Which rule is offered for calls that people approved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.policies.facts import call_facts
from turngate.policies.offers import DecidedCall, narrowest_rule
from turngate.policies.rule_words import in_a_sentence


def call(verb: str = "approve", **arguments: Any) -> DecidedCall:
    return DecidedCall(input=json.dumps(arguments), verb=verb)  # type: ignore[arg-type]


def offered(decided: list[DecidedCall], least: int = 3, **arguments: Any) -> str | None:
    offer = narrowest_rule("refund", "support", json.dumps(arguments), decided, least=least)
    return None if offer is None else in_a_sentence(offer.rule).removeprefix("Calls of refund by agent support whose ")


def test_equal_calls_get_a_rule_of_equal_arguments() -> None:
    """Every argument is fixed; names that other calls of the tool have are absent."""
    decided = [*[call(order="A-1", cents=5)] * 3, call(order="A-1", cents=5, note="x"), call(order="B")]
    assert offered(decided, order="A-1", cents=5) == (
        '/order is "A-1" and /cents is 5 and /note is not there run without asking.'
    )
    assert offered(decided, least=4, order="A-1", cents=5) is None


def test_one_differing_argument_is_named_by_its_values_its_range_or_its_beginning() -> None:
    """Up to five values one by one; more numbers by their range, more texts by how they begin; nothing else."""
    few = [call(order=f"A-{place}", cents=5) for place in (1, 2, 1)]
    assert (
        offered(few, order="A-3", cents=5) == '/cents is 5 and /order is one of "A-3", "A-1", "A-2" run without asking.'
    )
    orders = [call(order=f"A-{place}", cents=5) for place in range(10, 20)]
    assert offered(orders, order="A-33", cents=5) == '/cents is 5 and /order begins with "A-" run without asking.'
    amounts = [call(cents=place, order="A") for place in range(10, 20)]
    assert offered(amounts, cents=4, order="A") == '/order is "A" and /cents is between 4 and 19 run without asking.'
    assert offered([call(order=f"{place}", cents=5) for place in range(10)], order="x", cents=5) is None
    assert offered([call(order=f"A-{place}", cents=place) for place in range(10)], order="A-1", cents=5) is None


@pytest.mark.parametrize("beginning", ["git log -", "src/a", "https://shop.example/", "ann@", "a.", "Hi "])
def test_only_identifiers_are_offered_by_their_beginning(beginning: str) -> None:
    """What follows "git log -", "src/" or "https://shop" may be another command, place or address: no rule is offered."""
    decided = [call(x=f"{beginning}{place}") for place in range(10)]
    assert offered(decided, x=f"{beginning}3") is None
    commands = [call(command=f"make{place}") for place in range(10)]
    assert offered(commands, command="make1") is None


def test_what_people_stopped_is_never_covered() -> None:
    """A rejection, an edit or an answer in place of a call that the rule covers, or may cover, is enough."""
    alike = [call(order="A-1", cents=5)] * 5
    for verb in ("reject", "edit", "respond"):
        assert offered([*alike, call(verb, order="A-1", cents=5)], order="A-1", cents=5) is None
        assert offered([*alike, call(verb, order=" a-1 ", cents=5)], order="A-1", cents=5) is None  # the tool may trim
        assert offered([*alike, call(verb, order="A-2", cents=5)], order="A-1", cents=5) is not None
    long = DecidedCall(input=None, verb="reject")
    assert offered([*alike, long], order="A-1", cents=5) is None
    orders = [call(order=f"A-{place}", cents=5) for place in range(10, 20)]
    assert offered([*orders, call("reject", order="A-1x", cents=5)], order="A-10", cents=5) is None


@pytest.mark.parametrize(
    "raw", ["[1]", "no JSON", '{"a": 1, "a": 2}', '{"a": null}', '{"a": [null]}', '{"a": 0.12345678901234567890}']
)
def test_a_call_that_no_rule_can_describe_gets_no_offer(raw: str) -> None:
    """No object, a name twice, null, or a fraction that a number can't hold."""
    decided = [DecidedCall(input=raw, verb="approve")] * 3
    offer = narrowest_rule("refund", "support", raw, decided, least=3)
    assert offer is None


values = st.integers(-3, 3) | st.sampled_from(["A-1", "A-2", "a-1", "B"]) | st.booleans()
inputs = st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=3)
verbs = st.sampled_from(["approve", "approve", "approve", "reject", "edit"])


@given(inputs, st.lists(st.tuples(inputs, verbs), max_size=12))
def test_an_offer_covers_the_call_and_none_that_was_stopped(
    this: dict[str, Any], decided: list[tuple[dict[str, Any], str]]
) -> None:
    """Whatever was decided: the call itself, at least so many approved ones, and no other verdict."""
    offer = narrowest_rule("t", "a", json.dumps(this), [call(verb, **each) for each, verb in decided], least=2)
    if offer is None:
        return

    def match(arguments: dict[str, Any]) -> str:
        return offer.rule.matches(tool="t", agent="a", facts=lambda: call_facts(json.dumps(arguments), None))

    assert match(this) == "yes"
    assert sum(match(each) == "yes" for each, verb in decided if verb == "approve") >= offer.approved >= 2
    assert {match(each) for each, verb in decided if verb != "approve"} <= {"no"}
    assert offer.rule.verdict == "allow"
    assert "*" not in {*offer.rule.tools, *offer.rule.agents}
