"""I1, as pure rules: every call answered exactly once, directly behind it, in the model's order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.history import CLOSED_BY_REPAIR, close_pending, is_reconciled, reconcile, unanswered_calls
from turngate.domain.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart, user_message
from turngate.domain.results import Failure, Ok, expired

HI = user_message("hi")


def called(*ids: str) -> Message:
    return Message(
        role="assistant",
        parts=tuple(ToolCallPart(tool_call_id=call_id, tool_name="search", input='{"query": "x"}') for call_id in ids),
    )


def answer(call_id: str, number: int = 0) -> ToolResultPart:
    return ToolResultPart(tool_call_id=call_id, tool_name="search", result=Ok(value={"count": number}))


def answered(*ids: str) -> Message:
    return Message(role="tool", parts=tuple(answer(call_id) for call_id in ids))


@pytest.mark.parametrize(
    ("history", "open_ids"),
    [
        pytest.param([], [], id="nothing said yet"),
        pytest.param([HI], [], id="no call"),
        pytest.param([HI, called("a")], ["a"], id="a call and no result"),
        pytest.param([HI, called("a"), answered("a")], [], id="answered"),
        pytest.param([HI, called("a", "b"), answered("a")], ["b"], id="one of two answered"),
        pytest.param([called("a", "b", "c"), answered("b")], ["a", "c"], id="in the model's order"),
        pytest.param([called("a", "b"), answered("a"), answered("b")], [], id="results in two messages"),
        pytest.param([called("a"), answered("a"), user_message("never mind")], [], id="answered, then redirected"),
        pytest.param([called("a"), user_message("never mind"), answered("a")], ["a"], id="answered a turn too late"),
        pytest.param([answered("a"), called("a")], ["a"], id="a result before its call does not answer it"),
        pytest.param([answered("a"), HI, called("a")], ["a"], id="nor does one a turn before"),
        pytest.param([called("a", "a")], ["a"], id="two calls of one id are open once"),
        pytest.param([called("a", "a"), answered("a")], [], id="and answered once"),
        pytest.param([called("a"), answered("a"), HI, called("a")], ["a"], id="an id used again needs its own result"),
        pytest.param([answered("ghost")], [], id="a result of no call opens nothing"),
    ],
)
def test_i1_open_calls(history: list[Message], open_ids: list[str]) -> None:
    """I1: a call is open unless its result stands between it and the next message of somebody else."""
    assert [call.tool_call_id for call in unanswered_calls(history)] == open_ids


@pytest.mark.parametrize(
    ("history", "accepted"),
    [
        pytest.param([], True, id="empty"),
        pytest.param([HI, called("a"), answered("a")], True, id="answered"),
        pytest.param([HI, called("a")], False, id="open"),
        pytest.param([answered("ghost")], False, id="a result of no call"),
        pytest.param([called("a"), answered("a", "ghost")], False, id="a stray result beside a good one"),
        pytest.param([called("a"), answered("a", "a")], False, id="two results of one call"),
        pytest.param([called("a", "b"), answered("b", "a")], False, id="results out of the model's order"),
        pytest.param([called("a", "b"), answered("a"), answered("b")], False, id="results in two messages"),
        pytest.param([called("a"), answered("a"), HI, answered("a")], False, id="a second result in a later turn"),
    ],
)
def test_i1_what_a_provider_would_accept(history: list[Message], accepted: bool) -> None:
    """I1: stricter than "each call has a result": no stray, second, late or re-ordered result either."""
    assert is_reconciled(history) is accepted


def test_i1_closures_are_one_per_open_call_each_with_its_own_reason() -> None:
    """Closing what is open, in call order, makes the history whole; a call without a reason of its own gets the default."""
    history = [HI, called("a", "b", "c"), answered("b")]
    moved_on = Failure(kind="cancelled", reason="user moved on")
    closures = close_pending(unanswered_calls(history), {"c": expired()}, moved_on)
    assert [(part.tool_call_id, part.tool_name, part.result) for part in closures] == [
        ("a", "search", moved_on),
        ("c", "search", expired()),
    ]
    whole = [*history, Message(role="tool", parts=tuple(closures))]
    assert unanswered_calls(whole) == []
    assert close_pending(unanswered_calls(whole), {}, moved_on) == []


def test_i1_the_repair_says_what_it_knows() -> None:
    """A call that a crash left open is closed as interrupted, without a claim that it ran or did not."""
    repaired = reconcile([HI, called("a")])
    assert repaired == [
        HI,
        called("a"),
        Message(role="tool", parts=tuple(close_pending(called("a").calls, {}, CLOSED_BY_REPAIR))),
    ]
    assert CLOSED_BY_REPAIR.kind == "interrupted"


def test_a_whole_history_is_returned_untouched() -> None:
    """A results message in order stays the very same, its provider options with it: rewriting breaks prompt caches."""
    results = Message(role="tool", parts=(answer("a"),), provider_options={"cache": {"ttl": 1.0}})
    history = [HI, called("a"), results, Message(role="assistant", parts=(TextPart(text="done"),))]
    assert reconcile(history) == history
    assert reconcile(history)[2] is results


IDS = st.sampled_from("abcd")
TALK = st.builds(user_message, st.sampled_from(["hi", "stop"]))
CALLS = st.lists(IDS, min_size=0, max_size=4).map(lambda ids: called(*ids))
RESULTS = st.lists(IDS, min_size=0, max_size=5).map(lambda ids: answered(*ids))


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Any order of talk, calls and results, as crashes and bugs may leave it; each result told apart by its number."""
    number = itertools.count()

    def numbered(message: Message) -> Message:
        parts: list[Part] = [
            answer(part.tool_call_id, next(number)) if isinstance(part, ToolResultPart) else part
            for part in message.parts
        ]
        return message.model_copy(update={"parts": tuple(parts)})

    drawn = draw(st.lists(st.one_of(TALK, CALLS, RESULTS, RESULTS), max_size=12))
    return [numbered(message) for message in drawn]


def said(history: Sequence[Message]) -> list[Message]:
    return [message for message in history if message.role != "tool"]


def results_behind(history: Sequence[Message], message: Message) -> list[ToolResultPart]:
    """The results between this very message (by identity: two may be equal) and the next that is not a tool message."""
    index = next(place for place, each in enumerate(history) if each is message)
    following = itertools.takewhile(lambda each: each.role == "tool", history[index + 1 :])
    return [part for each in following for part in each.results]


@given(histories())
def test_i1_any_history_is_repaired(history: list[Message]) -> None:
    """I1: whatever is missing, doubled or misplaced, the repaired history is whole, and repairing it changes nothing."""
    repaired = reconcile(history)
    assert is_reconciled(repaired)
    assert reconcile(repaired) == repaired
    assert unanswered_calls(repaired) == []
    assert is_reconciled(history) is (repaired == history)


@given(histories())
def test_i1_the_repair_loses_nothing_that_was_said_and_no_valid_result(history: list[Message]) -> None:
    """I1: what was said stays, in order; each call keeps its first valid result; only an open call gets the closure."""
    repaired = reconcile(history)
    assert said(repaired) == said(history)
    for message in said(repaired):
        got = results_behind(repaired, message)
        assert [part.tool_call_id for part in got] == list(dict.fromkeys(call.tool_call_id for call in message.calls))
        had = results_behind(history, message)
        for part in got:
            valid = [each for each in had if each.tool_call_id == part.tool_call_id]
            assert part == valid[0] if valid else part.result == CLOSED_BY_REPAIR


@given(histories())
def test_i1_the_repair_and_the_list_of_open_calls_agree(history: list[Message]) -> None:
    """I1: the calls that get a closure are exactly those that were listed as open."""
    closed = {
        part.tool_call_id for each in reconcile(history) for part in each.results if part.result == CLOSED_BY_REPAIR
    }
    assert closed == {call.tool_call_id for call in unanswered_calls(history)}


@given(histories(), st.integers(min_value=0, max_value=12))
def test_i1_an_interruption_at_any_point_leaves_a_history_that_can_go_on(history: list[Message], cut: int) -> None:
    """I1: a whole history cut off anywhere and continued by a person is whole again after the repair."""
    interrupted = [*reconcile(history)[:cut], user_message("go on")]
    repaired = reconcile(interrupted)
    assert is_reconciled(repaired)
    assert repaired[-1].text == "go on"
