"""Real receivers of notifications on loopback, and rows of the store that cause notifications."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import SecretStr
from support.stores.stored_requests import live_run

from turngate.notifications.configuration import Channel
from turngate.notifications.http_post import Poster
from turngate.notifications.items import Item
from turngate.notifications.message_text import Links
from turngate.notifications.selection import Selection
from turngate.notifications.webhook_channel import WebhookSender
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.requests import requests

LINKS = Links("https://turngate.example")


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """An HTTP server with scripted responses: ``answers`` in order, then always ``answer``. None: it never responds."""

    port: int = 0
    answer: bytes | None = b"HTTP/1.1 204 No Content\r\n\r\n"
    answers: list[bytes | None] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=s3cret-in-url"

    async def got(self, count: int, seconds: float = 60) -> list[Received]:
        """Wait until this many requests have come and return them all; fails after ``seconds``."""
        async with asyncio.timeout(seconds), self.arrived:
            await self.arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *rest = head.split("\r\n")
            headers = {name.lower(): value for name, _colon, value in (line.partition(": ") for line in rest if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.received.append(Received(first.split(" ")[1], headers, body))
            async with self.arrived:
                self.arrived.notify_all()
            answer = self.answers.pop(0) if self.answers else self.answer
            if answer is None:
                await reader.read()  # until the other side gives up
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()


def answer(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def webhook_channel(
    receiver: Receiver, name: str = "ops", *, window: float = 0, secrets: tuple[str, ...] = (), **selection: Any
) -> Channel:
    signing = [SecretStr(each) for each in secrets or ("whsec_" + "QUJD" * 8,)]
    poster = Poster(url=receiver.url, allow_private=True)
    return Channel(
        name=name,
        kind="webhook",
        selection=Selection(**selection),
        window=timedelta(seconds=window),
        sender=WebhookSender(poster=poster, secrets=signing, links=LINKS),
    )


def item(**fields: Any) -> Item:
    defaults = {
        "seq": 7,
        "name": "request.opened",
        "at": "2026-03-01T12:00:00.000000+00:00",
        "run_id": "run_1",
        "request_id": "req_1",
        "kind": "approval",
        "tool": "refund",
        "agent": "writer/support",
        "risk": "high",
        "rule": "refunds-ask",
        "deciders": "any admin or ada",
        "not_by": "bob",
        "approvals": 1,
        "quorum": 2,
        "expires_at": "2026-03-01T14:05:00.000000+00:00",
    }
    return Item(**(defaults | fields))


async def new_run(conn: Connection, run_id: str, *, agent: str = "support", path: str | None = None) -> None:
    """Insert a live run whose task is text that no message may contain."""
    await live_run(conn, run_id, agent=agent, task="the agent's own words", path=path)


def new_request(request_id: str, run_id: str, **fields: Any) -> requests.Request:
    defaults: dict[str, Any] = {
        "id": request_id,
        "run_id": run_id,
        "tool_call_id": f"call_{request_id}",
        "kind": "approval",
        "status": "pending",
        "agent": "support",
        "tool_name": "refund",
        "manifest": "{}",
        "input": '{"secret": "ARGUMENTS"}',
        "digest": "d" * 64,
        "rule": "refunds-ask",
        "reason": "THE-REASON",
        "risk": "high",
        "agent_words": "AGENT-WORDS",
        "preview_kind": "text",
        "preview": "PREVIEW",
        "not_by": None,
        "expires_at": None,
        "created_at": as_text(now()),
        "urgent_at": as_text(now()),
    }
    return requests.Request(**(defaults | fields))


async def opened(database: Database, run_id: str, *request_ids: str, **fields: Any) -> None:
    """Open requests in an existing run, each with its event, as planning does."""
    async with database.write() as conn:
        rows = [new_request(each, run_id, **fields) for each in request_ids]
        await requests.insert_all(conn, rows)
        opened_events = [
            ("request.opened", {"request_id": each.id, "tool": each.tool_name, "kind": each.kind}) for each in rows
        ]
        await events.append(conn, run_id, opened_events)
