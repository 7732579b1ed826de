"""Two runs side by side: shared pasts, matching steps and calls, and what counts as a difference."""

from __future__ import annotations

import pytest

from turngate.domain.runs.comparison import (
    ASPECTS,
    CallFacts,
    CallPair,
    StepFacts,
    Stretch,
    align,
    align_calls,
    apart,
    json_meaning,
)


def past(text: str) -> list[Stretch]:
    """Parse ``A3 B``: run A up to step 3, then run B. ``A>3``: run A after step 3."""
    stretches = []
    for word in text.split():
        run_id, _, after = word.partition(">")
        name, through = run_id[0], run_id[1:]
        stretches.append(Stretch(run_id=name, after=int(after or 0), through=int(through) if through else None))
    return stretches


@pytest.mark.parametrize(
    ("run", "other", "shared", "own", "others"),
    [
        pytest.param("A", "A3 B", "A3", "A>3", "B", id="its fork"),
        pytest.param("A3 B", "A", "A3", "B", "A>3", id="the run it was forked from"),
        pytest.param("A3 B", "A5 C", "A3", "B", "A5>3 C", id="two forks at different steps"),
        pytest.param("A3 B", "A3 C", "A3", "B", "C", id="two forks at the same step"),
        pytest.param("A", "A3 B2 C", "A3", "A>3", "B2 C", id="a fork of its fork"),
        pytest.param("A3 B", "A3 B2 C", "B2", "B>2", "C", id="the nearest past counts, not the first"),
        pytest.param("A0 B", "A", "A0", "B", "A", id="nothing was closed before"),
        pytest.param("A", "B", None, "A", "B", id="unrelated"),
        pytest.param("A3 B", "C2 D", None, "B", "D", id="unrelated forks: what each took itself"),
    ],
)
def test_a_shared_past_is_split_off(run: str, other: str, shared: str | None, own: str, others: str) -> None:
    """The shared past is named once, and the rest of each run begins right after it."""
    split = apart(past(run), past(other))
    assert ([] if split.shared is None else [split.shared]) == past(shared or "")
    assert list(split.run) == past(own)
    assert list(split.other) == past(others)


def fact(name: str, arguments: str = "", **differs: str) -> CallFacts:
    return CallFacts(tool_name=name, aspects={**dict.fromkeys(ASPECTS, "same"), "arguments": arguments, **differs})


@pytest.mark.parametrize(
    ("run", "other", "pairs"),
    [
        pytest.param("pay:1", "pay:1", "0=0", id="the same"),
        pytest.param("pay:1", "pay:2", "0=0 arguments", id="other arguments"),
        pytest.param("pay:1 look", "pay:1", "0=0, 1=-", id="only in the first"),
        pytest.param("look", "look pay:1", "0=0, -=1", id="only in the second"),
        pytest.param("pay:1", "look", "0=-, -=0", id="calls of different tools are never paired"),
        pytest.param("look pay:1", "pay:1 look", "0=1, 1=0", id="another order"),
        pytest.param("pay:2", "pay:1 pay:2", "0=1, -=0", id="one call more before the same one"),
        pytest.param(
            "pay:1 pay:2", "pay:3 pay:4", "0=0 arguments, 1=1 arguments", id="by order where nothing is the same"
        ),
        pytest.param("pay:1 pay:1", "pay:1", "0=0, 1=-", id="twice and once"),
        pytest.param("", "", "", id="no calls"),
    ],
)
def test_calls_of_one_tool_are_paired(run: str, other: str, pairs: str) -> None:
    """Calls with the same arguments are paired first, the rest by their order."""

    def calls(text: str) -> list[CallFacts]:
        return [fact(*word.split(":")) for word in text.split()]

    def label(pair: CallPair) -> str:
        sides = "=".join("-" if place is None else str(place) for place in (pair.run, pair.other))
        return " ".join((sides, *pair.differs))

    assert ", ".join(label(pair) for pair in align_calls(calls(run), calls(other))) == pairs


@pytest.mark.parametrize("aspect", ASPECTS)
def test_each_difference_is_named(aspect: str) -> None:
    """Calls that differ in one aspect name it and are not the same."""
    (pair,) = align_calls([fact("pay")], [fact("pay", **{aspect: "other"})])
    assert (pair.differs, pair.same) == ((aspect,), False)


def test_steps_are_paired_by_their_order() -> None:
    """The longer run's last steps have no pair; two steps are equal only if their texts and all calls are."""
    quiet, words, paid = (
        StepFacts(text=text, calls=calls) for text, calls in (("", []), ("x", []), ("", [fact("pay")]))
    )
    pairs = align([quiet, quiet, quiet, paid], [quiet, words, paid])
    assert [(pair.run, pair.other, pair.same, pair.text_differs) for pair in pairs] == [
        (0, 0, True, False),
        (1, 1, False, True),
        (2, 2, False, False),
        (3, None, False, False),
    ]
    assert pairs[2].calls == [CallPair(run=None, other=0)]
    assert pairs[3].calls == [CallPair(run=0, other=None)]


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1}', True),
        ('"\\u00e9"', '"é"', True),
        ("[1, 2]", "[2, 1]", False),
        ("1", "1.0", False),
        ("1", "true", False),
        ("1", '"1"', False),
        ("[]", "{}", False),
        ("0.10000000000000000001", "0.1", False),
        ("1e999", "2e999", False),
        ("NaN", "NaN", True),
        ('{"a": 1, "a": 2}', '{"a": 2}', False),
        ('{"a": 1, "a": 2}', '{"a": 2, "a": 1}', False),
        ('{"a": ', '{"a":', False),
        ("9" * 5_000, "9" * 5_001, False),
        ("[" * 200 + "]" * 200, " " + "[" * 200 + "]" * 200, True),
        ("[" * 100_000, "[" * 100_000, True),
        ('"\\ud800"', '"\\ud801"', False),
    ],
)
def test_arguments_are_compared_by_what_they_mean(one: str, two: str, *, same: bool) -> None:
    """White space, escapes and key order do not count; every digit does, and any depth can be compared."""
    assert (json_meaning(one) == json_meaning(two)) is same
