"""``turngate worker``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import stores, terminal
from turngate.cli.app_choice import require_app
from turngate.cli.builders_app import require_model_names
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import AllowUnconfined, AppHere, DataDir, MetricsPort
from turngate.cli.parts.confinement import load_to_serve
from turngate.cli.parts.metrics import metrics_listener, serving_metrics
from turngate.cli.parts.stop import until_stopped
from turngate.cli.parts.worker import serving_worker
from turngate.cli.posix_signals import run_server, stop_on_posix_signals
from turngate.cli.temporal_link import connect_when_there
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings
from turngate.runtime.workflow_code import deployment
from turngate.store.access import people


def worker(
    app: AppHere = None,
    build_id: Annotated[
        str | None,
        typer.Option(
            metavar="BUILD",
            help="This worker's build. A run stays with the build that began it, and new runs go to the current build: "
            "see `turngate builds`.",
            show_default="$TURNGATE_BUILD_ID, else none: the worker takes every run",
        ),
    ] = None,
    tools: Annotated[
        int | None,
        typer.Option(
            "--tools-at-once",
            metavar="N",
            help="How many tool calls may run here at once. Others wait in Temporal, oldest first.",
            show_default="$TURNGATE_TOOL_CALLS_AT_ONCE, else 100",
        ),
    ] = None,
    models: Annotated[
        int | None,
        typer.Option(
            "--models-at-once",
            metavar="N",
            help="How many model requests may run besides the tool calls, so that long tools delay none.",
            show_default="$TURNGATE_MODEL_REQUESTS_AT_ONCE, else they count as tool calls",
        ),
    ] = None,
    health: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file whose time the worker sets twice a second while it works: a probe looks at its age.",
            show_default="$TURNGATE_HEALTH_FILE, else none",
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    data_dir: DataDir = None,
    allow_unconfined: AllowUnconfined = False,
) -> None:
    """Run a worker, which calls models and runs tools. Start as many as you like.

    Finds Temporal by TEMPORAL_ADDRESS, or by the data directory that `turngate up` or `turngate temporal` uses.
    """
    options = {"tool_calls_at_once": tools, "model_requests_at_once": models, "health_file": health}
    options["metrics_port"] = metrics_port
    serve_worker(
        server_settings(data_dir=data_dir, build_id=build_id, allow_unconfined=allow_unconfined or None, **options),
        require_app(app, "turngate worker"),
    )


def serve_worker(settings: Settings, target: str) -> None:
    """Run a worker until SIGINT or SIGTERM."""
    loaded = load_to_serve(settings, target)
    require_model_names(settings, loaded)
    metrics = metrics_listener(settings)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with AsyncExitStack() as parts:
                database = await parts.enter_async_context(stores.opened_store(settings))
                client = await connect_when_there(settings, terminal.note, database)
                await parts.enter_async_context(serving_metrics(metrics, database, settings))
                build = deployment(settings.deployment_name, settings.build_id)
                await people.look_again(database)
                task = await parts.enter_async_context(serving_worker(settings, loaded, client, database, build))
                _greet(settings, loaded)
                stop.running()
                await until_stopped(stop.requested, [task])
        terminal.note("worker stopped")

    run_server(serve())


def _greet(settings: Settings, app: LoadedApp) -> None:
    """Say what runs now, and what it may do at once."""
    terminal.note(f"worker runs: agents {', '.join(app.agents)}; task queue {settings.task_queue}")
    models = settings.model_requests_at_once
    at_once = f"{settings.tool_calls_at_once} tool calls and {f'{models} ' if models else ''}model requests"
    terminal.note(f"at most {at_once} at once; others wait in Temporal, oldest first")
    if settings.workspaces is None:
        terminal.note("its runs work in no directory: TURNGATE_WORKSPACES, for the worker and the API, lists some")
