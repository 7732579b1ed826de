"""Tool calls as an editor shows them: announced once, then changed as they come along. Holds what it was told last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from acp import start_tool_call, update_tool_call
from acp.schema import ToolCallStatus

from turngate.domain.results import Failure
from turngate.drivers import acp_showing as show
from turngate.drivers.acp_editor import Editor
from turngate.wire.calls import CallView

SAID_KEPT: Final = 20
"""Lines of a running tool's progress that are shown: the newest."""


class Calls:
    """The calls of one session. An editor replaces a call's whole content, so what stays is sent again with what is new."""

    def __init__(self, editor: Editor, directory: str) -> None:
        self.directory = directory
        self._editor = editor
        self._content: dict[str, list[show.Content]] = {}
        self._said: dict[str, list[str]] = {}
        self._settled: set[str] = set()

    @staticmethod
    def id_of(run_id: str, tool_call_id: str) -> str:
        """Return a call's id here: unique in a session, whose runs may use the same ones."""
        return f"{run_id}/{tool_call_id}"

    async def announce(self, run_id: str, call: CallView, agents: str = "") -> None:
        """Tell of a call, once."""
        known = self.id_of(run_id, call.tool_call_id)
        if known in self._content:
            return
        self._content[known] = [show.arguments(call.input)]
        await self._editor.tell(
            start_tool_call(
                known,
                show.title(call.tool_name, agents),
                kind=show.kind_of(call.effect),
                status="pending",
                content=self._content[known],
                raw_input=show.as_json(call.input),
            )
        )

    async def change(
        self,
        known: str,
        *,
        status: ToolCallStatus | None = None,
        kind: show.Kind | None = None,
        content: Sequence[show.Content] | None = None,
    ) -> None:
        """Change a call. ``content``: in place of all that it had."""
        if known in self._settled:
            return
        if content is not None:
            self._content[known] = list(content)
        await self._editor.tell(update_tool_call(known, status=status, kind=kind, content=content))

    async def note(self, known: str, sentence: str, *more: show.Content) -> None:
        """Add a sentence of ours to a call, and values behind it."""
        await self.change(known, content=[*self._content.get(known, ()), show.paragraph(sentence), *more])

    async def progress(self, known: str, text: str) -> None:
        """Show what a running tool says."""
        said = self._said.setdefault(known, [])
        said.append(text)
        del said[:-SAID_KEPT]
        shown = [*self._content.get(known, ()), show.value("\n".join(said))]
        await self._editor.tell(update_tool_call(known, status="in_progress", content=shown))

    async def settle(self, run_id: str, call: CallView) -> None:
        """Show a call's result, once there is one."""
        known = self.id_of(run_id, call.tool_call_id)
        if call.result is None or known in self._settled:
            return
        failed = isinstance(call.result, Failure)
        content = [*self._content.get(known, ())]
        if call.edited_input is not None:
            content += [show.paragraph("An operator changed the call; this ran:"), show.arguments(call.edited_input)]
        if isinstance(call.result, Failure):
            content.append(show.value(call.result.kind))
        content += show.presented(call.presentation, directory=self.directory)
        await self.change(known, status="failed" if failed else "completed", content=content)
        self._settled.add(known)
