"""I9: what a model reads about its unusable response, and the reason of a run that ends because of one."""

from __future__ import annotations

import pytest

from turngate.domain.conversation.malformed import MAX_NAMES, corrective, is_corrective, problem_in, without_calls
from turngate.domain.conversation.messages import (
    Message,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    user_message,
)

CALL = ToolCallPart(tool_call_id="c1", tool_name="pay", input="{}")
HALF = TextPart(text="I will")
THOUGHT = ReasoningPart(text="Pay now?")


def response(*parts: TextPart | ReasoningPart | ToolCallPart, malformed: str = "") -> ModelResponse:
    message = Message(role="assistant", parts=parts, provider_options={"p": {"opaque": 1}})
    return ModelResponse(message=message, finish_reason="other", model="m", malformed=malformed)


def correction(model_response: ModelResponse, *names: str) -> str:
    text = corrective(model_response, names)
    assert text is not None
    return text


@pytest.mark.parametrize("parts", [(CALL,), (HALF,), (HALF, CALL), (THOUGHT, CALL)])
def test_a_model_responsewith_a_call_or_words_needs_no_correction(parts):
    """A call gets a result, and text is the answer."""
    assert corrective(response(*parts), ["pay"]) is None


@pytest.mark.parametrize("parts", [(), (THOUGHT,), (TextPart(text=" \n"),)])
def test_an_empty_model_responseis_called_empty(parts):
    """Nothing at all, only thinking, or only white space."""
    text = correction(response(*parts), "pay", "look")
    assert "empty" in text
    assert "pay, look" in text
    assert problem_in(text) == "it was empty"


@pytest.mark.parametrize(
    ("finish_reason", "why"),
    [("length", "reached the limit of its length"), ("content_filter", "a filter"), ("refusal", "a filter")],
)
def test_an_empty_model_responsethat_ended_early_names_the_cause(finish_reason, why):
    """A model whose thinking took all its tokens can be brief; the run's reason names the cause too."""
    text = correction(response(THOUGHT).model_copy(update={"finish_reason": finish_reason}))
    assert why in text.lower()
    assert why in problem_in(text)
    assert problem_in(text).startswith("it was empty: ")
    assert is_corrective(user_message(text))


@pytest.mark.parametrize("parts", [(), (HALF,), (CALL,)])
def test_a_malformed_model_responsegets_the_problem_and_the_tools(parts):
    """The correction says so whatever parts of the response could be read."""
    text = correction(response(*parts, malformed="its call was never closed"), "pay", "look")
    for expected in ("could not be parsed: its call was never closed.", "pay, look", "one JSON object", "plain text"):
        assert expected in text
    assert problem_in(text) == "it could not be parsed: its call was never closed"


def test_an_agent_without_tools_reads_that_there_are_none():
    """The correction invents no tool name."""
    assert correction(response()).endswith("The tools are: none.")


def test_names_and_words_are_bounded():
    """Neither a toolkit of thousands nor an adapter's long message fills the context."""
    text = correction(response(malformed="very\n wrong " * 10_000), *(f"tool_{number}" for number in range(10_000)))
    assert f"tool_{MAX_NAMES - 1}." in text
    assert f"tool_{MAX_NAMES}" not in text
    assert len(text) < 2_000
    assert len(problem_in(text)) < 350
    assert "\n" not in text


@pytest.mark.parametrize("problem", ["it broke off", "it broke off.", " it broke\noff "])
def test_the_problem_is_read_back_out_of_the_message(problem):
    """A retry of planning has only the stored message, and must derive the same reason from it."""
    assert problem_in(correction(response(malformed=problem), "pay")) == "it could not be parsed: it broke off"


def test_only_the_engines_message_is_a_correction():
    """A person's similar words are not one, nor is the same text in another role."""
    for broken in (response(), response(malformed="it broke off")):
        assert is_corrective(user_message(correction(broken, "pay")))
        assert not is_corrective(Message(role="assistant", parts=(TextPart(text=correction(broken, "pay")),)))
    assert not is_corrective(user_message("Your last response was empty."))
    assert not is_corrective(user_message(f"Why did you say {correction(response(), 'pay')!r}?"))


def test_no_call_of_a_malformed_model_responseis_left():
    """Texts, thinking and the provider's own parts stay; a usable response is returned unchanged."""
    stripped = without_calls(response(THOUGHT, HALF, CALL, CALL, malformed="wrong"))
    assert stripped.message == response(THOUGHT, HALF).message
    assert stripped.malformed == "wrong"
    whole = response(HALF, CALL)
    assert without_calls(whole) is whole
