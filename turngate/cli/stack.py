"""All parts in one process, started in order and stopped in reverse: first the API, then the worker, then Temporal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from turngate.cli import stores, terminal
from turngate.cli.api_settings import configured_channels
from turngate.cli.dev.workshop import Workshop
from turngate.cli.parts.api import announced, serving_api
from turngate.cli.parts.metrics import metrics_listener, serving_metrics, watched_by_api
from turngate.cli.parts.stop import until_stopped
from turngate.cli.parts.temporal import embedded_temporal
from turngate.cli.parts.worker import serving_worker
from turngate.cli.temporal_link import connect_when_there
from turngate.domain.errors import ConfigurationError
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import Settings
from turngate.store.database import Database


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The running parts. ``parts``: tasks that end only when their part fails or is stopped."""

    settings: Settings
    database: Database
    temporal_address: str
    temporal_ui_url: str | None
    parts: list[asyncio.Task[None]]

    async def until(self, stop: asyncio.Event) -> None:
        """Return when ``stop`` is set. Raises a part's error when the part ends by itself."""
        await until_stopped(stop, self.parts)


@asynccontextmanager
async def whole_stack(
    settings: Settings, app: LoadedApp | Workshop, listener: socket.socket, *, temporal_ui: bool = False
) -> AsyncIterator[Stack]:
    """Run everything: embedded Temporal (unless TEMPORAL_ADDRESS is set), store, worker and API on ``listener``.

    ``app``: loaded into this process, or by a workshop, whose worker is a process of its own.

    Raises ConfigurationError or UnavailableError, with the fix, when a part cannot start. The parts before it are stopped.
    """
    async with AsyncExitStack() as running:
        running.callback(listener.close)
        metrics = metrics_listener(settings)
        require_no_other_stack(settings)
        channels = configured_channels(settings)
        settings.ensure_data_dir()
        # Temporal's server is a process of its own, so it starts while this one opens the store.
        starting = asyncio.create_task(
            running.enter_async_context(_temporal(settings, ui=temporal_ui, is_dev=isinstance(app, Workshop)))
        )
        try:
            database = await running.enter_async_context(stores.opened_store(settings, migrate=True))
            temporal_address, ui_url = await starting
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        settings = settings.model_copy(update={"temporal_ui_url": ui_url or settings.temporal_ui_url})
        await running.enter_async_context(stores.signing_log(settings, database))
        client = await connect_when_there(
            settings.model_copy(update={"temporal_address": temporal_address}), terminal.note, database
        )
        watched = watched_by_api(settings, client, database, channels)
        await running.enter_async_context(serving_metrics(metrics, database, settings, watched=watched))
        await stores.ensure_cli_token(database, settings.data_dir)
        if isinstance(app, Workshop):
            worker = await running.enter_async_context(app.serving(temporal_address, database))
        else:
            worker = await running.enter_async_context(serving_worker(settings, app, client, database))
        playground = app if isinstance(app, Workshop) else None
        eager = playground is None  # a start goes straight to a worker of this process
        api = await running.enter_async_context(
            serving_api(settings, client, database, listener, channels, eager=eager, playground=playground)
        )
        await running.enter_async_context(announced(settings, temporal_address))
        yield Stack(
            settings=settings,
            database=database,
            temporal_address=temporal_address,
            temporal_ui_url=ui_url,
            parts=[worker, api],
        )


def require_no_other_stack(settings: Settings) -> None:
    """Raise ConfigurationError when a stack already runs from this data directory."""
    other = RunningStack.read(settings.data_dir)
    if other is not None:
        raise ConfigurationError(
            f"Turngate already runs from {settings.data_dir}: process {other.pid} at {other.api_url}. "
            "Use it, stop it, or choose another directory with --data-dir"
        )


@asynccontextmanager
async def _temporal(settings: Settings, *, ui: bool, is_dev: bool) -> AsyncIterator[tuple[str, str | None]]:
    """Yield the address of Temporal and of its pages: those of the settings, or of a server that runs meanwhile.

    ``is_dev``: it is killed at the end, because who writes an app starts and stops all day.
    """
    if settings.temporal_address is not None:
        yield settings.temporal_address, None
        return
    async with embedded_temporal(settings, settings.temporal_port, ui=ui, kill=is_dev) as server:
        yield server.address, server.ui_url
