"""What the drivers drive: an agent that follows its input, and their processes with a token of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from support.api.api_server import Api, token_for
from support.engine.stack import call, says
from support.programs.terminal_process import TURNGATE, clean_environment

from turngate import Agent, Toolkit, sub_agent
from turngate.client import TurngateClient
from turngate.domain.conversation.messages import Delta, Message, ModelResponse, ReasoningPart, TextPart
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.tools.declare import interaction_tool, tool
from turngate.domain.tools.preview import Preview
from turngate.frontends.lines import JsonLines
from turngate.models.port import ModelRequest, OnDelta
from turngate.store.access import access

DEADLINE_SECONDS = 60.0
GO = asyncio.Event()
"""A test sets it once it has received the first word, which proves that the word came before the rest."""
DIFF = "--- a/notes.md\n+++ b/notes.md\n@@ -1,2 +1,2 @@\n # Notes\n-old\n+new \u202e\n"


class Amount(BaseModel):
    cents: int


class Text(BaseModel):
    text: str


class Answer(BaseModel):
    answer: str


@tool(effect="once", ask=True)
async def pay(params: Amount) -> dict[str, int]:
    """Pay an amount."""
    return {"paid": params.cents}


@tool(effect="once", ask=True)
async def wire(params: Amount) -> dict[str, int]:
    """Wire an amount; of high risk."""
    return {"wired": params.cents}


@tool(effect="once", ask=True)
async def sign(params: Amount) -> dict[str, int]:
    """Sign for an amount; takes two people."""
    return {"signed": params.cents}


@tool(effect="once", ask=True, preview=lambda _params, _workspace: Preview(kind="diff", text=DIFF))
async def write(params: Text) -> dict[str, str]:
    """Write a text."""
    return {"written": params.text}


@tool(effect="read", ask=False)
async def look(params: Text) -> dict[str, str]:
    """Look something up."""
    return {"found": f"**{params.text}**"}


ask_person = interaction_tool(name="ask_person", description="Ask a person.", params=Text, answer=Answer)
helper = sub_agent(Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(pay), model="scripted:test"))
TOOLS = (pay, wire, sign, write, look, ask_person, helper)
POLICY = Policy(
    rule=[
        Rule(name="large", verdict="ask", tools=["wire"], risk="high", grace_seconds=0),
        Rule(name="two", verdict="ask", tools=["sign"], quorum=2),
    ]
)


class Talker:
    """Does what the last user message says: ``pay N``, ``wire N``, ``sign N``; with a TEXT ``write``, ``look``, ``ask_person``.

    ``helper TASK`` goes to a sub-agent. Anything else gets a reply, with reasoning first, streamed word by word.
    """

    name = "scripted:talker"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        name, _space, rest = last.text.partition(" ")
        if last.role != "user":
            return says("All done.")
        if name not in {each.name for each in TOOLS}:
            return ModelResponse(
                message=Message(
                    role="assistant",
                    parts=(ReasoningPart(text="Let me see."), TextPart(text=f"You said: {last.text}")),
                ),
                finish_reason="stop",
                model=self.name,
            )
        arguments = (
            {"cents": int(rest)} if name in {"pay", "wire", "sign"} else {"task" if name == "helper" else "text": rest}
        )
        return says(f"I will use {name}.", call(name, json.dumps(arguments)))

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        """Stream the response word by word; for ``hold …`` the rest follows once ``GO`` is set."""
        response = await self.generate(request)
        for place, part in enumerate(response.message.parts):
            if not isinstance(part, TextPart | ReasoningPart):
                continue
            first, *rest = part.text.split(" ")
            on_delta(Delta(kind=part.type, part=place, text=first))
            if part.type == "text" and request.messages[-1].text.startswith("hold"):
                await asyncio.wait_for(GO.wait(), DEADLINE_SECONDS)
            for word in rest:
                on_delta(Delta(kind=part.type, part=place, text=f" {word}"))
        return response

    async def aclose(self) -> None:
        return None


async def secret(api: Api, name: str, *scopes: access.Scope) -> str:
    header = await token_for(api.stack.database, name, *scopes)
    return header["Authorization"].removeprefix("Bearer ")


async def owner_token(api: Api) -> str:
    """A token that may start runs and decide, such as the one a stack writes for its owner's commands."""
    return await secret(api, f"ada-{secrets.token_hex(3)}", "admin")


def environment(api: Api, token: str, state: Path) -> dict[str, str]:
    return clean_environment(TURNGATE_API_URL=api.url, TURNGATE_TOKEN=token, XDG_STATE_HOME=str(state))


@contextlib.asynccontextmanager
async def inside(
    api: Api,
    token: str,
    serve: Callable[[TurngateClient, JsonLines], Awaitable[None]],
    url: str | None = None,
    **options: Any,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Task[None]]]:
    """A driver in this process, at the other end of two pipes: what it answers, what it reads, and its end.

    ``options``: of its client.
    """
    (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_in, "rb"))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(our_out, "wb"))
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with os.fdopen(its_in, "rb") as source, os.fdopen(its_out, "wb") as sink:
        async with TurngateClient(url or api.url, token=token, **options) as client:
            task = asyncio.create_task(serve(client, JsonLines(source, sink)))
            try:
                yield reader, writer, task
            finally:
                writer.close()
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await task


class Driver:
    """A command that speaks JSON lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.messages: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] = []

    async def send(self, line: str | dict[str, Any]) -> None:
        text = line if isinstance(line, str) else json.dumps(line)
        self._writer.write(text.encode() + b"\n")
        await self._writer.drain()

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first matching message that no earlier wait returned; ``messages`` has all that came."""
        try:
            return await asyncio.wait_for(self._until(wanted), DEADLINE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"it never came; these did: {self.messages}") from None

    async def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for message in self._open:
                if wanted(message):
                    self._open.remove(message)
                    return message
            line = await self._reader.readline()
            assert line, f"it ended: {self.messages}"
            self.messages.append(json.loads(line))
            self._open.append(self.messages[-1])

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return the whole response."""
        known = secrets.token_hex(4)
        await self.send({"jsonrpc": "2.0", "id": known, "method": method, "params": params})
        return await self.until(lambda message: message.get("id") == known and "method" not in message)


@contextlib.asynccontextmanager
async def driver(*command: str, env: dict[str, str], cwd: Path) -> AsyncIterator[Driver]:
    process = await asyncio.create_subprocess_exec(
        TURNGATE, *command, stdin=PIPE, stdout=PIPE, env=env, cwd=cwd, limit=16 * 1024 * 1024
    )
    try:
        yield Driver(process.stdout, process.stdin)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), DEADLINE_SECONDS) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
