"""Call ids: present, storable and unique; the same response always gets the same ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.conversation.history import MAX_CALL_ID_CHARS, mint_call_ids
from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart


def response(*ids: str) -> Message:
    words = TextPart(text="Let me see.")
    calls = (ToolCallPart(tool_call_id=call_id, tool_name="look", input="{}") for call_id in ids)
    return Message(role="assistant", parts=(words, *calls), provider_options={"id": "resp_1"})


def minted(message: Message, *, step: int = 1, taken: set[str] | None = None) -> list[str]:
    return [call.tool_call_id for call in mint_call_ids(message, step=step, taken=taken or set()).calls]


def test_good_ids_stay() -> None:
    """An id from the provider stays as it is, because the provider knows its call by it."""
    message = response("toolu_01", "fc-2")
    assert mint_call_ids(message, step=3, taken={"other"}) == message


@pytest.mark.parametrize(
    ("ids", "taken", "expected"),
    [
        pytest.param(["", ""], set(), ["call_7_1", "call_7_2"], id="missing"),
        pytest.param(["a", "a"], set(), ["a", "call_7_2"], id="twice in one response"),
        pytest.param(["a"], {"a"}, ["call_7_1"], id="used in an earlier step"),
        pytest.param([""], {"call_7_1"}, ["call_7_1_2"], id="an earlier run of the conversation minted the same"),
        pytest.param(["call_7_2", ""], set(), ["call_7_2", "call_7_2_2"], id="the model made up what would be minted"),
        pytest.param(["", "call_7_1"], set(), ["call_7_1", "call_7_2"], id="and came second with it"),
        pytest.param(["x" * 255], set(), ["x" * 255], id="as long as the store takes"),
        pytest.param(["x" * 256], set(), ["call_7_1"], id="longer than the store takes"),
        pytest.param(["a\x00b"], set(), ["call_7_1"], id="a character PostgreSQL refuses"),
    ],
)
def test_unusable_ids_are_replaced(ids: list[str], taken: set[str], expected: list[str]) -> None:
    """An id that is missing, used or not storable is replaced by one that no other call has."""
    assert minted(response(*ids), step=7, taken=taken) == expected


@given(
    st.lists(
        st.one_of(st.sampled_from(["", "a", "call_1_1", "call_1_2", "call_1_2_2"]), st.text(max_size=300)), max_size=6
    ),
    st.sets(st.sampled_from(["a", "call_1_1", "call_1_2", "call_1_3"])),
)
def test_ids_are_unique_whatever_the_provider_sends(ids: list[str], taken: set[str]) -> None:
    """No id is empty, too long or used before; only the ids change; minting again gives the same ids."""
    message = response(*ids)
    once = mint_call_ids(message, step=1, taken=taken)
    got = [call.tool_call_id for call in once.calls]
    assert len({*got, *taken}) == len(got) + len(taken)
    assert all(0 < len(call_id) <= MAX_CALL_ID_CHARS for call_id in got)
    assert mint_call_ids(message, step=1, taken=taken) == once
    assert mint_call_ids(once, step=1, taken=taken) == once
    assert [call.model_copy(update={"tool_call_id": ""}) for call in once.calls] == [
        call.model_copy(update={"tool_call_id": ""}) for call in message.calls
    ]
    assert (once.text, once.provider_options) == (message.text, message.provider_options)
