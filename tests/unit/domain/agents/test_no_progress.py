"""No progress: which steps count as repeats of earlier ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.agents.no_progress import (
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
    text = nudge(3, ["look", "look", "peek"])
    assert "your last 3 steps made the same calls (look, peek)" in text
    assert is_nudge(user_message(text))
    assert not is_nudge(user_message(f"What is this: {text}"))
    assert "last 5 steps" in ended_reason(5)
    assert len(nudge(3, [f"{number}{'x' * 999}" for number in range(99)])) < 2_000


def test_which_tools_may_repeat() -> None:
    """Patterns name them; a run ends after the steps before the nudge plus those after it."""
    limit = NoProgress(steps=4, after_nudge=1, may_repeat=("poll_*",))
    assert (limit.end, limit.lets_repeat("poll_ci"), limit.lets_repeat("look")) == (5, True, False)
