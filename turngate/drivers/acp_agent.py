"""``turngate acp``: the Agent Client Protocol on stdio, so that an editor drives an agent and answers its gates.

A session is a conversation and a prompt is a run, or a message to the one that is live. Whoever answers in the editor
decides under the token's name, and may do there what the API lets them (I10).
Source: https://agentclientprotocol.com (protocol version 1)
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

from acp import PROTOCOL_VERSION, Agent, RequestError, run_agent
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    SessionCapabilities,
    SessionInfo,
    SessionListCapabilities,
)

from turngate.client import TurngateClient
from turngate.domain.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TurngateError,
    UnauthenticatedError,
)
from turngate.drivers.acp_calls import Calls
from turngate.drivers.acp_editor import Connection, Editor, EditorLines
from turngate.drivers.acp_gates import Gates
from turngate.drivers.acp_history import retold
from turngate.drivers.acp_prompts import prompt_text
from turngate.drivers.acp_sessions import Session, Sessions
from turngate.drivers.acp_turn import Turn, stop_reason
from turngate.drivers.json_lines import JsonLines
from turngate.drivers.problems import problem_of
from turngate.wire.runs import RunSummary

LISTED: Final = 50
_CODES: Final[dict[type[TurngateError], int]] = {
    UnauthenticatedError: -32000,
    NotFoundError: -32002,
    InvalidInputError: -32602,
}
"""As the protocol has them; every other error is -32603."""

_log = logging.getLogger("turngate.acp")
P = ParamSpec("P")
Answer = TypeVar("Answer")


async def serve_acp(
    client: TurngateClient, lines: JsonLines, *, agent: str | None, model: str | None, sessions: Path
) -> None:
    """Serve one editor until its input ends; runs go on.

    ``agent``: None: the only one there is. ``model``: in place of its own. ``sessions``: where it is kept which session is
    which conversation.

    Raises ConfigurationError when it takes an ``agent`` and none was given.
    """
    editor_lines = EditorLines(lines)
    served = AcpAgent(client, editor_lines, agent=agent or await _only_agent(client), model=model, sessions=sessions)
    await run_agent(cast("Agent", served), editor_lines, None)


def _told(method: Callable[P, Awaitable[Answer]]) -> Callable[P, Coroutine[Any, Any, Answer]]:
    """Tell the editor errors of ours as such: with their message, which says the fix, and their problem document."""

    @functools.wraps(method)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return await method(*args, **kwargs)
        except TurngateError as error:
            code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), -32603)
            raise RequestError(code, error.message, problem_of(error)) from None

    return telling


@dataclass
class _Prompted:
    """A prompt that is being answered. ``run_id``: None until its run has begun."""

    run_id: str | None = None
    is_cancelled: bool = False


class AcpAgent:
    """The agent's side of the protocol, as the package calls it; its methods are named there."""

    def __init__(
        self, client: TurngateClient, lines: EditorLines, *, agent: str, model: str | None, sessions: Path
    ) -> None:
        self._client = client
        self._lines = lines
        self._agent = agent
        self._model = model
        self._kept = Sessions(sessions)
        self._sessions: dict[str, Session] = {}
        self._shown: dict[str, set[tuple[str, int]]] = {}
        self._prompted: dict[str, _Prompted] = {}
        self._connection: Connection | None = None

    def on_connect(self, conn: Connection) -> None:
        """Take the connection that the package has made."""
        self._connection = conn

    async def initialize(self, protocol_version: int, **_more: Any) -> InitializeResponse:
        """Say what we speak. An editor of another version is told ours, and decides."""
        del protocol_version
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True, image=False, audio=False),
                session_capabilities=SessionCapabilities(list=SessionListCapabilities()),
            ),
            agent_info=Implementation(name="turngate", title="Turngate", version=version("turngate")),
            auth_methods=[],
        )

    @_told
    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        """Begin a session in the editor's project."""
        if more.get("mcp_servers"):
            _log.warning("the editor's MCP servers are not used: an agent has the tools that its app gives it")
        session = self._kept.begin(_directory(cwd))
        self._take(session)
        return NewSessionResponse(session_id=session.id)

    @_told
    async def load_session(self, cwd: str, session_id: str, **_more: Any) -> LoadSessionResponse:
        """Tell a conversation's past, and go on with it; the next prompt joins its live run, if one is."""
        session = Session(id=session_id, directory=_directory(cwd))
        session.conversation_id = self._kept.conversation(session_id)
        self._take(session)
        if session.conversation_id is None:
            return LoadSessionResponse()
        messages = await self._client.list_messages(session.conversation_id)
        session.run_id = next((each.run_id for each in reversed(messages) if each.run_id is not None), None)
        self._shown[session_id] = {(each.run_id, each.step) for each in messages if each.run_id and each.step}
        await self._editor(session).tell(*retold(messages))
        return LoadSessionResponse()

    @_told
    async def list_sessions(self, cwd: str | None = None, **_more: Any) -> ListSessionsResponse:
        """List the newest conversations; ``cwd``: those of that project."""
        page = await self._client.list_runs(limit=4 * LISTED)
        newest: dict[str, SessionInfo] = {}
        for run in page.items:
            here = run.parent_run_id is None and run.replay_of_run_id is None and cwd in {None, run.workspace}
            if here and run.workspace and run.conversation_id not in newest:
                newest[run.conversation_id] = SessionInfo(
                    session_id=run.conversation_id, cwd=run.workspace, title=run.task[:80], updated_at=run.created_at
                )
        return ListSessionsResponse(sessions=list(newest.values())[:LISTED])

    @_told
    async def prompt(self, session_id: str, prompt: list[Any], **_more: Any) -> PromptResponse:
        """Start the run that answers, or say it to the live one; follow it to its end."""
        session = self._session(session_id)
        if session_id in self._prompted:
            raise RequestError.invalid_request({"details": "this session answers a prompt already: cancel that first"})
        text = prompt_text(prompt)
        prompted = self._prompted[session_id] = _Prompted()
        try:
            run = await self._begun(session, text)
            prompted.run_id = session.run_id = run.id
            session.conversation_id = run.conversation_id
            self._kept.keep(session)
            if prompted.is_cancelled:
                await self._interrupt(run.id)
            return PromptResponse(stop_reason=stop_reason(await (await self._turn(session)).follow(run.id)))
        finally:
            del self._prompted[session_id]

    async def cancel(self, session_id: str, **_more: Any) -> None:
        """Interrupt what a prompt began; the prompt is answered with ``cancelled`` once the run has ended."""
        prompted = self._prompted.get(session_id)
        if prompted is None:
            return
        prompted.is_cancelled = True
        if prompted.run_id is not None:
            await self._interrupt(prompted.run_id)

    async def _begun(self, session: Session, text: str) -> RunSummary:
        if session.run_id is not None:
            # Injected: what is queued would be answered by another run, which this turn would not see.
            return await self._client.send_message(session.run_id, text, while_running="inject")
        return await self._client.start_run(
            agent=self._agent,
            text=text,
            conversation_id=session.conversation_id,
            workspace=session.directory,
            model=self._model,
        )

    async def _interrupt(self, run_id: str) -> None:
        try:
            await self._client.interrupt(run_id, reason="cancelled in the editor")
        except ConflictError:  # it has ended by itself
            return
        except TurngateError as error:
            _log.warning("run %s was not interrupted: %s", run_id, error)

    async def _turn(self, session: Session) -> Turn:
        editor = self._editor(session)
        calls = Calls(editor, session.directory)
        gates = Gates(self._client, editor, calls, await self._client.get_me())
        return Turn(self._client, editor, calls, gates, self._shown[session.id])

    def _take(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._shown[session.id] = set()

    def _session(self, session_id: str) -> Session:
        found = self._sessions.get(session_id)
        if found is None:
            raise NotFoundError(f"there is no session {session_id!r} here: load it, or begin a new one")
        return found

    def _editor(self, session: Session) -> Editor:
        if self._connection is None:
            raise ConfigurationError("no editor is connected")
        return Editor(self._connection, self._lines, session.id)


async def _only_agent(client: TurngateClient) -> str:
    names = [found.name for found in await client.list_agents() if not found.sub_agent_of]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigurationError("no worker has published an agent yet: start one with `turngate up APP`")
    raise ConfigurationError(f"there are several agents: say which with --agent, one of {', '.join(names)}")


def _directory(cwd: str) -> str:
    if not Path(cwd).is_absolute():
        raise InvalidInputError(f"cwd is an absolute path, not {cwd!r}")
    return cwd
