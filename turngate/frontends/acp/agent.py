"""``turngate acp``: the Agent Client Protocol on stdio, so that an editor drives an agent and answers its gates.

A session is a conversation and a prompt is a run, or a message to the one that is live. The person who answers in the editor
decides under the token's name, and may do there what the API lets them (I10).
Source: https://agentclientprotocol.com (protocol version 1)
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

from acp import PROTOCOL_VERSION, Agent, RequestError, run_agent, update_agent_message_text
from acp.schema import (
    AgentCapabilities,
    AvailableCommand,
    AvailableCommandsUpdate,
    ClientCapabilities,
    CloseSessionResponse,
    EmbeddedResourceContentBlock,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResourceContentBlock,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionInfoUpdate,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    TextContentBlock,
    TextResourceContents,
)

from turngate import __version__
from turngate.client import TurngateClient
from turngate.domain.errors import (
    ConfigurationError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TurngateError,
    UnauthenticatedError,
)
from turngate.frontends.acp import render as show
from turngate.frontends.acp.editor import Connection, Editor, EditorLines
from turngate.frontends.acp.models import SessionModel, answering_agent, offered_models
from turngate.frontends.acp.open_session import OpenSession, Prompted
from turngate.frontends.acp.sessions import Session, Sessions
from turngate.frontends.acp.turn import stop_reason
from turngate.frontends.lines import JsonLines
from turngate.wire.problems import problem_of
from turngate.wire.runs import RunSummary

# A prompt from an editor as the one text that a run begins with.


def prompt_text(blocks: Sequence[Any]) -> str:
    """Return the text of a prompt: what was typed, links by their address, and files that came with it, each in a fence.

    Raises RequestError for pictures, sounds and other bytes, which :func:`initialize` did not say we take.
    """
    return "\n".join(_text(block) for block in blocks)


def _text(block: Any) -> str:
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return f"{block.name} ({block.uri})"
        case EmbeddedResourceContentBlock(resource=TextResourceContents() as file):
            return f'<file uri="{file.uri}">\n{file.text}\n</file>'
        case _:
            raise RequestError.invalid_params({"details": f"a prompt of type {block.type!r} is not taken: send text"})


# The conversations there are, as an editor lists them: by the names it knows them by.


LISTED: Final = 50
TITLE_CHARS: Final = 80


async def listed(client: TurngateClient, named: Mapping[str, str], cwd: str | None) -> list[SessionInfo]:
    """Return the newest conversations. ``named``: conversation → session; ``cwd``: those of that project, None: all."""
    page = await client.list_runs(limit=4 * LISTED)
    newest: dict[str, SessionInfo] = {}
    for run in page.items:
        here = run.parent_run_id is None and run.replay_of_run_id is None and cwd in {None, run.workspace}
        if here and run.workspace and run.conversation_id not in newest:
            newest[run.conversation_id] = SessionInfo(
                session_id=named.get(run.conversation_id, run.conversation_id),
                cwd=run.workspace,
                title=title_of(run),
                updated_at=run.created_at,
            )
    return list(newest.values())[:LISTED]


def title_of(run: RunSummary) -> str:
    """Return a run's task as a title: its beginning, on one line, with nothing hidden."""
    return show.marked(" ".join(run.task.split())[:TITLE_CHARS])


WATCH: Final = "/watch"
_CODES: Final[dict[type[TurngateError], int]] = {
    UnauthenticatedError: -32000,
    NotFoundError: -32002,
    InvalidInputError: -32602,
}
"""As the protocol has them; every other error is -32603."""
_WATCHING: Final = AvailableCommand(
    name="watch", description="Follow this conversation's live run, and answer its gates."
)

_log = logging.getLogger("turngate.acp")
P = ParamSpec("P")
Result = TypeVar("Result")


async def serve_acp(
    client: TurngateClient, lines: JsonLines, *, agent: str | None, model: str | None, sessions: Path
) -> None:
    """Serve one editor until its input ends; runs continue.

    ``agent``: None: the only one there is. ``model``: in place of its own. ``sessions``: where it is kept which session is
    which conversation. The editor gets what is wrong, such as an API that is away, when it begins a session.
    """
    editor_lines = EditorLines(lines)
    served = AcpAgent(client, editor_lines, agent=agent, model=model, sessions=sessions)
    # Resuming and closing sessions are in the protocol, and what the package here still calls unstable.
    await run_agent(cast("Agent", served), editor_lines, None, use_unstable_protocol=True)


def _with_problems(method: Callable[P, Awaitable[Result]]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """Give the editor Turngate's errors as such: with their message, which says the fix, and their problem document."""

    @functools.wraps(method)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return await method(*args, **kwargs)
        except TurngateError as error:
            code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), -32603)
            raise RequestError(code, error.message, problem_of(error)) from None

    return telling


class AcpAgent:
    """The agent's side of the protocol, as the package calls it; its methods are named there."""

    def __init__(
        self, client: TurngateClient, lines: EditorLines, *, agent: str | None, model: str | None, sessions: Path
    ) -> None:
        self._client = client
        self._lines = lines
        self._agent = agent
        self._model = model
        self._sessions = Sessions(sessions)
        self._open: dict[str, OpenSession] = {}
        self._connection: Connection | None = None
        self._has_forms = False

    def on_connect(self, conn: Connection) -> None:
        """Take the connection that the package has made."""
        self._connection = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: ClientCapabilities | None = None, **_more: Any
    ) -> InitializeResponse:
        """Say what we speak. An editor of another version gets this one, and decides."""
        del protocol_version
        asks = None if client_capabilities is None else client_capabilities.elicitation
        self._has_forms = asks is not None and asks.form is not None
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True, image=False, audio=False),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            agent_info=Implementation(name="turngate", title="Turngate", version=__version__),
            auth_methods=[],
        )

    @_with_problems
    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        """Begin a session in the editor's project."""
        if more.get("mcp_servers"):
            _log.warning("the editor's MCP servers are not used: an agent has the tools that its app gives it")
        directory = _directory(cwd)
        agent, own_model = await answering_agent(self._client, self._agent)
        session = await self._opened(self._sessions.begin(directory), agent, own_model)
        return NewSessionResponse(session_id=session.session.id, config_options=[*session.model.options])

    @_with_problems
    async def load_session(self, cwd: str, session_id: str, **_more: Any) -> LoadSessionResponse:
        """Tell a conversation's past, and continue it; the next prompt joins its live run, if one is."""
        session = await self._load(cwd, session_id, retell=True)
        return LoadSessionResponse(config_options=[*session.model.options])

    @_with_problems
    async def resume_session(self, cwd: str, session_id: str, **_more: Any) -> ResumeSessionResponse:
        """Continue a conversation whose past the editor has."""
        session = await self._load(cwd, session_id, retell=False)
        return ResumeSessionResponse(config_options=[*session.model.options])

    @_with_problems
    async def close_session(self, session_id: str, **_more: Any) -> CloseSessionResponse:
        """Cancel what a prompt of the session began, and forget it here; its conversation is kept."""
        self._session(session_id)
        await self.cancel(session_id)
        del self._open[session_id]
        return CloseSessionResponse()

    @_with_problems
    async def list_sessions(self, cwd: str | None = None, **_more: Any) -> ListSessionsResponse:
        """List the newest conversations; ``cwd``: those of that project."""
        return ListSessionsResponse(sessions=await listed(self._client, self._sessions.by_conversation(), cwd))

    @_with_problems
    async def set_config_option(
        self, session_id: str, config_id: str, value: Any, **_more: Any
    ) -> SetSessionConfigOptionResponse:
        """Choose the session's model."""
        session = self._session(session_id)
        await session.model.choose(config_id, value, session.session.run_id)
        return SetSessionConfigOptionResponse(config_options=[*session.model.options])

    @_with_problems
    async def prompt(self, session_id: str, prompt: list[Any], **_more: Any) -> PromptResponse:
        """Start the run that answers, or say it to the live one; follow it to its end."""
        session = self._session(session_id)
        self._require_idle(session_id)
        text = prompt_text(prompt)
        prompted = session.prompted = Prompted()
        try:
            run = await self._watched(session) if text.strip() == WATCH else await self._begun(session, text)
            if run is None:
                return PromptResponse(stop_reason="end_turn")
            prompted.run_id = run.id
            if prompted.is_cancelled:
                await self._interrupt(run.id)
            turn = await session.turn(self._client, prompted)
            return PromptResponse(stop_reason=stop_reason(await turn.follow(run.id)))
        finally:
            session.prompted = None

    async def cancel(self, session_id: str, **_more: Any) -> None:
        """Interrupt what a prompt began; the prompt is answered with ``cancelled`` once the run has ended."""
        session = self._open.get(session_id)
        prompted = None if session is None else session.prompted
        if prompted is None:
            return
        prompted.is_cancelled = True
        if prompted.gates is not None:
            prompted.gates.cancel()
        if prompted.run_id is not None:
            await self._interrupt(prompted.run_id)

    async def _begun(self, session: OpenSession, text: str) -> RunSummary:
        is_first = session.session.conversation_id is None
        run = await session.begin(self._client, text)
        session.session.run_id, session.session.conversation_id = run.id, run.conversation_id
        session.model.took(run.model)
        self._sessions.keep(session.session)
        if is_first:
            await session.editor.tell(SessionInfoUpdate(session_update="session_info_update", title=title_of(run)))
        return run

    async def _watched(self, session: OpenSession) -> RunSummary | None:
        """Return the session's live run; None, and say so, when there is none."""
        run = None if session.session.run_id is None else await self._client.get_run(session.session.run_id)
        if run is None or run.status != "running":
            await session.editor.tell(update_agent_message_text("No run of this conversation is live."))
            return None
        return run

    async def _interrupt(self, run_id: str) -> None:
        try:
            await self._client.interrupt(run_id, reason="cancelled in the editor")
        except ConflictError:  # it has ended by itself
            return
        except TurngateError as error:
            _log.warning("run %s was not interrupted: %s", run_id, error)

    async def _load(self, cwd: str, session_id: str, *, retell: bool) -> OpenSession:
        self._require_idle(session_id)
        session = Session(id=session_id, directory=_directory(cwd))
        session.conversation_id = self._sessions.conversation(session_id)
        if session.conversation_id is None:  # nothing was said in it
            return await self._opened(session, *await answering_agent(self._client, self._agent))
        messages = await self._client.list_messages(session.conversation_id)
        run_id = next((each.run_id for each in reversed(messages) if each.run_id is not None), None)
        if run_id is None:
            return await self._opened(session, *await answering_agent(self._client, self._agent))
        run = await self._client.get_run(run_id)
        opened = await self._opened(session, run.agent, run.model)
        opened.knows(messages)
        if retell:
            await opened.retell(messages)
        if run.status == "running":
            await opened.editor.tell(
                update_agent_message_text(
                    f"*(A run of this conversation is live: `{WATCH}` follows it, and anything else is said to it.)*"
                ),
                AvailableCommandsUpdate(session_update="available_commands_update", available_commands=[_WATCHING]),
            )
        return opened

    async def _opened(self, session: Session, agent: str, model: str) -> OpenSession:
        if self._connection is None:
            raise ConfigurationError("no editor is connected")
        offered = await offered_models(self._client)
        editor = Editor(self._connection, self._lines, session.id, has_forms=self._has_forms)
        chosen = SessionModel(self._client, offered, model, self._model)
        self._open[session.id] = OpenSession(session, editor, agent, chosen)
        return self._open[session.id]

    def _require_idle(self, session_id: str) -> None:
        if session_id in self._open and self._open[session_id].prompted is not None:
            raise RequestError.invalid_request({"details": "this session answers a prompt already: cancel that first"})

    def _session(self, session_id: str) -> OpenSession:
        session = self._open.get(session_id)
        if session is None:
            raise NotFoundError(f"there is no session {session_id!r} here: load it, or begin a new one")
        return session


def _directory(cwd: str) -> str:
    if not Path(cwd).is_absolute():
        raise InvalidInputError(f"cwd is an absolute path, not {cwd!r}")
    return cwd
