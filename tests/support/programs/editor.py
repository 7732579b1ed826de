"""An editor at a ``turngate acp``: the protocol package's own client side, and every message checked against its models."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, connect_to_agent, schema, text_block
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    CancelElicitationResponse,
    ClientCapabilities,
    DeclineElicitationResponse,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)
from pydantic import TypeAdapter
from support.api.api_server import Api
from support.api.frontend_app import DEADLINE_SECONDS, environment
from support.engine.stack import until
from support.programs.terminal_process import TURNGATE

FROM_AGENT: dict[str, Any] = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
    "elicitation/create": schema.CreateFormSessionElicitationRequest,
    "$/cancel_request": schema.CancelRequestNotification,
}
RESULTS: dict[str, Any] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/close": schema.CloseSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/prompt": schema.PromptResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
}


class Editor:
    """An editor: records what the agent sends, and answers questions with the option ``answer`` once ``go`` is set.

    ``filled``: what its user writes in a form; ``cancel`` or ``decline``: the user fills in nothing.
    """

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.questions: list[tuple[Any, dict[str, Any]]] = []
        self.answer = "allow"
        self.go = asyncio.Event()
        self.forms: list[tuple[str, Any]] = []
        self.filled: Any = "cancel"

    async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:
        self.updates.append(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_more: Any) -> Any:
        self.questions.append((tool_call, {option.option_id: option for option in options}))
        await self.go.wait()
        if self.answer == "dismiss":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=self.answer))

    async def create_elicitation(self, message: str, mode: Any, **_more: Any) -> Any:
        self.forms.append((message, mode))
        if self.filled == "cancel":
            return CancelElicitationResponse(action="cancel")
        if self.filled == "decline":
            return DeclineElicitationResponse(action="decline")
        return AcceptElicitationResponse(action="accept", content=self.filled)

    def text_of(self, kind: str) -> str:
        return "".join(each.content.text for each in self.updates if each.session_update == kind)

    def calls(self) -> dict[str, list[Any]]:
        """Tool call → its updates, in order."""
        updates: dict[str, list[Any]] = {}
        for each in self.updates:
            if each.session_update in {"tool_call", "tool_call_update"}:
                updates.setdefault(each.tool_call_id, []).append(each)
        return updates

    def call_text(self) -> str:
        """All that tool calls show, as text."""
        blocks = [block for call in self.calls().values() for each in call for block in each.content or ()]
        return "\n".join(block.content.text for block in blocks if block.type == "content")


class Desk:
    """An editor with a session at a real ``turngate acp``."""

    def __init__(self, connection: Any, editor: Editor, directory: Path) -> None:
        self.connection, self.editor, self.directory = connection, editor, directory
        self.session_id = ""
        self.events: list[Any] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Every message of the connection, in either direction."""
        return [event.message for event in self.events]

    async def fresh(self, answer: str = "allow", *, held: bool = False) -> Desk:
        """Begin a session with an empty record. ``held``: questions are answered once ``editor.go`` is set."""
        self.editor.__init__()
        self.editor.answer = answer
        if not held:
            self.editor.go.set()
        self.session_id = (await self.connection.new_session(cwd=str(self.directory), mcp_servers=[])).session_id
        return self

    async def prompt(self, text: str) -> str:
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer = await self.connection.prompt(session_id=self.session_id, prompt=[text_block(text)])
        return answer.stop_reason

    async def question(self) -> tuple[Any, dict[str, Any]]:
        async def look() -> bool:
            return bool(self.editor.questions)

        await until(look, "question in the editor")
        return self.editor.questions[-1]


@contextlib.asynccontextmanager
async def desk_on(reader: Any, writer: Any, directory: Path, *, forms: bool = False) -> AsyncIterator[Desk]:
    """A desk at a running driver. ``forms``: its editor can show forms."""
    editor = Editor()
    desk = Desk(None, editor, directory)
    connection = desk.connection = connect_to_agent(
        editor, writer, reader, observers=[desk.events.append], use_unstable_protocol=True
    )
    able = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))
    try:
        agreed = await connection.initialize(
            protocol_version=PROTOCOL_VERSION, client_capabilities=able if forms else ClientCapabilities()
        )
        assert agreed.protocol_version == 1
        assert agreed.agent_capabilities.load_session
        yield desk
        check_messages(desk.events)
    finally:
        await connection.close()


def check_messages(events: list[Any]) -> None:
    """Fail if the agent sent a message with a value or a member that the protocol's models don't have."""
    methods = {event.message["id"]: event.message["method"] for event in events if is_request(event, "outgoing")}
    for event in events:
        message = event.message
        if event.direction != "incoming" or "error" in message:
            continue
        if "method" in message:
            model, content = FROM_AGENT[message["method"]], message["params"]
        else:
            model, content = RESULTS[methods[message["id"]]], message["result"]
        adapter = TypeAdapter(model)
        read = adapter.validate_python(content)
        assert adapter.dump_python(read, mode="json", by_alias=True, exclude_unset=True) == content


def is_request(event: Any, direction: str) -> bool:
    return event.direction == direction and "id" in event.message and "method" in event.message


@contextlib.asynccontextmanager
async def process_at(api: Api, token: str, directory: Path) -> AsyncIterator[Desk]:
    process = await asyncio.create_subprocess_exec(
        TURNGATE, "acp", stdin=PIPE, stdout=PIPE, env=environment(api, token, directory), cwd=directory, limit=2**24
    )
    async with desk_on(process.stdout, process.stdin, directory) as desk:
        yield desk
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), DEADLINE_SECONDS) == 0


async def the_run(api: Api) -> dict[str, Any]:
    """The newest run, whole."""
    newest = (await api.operator.get("/api/v1/runs", params={"limit": 1})).json()["items"][0]
    return (await api.operator.get(f"/api/v1/runs/{newest['id']}")).json()
