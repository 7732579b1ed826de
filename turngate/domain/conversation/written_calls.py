"""A tool call that the model wrote as text: its server has no parser for the model's markup, or did not recognize it. Pure.

Nothing reads such a text, so as an answer it would end the run as if it were done. It counts only if it is nothing else: an
answer may be about calls, and quote one. The model gets to know what is wrong, which quotes nothing of its text (I8).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from turngate.domain.conversation.messages import ModelResponse

END_OF_THINKING: Final = "</think>"
_BEGINS: Final = re.compile(
    r"<tool_calls?>|<\|tool_calls?\|?>|\[TOOL_CALLS\]|<function=|<function_calls?>|<function name=|<\|python_tag\|>"
    r"|<\|tool_calls_section_begin\|>|<\uff5ctool\u2581calls\u2581begin\uff5c>|<invoke name=|<invoke name="
    r"|<function_calls>|<tool_use>|<\|channel\|>commentary to=|<action>"
)
"""How models begin a call in their own markup (vllm #17161)."""
_ENDS: Final = re.compile(
    r"</[a-z_:]{1,40}+>|\[/TOOL_CALLS\]|<\|[a-z_]{1,40}+\|>|<\uff5c[a-z\u2581]{1,40}+\uff5c>|```", re.IGNORECASE
)
_RESULT_BEGINS: Final = re.compile(r"<(?:tool_(?:response|result|output)|function_results?)\b")
"""What some models continue with: a result that they make up."""
_FENCE: Final = re.compile(r"```[A-Za-z0-9_+-]{0,20}+[ \t]{0,8}+\r?\n")
_ANNOUNCES: Final = re.compile(r"[^\n]{1,120}+\n\s{0,8}+")
"""A line before the call. One that ends with a colon introduces an example as well as a call."""
_WORD: Final = re.compile(r"\w++")
_MOST_WORDS_AFTER: Final = 3
_NAMES: Final = ("name", "tool", "tool_name", "function", "action", "recipient_name")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "tool_input", "action_input", "params", "kwargs")
_BESIDES: Final = frozenset({"id", "type", "call_id", "tool_call_id", "thought"})
_LISTS: Final = ("tool_calls", "tool_uses", "calls", "function_calls")
_REACT: Final = re.compile(
    r"(?:Thought:[^\n]{0,2000}+\n)?Action:[ \t]{0,8}+(?P<name>[^\s(]{1,128}+)\s{0,8}+Action Input:"
)
_DECODER: Final = json.JSONDecoder()


def checked_text(response: ModelResponse, tools: Collection[str]) -> ModelResponse:
    """Return the response, ``malformed`` if it is a final answer and only a call written as text; any other one as it is (I9)."""
    problem = written_call(response.message.text, tools) if response.is_final else ""
    return response.model_copy(update={"malformed": problem}) if problem else response


def written_call(text: str, tools: Collection[str]) -> str:
    """Return what is wrong with an answer that is nothing but a call of one of these tools, written as text; "": it is not.

    A block of thinking that the server left in the text is passed over.
    """
    thinking, ended, answer = text.partition(END_OF_THINKING)
    answer = (answer if ended else thinking).strip()
    name = next((each for each in _called_in(answer) if each in tools), None)
    return (
        "" if name is None else f"it is a call of {name} written as text, which nothing reads; make it as a tool call"
    )


def _called_in(answer: str) -> Iterator[str]:
    """Yield the names that an answer may call as a whole."""
    fence = _FENCE.match(answer)
    if fence is not None:
        code, closed, after = answer[fence.end() :].rpartition("```")
        if closed and not _is_rest(after):
            return
        answer = (code if closed else after).strip()
    begins = _BEGINS.match(answer)
    if begins is None and fence is None and (line := _ANNOUNCES.match(answer)) is not None:
        announced = line[0].rstrip()
        begins = None if announced.endswith(":") else _BEGINS.match(answer, line.end())
    if begins is not None:
        yield from _in_markup(answer[begins.start() :], len(begins[0]))
    elif answer.startswith(("{", "[")):
        yield from _in_json(answer)
        yield from _in_python(answer.strip("[] \n"))
    elif (react := _REACT.match(answer)) is not None:
        yield react["name"]
    else:
        yield from _in_python(answer)
        yield from _in_own_tag(answer)


def _in_markup(call: str, begun: int) -> Iterator[str]:
    """Yield the names in a call in a model's own markup, if nothing follows it. ``begun``: where its first mark ends."""
    starts = call.find("{", 0, begun + _HEAD)
    ends = [each.end() for each in _ENDS.finditer(call, begun)]
    last = ends[-1] if ends else 0
    value: Any = None
    if starts >= 0:
        try:
            value, end = _DECODER.raw_decode(call, starts)
            last = max(last, end)
        except (ValueError, RecursionError):
            last = last or len(call)  # a call that is not whole
    else:
        last = last or len(call)
    rest = call[last:]
    made_up = _RESULT_BEGINS.search(call, begun)
    if made_up is None and not _is_rest(rest):
        return
    if made_up is not None:
        call = call[: made_up.start()]
    yield from _names_in(value)
    for match in _NAMED.finditer(call, 0, begun + _HEAD):
        after = call[match.end() : match.end() + _HEAD].lstrip(_AFTER_NAME)
        if not after or after[0] in _CONTINUES:
            yield match["name"]


_HEAD: Final = 400
_NAMED: Final = re.compile(
    r"(?:\"name\"\s{0,4}+:\s{0,4}+\"|name=[\"']?|function=|to=|<tool_calls?>\s{0,8}+|\|>\s{0,8}+|\[TOOL_CALLS\]\s{0,8}+"
    r"|\uff5c>|<name>|<tool_name>|<action>|<\|tool_call>)(?:call:|functions\.)?(?P<name>[A-Za-z0-9_-]{1,128}+)"
)
"""Where markup has the tool's name."""
_AFTER_NAME: Final = "\"'>: \t\r\n0123456789"
_CONTINUES: Final = "<{}[(|,`\uff5c"
"""What a call continues with after the tool's name; with a letter, prose does."""


def _in_json(text: str) -> Iterator[str]:
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return
    if _is_rest(text[end:]):
        yield from _names_in(value)


def _names_in(value: Any) -> Iterator[str]:
    """Yield the name of a call in JSON, or of each call of a list: an object of nothing but a name and arguments."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield from _name_in(each)
    elif isinstance(value, dict):
        listed = next((value[key] for key in _LISTS if len(value) == 1 and isinstance(value.get(key), list)), None)
        if listed is not None:
            yield from _names_in(listed)
        else:
            yield from _name_in(value)


def _name_in(value: dict[str, Any]) -> Iterator[str]:
    inner = value.get("function")
    if isinstance(inner, dict) and value.keys() <= {"function", *_BESIDES}:
        value = inner
    names = [key for key in _NAMES if isinstance(value.get(key), str)]
    arguments = [key for key in _ARGUMENTS if key in value]
    if len(names) == 1 and len(arguments) == 1 and value.keys() <= {names[0], arguments[0], *_BESIDES}:
        yield str(value[names[0]]).removeprefix("functions.")


_PYTHON: Final = re.compile(r"(?:print\()?(?:default_api\.|functions\.)?(?P<name>[A-Za-z_][A-Za-z0-9_-]{0,127}+)\(")
_IN_PYTHON: Final = re.compile(r"\"(?:[^\"\\]|\\.)*+\"?|'(?:[^'\\]|\\.)*+'?|[()]", re.DOTALL)


def _in_python(text: str) -> Iterator[str]:
    """Yield the name in ``look(at="here")``, which ends with the text."""
    match = _PYTHON.match(text)
    if match is None or not text.endswith(")"):
        return
    depth = 0
    for each in _IN_PYTHON.finditer(text):
        depth += {"(": 1, ")": -1}.get(each[0], 0)
        if depth == 0 and each[0] == ")" and each.end() < len(text):
            return
    yield match["name"]


_TAG: Final = re.compile(r"<(?P<name>[A-Za-z_][A-Za-z0-9_-]{0,127}+)>")


def _in_own_tag(text: str) -> Iterator[str]:
    """Yield the name of an element that is the whole text."""
    match = _TAG.match(text)
    if match is not None and text.endswith(f"</{match['name']}>"):
        yield match["name"]


def _is_rest(text: str) -> bool:
    """Tell whether a text after a call says nothing of its own."""
    return sum(1 for _each in _WORD.finditer(_ENDS.sub(" ", text))) <= _MOST_WORDS_AFTER
