"""The editor at the other end of the Agent Client Protocol: its messages on stdio, and what one session tells and asks it.

Source: https://agentclientprotocol.com/protocol/overview
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

from acp import RequestError
from acp.schema import PermissionOption, RequestPermissionResponse, ToolCallUpdate

from turngate.domain.errors import InvalidInputError
from turngate.drivers.json_lines import JsonLines

ASK: Final = "session/request_permission"
WITHDRAW: Final = "$/cancel_request"
"""Optional for editors (https://agentclientprotocol.com/rfds/request-cancellation): one that does not know it ignores it, and its
person's late answer is ignored here."""


class EditorLines:
    """The package's transport, on our own lines: they work on pipes, files and terminals, and answer what is no message."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._asked: dict[tuple[str, str], Any] = {}  # session and tool call → id of the newest request about it

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        if message.get("method") == ASK:
            params = message["params"]
            self._asked[params["sessionId"], params["toolCall"]["toolCallId"]] = message["id"]
        await self._lines.send(message)

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end."""
        while True:
            try:
                line = await self._lines.receive()
                message = None if line is None else json.loads(line)
            except (ValueError, RecursionError, InvalidInputError) as error:
                await self._refuse(RequestError.parse_error({"details": str(error)}))
                continue
            if line is None:
                return None
            if isinstance(message, dict) and isinstance(message.get("method", ""), str):
                return message
            await self._refuse(RequestError.invalid_request({"details": "a message is one JSON object"}))

    async def withdraw(self, session_id: str, tool_call_id: str) -> None:
        """Tell the editor that what it was asked about a call needs no answer any more."""
        known = self._asked.pop((session_id, tool_call_id), None)
        if known is not None:
            await self._lines.send({"jsonrpc": "2.0", "method": WITHDRAW, "params": {"requestId": known}})

    async def close(self) -> None:
        """Leave the streams as they are: they are the process' own."""

    async def _refuse(self, error: RequestError) -> None:
        await self._lines.send({"jsonrpc": "2.0", "id": None, "error": error.to_error_obj()})


class Connection(Protocol):
    """What the package's connection offers us."""

    async def session_update(self, session_id: str, update: Any) -> None:
        """Tell something."""

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption]
    ) -> RequestPermissionResponse:
        """Ask something."""


class Editor:
    """One session's side of the editor."""

    def __init__(self, connection: Connection, lines: EditorLines, session_id: str) -> None:
        self._connection = connection
        self._lines = lines
        self._session_id = session_id

    async def tell(self, *updates: Any) -> None:
        """Send updates, in order."""
        for update in updates:
            await self._connection.session_update(self._session_id, update)

    async def ask(self, call: ToolCallUpdate, options: Sequence[PermissionOption]) -> str | None:
        """Ask about a call, and return the id of the option that the person chose; None: they chose none."""
        answer = await self._connection.request_permission(self._session_id, call, list(options))
        return answer.outcome.option_id if answer.outcome.outcome == "selected" else None

    async def withdraw(self, tool_call_id: str) -> None:
        """Take a question about a call back."""
        await self._lines.withdraw(self._session_id, tool_call_id)
