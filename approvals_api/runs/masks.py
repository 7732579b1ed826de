"""What people see of the secrets in runs: every view of calls and messages is made from rows that went through here.

Arguments and results are masked where their tool declares a secret. The other texts of a run (an agent's words, errors,
presentations) are masked where they say one of these secrets. Arguments are masked at declared places only: no secret may hide
what else a call says. The model's history and the tool's input stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pydantic import BaseModel

from turngate.domain.conversation.messages import (
    FilePart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from turngate.domain.tools.secrets import mask_text, masked_strings
from turngate.domain.tools.tool import ToolManifest
from turngate.store.database import Connection
from turngate.store.runs import calls, runs
from turngate.store.runs.calls import Call
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run

MAX_ABOVE: Final = 8
"""Agents above a run whose secrets may be in its task."""

_NO_SECRETS: Final = ToolManifest(name="", description="", kind="local", parameters={}, success={}, effect="once")
ViewT = TypeVar("ViewT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The secrets of some runs. ``tools``: (run id, call id) → the tool's declaration. ``values``: secret texts."""

    tools: Mapping[tuple[str, str], ToolManifest] = field(default_factory=dict)
    values: frozenset[str] = frozenset()

    @classmethod
    async def of(cls, conn: Connection, run_ids: Collection[str]) -> Masks:
        """Read the secrets of these runs; most have none, which costs one query."""
        stored = await calls.with_secrets(conn, run_ids)
        tools = {(each.run_id, each.tool_call_id): tool for each in stored if (tool := each.tool) is not None}
        values = frozenset[str]().union(*(_values(each, tools[each.run_id, each.tool_call_id]) for each in stored))
        return cls(tools=tools, values=values)

    @classmethod
    async def of_run(cls, conn: Connection, run: Run, path: Sequence[StoredMessage] = ()) -> Masks:
        """Read the secrets of a run, of those whose messages it reads (``path``), and of the agents above it."""
        run_ids = {run.id, *(each.run_id for each in path if each.run_id is not None)}
        above: Run | None = run
        for _level in range(MAX_ABOVE):
            above = None if above is None or above.parent_run_id is None else await runs.get(conn, above.parent_run_id)
            if above is not None:
                run_ids.add(above.id)
        return await cls.of(conn, run_ids)

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        return mask_text(text, self.values)

    def optional(self, text: str | None) -> str | None:
        """Return a text without the secrets; None stays None."""
        return None if text is None else self.text(text)

    def call(self, call: Call) -> Call:
        """Return a call as people see it. Its digest is that of the real arguments."""
        tool = self.tools.get((call.run_id, call.tool_call_id), _NO_SECRETS)
        if tool is _NO_SECRETS and not self.values:
            return call
        result, presentation = call.settled_result, call.presentation
        if result is not None:
            result, _own = tool.masked_result(result, self.values)
        if presentation is not None and self.values:
            presentation = json.dumps(masked_strings(json.loads(presentation), self.values), ensure_ascii=False)
        return replace(
            call,
            input=tool.masked_input(call.input).text,
            edited_input=None if call.edited_input is None else tool.masked_input(call.edited_input).text,
            result=None if result is None else result.model_dump_json(),
            presentation=presentation,
        )

    def json_text(self, whole: str, call: Call) -> str:
        """Return the JSON text of a call's whole result."""
        tool = self.tools.get((call.run_id, call.tool_call_id), _NO_SECRETS)
        return self.text(tool.masked_answer(whole).text)

    def message(self, stored: StoredMessage) -> StoredMessage:
        """Return a message as people see it."""
        if not self.tools and not self.values:
            return stored
        parts = tuple(self._part(stored.run_id, each) for each in stored.message.parts)
        return replace(stored, message=stored.message.model_copy(update={"parts": parts, "provider_options": {}}))

    def _part(self, run_id: str | None, part: Part) -> Part:
        match part:
            case ToolCallPart():
                tool = self._tool(run_id, part)
                return part.model_copy(update={"input": tool.masked_input(part.input).text, "provider_options": {}})
            case ToolResultPart():
                tool = self._tool(run_id, part)
                result, _own = tool.masked_result(part.result, self.values)
                ran = None if part.edited_input is None else tool.masked_input(part.edited_input).text
                return part.model_copy(update={"result": result, "edited_input": ran, "provider_options": {}})
            case TextPart() | ReasoningPart():
                return part.model_copy(update={"text": self.text(part.text), "provider_options": {}})
            case FilePart():
                return part

    def _tool(self, run_id: str | None, part: ToolCallPart | ToolResultPart) -> ToolManifest:
        return self.tools.get((run_id or "", part.tool_call_id), _NO_SECRETS)

    def view(self, view: ViewT, *names: str) -> ViewT:
        """Return a view with the secrets masked in these of its texts."""
        if not self.values:
            return view
        texts = {name: value for name in names if isinstance(value := getattr(view, name), str)}
        return view.model_copy(update={name: self.text(value) for name, value in texts.items()})


def _values(call: Call, tool: ToolManifest) -> frozenset[str]:
    """Return the secret texts of a call: in its arguments, in those that ran, and in its result."""
    values = tool.masked_input(call.input).values
    if call.edited_input is not None:
        values |= tool.masked_input(call.edited_input).values
    result = call.settled_result
    return values if result is None else values | tool.masked_result(result, frozenset())[1]
