from __future__ import annotations

import time

import pytest

from turngate.domain.conversation.malformed import corrective
from turngate.domain.conversation.messages import (
    Delta,
    Message,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    Usage,
    user_message,
)
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.tools.results import Failure, Ok, rejected
from turngate.models import ModelRequest, ScriptedModel


def result(tool_name: str, outcome: Ok | Failure, **more: str) -> ToolResultPart:
    return ToolResultPart(tool_call_id="c1", tool_name=tool_name, result=outcome, **more)


def results(*parts: ToolResultPart) -> Message:
    return Message(role="tool", parts=parts)


def assistant_message(text: str = "…") -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),))


async def ask(model: ScriptedModel, *conversation: Message) -> ModelResponse:
    return await model.generate(ModelRequest(messages=conversation))


GO = user_message("go")

FULL = """
name: fix-the-test
responses:
  - text: "I will look."
    reasoning: "Where is it?"
    usage: {input_tokens: 10, output_tokens: 5}
    calls:
      - {tool: read_file, input: {path: ä.py, since: 2026-01-31}}
      - {tool: bash, raw_input: '{"command": ', id: c9}
      - {tool: ping}
  - text: "Bye."
    finish_reason: length
"""


async def test_a_response_has_everything_in_the_script():
    """Reasoning, text, calls in order, usage; a mapping becomes JSON, raw text stays broken, a date stays text."""
    response = await ask(ScriptedModel.from_text(FULL, "x.yaml"), GO)
    assert response.message.parts[:2] == (ReasoningPart(text="Where is it?"), TextPart(text="I will look."))
    calls = [(call.tool_call_id, call.tool_name, call.input) for call in response.message.calls]
    assert calls == [
        ("", "read_file", '{"path": "ä.py", "since": "2026-01-31"}'),
        ("c9", "bash", '{"command": '),
        ("", "ping", "{}"),
    ]
    assert response.finish_reason == "tool_calls"
    assert response.usage == Usage(input_tokens=10, output_tokens=5)
    assert response.model == "scripted:fix-the-test"


async def test_the_conversation_alone_chooses_the_response():
    """The assistant messages since the last user message are counted; the same request gets the same response."""
    model = ScriptedModel.from_text(FULL, "x.yaml")
    for _ in range(2):
        response = await ask(model, GO, assistant_message(), results(result("ping", Ok(value={}))))
        assert (response.message.text, response.finish_reason) == ("Bye.", "length")
    assert (await ask(model, GO, assistant_message(), assistant_message(), GO)).message.text == "I will look."


CASES = """
responses:
  - cases:
      - {when: {tool: edit_file, kind: rejected}, text: left}
      - {when: {kind: timeout}, text: slow}
      - {when: {tool: edit_file, kind: ok}, text: edited}
      - {text: otherwise}
"""


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ([results(result("edit_file", rejected("ada", "no")))], "left"),
        ([results(result("other", rejected("ada", "no")))], "otherwise"),
        ([results(result("other", Failure(kind="timeout")))], "slow"),
        ([results(result("other", Ok(value={})), result("edit_file", Ok(value={})))], "edited"),
        ([results(result("edit_file", rejected("ada", "no"))), user_message("and now?")], "otherwise"),
        ([], "otherwise"),
    ],
)
async def test_cases_match_the_last_results(before, text):
    """The first case that matches a result wins; results before the last message do not count."""
    assert (await ask(ScriptedModel.from_text(CASES, "x"), *before)).message.text == text


async def test_runs_are_chosen_by_user_messages():
    """The first user message gets the first run; after the last run it stays the last."""
    model = ScriptedModel.from_text("runs: [{responses: [{text: one}]}, {responses: [{text: two}]}]", "x")
    assert (await ask(model, GO)).message.text == "one"
    assert (await ask(model, GO, assistant_message(), GO)).message.text == "two"
    assert (await ask(model, GO, assistant_message(), GO, assistant_message(), GO)).message.text == "two"


async def test_last_result_is_replaced_by_the_last_results_text():
    """The text is clipped; without a result it is empty."""
    model = ScriptedModel.from_text('responses: [{text: "[{{last_result}}]"}]', "x")
    assert (await ask(model, GO)).message.text == "[]"
    two = results(result("a", Ok(value={"n": 1})), result("b", Ok(value={"n": 2})))
    assert (await ask(model, two)).message.text == '[{"n":2}]'
    long = results(result("a", Ok(value={"n": "x" * 5000})))
    assert len((await ask(model, long)).message.text) == 2002


async def test_an_error_entry_fails_that_often_and_then_answers():
    """The first two requests fail, retryable by their class, and the third gets the rest."""
    script = "responses: [{error: {class: server_error, message: boom, times: 2}, text: fine}]"
    model = ScriptedModel.from_text(script, "x")
    for _ in range(2):
        with pytest.raises(ModelError, match="boom") as caught:
            await ask(model, GO)
        assert (caught.value.error_class, caught.value.retryable) == ("server_error", True)
    assert (await ask(model, GO)).message.text == "fine"


async def test_a_permanent_error_class_is_not_retryable():
    """It agrees with the real adapter."""
    model = ScriptedModel.from_text("responses: [{error: {class: authentication}}]", "x")
    with pytest.raises(ModelError) as caught:
        await ask(model, GO)
    assert not caught.value.retryable


async def test_a_delay_delays():
    """The response comes no sooner than the script says."""
    model = ScriptedModel.from_text("responses: [{delay_seconds: 0.05, text: x}]", "x")
    began = time.monotonic()
    await ask(model, GO)
    assert time.monotonic() - began >= 0.05


async def test_a_file_in_yaml_or_json(tmp_path):
    """The stem is the default name; JSON may be indented with tabs."""
    for name, text in (("a.yaml", "responses: [{text: x}]"), ("b.json", '{\n\t"responses": [{"text": "x"}]}')):
        file = tmp_path / name
        file.write_text(text)
        model = ScriptedModel.from_file(file)
        assert model.name == f"scripted:{file.stem}"
        assert (await ask(model, GO)).message.text == "x"


def test_a_missing_file_is_named(tmp_path):
    """The message has the path and the system's reason."""
    with pytest.raises(ConfigurationError, match=r"gone\.yaml.*No such file"):
        ScriptedModel.from_file(tmp_path / "gone.yaml")


def test_text_that_is_not_yaml_is_refused_with_line_and_column():
    """The message is the parser's."""
    with pytest.raises(ConfigurationError, match=r"my\.yaml is not YAML: .*line 2, column"):
        ScriptedModel.from_text("responses: [\n}", "my.yaml")


async def test_a_malformed_entry_and_its_correction_stay_in_their_run():
    """The entry says what is wrong with it; the correction, a user message, chooses no new run and no new start."""
    model = ScriptedModel.from_text('responses: [{malformed: "it broke off", text: Half}, {text: Done.}]', "x.yaml")
    first = await ask(model, GO)
    assert (first.malformed, first.message.text, first.is_final) == ("it broke off", "Half", False)
    correction = user_message(corrective(first, ["read_file"]) or "")
    assert (await ask(model, GO, first.message, correction)).message.text == "Done."
    next_run = await ask(model, GO, first.message, correction, assistant_message("Done."), user_message("and now?"))
    assert next_run.malformed == "it broke off"


async def test_a_response_is_streamed_word_by_word():
    """Reasoning, text and calls, each a part; the response equals the whole one, and an error comes after its text."""
    entry = '{reasoning: Hm., text: "One two", calls: [{tool: look, input: {a: 1}}], stream_seconds: 0.03}'
    model = ScriptedModel.from_text(f"responses: [{entry}]", "x.yaml")
    deltas: list[Delta] = []
    response = await model.stream(ModelRequest(messages=[GO]), deltas.append)
    assert response == await ask(model, GO)
    assert [(each.kind, each.part, each.text, each.tool_name) for each in deltas] == [
        ("reasoning", 0, "Hm.", ""),
        ("text", 1, "One ", ""),
        ("text", 1, "two", ""),
        ("tool-call", 2, '{"a": 1}', "look"),
    ]
    failing = ScriptedModel.from_text("responses: [{text: Half, error: {class: server_error}}]", "x.yaml")
    deltas.clear()
    with pytest.raises(ModelError):
        await failing.stream(ModelRequest(messages=[GO]), deltas.append)
    assert [each.text for each in deltas] == ["Half"]
