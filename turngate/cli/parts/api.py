"""API and pages as a part of this process, and the note by which other processes find them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.cli import terminal
from turngate.cli.api_server import ApiServer
from turngate.cli.api_settings import api_settings, label_settings
from turngate.cli.parts.confinement import workspaces_of
from turngate.http_environment import is_loopback
from turngate.notifications.configuration import Channel
from turngate.runtime.locations import RunningStack, linked_from_here
from turngate.runtime.settings import Settings
from turngate.store.database import Database
from turngate.wire.playground import Playground


@asynccontextmanager
async def serving_api(
    settings: Settings,
    client: Client,
    database: Database,
    listener: socket.socket,
    channels: tuple[Channel, ...] = (),
    *,
    eager: bool = False,
    playground: Playground | None = None,
    drain_seconds: int = 0,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve API and pages on ``listener``, and notify ``channels``. Yields the task, which ends with the server.

    ``drain_seconds``: how long it is still served after the block, while /readyz says that it stops.
    ``eager``: as of :class:`turngate.approvals_api.gateway.client.Gateway`.
    ``playground``: as of :func:`turngate.approvals_api.app.create_app`.
    The app itself starts the workflows of runs that a crash left recorded only (``turngate.approvals_api.app``).
    """
    of_api = api_settings(settings, channels, workspaces_of(settings))
    gateway = Gateway(client, eager=eager, labels=label_settings(settings))
    app = create_app(database=database, gateway=gateway, settings=of_api, playground=playground)
    server = ApiServer(
        app, listener, access_log=settings.log_level == "debug", grace_seconds=settings.stop_grace_seconds
    )
    try:
        await server.start()
        if server.task is None:  # pragma: no cover - start() made it
            raise RuntimeError("the API has no task")
        yield server.task
        if drain_seconds:
            terminal.note(f"API stops in {drain_seconds} s; /readyz says so, so that no more requests are sent here")
        await server.drain(drain_seconds)
    finally:
        await server.stop()


@asynccontextmanager
async def announced(settings: Settings, temporal_address: str) -> AsyncIterator[RunningStack]:
    """Write the note by which commands and other processes find this stack, and remove it when the stack ends."""
    note = RunningStack(
        temporal_address=temporal_address, api_url=settings.resolved_api_url, public_url=settings.public_url
    )
    note.write(settings.data_dir)
    is_here = is_loopback(settings.api_host)
    found_here = linked_from_here(settings.data_dir) if is_here else nullcontext()
    try:
        with found_here:
            yield note
    finally:
        note.remove(settings.data_dir)
