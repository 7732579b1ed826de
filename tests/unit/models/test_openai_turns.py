"""The order of messages that strict servers of chat completions insist on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.conversation.messages import FilePart, Message, TextPart, user_message
from turngate.models.openai.request import PROVIDER, in_turns, request_body

IMAGE = FilePart(type="image", media_type="image/png", url="https://example.com/a.png")


def sent(*messages: Message, model: str = "m") -> list[dict[str, Any]]:
    body: dict[str, Any] = request_body(model, messages, [])
    found: list[dict[str, Any]] = body["messages"]
    return found


def says(role: Any, text: str, **options: Any) -> Message:
    return Message(role=role, parts=(TextPart(text=text),), provider_options={PROVIDER: options} if options else {})


def test_neighbours_of_one_side_are_one_message() -> None:
    """Text as paragraphs, and blocks where somebody sent a file; instructions stay apart from what people say."""
    assert sent(says("system", "Be brief."), user_message("a"), user_message("b"), says("assistant", "c")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "c"},
    ]
    assert sent(user_message("a"), Message(role="user", parts=(IMAGE,)), user_message("b")) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": IMAGE.url}},
                {"type": "text", "text": "b"},
            ],
        }
    ]
    assert sent(says("assistant", "a"), says("assistant", "b")) == [{"role": "assistant", "content": "a\n\nb"}]


def test_a_message_with_opaque_fields_stays_one_of_its_own() -> None:
    """Its reasoning or name belongs to it alone."""
    for role in ("user", "assistant"):
        marked = says(role, "a", name="ada")
        assert len(sent(marked, says(role, "b"))) == len(sent(says(role, "b"), marked)) == 2


@pytest.mark.parametrize(
    ("model", "bridged"), [("mistral-medium-latest", True), ("mistralai/Devstral-Small-2", True), ("gpt-5", False)]
)
def test_mistrals_models_say_a_word_between_a_result_and_a_person(model: str, bridged: bool) -> None:
    """They refuse a user's message directly behind a result; to everybody else nothing is sent that nobody said."""
    result = {"role": "tool", "tool_call_id": "a", "content": "{}"}
    asked = {"role": "user", "content": "and?"}
    between = [{"role": "assistant", "content": "OK"}] if bridged else []
    assert in_turns([result, result, asked], model=model) == [result, result, *between, asked]
    answer = {"role": "assistant", "content": "Seen."}
    assert in_turns([result, answer, asked], model=model) == [result, answer, asked]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["a", "b", " ", "a\n\nb"]))))
def test_sides_take_turns_and_nothing_is_lost(said: list[tuple[str, str]]) -> None:
    """Of any plain conversation; and an order that is right already is left as it is."""
    messages = [{"role": role, "content": text} for role, text in said]
    turns = in_turns(messages, model="m")
    assert all(one["role"] != following["role"] for one, following in pairwise(turns))
    for role in ("user", "assistant"):
        assert "\n\n".join(turn["content"] for turn in turns if turn["role"] == role) == "\n\n".join(
            text for side, text in said if side == role
        )
    assert in_turns(turns, model="m") == turns
