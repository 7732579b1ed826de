"""``turngate up`` and its parts as separate processes: ``worker``, ``api``, ``temporal`` and ``migrate``."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from approvals_api.settings import is_loopback
from turngate.cli import builders_app, stack, stores, terminal
from turngate.cli.api_server import listen
from turngate.cli.api_settings import configured_channels
from turngate.cli.builders_app import load_builders_app, require_model_names
from turngate.cli.options import DEFAULT_APP, AllowUnconfined, ApiPort, AppArgument, DataDir, TemporalPort, TemporalUi
from turngate.cli.posix_signals import stop_on_posix_signals
from turngate.cli.temporal_link import connect_when_there, find_address
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging
from turngate.runtime.workflow_code import deployment
from turngate.text.plain_text import plain
from worker import publish_agents

logger = logging.getLogger(__name__)


def serve_stack(settings: Settings, target: str, *, temporal_ui: bool) -> None:
    """Run everything until SIGINT or SIGTERM. The app and the port are checked before anything starts."""
    loaded = load_builders_app(target)
    require_model_names(settings, loaded)
    if settings.workspaces is None:
        settings = settings.model_copy(update={"workspaces": (Path.cwd(),)})
    stack.require_no_other_stack(settings)
    listener = listen(settings.api_host, settings.api_port)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with stack.whole_stack(settings, loaded, listener, temporal_ui=temporal_ui) as running:
                await _greet(running, loaded, built_in=target == DEFAULT_APP)
                stop.running()
                await running.until(stop.requested)
                terminal.note("stopping … (tools that run get 5 s)")
            terminal.note("stopped; runs continue when you start again")

    asyncio.run(serve())


def serve_worker(settings: Settings, target: str) -> None:
    """Run a worker until SIGINT or SIGTERM."""
    loaded = load_builders_app(target)
    require_model_names(settings, loaded)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with AsyncExitStack() as parts:
                database = await parts.enter_async_context(stores.opened_store(settings))
                client = await connect_when_there(settings, terminal.note)
                build = deployment(settings.deployment_name, settings.build_id)
                task = await parts.enter_async_context(stack.serving_worker(settings, loaded, client, database, build))
                terminal.note(f"worker runs: agents {', '.join(loaded.agents)}; task queue {settings.task_queue}")
                models = settings.model_requests_at_once
                at_once = f"{settings.tool_calls_at_once} tool calls and {f'{models} ' if models else ''}model requests"
                terminal.note(f"at most {at_once} at once; others wait in Temporal, oldest first")
                if settings.workspaces is None:
                    terminal.note(
                        "its runs work in no directory: TURNGATE_WORKSPACES, for the worker and the API, lists some"
                    )
                if settings.build_id is not None:
                    command = f"turngate builds --set-current {settings.build_id}"
                    terminal.note(f"its build is {settings.build_id}, which gets new runs after `{command}`")
                stop.running()
                await stack.until_stopped(stop.requested, [task])
        terminal.note("worker stopped")

    asyncio.run(serve())


def serve_api(settings: Settings, target: str | None) -> None:
    """Serve the API until SIGINT or SIGTERM. ``target``: an app to publish before a worker starts."""
    loaded = None if target is None else load_builders_app(target)
    channels = configured_channels(settings)
    listener = listen(settings.api_host, settings.api_port)

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with AsyncExitStack() as parts:
                parts.callback(listener.close)
                database = await parts.enter_async_context(stores.opened_store(settings))
                await parts.enter_async_context(stack.signing_log(settings, database))
                client = await connect_when_there(settings, terminal.note)
                if loaded is not None:
                    await publish_agents(loaded, database, task_queue=settings.task_queue)
                if is_loopback(settings.api_host):
                    # This machine's own commands may use this API as soon as it answers, as with `turngate up`.
                    await stores.ensure_cli_token(database, settings.data_dir)
                task = await parts.enter_async_context(
                    stack.serving_api(settings, client, database, listener, channels)
                )
                if is_loopback(settings.api_host) and RunningStack.read(settings.data_dir) is None:
                    await parts.enter_async_context(stack.announced(settings, find_address(settings) or ""))
                terminal.note(f"API serves {settings.resolved_api_url} (`turngate login-link` lets a browser in)")
                stop.running()
                await stack.until_stopped(stop.requested, [task])
        terminal.note("API stopped")

    asyncio.run(serve())


def serve_temporal(settings: Settings, *, ui: bool) -> None:
    """Run the embedded Temporal alone until SIGINT or SIGTERM."""

    async def serve() -> None:
        with stop_on_posix_signals() as stop:
            async with stack.embedded_temporal(settings, settings.temporal_port, ui=ui) as server:
                web = f", its pages {server.ui_url}" if server.ui_url else ""
                terminal.line(f"Temporal serves {server.address}{web}")
                stop.running()
                await stop.requested.wait()
            terminal.note("Temporal stopped")

    asyncio.run(serve())


def migrate_store(settings: Settings) -> None:
    """Bring the store's schema to this version."""

    async def bring_up_to_date() -> str | None:
        async with stores.opened_store(settings, migrate=True) as database:
            return await database.schema_revision()

    terminal.line(f"the store's schema is at {asyncio.run(bring_up_to_date())}")


async def _greet(running: stack.Stack, app: LoadedApp, *, built_in: bool) -> None:
    """Print what runs, where, and what to do next."""
    settings = running.settings
    url = settings.resolved_api_url
    link = await stores.owners_login_link(running.database, url)
    here = "" if settings.data_dir == load_settings().data_dir else f" --data-dir {settings.data_dir}"
    workspace = " --workspace ." if built_in else ""
    terminal.line(("Turngate is up.", "bold green"), " Stop it with Ctrl-C.")
    terminal.line("")
    terminal.line("  Log in    ", (link, "bold"), "  (once, within 24 hours)")
    terminal.line("  Inbox     ", f"{url}/")
    for at, (what, line) in enumerate(builders_app.agent_lines(app)):
        terminal.line("  Agents    " if at == 0 else "            ", "↳ " if what == "sub-agent" else "", plain(line))
    terminal.line("  Temporal  ", running.temporal_address, f"  {running.temporal_ui_url or ''}".rstrip())
    terminal.line("  Runs in   ", ", ".join(map(str, settings.workspaces or ())), "  and below")
    terminal.line("  Data      ", str(settings.data_dir))
    terminal.line("")
    terminal.line(f'Start a run from another terminal:  turngate run{here}{workspace} "what to do"')
    if built_in and settings.model is None:
        terminal.line(
            ("No model is set, so the agent coder plays the script of `turngate demo`.", "yellow"),
            " For a real model set TURNGATE_MODEL=openai:NAME and TURNGATE_OPENAI_API_KEY or TURNGATE_OPENAI_BASE_URL.",
        )
    if settings.build_id is not None:
        logger.warning("TURNGATE_BUILD_ID is for `turngate worker`: the worker of `turngate up` has no build")
    if not is_loopback(settings.api_host):
        logger.warning("the API listens on %s, beyond this machine: put a TLS proxy in front of it", settings.api_host)


def up(
    app: AppArgument = DEFAULT_APP,
    port: ApiPort = None,
    data_dir: DataDir = None,
    temporal_port: TemporalPort = None,
    temporal_ui: TemporalUi = False,
    allow_unconfined: AllowUnconfined = False,
) -> None:
    """Run everything on this machine: Temporal, the store, a worker, the API and the pages.

    Prints a link that logs your browser in. Stop with Ctrl-C. Runs survive a stop: they continue when you start again with
    the same data directory.
    """
    serve_stack(
        _settings(
            api_port=port, data_dir=data_dir, temporal_port=temporal_port, allow_unconfined=allow_unconfined or None
        ),
        app,
        temporal_ui=temporal_ui,
    )


def worker(
    app: AppArgument = DEFAULT_APP,
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
    data_dir: DataDir = None,
    allow_unconfined: AllowUnconfined = False,
) -> None:
    """Run a worker, which calls models and runs tools. Start as many as you like.

    Finds Temporal by TEMPORAL_ADDRESS, or by the data directory that `turngate up` or `turngate temporal` uses.
    """
    options = {"tool_calls_at_once": tools, "model_requests_at_once": models, "health_file": health}
    serve_worker(
        _settings(data_dir=data_dir, build_id=build_id, allow_unconfined=allow_unconfined or None, **options), app
    )


def api(
    app: Annotated[
        str | None,
        typer.Argument(metavar="APP", show_default=False, help="Publish this app's agents before a worker starts."),
    ] = None,
    port: ApiPort = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the API and the operators' pages, without a worker.

    Finds Temporal as `turngate worker` does. TURNGATE_API_HOST is the address to listen on; the default is loopback.
    """
    serve_api(_settings(api_port=port, data_dir=data_dir), app)


def temporal(data_dir: DataDir = None, port: TemporalPort = None, ui: TemporalUi = False) -> None:
    """Run the embedded Temporal alone, for a worker and an API on this machine."""
    serve_temporal(_settings(data_dir=data_dir, temporal_port=port), ui=ui)


def migrate(data_dir: DataDir = None) -> None:
    """Bring the database's schema to this version, before new workers and APIs start."""
    migrate_store(_settings(data_dir=data_dir))


def _settings(**overrides: object) -> Settings:
    settings = load_settings(**overrides)
    configure_logging(settings.log_level, settings.log_format)
    return settings
