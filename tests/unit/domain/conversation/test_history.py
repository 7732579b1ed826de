"""I1, as pure rules: every call is answered exactly once, directly after it, in the model's order."""

from __future__ import annotations

import pytest

from turngate.domain.conversation.history import (
    CLOSED_BY_REPAIR,
    close_pending,
    closures,
    is_reconciled,
    reconcile,
    unanswered_calls,
)
from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from turngate.domain.tools.results import Failure, Ok, expired

HI = user_message("hi")
SYSTEM = Message(role="system", parts=(TextPart(text="Be brief."),))


def called(*ids: str) -> Message:
    return Message(
        role="assistant",
        parts=tuple(ToolCallPart(tool_call_id=call_id, tool_name="search", input='{"query": "x"}') for call_id in ids),
    )


def answer(call_id: str, number: int = 0) -> ToolResultPart:
    return ToolResultPart(tool_call_id=call_id, tool_name="search", result=Ok(value={"count": number}))


def answered(*ids: str) -> Message:
    return Message(role="tool", parts=tuple(answer(call_id) for call_id in ids))


def as_role(role: str, message: Message) -> Message:
    return message.model_copy(update={"role": role})


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
        pytest.param([called("a"), called("a")], ["a"], id="two messages with one id are open once"),
        pytest.param([called("a"), HI, called("a"), answered("a")], ["a"], id="of which the second is answered"),
        pytest.param([called("a", "b"), answered("b", "a")], [], id="answered out of order"),
        pytest.param([called("a"), answered("a", "a")], [], id="answered twice"),
        pytest.param([called("b", "a"), HI, called("d", "c")], ["b", "a", "d", "c"], id="open in two turns"),
        pytest.param([answered("ghost")], [], id="a result of no call opens nothing"),
        pytest.param([as_role("user", called("a"))], [], id="a call in a person's message is no call"),
        pytest.param([called("a"), as_role("user", answered("a"))], ["a"], id="a result in a person's message"),
        pytest.param([called("a"), as_role("assistant", answered("a"))], ["a"], id="or the model's own"),
        pytest.param([called("a"), SYSTEM, answered("a")], ["a"], id="a system message ends the turn too"),
    ],
)
def test_i1_open_calls(history: list[Message], open_ids: list[str]) -> None:
    """I1: a call is open unless its result is between it and the next message of another role."""
    assert [call.tool_call_id for call in unanswered_calls(history)] == open_ids


def with_words(message: Message) -> Message:
    return message.model_copy(update={"parts": (*message.parts, TextPart(text="by the way"))})


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
        pytest.param([called("a"), answered("a"), Message(role="tool", parts=())], False, id="an empty tool message"),
        pytest.param([called("a"), with_words(answered("a"))], False, id="words beside the results"),
    ],
)
def test_i1_what_a_provider_would_accept(history: list[Message], accepted: bool) -> None:
    """I1: stricter than "each call has a result": no stray, second, late or reordered result either."""
    assert is_reconciled(history) is accepted


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, Failure(kind="cancelled"), id="no reason: cancelled, and not a word more"),
        pytest.param({"reason": "moved on"}, Failure(kind="cancelled", reason="moved on"), id="a reason"),
        pytest.param({"reason": expired()}, expired(), id="a failure, as it is"),
    ],
)
def test_i1_each_open_call_is_closed_once_in_call_order(options: dict[str, str | Failure], expected: Failure) -> None:
    """I1: one closure per open call, under its own tool's name, all with the given reason."""
    history = [HI, called("c", "b", "a", "c"), answered("b")]
    got = close_pending(history, **options)
    assert [(part.tool_call_id, part.tool_name, part.result) for part in got] == [
        ("c", "search", expected),
        ("a", "search", expected),
    ]
    whole = [*history, Message(role="tool", parts=tuple(got))]
    assert unanswered_calls(whole) == []
    assert close_pending(whole, **options) == []


def test_i1_closing_the_last_message_makes_the_history_whole() -> None:
    """I1: closures appended after the message with the calls are in their place; nothing is left to repair."""
    history = [HI, called("a", "b")]
    closed = [*history, Message(role="tool", parts=tuple(close_pending(history, "moved on")))]
    assert is_reconciled(closed)
    assert not is_reconciled([HI, *history, user_message("no"), closed[-1]])


def test_i1_an_earlier_open_call_is_closed_in_its_place() -> None:
    """I1: an appended closure would be too late; ``reconcile`` inserts it after its call."""
    history = [called("a"), user_message("never mind"), called("b"), answered("b")]
    moved_on = Failure(kind="cancelled", reason="moved on")
    assert [part.tool_call_id for part in close_pending(history, moved_on)] == ["a"]
    assert reconcile(history, moved_on) == [
        called("a"),
        Message(role="tool", parts=tuple(closures(called("a").calls, moved_on))),
        *history[1:],
    ]


def test_i1_of_two_calls_with_one_id_the_first_names_the_closure() -> None:
    """I1: a shared id gives one result, and all functions agree which call it belongs to."""
    first = ToolCallPart(tool_call_id="a", tool_name="search", input="{}")
    second = first.model_copy(update={"tool_name": "delete"})
    history = [Message(role="assistant", parts=(first, second))]
    assert unanswered_calls(history) == [first]
    assert [part.tool_name for part in closures([first, second], CLOSED_BY_REPAIR)] == ["search"]
    assert [part.tool_name for part in close_pending(history)] == ["search"]
    assert [part.tool_name for part in reconcile(history)[-1].results] == ["search"]


def test_i1_the_first_of_two_results_counts() -> None:
    """I1: a second result for a call is an error to repair; the first stays unchanged."""
    history = [called("a"), Message(role="tool", parts=(answer("a", 1), answer("a", 2)))]
    assert reconcile(history) == [called("a"), Message(role="tool", parts=(answer("a", 1),))]


def test_i1_the_repair_says_what_it_knows() -> None:
    """A call that a crash left open is closed as interrupted, with no claim about whether it ran."""
    closed = Message(role="tool", parts=tuple(closures(called("a").calls, CLOSED_BY_REPAIR)))
    assert reconcile([HI, called("a")]) == [HI, called("a"), closed]
    assert CLOSED_BY_REPAIR.kind == "interrupted"


def test_a_whole_history_is_returned_untouched() -> None:
    """A correct results message stays the same object with its provider options: rewriting breaks prompt caches."""
    results = Message(role="tool", parts=(answer("a"),), provider_options={"cache": {"ttl": 1.0}})
    history = [HI, called("a"), results, Message(role="assistant", parts=(TextPart(text="done"),))]
    assert all(after is before for after, before in zip(reconcile(history), history, strict=True))


def test_a_repaired_results_message_keeps_the_provider_options_of_those_that_gave_a_result() -> None:
    """Merged results messages keep both providers' options; the first one's value wins."""

    def marked(call_id: str, **options: str) -> Message:
        return Message(role="tool", parts=(answer(call_id),), provider_options=options)

    doubled, stray = marked("b", no="second result"), marked("ghost", no="no call")
    history = [called("a", "b"), marked("b", one="b"), doubled, stray, marked("a", one="a", two="a"), HI]
    repaired = reconcile(history)
    assert [part.tool_call_id for part in repaired[1].results] == ["a", "b"]
    assert repaired[1].provider_options == {"one": "b", "two": "a"}
    assert repaired[2:] == [HI]
