"""What people see of the secrets in runs: every view of calls and messages is made from rows that went through here.

Arguments and results are masked where their tool declares a secret. The other texts of a run (an agent's words, errors,
presentations) are masked where they say one of these secrets. What looks like a credential is masked everywhere, but for the
person who decides about the very call (:meth:`Masks.for_decider`). Nothing else of a call's arguments is: no secret may hide
what else it says. The model's history and the tool's input stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from turngate.domain.conversation.secret_texts import secret_texts
from turngate.domain.tools.secrets import Audience, Masked, mask_text, masked_strings, not_in
from turngate.domain.tools.tool import UNDECLARED, ToolManifest
from turngate.store.database import Connection
from turngate.store.runs import calls, runs
from turngate.store.runs.calls import Call
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run

MAX_ABOVE: Final = 8
"""Agents above a run whose secrets may be in its task."""

ViewT = TypeVar("ViewT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The secrets of some runs. ``tools``: (run id, call id) → the tool's declaration. ``values``: secret texts.

    ``calls``: that may hold secrets. ``audience``: who sees what is masked.
    """

    tools: Mapping[tuple[str, str], ToolManifest] = field(default_factory=dict)
    values: frozenset[str] = frozenset()
    calls: Sequence[Call] = ()
    audience: Audience = "reader"

    @classmethod
    async def of(cls, conn: Connection, run_ids: Collection[str]) -> Masks:
        """Read the secrets of these runs; most have none, which costs one query.

        Credentials in the arguments of a call count; in other texts they are masked where they are.
        """
        return cls.of_calls(await calls.with_secrets(conn, run_ids))

    @classmethod
    async def of_run(cls, conn: Connection, run: Run, path: Sequence[StoredMessage] = ()) -> Masks:
        """Read the secrets of a run, of those whose messages it reads (``path``), and of the agents above it.

        ``path``: credentials in these messages are masked where another text quotes them without what gives them away.
        """
        run_ids = {run.id, *(each.run_id for each in path if each.run_id is not None)}
        above: Run | None = run
        for _level in range(MAX_ABOVE):
            above = None if above is None or above.parent_run_id is None else await runs.get(conn, above.parent_run_id)
            if above is not None:
                run_ids.add(above.id)
        masks = await cls.of(conn, run_ids)
        return replace(masks, values=masks.values.union(*map(masks.secret_texts, path)))

    @classmethod
    async def of_each(cls, conn: Connection, run_ids: Collection[str]) -> dict[str, Masks]:
        """Read the secrets of each of these runs and of the agents above it, by run: two queries, however many there are."""
        if not run_ids:
            return {}
        lines = await runs.lines_of(conn, run_ids)
        stored = await calls.with_secrets(conn, {above for line in lines.values() for above in line})
        return {below: cls.of_calls([each for each in stored if each.run_id in line]) for below, line in lines.items()}

    @classmethod
    def of_calls(cls, stored: Iterable[Call]) -> Masks:
        """Return the secrets of these calls, which may hold some."""
        tools = {(each.run_id, each.tool_call_id): (each, tool) for each in stored if (tool := each.tool) is not None}
        values = frozenset[str]().union(*(_values(*each) for each in tools.values()))
        return cls(
            tools={place: tool for place, (_call, tool) in tools.items()},
            values=values,
            calls=[call for call, _tool in tools.values()],
        )

    def for_decider(self, arguments: Masked) -> Masks:
        """Return what masks the texts about a call for who may decide it: only what some tool of these runs declares secret.

        ``arguments``: the call's arguments as they see them; what these show openly is no secret in its other texts.
        """
        declared = frozenset[str]().union(
            *(
                self.tools[call.run_id, call.tool_call_id].declared_values(text, call.settled_result)
                for call in self.calls
                for text in {call.input, call.running_input}
            )
        )
        return Masks(values=not_in(declared | arguments.values, arguments.text), audience="decider")

    def secret_texts(self, stored: StoredMessage) -> frozenset[str]:
        """Return the secrets in a message."""
        return secret_texts(stored.message, lambda part: self.tool_of(stored.run_id, part))

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        return mask_text(text, self.values, audience=self.audience)

    def optional(self, text: str | None) -> str | None:
        """Return a text without the secrets; None stays None."""
        return None if text is None else self.text(text)

    def call(self, call: Call) -> Call:
        """Return a call as people see it. Its digest is that of the real arguments."""
        tool = self.tools.get((call.run_id, call.tool_call_id), UNDECLARED)
        result, presentation = call.settled_result, call.presentation
        if result is not None:
            result, _own = tool.masked_result(result, self.values)
        if presentation is not None:
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
        tool = self.tools.get((call.run_id, call.tool_call_id), UNDECLARED)
        return self.text(tool.masked_answer(whole).text)

    def message(self, stored: StoredMessage) -> StoredMessage:
        """Return a message as people see it."""
        parts = tuple(self._part(stored.run_id, each) for each in stored.message.parts)
        if self._is_empty and all(new is old for new, old in zip(parts, stored.message.parts, strict=True)):
            return stored
        return replace(stored, message=stored.message.model_copy(update={"parts": parts, "provider_options": {}}))

    def _part(self, run_id: str | None, part: Part) -> Part:
        masked: dict[str, object]
        match part:
            case ToolCallPart():
                masked = {"input": self.tool_of(run_id, part).masked_input(part.input).text}
            case ToolResultPart():
                tool = self.tool_of(run_id, part)
                result, _own = tool.masked_result(part.result, self.values)
                ran = None if part.edited_input is None else tool.masked_input(part.edited_input).text
                masked = {"result": result, "edited_input": ran}
            case TextPart() | ReasoningPart():
                masked = {"text": self.text(part.text)}
            case FilePart():
                return part
        if self._is_empty and all(getattr(part, name) == value for name, value in masked.items()):
            return part
        return part.model_copy(update={**masked, "provider_options": {}})

    @property
    def _is_empty(self) -> bool:
        return not self.tools and not self.values

    def tool_of(self, run_id: str | None, part: ToolCallPart | ToolResultPart) -> ToolManifest:
        """Return the declaration of a call's tool, if the call may hold secrets."""
        return self.tools.get((run_id or "", part.tool_call_id), UNDECLARED)

    def view(self, view: ViewT, *names: str) -> ViewT:
        """Return a view with the secrets masked in these of its texts."""
        texts = {name: value for name in names if isinstance(value := getattr(view, name), str)}
        return view.model_copy(update={name: self.text(value) for name, value in texts.items()})


def _values(call: Call, tool: ToolManifest) -> frozenset[str]:
    """Return the secret texts of a call: in its arguments, in those that ran, and in its result."""
    values = tool.masked_input(call.input).values
    if call.edited_input is not None:
        values |= tool.masked_input(call.edited_input).values
    result = call.settled_result
    return values if result is None else values | tool.masked_result(result, frozenset())[1]
