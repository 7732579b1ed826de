"""The worker of ``turngate dev``: a process that loads the app once. A changed app gets a new process.

Begun by :func:`turngate.runtime.import_guard.main`, with the arguments PARENT APP PACE METRICS. PARENT: the pid of what starts
it. The first line that goes through the socket says whether the app could be loaded, and from which files. When the other end is
gone, this process stops; on Linux the kernel kills it then, also while it loads the app.
PACE: ``step`` or ``run``, see :mod:`turngate.cli.dev.script_steps`. METRICS: the descriptor of the socket where it serves
metrics, which it shares with the worker that it follows; ``-``: nowhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import sys
import time
import traceback
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import typer
from pydantic import TypeAdapter

from turngate.activities.engine.engine import Engine
from turngate.cli import builders_app, stores, terminal
from turngate.cli.builders_app import app_files, require_model_names, scripts_of
from turngate.cli.dev.script_steps import Pace, PacedModels
from turngate.cli.dev.trials import try_call
from turngate.cli.parts.confinement import load_confined, workspaces_of
from turngate.cli.parts.metrics import serving_metrics
from turngate.cli.parts.stop import until_stopped
from turngate.cli.parts.worker import serving_worker
from turngate.cli.posix_signals import leave, run_server, stop_on_posix_signals
from turngate.cli.temporal_link import connect_when_there
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.models.registry import build_models
from turngate.runtime.app_errors import is_own
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.die_with_parent import die_with
from turngate.runtime.import_guard import ImportGuard
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging
from turngate.text.plain_text import plain
from turngate.toolkits.mcp import SERVER_PLACES
from turngate.wire.playground import PaceOrder, Trial, TrialOrder
from turngate.worker import build_engine

log = structlog.get_logger(__name__)
ORDERS: Final[TypeAdapter[TrialOrder | PaceOrder]] = TypeAdapter(TrialOrder | PaceOrder)
MOST_LINE_BYTES: Final = 8 * 1024 * 1024
"""Of one line through the socket."""


def main(guard: ImportGuard, channel: socket.socket) -> None:
    """Load the app, say so through the channel, and run its worker until the other end or a signal ends it."""
    parent, target, pace, of_metrics = sys.argv[1:]
    die_with(int(parent))
    terminal.prepare_streams()
    metrics = None if of_metrics == "-" else _inherited(of_metrics)
    settings = load_settings()  # as the process that started this one has read them
    configure_logging(settings.log_level, settings.log_format)
    try:
        app = load_confined(settings, target)
        require_model_names(settings, app)
        _require_accepted(guard, app_files(app, settings, build_models(settings, script_base=app.base).profiles))
    except TurngateError as error:
        channel.sendall(_line(_failure(error, target) | {"loaded": guard.loaded, "refused": guard.refused}))
        leave(2)
    guard.since = time.time()  # what is imported later
    code = 1
    try:
        run_server(_serve(settings, app, channel, metrics, guard, one_step_at_a_time=pace == "step"))
        code = 0
    except typer.Exit as stopped:
        code = stopped.exit_code
    except TurngateError as error:
        terminal.error(plain(error.message))
    except Exception:
        log.exception("the worker ended")
    finally:
        leave(code)


def _require_accepted(guard: ImportGuard, files: list[Path]) -> None:
    """Require that no run has changed what the app reads besides its modules. An app may handle that a module is missing, too."""
    for file in files:
        with suppress(OSError, ImportError):
            guard.read(str(file), file)
    if guard.refused:
        raise ConfigurationError(
            f"{', '.join(path for path, _state in guard.refused.values())} may have been changed by a run"
        )


def _inherited(descriptor: str) -> socket.socket:
    """Return a socket of the process that started this one. No process that a tool starts gets it."""
    inherited = socket.socket(fileno=int(descriptor))
    os.set_inheritable(inherited.fileno(), False)
    return inherited


async def _serve(
    settings: Settings,
    app: LoadedApp,
    channel: socket.socket,
    metrics: socket.socket | None,
    guard: ImportGuard,
    *,
    one_step_at_a_time: bool,
) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=MOST_LINE_BYTES)
    with stop_on_posix_signals() as stop:
        async with AsyncExitStack() as parts:
            database = await parts.enter_async_context(stores.opened_store(settings))
            client = await connect_when_there(settings, terminal.note, database)
            await parts.enter_async_context(serving_metrics(metrics, database, settings))
            pace = Pace(database, one_step_at_a_time=one_step_at_a_time)
            paced = build_models(settings, script_base=app.base, make=partial(PacedModels, pace))
            task = await parts.enter_async_context(serving_worker(settings, app, client, database, models=paced))
            agents = [f"{what} {plain(line)}" for what, line in builders_app.agent_lines(app)]
            tools = {
                name: [tool.manifest.without_examples.model_dump(mode="json") for tool in agent.toolkit]
                for name, agent in app.agents.items()
            }
            ready = {
                "agents": agents,
                "tools": tools,
                "scripts": {name: scripts_of(agent, paced.profiles) for name, agent in app.agents.items()},
                "base": str(app.base),
                "server_places": sorted(map(str, SERVER_PLACES)),
                "files": _own(list(map(str, app_files(app, settings, paced.profiles)))),
                "loaded": guard.loaded,
            }
            writer.write(_line(ready))
            models = build_models(settings, script_base=app.base)
            parts.push_async_callback(models.aclose)
            engine = build_engine(app, database, models, models.profiles, workspaces=workspaces_of(settings))
            ended = asyncio.create_task(_answer_until_end(engine, pace, reader, writer, stop.requested))
            stop.running()
            await until_stopped(stop.requested, [task])
            ended.cancel()


async def _answer_until_end(
    engine: Engine, pace: Pace, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stop: asyncio.Event
) -> None:
    """Try the calls that come, take the pace, and stop with the process that sends them, also when it was killed."""
    try:
        await _answer(engine, pace, reader, writer)
    except OSError:
        log.info("the process that started this worker is gone")
    finally:
        stop.set()


async def _answer(engine: Engine, pace: Pace, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        try:
            order = ORDERS.validate_json(line)
            if isinstance(order, PaceOrder):
                pace.one_step_at_a_time = order.one_step_at_a_time
                continue
            trial = await try_call(engine, order)
        except Exception as error:
            log.exception("a call could not be tried")
            trial = Trial(problem=f"it could not be tried: {type(error).__name__}: {error}")
        writer.write(trial.model_dump_json().encode() + b"\n")
        await writer.drain()


def _failure(error: TurngateError, target: str) -> dict[str, Any]:
    cause = error.__cause__
    frames = traceback.extract_tb(None if cause is None else cause.__traceback__)
    files = [frame.filename for frame in frames] + _files_beside(target)
    return {"error": error.message, "files": _own(files)}


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _files_beside(target: str) -> list[str]:
    """Return the files that decide whether an app loads, where none was loaded: its module, and TOML files beside that."""
    try:
        spec = importlib.util.find_spec(target.partition(":")[0])
    except (ImportError, ValueError, AttributeError):
        spec = None
    module = [] if spec is None or spec.origin is None else [spec.origin]
    return module + [str(path) for path in Path.cwd().glob("*.toml")]


def _own(files: list[str]) -> list[str]:
    """Return these files, and those of the modules that are loaded, without libraries'."""
    modules = [str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    return sorted({str(Path(file).resolve()) for file in (*files, *modules) if file and is_own(file)})
