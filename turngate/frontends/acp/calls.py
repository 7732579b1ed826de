"""Tool calls as an editor shows them: announced once, then changed as they come along. Holds what it got last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from acp import start_tool_call, update_tool_call
from acp.schema import ToolCallLocation, ToolCallStatus

from turngate.domain.tools.results import Failure, wire_text
from turngate.frontends.acp import render as show
from turngate.frontends.acp.editor import Editor
from turngate.wire.calls import CallView

MAX_PROGRESS: Final = 20
"""Lines of a running tool's progress that are shown: the newest."""


@dataclass
class _Call:
    """One call's content, in the order in which it is shown.

    ``question``: what a person needs for a decision, while it is open. ``progress``: what the tool says while it runs.
    """

    arguments: list[show.Content]
    preview: list[show.Content] = field(default_factory=list)
    question: list[show.Content] = field(default_factory=list)
    notes: list[show.Content] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    is_settled: bool = False

    @property
    def content(self) -> list[show.Content]:
        progress = [show.value("\n".join(self.progress))] if self.progress else []
        return [*self.arguments, *self.preview, *self.question, *self.notes, *progress]


class Calls:
    """The calls of one session. An editor replaces a call's whole content, so what stays is sent again with what is new."""

    def __init__(self, editor: Editor, directory: str) -> None:
        self.directory = directory
        self._editor = editor
        self._calls: dict[str, _Call] = {}

    @staticmethod
    def id_of(run_id: str, tool_call_id: str) -> str:
        """Return a call's id here: unique in a session, whose runs may use the same ones."""
        return f"{run_id}/{tool_call_id}"

    def know(self, known: str, arguments: list[show.Content], *, is_settled: bool) -> None:
        """Take note of a call that the editor got with the conversation's past."""
        self._calls[known] = _Call(arguments, is_settled=is_settled)

    async def announce(self, run_id: str, call: CallView, agents: str = "") -> None:
        """Announce a call, once."""
        known = self.id_of(run_id, call.tool_call_id)
        if known in self._calls:
            return
        of_input = call.defaults if call.edited_input is None else ()
        self._calls[known] = _Call(show.arguments(call.input, of_input))
        await self._editor.tell(
            start_tool_call(
                known,
                show.title(call.tool_name, agents),
                kind=show.kind_of(call.effect),
                status="pending",
                content=self._calls[known].content,
                raw_input=show.as_json(call.input),
            )
        )

    async def ask(
        self,
        known: str,
        *,
        kind: show.Kind,
        arguments: Sequence[show.Content],
        preview: Sequence[show.Content],
        question: Sequence[show.Content],
        locations: Sequence[ToolCallLocation],
    ) -> list[show.Content]:
        """Show what a person needs to decide a call, and return all that the call shows then."""
        call = self._calls.setdefault(known, _Call([]))
        call.arguments, call.preview, call.question = list(arguments), list(preview), list(question)
        await self._change(known, kind=kind, content=call.content, locations=list(locations) or None)
        return call.content

    async def decided(self, known: str, sentence: str, value: str) -> None:
        """Show how a request ended, in place of what was needed to decide it."""
        call = self._calls.setdefault(known, _Call([]))
        call.question, call.notes = [], [show.paragraph(sentence), show.value(value)]
        await self._change(known, content=call.content)

    async def note(self, known: str, sentence: str, *more: show.Content) -> None:
        """Add a sentence by Turngate to a call, and values after it."""
        call = self._calls.setdefault(known, _Call([]))
        call.notes += [show.paragraph(sentence), *more]
        await self._change(known, content=call.content)

    async def start(self, known: str) -> None:
        """Show that a call runs."""
        await self._change(known, status="in_progress")

    async def progress(self, known: str, text: str) -> None:
        """Show what a running tool says."""
        call = self._calls.setdefault(known, _Call([]))
        call.progress = [*call.progress, text][-MAX_PROGRESS:]
        await self._change(known, status="in_progress", content=call.content)

    async def settle(self, run_id: str, call: CallView) -> None:
        """Show a call's result, once there is one, in place of what it said before."""
        known = self.id_of(run_id, call.tool_call_id)
        added = self._calls.setdefault(known, _Call(show.arguments(call.input)))
        if call.result is None or added.is_settled:
            return
        # A preview is of the call as it was made: beside a result that shows its own change it would be a second one.
        stale = call.edited_input is not None or show.tells_what_ran(call.presentation)
        content = [*added.arguments, *(() if stale else added.preview), *added.notes]
        if call.edited_input is not None:
            content.append(show.paragraph("An operator changed the call; this ran:"))
            content += show.arguments(call.edited_input, call.defaults)
        failed = isinstance(call.result, Failure)
        if isinstance(call.result, Failure) and not added.notes:  # a note says how a request ended
            content.append(show.value(call.result.kind))
        content += show.presented(call.presentation, directory=self.directory)
        await self._change(
            known,
            status="failed" if failed else "completed",
            content=content,
            locations=show.changed(call.presentation, directory=self.directory) or None,
            raw_output=None if call.in_part else show.as_json(wire_text(call.result, edited_input=call.edited_input)),
        )
        added.is_settled = True

    async def _change(
        self,
        known: str,
        *,
        status: ToolCallStatus | None = None,
        kind: show.Kind | None = None,
        content: Sequence[show.Content] | None = None,
        locations: Sequence[ToolCallLocation] | None = None,
        raw_output: Any = None,
    ) -> None:
        """Change a call that has no result yet. ``content``: in place of all that it had."""
        if known in self._calls and self._calls[known].is_settled:
            return
        await self._editor.tell(
            update_tool_call(
                known, status=status, kind=kind, content=content, locations=locations, raw_output=raw_output
            )
        )
