"""The editor at the other end of the Agent Client Protocol: its messages on stdio, and what one session tells and asks it.

Source: https://agentclientprotocol.com/protocol/overview
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from acp import RequestError
from acp.schema import (
    ElicitationFormSessionMode,
    ElicitationSchema,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)

from turngate.domain.errors import InvalidInputError
from turngate.frontends.lines import JsonLines

ASK: Final = "session/request_permission"
FILL: Final = "elicitation/create"
PROMPT: Final = "session/prompt"
WITHDRAW: Final = "$/cancel_request"
"""Optional on both sides (https://agentclientprotocol.com/protocol/cancellation): an editor that does not know it ignores it, and
its person's late answer is ignored here."""
OPTIONAL: Final = "$/"
"""How notifications begin that an editor ignores if it does not know them."""
Action = Literal["accept", "decline", "cancel"]


class EditorLines:
    """The package's transport, on our own lines: they work on pipes, files and terminals, and answer what is no message."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._questions: dict[tuple[str, str], Any] = {}  # session and tool call → id of the open request about it
        self._prompts: dict[str | int, str] = {}  # id of a prompt that is not answered yet → its session

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        method, known = message.get("method"), message.get("id")
        if method in {ASK, FILL}:
            params = message["params"]
            tool_call_id = params["toolCall"]["toolCallId"] if method == ASK else params["toolCallId"]
            self._questions[params["sessionId"], tool_call_id] = known
        elif method is None and isinstance(known, str | int):
            self._prompts.pop(known, None)
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
                if (taken := self._taken(message)) is not None:
                    return taken
                continue
            await self._refuse(RequestError.invalid_request({"details": "a message is one JSON object"}))

    def _taken(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the package should make of a message; None: nothing.

        A prompt that the editor takes back is a cancelled one: the package knows only the latter.
        """
        method, known, params = message.get("method"), message.get("id"), message.get("params")
        if method is None:
            self._questions = {
                about: request_id for about, request_id in self._questions.items() if request_id != known
            }
        elif method == PROMPT and isinstance(known, str | int) and isinstance(params, dict):
            self._prompts[known] = str(params.get("sessionId"))
        elif method == WITHDRAW and isinstance(params, dict):
            taken_back = params.get("requestId")
            session_id = self._prompts.get(taken_back) if isinstance(taken_back, str | int) else None
            if session_id is None:
                return None
            return {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session_id}}
        elif method.startswith(OPTIONAL) and "id" not in message:
            return None
        return message

    async def withdraw(self, session_id: str, tool_call_id: str) -> None:
        """Tell the editor that what it was asked about a call needs no answer any more."""
        known = self._questions.pop((session_id, tool_call_id), None)
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

    async def create_elicitation(self, message: str, mode: ElicitationFormSessionMode) -> Any:
        """Have a form filled in."""


class Editor:
    """One session's side of the editor. ``has_forms``: it can have a form filled in."""

    def __init__(self, connection: Connection, lines: EditorLines, session_id: str, *, has_forms: bool = False) -> None:
        self.has_forms = has_forms
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

    async def fill(self, tool_call_id: str, message: str, form: ElicitationSchema) -> tuple[Action, Mapping[str, Any]]:
        """Have a form filled in, and return what the person did, with what they wrote if they did."""
        mode = ElicitationFormSessionMode(session_id=self._session_id, tool_call_id=tool_call_id, requested_schema=form)
        answer = await self._connection.create_elicitation(message, mode)
        if answer.action == "accept":
            return "accept", answer.content or {}
        return ("decline" if answer.action == "decline" else "cancel"), {}

    async def withdraw(self, tool_call_id: str) -> None:
        """Take a question about a call back."""
        await self._lines.withdraw(self._session_id, tool_call_id)
