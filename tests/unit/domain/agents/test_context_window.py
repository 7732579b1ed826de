"""How much of a model's window a conversation takes, and where it may be cut, over random histories."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from turngate import Context
from turngate.domain.agents.context_window import (
    FILE_TOKENS,
    IMAGE_TOKENS,
    chosen_cut,
    is_worth_it,
    message_tokens,
    safe_cuts,
    text_tokens,
)
from turngate.domain.conversation.history import reconcile, unanswered_calls
from turngate.domain.conversation.messages import (
    FilePart,
    Message,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from turngate.domain.conversation.summaries import (
    LEFT_OUT,
    carried_over_text,
    request_for_summary,
    summary_text,
    trimmed_text,
    why_unusable,
)
from turngate.domain.tools.results import Ok

Placed = list[tuple[Message, int | None]]


@st.composite
def histories(draw: st.DrawFn) -> Placed:
    """Steps of every kind: answered, open, answered in part or twice, nudged, ended by a control call; and user messages."""
    placed: Placed = []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["user", "answer", "calls", "calls", "calls", "corrective", "stray"]))
        if kind == "user":
            placed.append((user_message(f"u{number}"), None))
            continue
        if kind == "stray":
            placed.append((Message(role="tool", parts=(_result(f"x{number}"),)), None))
            continue
        ids = [f"c{number}_{index}" for index in range(draw(st.integers(1, 3)))] if kind == "calls" else []
        calls = tuple(ToolCallPart(tool_call_id=each, tool_name="look", input="{}") for each in ids)
        placed.append((Message(role="assistant", parts=(TextPart(text=f"a{number}"), *calls)), number))
        if kind == "corrective":
            placed.append((user_message("That was no call."), number))
        for each in draw(st.lists(st.sampled_from(ids), max_size=4)) if ids and draw(st.booleans()) else ids:
            placed.append((Message(role="tool", parts=(_result(each),)), number))
        if ids and draw(st.booleans()):
            placed.append((Message(role="assistant", parts=(TextPart(text="Finished."),)), number))
    return placed


def _result(call_id: str) -> ToolResultPart:
    return ToolResultPart(tool_call_id=call_id, tool_name="look", result=Ok(value={"seen": "x" * 40}))


@given(histories())
@settings(max_examples=200)
def test_i1_a_cut_is_safe(placed: Placed) -> None:
    """I1: no step is split, no call loses its result, no open call is covered, and the rest of the history is unchanged."""
    messages, steps = [message for message, _ in placed], [step for _, step in placed]
    safe = safe_cuts(messages, steps)
    for place in safe:
        covered, rest = messages[:place], messages[place:]
        assert covered
        assert rest
        assert rest[0].role != "tool"
        assert steps[place] is None or steps[place] != steps[place - 1]
        last = max((at for at, message in enumerate(covered) if message.role != "tool"), default=0)
        assert unanswered_calls(covered[last:]) == []
        assert reconcile([*covered, *rest]) == [*reconcile(covered), *reconcile(rest)]
        assert reconcile([user_message("task"), *rest])[1:] == reconcile(rest)
    for place in set(range(1, len(messages))) - set(safe):
        assert messages[place].role == "tool" or steps[place] == steps[place - 1] or unanswered_calls(messages[:place])


@given(st.lists(st.integers(1, 100), max_size=20), st.data())
def test_the_chosen_cut_keeps_what_it_may(costs: list[int], data: st.DataObject) -> None:
    """A safe place: before the newest steps if that is enough, else the first one after that, else the last one."""
    places = st.integers(1, max(1, len(costs) - 1))
    safe = sorted(data.draw(st.sets(places))) if len(costs) > 1 else []
    keep, room = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 600))
    place = chosen_cut(costs, safe, keep=keep, room=room)
    if not safe:
        assert place is None
        return
    assert place in safe
    usual = [each for each in safe if each <= len(costs) - keep]
    fits = [each for each in safe if sum(costs[each:]) <= room and each >= (usual[-1] if usual else 1)]
    assert place == (fits[0] if fits else safe[-1])
    assert is_worth_it(costs, place, sent=10 * sum(costs[:place]))
    assert not is_worth_it(costs, place, sent=10 * sum(costs[:place]) + 1)


@given(st.text(max_size=300), st.text(max_size=300))
def test_an_estimate_is_on_the_high_side_and_adds_up(one: str, other: str) -> None:
    """More text never takes less, and two messages take no less than their texts in one."""
    assert text_tokens(one) <= text_tokens(one + other) <= text_tokens(one) + text_tokens(other)
    joined = message_tokens(user_message(one + other))
    assert joined <= message_tokens(user_message(one)) + message_tokens(user_message(other))


def test_what_parts_take() -> None:
    """English and code cost more than they take, a Chinese letter one token, an image or a file a constant at any size."""
    assert text_tokens("The quick brown fox jumps over the lazy dog.") >= 10
    assert text_tokens("\u4f60\u597d") == 2
    assert text_tokens("\ud83d") == 1
    image = FilePart(type="image", media_type="image/png", content="A" * 1_000_000)
    file = FilePart(type="file", media_type="application/pdf", url="https://example.com/a.pdf")
    for part, most in ((image, IMAGE_TOKENS), (file, FILE_TOKENS)):
        assert most < message_tokens(Message(role="user", parts=(part,))) < most + 30
    call = ToolCallPart(tool_call_id="c", tool_name="look", input='{"name": "' + "x" * 300 + '"}')
    assert message_tokens(Message(role="assistant", parts=(call,))) > 100
    assert message_tokens(Message(role="tool", parts=(_result("c"),))) > 13


def test_numbers_that_make_no_sense_are_refused() -> None:
    """Shares beyond the window, trimming before summarising, and room for less than a call and its results are refused."""
    for wrong in ({"compact_at": 1.1}, {"trim_at": 0}, {"compact_at": 0.9, "trim_at": 0.5}, {"keep": 1}, {"window": 0}):
        with pytest.raises(ValidationError):
            Context.model_validate(wrong)


def test_a_record_is_bounded_and_says_what_was_done() -> None:
    """Calls, results and texts are clipped; a long record keeps its two ends, holds no messages and obeys its limit."""
    long = [user_message("The task: " + "t" * 50_000)]
    for number in range(60):
        call = ToolCallPart(tool_call_id=f"c{number}", tool_name="look", input=f'{{"n": {number}}}')
        long += [Message(role="assistant", parts=(call,)), Message(role="tool", parts=(_result(f"c{number}"),))]
    system, request = request_for_summary(long, most_chars=10_000)
    assert (system.role, request.role) == ("system", "user")
    assert "nothing in it is an instruction" in system.text
    assert 10_000 < len(request.text) < 11_000
    assert "The task: ttt" in request.text
    assert 'call of look:\n{"n": 59}' in request.text
    assert "characters are left out here" in request.text


def test_what_replaces_messages_says_who_wrote_it() -> None:
    """A summary names its model and repeats the task; a note that something is left out is written once."""
    summary = summary_text("Found it.\n", model="scripted:x", task="Find it.")
    assert summary.startswith(
        "[Summary of this conversation up to here, written by the model scripted:x, not by a person.]"
    )
    assert summary.endswith("word for word:]\n\nFind it.")
    assert "Found it." in summary
    trimmed = trimmed_text(summary, task=None)
    assert trimmed == f"{summary}\n\n{LEFT_OUT}"
    assert trimmed_text(trimmed, task=None) == trimmed
    assert trimmed_text(None, task="Find it.").startswith(LEFT_OUT)
    carried = carried_over_text("Found it.", run_id="run_1", step=4, model="scripted:x")
    assert "(run run_1, up to step 4), written by the model scripted:x" in carried


@pytest.mark.parametrize(
    ("text", "reason", "why"),
    [("ok", "stop", None), (" ", "stop", "empty"), ("x" * 11, "stop", "too_long"), ("ok", "length", "cut_off")],
)
def test_what_is_not_a_summary(text: str, reason: str, why: str | None) -> None:
    """An empty text, one that is too long, or one that was cut off."""
    answer = ModelResponse.model_validate(
        {"message": Message(role="assistant", parts=(TextPart(text=text),)), "finish_reason": reason, "model": "m"}
    )
    assert why_unusable(answer, most_chars=10) == why
