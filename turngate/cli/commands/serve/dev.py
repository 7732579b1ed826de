"""``turngate dev``: ``turngate up`` for an app that is being written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import stack, stores, terminal
from turngate.cli.api_server import listen
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.dev.workshop import Workshop
from turngate.cli.options import AllowUnconfined, ApiPort, DataDir, MetricsPort, TemporalPort, TemporalUi
from turngate.cli.parts.metrics import metrics_listener
from turngate.cli.posix_signals import run_server, stop_on_posix_signals
from turngate.domain.errors import ConfigurationError
from turngate.http_environment import is_loopback
from turngate.runtime.import_guard import ImportGuard
from turngate.runtime.settings import Settings


def dev(
    app: Annotated[str, typer.Argument(metavar="APP", show_default=False, help="Your app as MODULE:NAME.")],
    port: ApiPort = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
    temporal_port: TemporalPort = None,
    temporal_ui: TemporalUi = False,
    allow_unconfined: AllowUnconfined = False,
) -> None:
    """Run everything, as `turngate up` does, and load the app again whenever one of its files changes.

    Runs continue where they were. If the app can't be loaded, you see why, and the former version runs on. Only this machine
    can reach it. The worker is a process of its own: its metrics are at the port after --metrics-port.
    """
    serve_dev(
        server_settings(
            api_port=port,
            metrics_port=metrics_port,
            data_dir=data_dir,
            temporal_port=temporal_port,
            allow_unconfined=allow_unconfined or None,
        ),
        app,
        temporal_ui=temporal_ui,
    )


def serve_dev(settings: Settings, target: str, *, temporal_ui: bool) -> None:
    """Run everything until SIGINT or SIGTERM; raises ConfigurationError for an address beyond this machine."""
    if not is_loopback(settings.api_host):
        raise ConfigurationError(
            f"TURNGATE_API_HOST={settings.api_host}: `turngate dev` listens on this machine only. Unset it, or use `turngate up`"
        )
    if settings.workspaces is None:
        settings = settings.model_copy(update={"workspaces": (Path.cwd(),)})
    # This process loads no app. What of its own it imports later is no module that a run has put in its place.
    ImportGuard(places=tuple(each.resolve() for each in settings.workspaces or ()), since=time.time()).watch_imports()
    stack.require_no_other_stack(settings)
    listener = listen(settings.api_host, settings.api_port)
    of_worker = metrics_listener(settings, after=1)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            workshop = Workshop(target, settings, of_worker)
            async with stack.whole_stack(settings, workshop, listener, temporal_ui=temporal_ui) as running:
                await _greet(running, workshop)
                stop.running()
                await running.until(stop.requested)
                terminal.note("stopping … (tools that run get 5 s)")
            terminal.note("stopped; runs continue when you start again")

    run_server(serve())


async def _greet(running: stack.Stack, workshop: Workshop) -> None:
    url = running.settings.resolved_public_url
    link = await stores.owners_login_link(running.database, url)
    terminal.line(
        ("Turngate is up for development.", "bold green"), " Only this machine can reach it. Stop it with Ctrl-C."
    )
    terminal.line("")
    terminal.line("  Log in      ", (link, "bold"), "  (once, within 24 hours)")
    for line in workshop.worker.agents if workshop.worker is not None else ():
        terminal.line("  App         ", line)
    terminal.line("  Reloads on  ", f"changes of {len(workshop.files)} file(s) of {workshop.target}")
    if (port := running.settings.metrics_port) is not None:
        at = f"http://{running.settings.metrics_host}"
        terminal.line("  Metrics     ", f"{at}:{port}/metrics (API), {at}:{port + 1}/metrics (worker)")
    terminal.line("  Data        ", str(running.settings.data_dir))
    terminal.line("")
    terminal.line('Start a run from another terminal:  turngate run "what to do"')
