"""I1 for any history: whatever crashes, people and bugs cause, the repair makes it whole and loses nothing."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.conversation import history as module
from turngate.domain.conversation.history import close_pending, closures, is_reconciled, reconcile, unanswered_calls
from turngate.domain.conversation.messages import (
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from turngate.domain.tools.results import Failure, Ok

# Few ids, so that they collide; raw input of every sort, because nothing here may depend on it.
IDS = st.sampled_from(["a", "b", "c", "d", ""])
TOOLS = st.sampled_from(["look", "pay", "constructor"])
RAW = st.sampled_from(["{}", '{ "cents" : 5 }', '{"cents": ', "", "not json"])
OPAQUE: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"openai_compatible": {"extra": [1.0, None, "é"]}}, {"other": {"signature": "Cp/+="}}]
)
FAILURES = st.builds(
    Failure,
    kind=st.sampled_from(["cancelled", "interrupted", "expired", "rejected", "declined"]),
    reason=st.sampled_from(["", "moved on"]),
)
CALLS = st.builds(ToolCallPart, tool_call_id=IDS, tool_name=TOOLS, input=RAW, provider_options=OPAQUE)
RESULTS = st.builds(
    ToolResultPart,
    tool_call_id=IDS,
    tool_name=TOOLS,
    # Numbered, so that two results for one call differ.
    result=st.builds(Ok, value=st.fixed_dictionaries({"n": st.integers(0, 10**6)})) | FAILURES,
    edited_input=st.none() | st.just('{"cents":9}'),
    provider_options=OPAQUE,
)
TEXTS = st.builds(TextPart, text=st.sampled_from(["", "hi"]), provider_options=OPAQUE)
THOUGHTS = st.builds(ReasoningPart, text=st.just("hm"), provider_options=OPAQUE)


def messages(role: str, *parts: st.SearchStrategy[Any], most: int = 4) -> st.SearchStrategy[Message]:
    some = st.lists(st.one_of(*parts), max_size=most).map(tuple)
    return st.builds(Message, role=st.just(role), parts=some, provider_options=OPAQUE)


ASSISTANT = messages("assistant", CALLS, CALLS, TEXTS, THOUGHTS)
TOOL = messages("tool", RESULTS, most=5)
TALK = messages("user", TEXTS, most=2) | messages("system", TEXTS, most=1)
# What no adapter writes but an import may contain: calls and results in a message of any role.
ODD = st.sampled_from(["user", "system", "assistant", "tool"]).flatmap(
    lambda role: messages(role, CALLS, RESULTS, TEXTS)
)
HISTORIES = st.lists(st.one_of(ASSISTANT, ASSISTANT, TOOL, TOOL, TALK, ODD), max_size=10)


def truncated(history: Sequence[Message], parts_kept: int) -> list[Message]:
    """Cut the history at a part, as a crash does between two parts of one message."""
    before: list[Message] = []
    left = parts_kept
    for message in history:
        if left < len(message.parts):
            return [*before, message.model_copy(update={"parts": message.parts[:left]})]
        before.append(message)
        left -= len(message.parts)
    return before


@st.composite
def interrupted(draw: st.DrawFn) -> list[Message]:
    """Draw any history, interrupted any number of times: cut off, closed with any reason, repaired or continued."""
    history = draw(HISTORIES)
    for _time in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["cut", "close", "repair", "say", "continue"])):
            case "cut":
                history = truncated(history, draw(st.integers(0, sum(len(message.parts) for message in history))))
            case "close":
                closed = close_pending(history, draw(FAILURES | st.sampled_from(["", "moved on"])))
                history = [*history, Message(role="tool", parts=tuple(closed))]
            case "repair":
                history = reconcile(history, draw(FAILURES))
            case "say":
                history = [*history, user_message("continue")]
            case _:
                history = [*history, *draw(HISTORIES)]
    return history


def spoken(history: Sequence[Message]) -> list[Message]:
    return [message for message in history if message.role != "tool"]


def results_after(history: Sequence[Message], message: Message) -> list[Message]:
    """Return the tool messages between this object and the next message of another role; equal messages differ by identity."""
    index = next(place for place, each in enumerate(history) if each is message)
    return list(itertools.takewhile(lambda each: each.role == "tool", history[index + 1 :]))


def distinct(history: Sequence[Message]) -> list[Message]:
    """Copy repeated objects, so that identity tells places apart."""
    return [message.model_copy() for message in history]


def call_ids(message: Message) -> list[str]:
    calls = message.calls if message.role == "assistant" else []
    return list(dict.fromkeys(call.tool_call_id for call in calls))


@given(interrupted(), FAILURES)
def test_i1_any_history_is_repaired(history: list[Message], closure: Failure) -> None:
    """I1: every call has exactly one result, directly after it and in the model's order; there is no other result."""
    repaired = distinct(reconcile(history, closure))
    assert is_reconciled(repaired)
    assert unanswered_calls(repaired) == []
    assert close_pending(repaired) == []
    expected: list[list[str]] = []
    for message in spoken(repaired):
        following = results_after(repaired, message)
        assert len(following) == bool(call_ids(message))
        for results in following:
            assert [part.tool_call_id for part in results.results] == call_ids(message)
            assert len(results.results) == len(results.parts)
            expected.append(call_ids(message))
    assert sum(message.role == "tool" for message in repaired) == len(expected)


@given(interrupted(), FAILURES, FAILURES)
def test_i1_the_repair_is_done_once(history: list[Message], closure: Failure, other: Failure) -> None:
    """I1: repairing again with any closure returns the same messages; only a whole history is reconciled."""
    repaired = reconcile(history, closure)
    assert all(again is once for again, once in zip(reconcile(repaired, other), repaired, strict=True))
    assert is_reconciled(history) is (repaired == history)


@given(interrupted(), FAILURES)
def test_i1_no_text_and_no_valid_result_is_lost(history: list[Message], closure: Failure) -> None:
    """I1: texts stay the same objects in order; a call keeps its first valid result; only open calls are closed."""
    history = distinct(history)
    before = [message.model_dump_json() for message in history]
    repaired = reconcile(history, closure)
    assert [message.model_dump_json() for message in history] == before
    assert all(after is earlier for after, earlier in zip(spoken(repaired), spoken(history), strict=True))
    for message in spoken(history):
        results = [part for each in results_after(history, message) for part in each.results]
        for part in (part for each in results_after(repaired, message) for part in each.results):
            valid = [each for each in results if each.tool_call_id == part.tool_call_id]
            if valid:
                assert part is valid[0]
            else:
                first = next(call for call in message.calls if call.tool_call_id == part.tool_call_id)
                assert part == closures([first], closure)[0]


@given(interrupted())
def test_i1_open_calls_closures_and_repairs_agree(history: list[Message]) -> None:
    """I1: the open calls, their closures and the closures that the repair writes have the same ids, each once."""
    # A kind that no drawn result has, which marks what the repair added.
    mark = Failure(kind="marked")
    open_ids = [call.tool_call_id for call in unanswered_calls(history)]
    assert len(open_ids) == len(set(open_ids))
    assert [part.tool_call_id for part in close_pending(history)] == open_ids
    added = [part.tool_call_id for each in reconcile(history, mark) for part in each.results if part.result == mark]
    assert list(dict.fromkeys(added)) == open_ids


@given(interrupted(), messages("assistant", CALLS, TEXTS), FAILURES | st.sampled_from(["", "moved on"]))
def test_i1_closing_an_open_tail_makes_the_history_whole(
    history: list[Message], last: Message, reason: Failure | str
) -> None:
    """I1: if only the last message's calls are open, appending their closures is enough."""
    tail_open = [*reconcile(history), last]
    closed = close_pending(tail_open, reason)
    assert [part.tool_call_id for part in closed] == call_ids(last)
    whole = [*tail_open, Message(role="tool", parts=tuple(closed))] if closed else tail_open
    assert is_reconciled(whole)
    assert close_pending(whole, reason) == []


@given(interrupted(), messages("assistant", CALLS, most=5), st.data())
def test_i1_closing_a_half_answered_tail_leaves_the_repair_nothing_to_make_up(
    history: list[Message], last: Message, data: st.DataObject
) -> None:
    """I1: with results in any order and closures for the rest, the repair only sorts them."""
    arrived = data.draw(st.lists(st.sampled_from(call_ids(last)), unique=True)) if last.calls else []
    parts: list[Part] = [
        ToolResultPart(tool_call_id=call_id, tool_name="look", result=Ok(value={"n": place}))
        for place, call_id in enumerate(arrived)
    ]
    half = [*reconcile(history), last, Message(role="tool", parts=tuple(parts))]
    closed = [*half, Message(role="tool", parts=tuple(close_pending(half, "moved on")))]
    assert unanswered_calls(closed) == []
    assert reconcile(closed) == reconcile(half, Failure(kind="cancelled", reason="moved on"))


@given(interrupted(), FAILURES)
def test_i1_the_repair_is_a_function_of_what_is_stored(history: list[Message], closure: Failure) -> None:
    """I1: the same messages read back from the store are repaired to the same bytes, so a retry sends the same request."""
    stored = [Message.model_validate_json(message.model_dump_json()) for message in history]
    first, again = ([message.model_dump_json() for message in reconcile(each, closure)] for each in (history, stored))
    assert first == again


def test_the_rules_of_history_see_values_only() -> None:
    """The module imports only abstract collections and domain values: no clock, no randomness, no I/O."""
    tree = ast.parse(inspect.getsource(module))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    values = {"turngate.domain.conversation.messages", "turngate.domain.tools.results"}
    assert imported == {"__future__", "collections.abc", *values}
