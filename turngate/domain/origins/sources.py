"""What the model was sent, as sources that a value may come from.

The whole conversation counts, not only what is left of it after a cut: messages never change, so a compacted history changes no
answer, and a value that went through a model's summary is still found where it came from. What an agent's hooks add is not in it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Final, Literal, NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json

from turngate.domain.conversation.clipping import READ_RESULT
from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart
from turngate.domain.origins.forms import normalised
from turngate.domain.origins.origin import PERSONAL, SourceKind
from turngate.domain.text.json_pointers import escaped
from turngate.domain.tools.results import Failure, Ok

Author = Literal["task", "person", "agent", "engine"]
"""Who wrote a user message. ``agent``: the agent above, in the task of a sub-agent. ``engine``: the engine, or a summary."""

MAX_CHARS: Final = 2_000_000
"""Of all sources together: as much as models take. What people wrote comes first, then the newest."""
MAX_SOURCE_CHARS: Final = 400_000
"""Of one source."""
MAX_LEAVES: Final = 5_000
"""Of one result, that a value's place is looked for in."""
MAX_NESTED_CHARS: Final = 200_000
"""Of a JSON text inside a result that is read as a part of it, as MCP servers send their results."""
MAX_NESTING: Final = 50

_NESTED_STARTS: Final = ("{", "[", " ", "\n", "\r", "\t")
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class SentMessage:
    """A message that the model was sent. ``author``: of a user message. ``agent``: as in :class:`Place`."""

    message: Message
    author: Author = "engine"
    id: str = ""
    step: int | None = None
    agent: str = ""


class Leaf(NamedTuple):
    """One value in a result, normalised, with its place. ``name``: of its field; empty: it has none."""

    at: str
    text: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One thing that a value may come from. ``content``: a text, or the JSON value of a result.

    ``sent_with``: the arguments of the call that it is the result of, as the model wrote them. ``tool``, ``step``, ``agent``,
    ``message_id``, ``untrusted``: as in :class:`~turngate.domain.origins.origin.Place`.
    """

    kind: SourceKind
    content: JsonValue
    sent_with: str = ""
    tool: str = ""
    step: int | None = None
    agent: str = ""
    message_id: str = ""
    untrusted: bool = False

    @property
    def rank(self) -> int:
        """Its place among the kinds of sources, best first."""
        if self.kind in PERSONAL:
            return 0
        if self.kind == "call":
            return 4
        return 1 if self.kind == "instructions" else 2 + self.untrusted

    @cached_property
    def text(self) -> str:
        """All of it, normalised; of a JSON value its text without the escapes."""
        if isinstance(self.content, str):
            return normalised(self.content)
        text = _as_json(self.content)
        if "\\" in text:
            text = text.replace("\\\\", "\x01").replace("\\n", " ").replace("\\t", " ").replace("\\r", " ")
            text = text.replace('\\"', '"').replace("\x01", "\\")
        return normalised(text)

    @cached_property
    def call_text(self) -> str:
        """The values of the call that it is the result of, normalised, without their names."""
        return "\n".join(leaf.text for leaf in islice(_leaves(self.sent_with, "", MAX_NESTING), MAX_LEAVES))

    @cached_property
    def leaves(self) -> Sequence[Leaf]:
        """Its values in their order, with their places; no more than are looked through."""
        return list(islice(_leaves(self.content, "", MAX_NESTING), MAX_LEAVES))


def _as_json(value: JsonValue) -> str:
    """Return a value as JSON with spaces between its members: without them a list of numbers reads as one number."""
    try:
        return to_json(value, indent=0).decode().replace("\n", " ")  # a tenth of json's time
    except ValueError:  # half a surrogate, or nested deeper than it goes
        return _ENCODER.encode(value)


def _leaves(value: JsonValue, at: str, levels: int, name: str = "") -> Iterator[Leaf]:
    if isinstance(value, str):
        nested = _nested(value)
        if nested is None:
            yield Leaf(at, normalised(value), name)
            return
        value = nested
    if levels and isinstance(value, dict):
        for key, member in value.items():
            step = escaped(key)
            inner, of_member = f"{at}/{step}", name if key.isdigit() else step
            if not key.isidentifier():  # a name like A-113 is a value, too
                yield Leaf(inner, normalised(key), of_member)
            yield from _leaves(member, inner, levels - 1, of_member)
    elif levels and isinstance(value, list):
        for index, member in enumerate(value):
            yield from _leaves(member, f"{at}/{index}", levels - 1, name)
    elif value is not None and not isinstance(value, bool | dict | list):
        yield Leaf(at, normalised(str(value)), name)


def _nested(text: str) -> JsonValue:
    """Return the JSON object or list that a text is; None: it is none."""
    if not text.startswith(_NESTED_STARTS):
        return None
    stripped = text[:MAX_NESTED_CHARS].strip()
    if len(text) > MAX_NESTED_CHARS or (stripped[:1], stripped[-1:]) not in {("{", "}"), ("[", "]")}:
        return None
    try:
        value: JsonValue = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return value


def sources_of(
    sent: Iterable[SentMessage],
    *,
    instructions: str = "",
    untrusted: Container[str] = (),
    answering: Container[str] = (),
) -> list[Source]:
    """Return what a value may come from, in the order it was sent.

    Args:
        sent: the messages before the one that makes the call, oldest first.
        instructions: the agent's.
        untrusted: names of the tools whose results anyone may have written.
        answering: names of the tools that a person answers.
    """
    sources = [Source(kind="instructions", content=instructions)] if instructions else []
    reader = _Reader(untrusted, answering)
    for each in sent:
        sources.extend(reader.read(each))
    return sources


@dataclass
class _Reader:
    """Reads messages in order. ``calls``: tool_call_id → the call; ``wholes``: id of a whole result → its tool."""

    untrusted: Container[str]
    answering: Container[str]
    calls: dict[str, ToolCallPart] = field(default_factory=dict)
    wholes: dict[str, str] = field(default_factory=dict)

    def read(self, sent: SentMessage) -> Iterator[Source]:
        for part in sent.message.parts:
            if isinstance(part, ToolCallPart):
                self.calls[part.tool_call_id] = part
                yield self._source(sent, "call", part.input, tool=part.tool_name)
            elif isinstance(part, ToolResultPart):
                yield from self._result(sent, part)
            elif isinstance(part, TextPart) and sent.message.role == "user" and sent.author != "engine":
                kinds: dict[str, SourceKind] = {"task": "task", "person": "message", "agent": "call"}
                yield self._source(sent, kinds[sent.author], part.text)

    def _result(self, sent: SentMessage, part: ToolResultPart) -> Iterator[Source]:
        call, result, tool = self.calls.get(part.tool_call_id), part.result, part.tool_name
        if part.whole_result is not None:
            self.wholes[part.whole_result] = tool
        if tool == READ_RESULT and call is not None:  # what it reads is another tool's
            tool = next((of for whole, of in self.wholes.items() if whole in call.input), tool)
        if part.edited_input is not None:
            yield self._source(sent, "edit", part.edited_input, tool=tool)
        reason = result.fields.get("operator_message") if isinstance(result, Failure) else None
        if isinstance(reason, str) and reason:
            yield self._source(sent, "answer", reason, tool=tool)
            return
        content: JsonValue = result.value if isinstance(result, Ok) else {"message": result.reason, **result.fields}
        sent_with = "" if call is None else call.input
        if tool in self.answering and isinstance(result, Ok):
            yield self._source(sent, "answer", content, tool=tool)
        else:
            yield self._source(sent, "result", content, tool=tool, sent_with=sent_with)

    def _source(
        self, sent: SentMessage, kind: SourceKind, content: JsonValue, *, tool: str = "", sent_with: str = ""
    ) -> Source:
        return Source(
            kind=kind,
            content=content,
            sent_with=sent_with,
            tool=tool,
            step=sent.step,
            agent=sent.agent,
            message_id=sent.id,
            untrusted=kind == "result" and tool in self.untrusted,
        )


class Corpus:
    """The sources as one text, best first and the newest first among equals. ``complete``: nothing was left out."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources: list[Source] = []
        self._starts: list[int] = []
        size, texts = 0, []
        self.complete = True
        newest_first = list(reversed(sources))
        newest_first.sort(key=lambda source: source.rank)
        for source in newest_first:
            if size > MAX_CHARS:
                self.complete = False
                break
            text = source.text[:MAX_SOURCE_CHARS]
            self.complete = self.complete and len(text) == len(source.text)
            self.sources.append(source)
            self._starts.append(size)
            texts.append(text)
            size += len(text) + 1
        self.text = "\n".join(texts)  # a normalised text has no line ends

    def at(self, offset: int) -> tuple[Source, int]:
        """Return the source at an offset, and where the next one begins."""
        index = bisect_right(self._starts, offset) - 1
        following = self._starts[index + 1] if index + 1 < len(self._starts) else len(self.text) + 1
        return self.sources[index], following
