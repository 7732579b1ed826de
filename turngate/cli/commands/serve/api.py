"""``turngate api``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Final

import typer

from turngate.cli import stores, terminal
from turngate.cli.api_server import listen
from turngate.cli.api_settings import configured_channels, login_link_command
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import ApiPort, DataDir, MetricsPort
from turngate.cli.parts.api import announced, serving_api
from turngate.cli.parts.confinement import load_confined
from turngate.cli.parts.metrics import metrics_listener, serving_metrics, watched_by_api
from turngate.cli.parts.stop import until_stopped
from turngate.cli.posix_signals import run_server, stop_on_posix_signals
from turngate.cli.temporal_link import connect_when_there, find_address
from turngate.http_environment import is_loopback
from turngate.runtime.app_loader import LoadedApp, publish_agents
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import Settings
from turngate.store.database import Database

DRAIN_SECONDS: Final = 5
"""A balancer that asks /readyz every two seconds has turned away by then."""


def api(
    app: Annotated[
        str | None,
        typer.Argument(metavar="APP", show_default=False, help="Publish this app's agents before a worker starts."),
    ] = None,
    port: ApiPort = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the API and the operators' pages, without a worker.

    Finds Temporal as `turngate worker` does. TURNGATE_API_HOST is the address to listen on; the default is loopback.
    """
    serve_api(server_settings(api_port=port, metrics_port=metrics_port, data_dir=data_dir), app)


def serve_api(settings: Settings, target: str | None) -> None:
    """Serve the API until SIGINT or SIGTERM. ``target``: an app to publish before a worker starts."""
    loaded = None if target is None else load_confined(settings, target)
    channels = configured_channels(settings)
    listener = listen(settings.api_host, settings.api_port)
    metrics = metrics_listener(settings)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with AsyncExitStack() as parts:
                parts.callback(listener.close)
                database = await parts.enter_async_context(stores.opened_store(settings))
                await parts.enter_async_context(stores.signing_log(settings, database))
                client = await connect_when_there(settings, terminal.note, database)
                watched = watched_by_api(settings, client, database, channels)
                await parts.enter_async_context(serving_metrics(metrics, database, settings, watched=watched))
                await _prepare(settings, database, loaded)
                api = serving_api(
                    settings, client, database, listener, channels, drain_seconds=_drain_seconds(settings)
                )
                task = await parts.enter_async_context(api)
                if is_loopback(settings.api_host) and RunningStack.read(settings.data_dir) is None:
                    await parts.enter_async_context(announced(settings, find_address(settings) or ""))
                link = login_link_command(settings)
                terminal.note(f"API serves {settings.resolved_api_url} (`{link}` lets a browser in)")
                stop.running()
                await until_stopped(stop.requested, [task])
        terminal.note("API stopped")

    run_server(serve())


async def _prepare(settings: Settings, database: Database, app: LoadedApp | None) -> None:
    if app is not None:
        await publish_agents(app, database, task_queue=settings.task_queue)
    if is_loopback(settings.api_host):
        # This machine's own commands may use this API as soon as it answers, as with `turngate up`.
        await stores.ensure_cli_token(database, settings.data_dir)


def _drain_seconds(settings: Settings) -> int:
    """Return how long the API still serves after it must stop: a program on this machine alone has no balancer."""
    if settings.drain_seconds is not None:
        return settings.drain_seconds
    return 0 if is_loopback(settings.api_host) else DRAIN_SECONDS
