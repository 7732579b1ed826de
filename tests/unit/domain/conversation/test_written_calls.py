"""I9: a call that is written as text is the model's mistake, and an answer about calls is an answer."""

from __future__ import annotations

import pytest

from turngate.domain.conversation.written_calls import written_call

TOOLS = ("look", "write_file")
JSON = '{"name": "write_file", "arguments": {"path": "a.md", "text": "It is done. All of it, I think."}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{JSON}\n</tool_call>",
        f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>{JSON}</tool_call><|im_end|>",
        f"<tool_call>{JSON}",
        '<tool_call>{"name": "look"}</tool_call>',
        '<tool_call>{"name": "write_file", "arguments": {"path": "a.md", "te',
        "<tool_call>look",
        "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a.md</arg_value>\n</tool_call>",
        "<tool_call><function=write_file><parameter=path>a.md</parameter></function></tool_call>",
        '<function=write_file>{"path": "a.md"}</function>',
        '<function_calls>\n<invoke name="look">\n<parameter name="at">1</parameter>\n</invoke>\n</function_calls>',
        '<invoke name="look"></invoke>',
        '<invoke name="write_file"><parameter name="text">Some words, and some more.</parameter></invoke>',
        '<|python_tag|>{"name": "look", "parameters": {}}<|eom_id|>',
        '<|python_tag|>look(at="here")',
        '[TOOL_CALLS][{"name": "look", "arguments": {}}]',
        '[TOOL_CALLS]look{"at": 1}',
        "<|tool_call>call:look{}",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>look\n{}",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```\n",
        f"```tool_call\n<tool_call>{JSON}</tool_call>\n```",
        JSON,
        f"[{JSON}]",
        '{"type": "function", "function": {"name": "look", "arguments": "{}"}, "id": "c1"}',
        '{"tool_calls": [{"name": "look", "arguments": {}}]}',
        '{"tool": "look", "tool_input": {}}',
        '{"action": "look", "action_input": "here"}',
        "Thought: I should look.\nAction: look\nAction Input: {}",
        '[look(at="here")]',
        "```tool_code\nprint(default_api.look(at=1))\n```",
        "<write_file>\n<path>a.md</path>\n</write_file>",
        f"<think>Hm. <b></think>\n\n<tool_call>{JSON}</tool_call>",
        f"I'll write the file now.\n\n<tool_call>{JSON}</tool_call>",
        f"<tool_call>{JSON}</tool_call>\n<tool_response>It was written, and all is well with it.</tool_response>\nDone, then.",
    ],
)  # fmt: skip
def test_i9_a_call_written_as_text_is_found(text: str) -> None:
    """In the markup of many models, as JSON, alone or in a fence; the model reads which tool it was, and nothing it wrote."""
    problem = written_call(text, TOOLS)
    assert "make it as a tool call" in problem
    assert "a.md" not in problem
    assert not written_call(text, ("other",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Use `<tool_call>` tags.",
        "<tool_call> is the tag in which Qwen writes a call of look.",
        "<tool_call> look is the tag and the tool.",
        f"<tool_call>{JSON}</tool_call> is how Hermes models write such a call, and the server has to parse it.",
        f"Models write a call like this:\n<tool_call>{JSON}</tool_call>",
        f"Call it so:\n\n```json\n{JSON}\n```\n\nThe path is relative.",
        f"```json\n{JSON}\n```\n\nThis is the call that I would make. Is that right?",
        f"The request was {JSON}.",
        "```python\ndef look(at):\n    return at\n```",
        '{"name": "look", "age": 3}',
        '{"name": "look"}',
        '{"name": "look", "arguments": {}, "result": "found"}',
        '{"answer": "look"}',
        "[look](https://example.org) at this (and that)",
        "look (it is a tool)",
        "look(s) good to me (and to you)",
        "Action: look at the logs. Action Input: none.",
        "<look>",
        "<b>look</b>",
        "<think><tool_call>look</think>No need.",
        "</think>",
        "[TOOL]",
        "<tool_callable>look",
        '<invoke name="look"> is what Claude writes, and look is a tool here.',
        "look",
    ],
)
def test_an_answer_about_calls_is_an_answer(text: str) -> None:
    """In prose, in the code of an explanation, or as data that only looks a little like a call."""
    assert written_call(text, TOOLS) == ""


def test_i14_a_long_text_is_read_in_linear_time() -> None:
    """Whatever it repeats."""
    for each in ("<tool_call>", "[", "{", "look(", "<look>", "```", "<|", "Action: ", "</a>", '{"name": "'):
        written_call(each * 50_000, TOOLS)
        written_call("<tool_call>" + each * 50_000, TOOLS)
