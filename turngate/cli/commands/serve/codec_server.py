"""``turngate codec-server``: decrypts payloads for Temporal's own pages and command line.

Its protocol is Temporal's: ``POST /decode`` and ``/encode`` with ``Payloads`` as protobuf's JSON
(https://docs.temporal.io/production-deployment/data-encryption). Who gets an answer reads failures' words, so it answers to
loopback names, to one origin of pages, and beyond loopback to an admin's token only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from fastapi import FastAPI, Request, Response
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from turngate.cli import stores, terminal
from turngate.cli.api_server import ApiServer, listen
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import DataDir
from turngate.cli.parts.stop import until_stopped
from turngate.cli.posix_signals import stop_on_posix_signals
from turngate.domain.errors import ConfigurationError, UnreadableContentError
from turngate.http_environment import is_loopback
from turngate.runtime.settings import Settings
from turngate.runtime.temporal_client import codec_of
from turngate.store.access import tokens
from turngate.store.database import Database

PORT: Final = 8322
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_PAYLOADS: Final = 20_000
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
PREFLIGHT_HEADERS: Final = "authorization, content-type, x-namespace"


@dataclass(frozen=True, kw_only=True)
class Door:
    """Who gets an answer. ``origin``: of the pages; None: no page does. ``database`` None: this machine only, without a token."""

    origin: str | None
    database: Database | None

    async def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that gets nothing, or None."""
        if self.database is None and urlsplit(f"//{request.headers.get('host', '')}").hostname not in LOOPBACK:
            return _refused(421, "this server answers to loopback names only")
        origin = request.headers.get("origin")
        if origin is not None and origin != self.origin:
            return _refused(403, f"pages of {origin[:200]!r} get nothing here: --origin names the ones that do")
        if request.method == "OPTIONS" or self.database is None:
            return None
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        async with self.database.glance() as conn:
            token = await tokens.find(conn, secret.strip()) if scheme.lower() == "bearer" else None
        if token is None or "admin" not in token.scopes:
            return _refused(401, "send `Authorization: Bearer TOKEN` with an admin's token")
        return None


def create_codec_app(codec: PayloadCodec, door: Door) -> FastAPI:
    """Return the server's app."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    async def answer(request: Request, change: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]) -> Response:
        refusal = await door.refusal(request)
        if refusal is None:
            refusal = Response(status_code=204) if request.method == "OPTIONS" else await _changed(request, change)
        if door.origin is not None:
            refusal.headers["Access-Control-Allow-Origin"] = door.origin
            refusal.headers["Access-Control-Allow-Headers"] = PREFLIGHT_HEADERS
            refusal.headers["Access-Control-Allow-Methods"] = "POST"
        refusal.headers["Vary"] = "Origin"
        refusal.headers["Cache-Control"] = "no-store"
        refusal.headers["X-Content-Type-Options"] = "nosniff"
        return refusal

    @app.api_route("/decode", methods=["POST", "OPTIONS"])
    async def decode(request: Request) -> Response:
        return await answer(request, codec.decode)

    @app.api_route("/encode", methods=["POST", "OPTIONS"])
    async def encode(request: Request) -> Response:
        return await answer(request, codec.encode)

    return app


async def _changed(request: Request, change: Callable[[Sequence[Payload]], Awaitable[list[Payload]]]) -> Response:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _refused(
            415, "send application/json"
        )  # which a browser sends to another origin only if it was asked before
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            return _refused(413, f"at most {MOST_BYTES:,} bytes")
    try:
        payloads = Parse(bytes(body), Payloads(), ignore_unknown_fields=True).payloads
    except (ParseError, ValueError, RecursionError):
        return _refused(400, "this is no JSON of Temporal's Payloads")
    if len(payloads) > MOST_PAYLOADS:
        return _refused(413, f"at most {MOST_PAYLOADS:,} payloads")
    try:
        changed = Payloads(payloads=await change(payloads))
    except UnreadableContentError as error:
        return _refused(400, error.message)
    return Response(MessageToJson(changed, indent=None), media_type="application/json")


def _refused(status: int, why: str) -> Response:
    return Response(f"{why}\n", status_code=status, media_type="text/plain")


def codec_server(
    port: Annotated[int, typer.Option(min=1, max=65_535, help="The port to listen on.")] = PORT,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Beyond loopback, it answers to admins' tokens only.")
    ] = "127.0.0.1",
    origin: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where Temporal's pages are: only they get an answer in a browser.",
            show_default="that of $TURNGATE_TEMPORAL_UI_URL, else no page",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Decrypt payloads for Temporal's own pages and command line, if stored content is encrypted.

    Give its address to Temporal's pages (the glasses at the top right) or to `temporal --codec-endpoint`.
    """
    settings = server_settings(data_dir=data_dir)
    pages = origin or (None if settings.temporal_ui_url is None else str(settings.temporal_ui_url))
    serve_codec(settings, host, port, _origin(pages))


def _origin(url: str | None) -> str | None:
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"--origin={url}: give where Temporal's pages are, such as http://127.0.0.1:8233")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def serve_codec(settings: Settings, host: str, port: int, origin: str | None) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError: nothing is encrypted, or the port is taken."""
    listener = listen(host, port)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with AsyncExitStack() as parts:
                parts.callback(listener.close)
                database = await parts.enter_async_context(stores.opened_store(settings))
                codec = codec_of(database)
                if codec is None:
                    raise ConfigurationError(
                        "stored content isn't encrypted, so Temporal's isn't either, and there is nothing to decrypt"
                    )
                door = Door(origin=origin, database=None if is_loopback(host) else database)
                server: Any = ApiServer(create_codec_app(codec, door), listener)
                parts.push_async_callback(server.stop)
                await server.start()
                who = "programs on this machine" if door.database is None else "admins' tokens"
                pages = f" and pages of {origin}" if origin else "; no page in a browser (--origin)"
                terminal.line(f"codec server at http://{host}:{port}, for {who}{pages}")
                stop.running()
                await until_stopped(stop.requested, [server.task])
        terminal.note("codec server stopped")

    asyncio.run(serve())
