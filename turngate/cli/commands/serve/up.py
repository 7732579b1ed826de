"""``turngate up``: everything in one process."""

from __future__ import annotations

import logging
from pathlib import Path

from turngate.cli import builders_app, stack, stores, terminal
from turngate.cli.api_server import listen
from turngate.cli.app_choice import require_app
from turngate.cli.builders_app import require_model_names
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import (
    DEFAULT_APP,
    AllowUnconfined,
    ApiPort,
    AppHere,
    DataDir,
    MetricsPort,
    TemporalPort,
    TemporalUi,
)
from turngate.cli.parts.confinement import load_to_serve
from turngate.cli.posix_signals import run_server, stop_on_posix_signals
from turngate.http_environment import is_loopback
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings, load_settings
from turngate.text.plain_text import plain

logger = logging.getLogger(__name__)


def up(
    app: AppHere = None,
    port: ApiPort = None,
    metrics_port: MetricsPort = None,
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
        server_settings(
            api_port=port,
            metrics_port=metrics_port,
            data_dir=data_dir,
            temporal_port=temporal_port,
            allow_unconfined=allow_unconfined or None,
        ),
        require_app(app, "turngate up"),
        temporal_ui=temporal_ui,
    )


def serve_stack(settings: Settings, target: str, *, temporal_ui: bool) -> None:
    """Run everything until SIGINT or SIGTERM. The app and the port are checked before anything starts."""
    if settings.workspaces is None:
        settings = settings.model_copy(update={"workspaces": (Path.cwd(),)})
    loaded = load_to_serve(settings, target)
    require_model_names(settings, loaded)
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

    run_server(serve())


async def _greet(running: stack.Stack, app: LoadedApp, *, built_in: bool) -> None:
    """Print what runs, where, and what to do next."""
    settings = running.settings
    url = settings.resolved_public_url
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
    if built_in:
        terminal.line(
            ("No app is named, so this is the built-in agent coder:", "yellow"),
            " it edits files and runs commands, each with your approval. For your own app: turngate up MODULE:NAME",
        )
    if built_in and settings.model is None:
        terminal.line(
            ("No model is set, so the agent coder plays the script of `turngate demo`.", "yellow"),
            " For a real model set TURNGATE_MODEL=openai:NAME and TURNGATE_OPENAI_API_KEY or TURNGATE_OPENAI_BASE_URL.",
        )
    if settings.build_id is not None:
        logger.warning("TURNGATE_BUILD_ID is for `turngate worker`: the worker of `turngate up` has no build")
    if not is_loopback(settings.api_host):
        logger.warning("the API listens on %s, beyond this machine: put a TLS proxy in front of it", settings.api_host)
