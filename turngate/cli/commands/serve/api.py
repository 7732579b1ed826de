"""``turngate api``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from fastapi import FastAPI
from temporalio.client import Client

from approvals_api.http.hosts import HostApps
from approvals_api.settings import is_loopback
from turngate.cli import stores, terminal
from turngate.cli.api_server import listen
from turngate.cli.api_settings import configured_channels, login_link_command
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import ApiPort, DataDir, MetricsPort
from turngate.cli.parts.api import announced, api_app, serving_app
from turngate.cli.parts.metrics import metrics_listener, serving_metrics, watched_by_api
from turngate.cli.parts.stop import until_stopped
from turngate.cli.posix_signals import run_server, stop_on_posix_signals
from turngate.cli.temporal_link import connect_when_there, find_address
from turngate.notifications.configuration import Channel
from turngate.runtime.app_loader import LoadedApp, load_app, publish_agents
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
    """Serve the API until SIGINT or SIGTERM, of each tenant where there are some.

    ``target``: an app to publish before a worker starts.
    """
    loaded = None if target is None else load_app(target)
    served = [(each, configured_channels(each)) for each in settings.served()]
    listener = listen(settings.api_host, settings.api_port)
    metrics = metrics_listener(settings)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with AsyncExitStack() as parts:
                parts.callback(listener.close)
                tenants = [await _open(each, channels, parts) for each, channels in served]
                watched = [watched_by_api(each.settings, each.client, each.database, each.channels) for each in tenants]
                databases = [each.database for each in tenants]
                await parts.enter_async_context(serving_metrics(metrics, databases, settings, watched=watched))
                for each in tenants:
                    await _prepare(each, loaded)
                task = await parts.enter_async_context(
                    serving_app(settings, _app_of(tenants), listener, drain_seconds=_drain_seconds(settings))
                )
                # A tenant's commands look in its own directory, the others in that of the deployment.
                announcing = {each.data_dir: each for each in (settings, *(each.settings for each in tenants))}
                for directory, own in announcing.items():
                    if is_loopback(own.api_host) and RunningStack.read(directory) is None:
                        await parts.enter_async_context(announced(own, find_address(own) or ""))
                for tenant in tenants:
                    login_link = login_link_command(tenant.settings)
                    terminal.note(f"API serves {tenant.settings.resolved_api_url} (`{login_link}` lets a browser in)")
                stop.running()
                await until_stopped(stop.requested, [task])
        terminal.note("API stopped")

    run_server(serve())


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """One tenant's parts; without tenants, those of the deployment."""

    settings: Settings
    database: Database
    client: Client
    channels: tuple[Channel, ...]


async def _open(settings: Settings, channels: tuple[Channel, ...], parts: AsyncExitStack) -> _Opened:
    database = await parts.enter_async_context(stores.opened_store(settings))
    await parts.enter_async_context(stores.signing_log(settings, database))
    client = await connect_when_there(settings, terminal.note, database)
    return _Opened(settings=settings, database=database, client=client, channels=channels)


async def _prepare(opened: _Opened, app: LoadedApp | None) -> None:
    if app is not None:
        await publish_agents(app, opened.database, task_queue=opened.settings.task_queue)
    if is_loopback(opened.settings.api_host):
        # This machine's own commands may use this API as soon as it answers, as with `turngate up`.
        await stores.ensure_cli_token(opened.database, opened.settings.data_dir)


def _app_of(opened: Sequence[_Opened]) -> FastAPI | HostApps:
    apps = [(each.settings, api_app(each.settings, each.client, each.database, each.channels)) for each in opened]
    if opened[0].settings.tenant is None:
        return apps[0][1]
    return HostApps({name: app for settings, app in apps for name in sorted(settings.host_names)})


def _drain_seconds(settings: Settings) -> int:
    """Return how long the API still serves after it must stop: a program on this machine alone has no balancer."""
    if settings.drain_seconds is not None:
        return settings.drain_seconds
    return 0 if is_loopback(settings.api_host) else DRAIN_SECONDS
