"""The order of messages that strict chat-completions servers require."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.conversation.messages import FilePart, Message, TextPart, user_message
from turngate.models.openai.request import PROVIDER, in_turns, request_body
from turngate.models.port import ModelRequest

IMAGE = FilePart(type="image", media_type="image/png", url="https://example.com/a.png")


def sent(*messages: Message, model: str = "m") -> list[dict[str, Any]]:
    body: dict[str, Any] = request_body(model, ModelRequest(messages=messages))
    sent_messages: list[dict[str, Any]] = body["messages"]
    return sent_messages


def says(role: Any, text: str, **options: Any) -> Message:
    return Message(role=role, parts=(TextPart(text=text),), provider_options={PROVIDER: options} if options else {})


def test_neighbours_of_one_role_are_one_message() -> None:
    """Text as paragraphs, and blocks where there is a file; instructions stay separate from the user's text."""
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


def test_a_message_with_opaque_fields_is_never_merged() -> None:
    """Its reasoning or name belongs to it alone."""
    for role in ("user", "assistant"):
        marked = says(role, "a", name="ada")
        assert len(sent(marked, says(role, "b"))) == len(sent(says(role, "b"), marked)) == 2


@pytest.mark.parametrize(
    ("model", "bridged"), [("mistral-medium-latest", True), ("mistralai/Devstral-Small-2", True), ("gpt-5", False)]
)
def test_mistrals_models_get_an_assistant_message_before_a_user(model: str, bridged: bool) -> None:
    """They refuse a user's message directly after a result; other servers get no added message."""
    result = {"role": "tool", "tool_call_id": "a", "content": "{}"}
    question = {"role": "user", "content": "and?"}
    between = [{"role": "assistant", "content": "OK"}] if bridged else []
    assert in_turns([result, result, question], model=model) == [result, result, *between, question]
    answer = {"role": "assistant", "content": "Seen."}
    assert in_turns([result, answer, question], model=model) == [result, answer, question]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(["a", "b", " ", "a\n\nb"]))))
def test_roles_alternate_and_nothing_is_lost(spoken: list[tuple[str, str]]) -> None:
    """For any plain conversation; one that alternates already is unchanged."""
    messages = [{"role": role, "content": text} for role, text in spoken]
    turns = in_turns(messages, model="m")
    assert all(one["role"] != following["role"] for one, following in pairwise(turns))
    for role in ("user", "assistant"):
        assert "\n\n".join(turn["content"] for turn in turns if turn["role"] == role) == "\n\n".join(
            text for side, text in spoken if side == role
        )
    assert in_turns(turns, model="m") == turns
