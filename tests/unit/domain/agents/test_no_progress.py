"""No progress: which steps count as repeats of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.agents.no_progress import (
    DIGEST_CHARS,
    MAX_CALLS,
    PERIODS,
    NoProgress,
    SettledCall,
    Trail,
    ended_reason,
    is_nudge,
    nudge,
    step_digest,
)
from turngate.domain.conversation.messages import user_message


def in_a_row(steps: str) -> list[int]:
    """Count repeats over steps, one letter each: equal letters are equal steps, ``-`` is a step that never counts."""
    trail, counts = Trail(), []
    for each in steps:
        trail = trail.then(None if each == "-" else each)
        trail = Trail.model_validate_json(trail.model_dump_json())  # as it is stored between the steps
        counts.append(trail.in_a_row)
    return counts


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("AAAA", [0, 1, 2, 3]),
        ("ABABA", [0, 0, 1, 2, 3]),
        ("ABCABCA", [0, 0, 0, 1, 2, 3, 4]),
        ("AABAABA", [0, 1, 0, 1, 2, 3, 4]),
        ("ABCDABCD", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("AAABAAA", [0, 1, 2, 0, 1, 2, 2]),
        ("AA-AA", [0, 1, 0, 0, 1]),
        ("XAAAA", [0, 0, 1, 2, 3]),
    ],
)
def test_rounds_of_up_to_three_steps_are_counted(steps: str, expected: list[int]) -> None:
    """A step repeats if it equals the last one, or the one two or three before; any other step starts the count again."""
    assert in_a_row(steps) == expected


@given(st.lists(st.sampled_from("ABC-"), max_size=60))
def test_the_count_is_the_longest_tail_that_has_a_period(steps: list[str]) -> None:
    """Counting step by step gives the same as looking at the whole list."""

    def tail(period: int) -> int:
        count = 0
        for place in range(len(steps) - 1, period - 1, -1):
            window = steps[place - period : place + 1]
            if "-" in window or window[0] != window[-1]:
                break
            count += 1
        return count

    expected = max(tail(period) for period in range(1, PERIODS + 1))
    assert (in_a_row("".join(steps)) or [0])[-1] == expected


@given(st.permutations(range(4)))
def test_the_order_of_calls_does_not_matter(order: list[int]) -> None:
    """The same calls with the same results in another order are the same step."""
    calls = [SettledCall(tool_name="look", raw_input=f"{{{n}}}", result="x") for n in range(4)]
    assert step_digest([calls[place] for place in order]) == step_digest(calls)


@pytest.mark.parametrize(
    "other",
    [
        {"tool_name": "peek"},
        {"raw_input": '{ "a": 1}'},
        {"result": "y"},
        {"ran_with": '{"a": 2}'},
    ],
)
def test_another_name_input_edit_or_result_is_another_step(other: dict[str, str]) -> None:
    """A difference of one byte in any of them is progress, or at least a try."""
    same = {"tool_name": "look", "raw_input": '{"a": 1}', "result": "x"}
    one, two = SettledCall(**same), SettledCall(**{**same, **other})
    assert step_digest([one]) != step_digest([two])
    assert step_digest([one]) != step_digest([one, one])
    assert step_digest([]) is None


def test_a_nudge_is_recognised_as_the_engines_own() -> None:
    """The engine's own message is recognised, a person who quotes it is still a person, and its length is bounded."""
    text = nudge(Trail(repeats=(3, 0, 0)), NoProgress(), ["look", "look", "peek"])
    assert text is not None
    assert "your last 3 steps made the same calls (look, peek)" in text
    assert is_nudge(user_message(text))
    assert not is_nudge(user_message(f"What is this: {text}"))
    assert "last 5 steps" in (ended_reason(Trail(repeats=(0, 5, 0)), NoProgress()) or "")
    many = nudge(Trail(repeats=(3, 0, 0)), NoProgress(), [f"{number}{'x' * 999}" for number in range(99)])
    assert len(many or "") < 2_000


def test_which_tools_may_repeat() -> None:
    """Patterns name them; a run ends after the steps before the nudge plus those after it."""
    limit = NoProgress(steps=4, after_nudge=1, may_repeat=("poll_*",))
    assert (limit.end, limit.lets_repeat("poll_ci"), limit.lets_repeat("look")) == (5, True, False)


def settled(text: str) -> SettledCall:
    """A call as two letters: its arguments and its result."""
    return SettledCall(tool_name="look", raw_input=text[0], result=text[1:])


def moments(steps: Sequence[str], limit: NoProgress) -> tuple[list[int], int | None]:
    """Return after which steps the model is nudged, and after which one the run ends; steps: calls with a space between."""
    trail, nudged = Trail(), []
    for place, step in enumerate(steps, start=1):
        calls = [settled(each) for each in step.split()]
        trail = limit.trail_after(Trail.model_validate_json(trail.model_dump_json()), calls)
        text = nudge(trail, limit, ["look"])
        if text is not None:
            assert is_nudge(user_message(text))
            nudged.append(place)
        if ended_reason(trail, limit) is not None:
            return nudged, place
    return nudged, None


CHURN = "0123456789bcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("steps", "nudged", "ended"),
    [
        ([f"ax {each}{each}" for each in CHURN], [7], 9),
        ([f"{each}- ax" for each in CHURN], [7], 9),
        ([text for each in CHURN for text in ("ax", f"{each}-")], [13], 17),
        ([f"{each}{each}" for each in CHURN], [], None),
        ([f"{each}-" for each in CHURN], [], None),
        ([f"a{each} b{each}" for each in CHURN], [], None),
        ([text for each in CHURN for text in ("ax", f"{each}1", f"{each}2", f"{each}3")], [], None),
        (["ax"] * 30, [4], 6),
        (["ax"] * 3 + [f"ax {each}-" for each in CHURN], [7], 9),
        (["ax"] * 5 + [f"ax {each}-" for each in CHURN], [4, 11], 13),
    ],
    ids=[
        "beside a call that changes",
        "beside one with the same result each time",
        "in every second step",
        "paging",
        "many arguments, one result",
        "polling what changes",
        "every fourth step",
        "steps that repeat as a whole keep their own limit",
        "after a few steps that repeat as a whole",
        "after a nudge for steps that repeat as a whole",
    ],
)
def test_one_call_that_repeats_is_noticed_beside_others(steps: list[str], nudged: list[int], ended: int | None) -> None:
    """The same call with the same result counts whatever is beside it; other arguments or another result never do."""
    assert moments(steps, NoProgress()) == (nudged, ended)


def test_limits_of_repeated_calls() -> None:
    """``calls`` and ``after_nudge`` say when; the reason names the tool, unless the model made the name up."""
    steps = [f"ax {each}-" for each in CHURN]
    assert moments(steps, NoProgress(steps=2, calls=2, after_nudge=3)) == ([3], 6)
    assert moments(steps, NoProgress(steps=9)) == ([10], 12)
    assert moments(["ax"] * 30, NoProgress(steps=9)) == ([10], 12)
    assert moments(["ax"] * 30, NoProgress(after_nudge=10)) == ([4], 14)
    for name, in_reason in (("look", "one call of look 9 times"), ("lo ok\n", "made one call 9 times")):
        trail = Trail()
        for each in CHURN[:9]:
            calls = [SettledCall(tool_name=name, raw_input="a", result="x"), settled(f"{each}-")]
            trail = trail.then(step_digest(calls), calls)
        assert in_reason in (ended_reason(trail, NoProgress()) or "")


@given(st.lists(st.lists(st.sampled_from(["ax", "ay", "bx", "cz", "dz"]), max_size=3).map(" ".join), max_size=40))
def test_no_run_ends_without_a_nudge_and_without_repeats(steps: list[str]) -> None:
    """Before a run ends, the model was nudged, at least ``after_nudge`` steps earlier, and some call came more than once."""
    limit = NoProgress()
    nudged, ended = moments(steps, limit)
    if ended is not None:
        assert nudged
        assert nudged[0] <= ended - limit.after_nudge
        times = max(sum(each in step.split() for step in steps[:ended]) for each in ("ax", "ay", "bx", "cz", "dz"))
        assert times >= 2


@given(st.lists(st.lists(st.integers(0, 10**6), max_size=5), max_size=30))
def test_calls_that_all_differ_are_never_noticed(steps: list[list[int]]) -> None:
    """However many there are, calls that were not made before neither nudge nor end a run."""
    number, trail = 0, Trail()
    for step in steps:
        calls = []
        for each in step:
            number += 1
            calls.append(SettledCall(tool_name="look", raw_input=f"{number}", result=str(each % 2)))
        trail = trail.then(step_digest(calls), calls)
        assert nudge(trail, NoProgress(), []) is None
        assert ended_reason(trail, NoProgress()) is None


def test_a_trail_stays_small() -> None:
    """However many calls a step makes, the trail remembers a few: those that repeat most."""
    trail = Trail()
    for step in range(4):
        calls = [SettledCall(tool_name="x" * 999, raw_input=f"{step} {n}", result="") for n in range(500)]
        calls.insert(9, settled("ax"))
        trail = trail.then(step_digest(calls), calls)
    assert len(trail.calls) == MAX_CALLS
    assert trail.calls[settled("ax").digest[:DIGEST_CHARS]].repeats == 3
    assert len(trail.model_dump_json()) < MAX_CALLS * 200
