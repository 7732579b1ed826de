"""The stage of everything that runs on the cluster: two PostgreSQL servers, Temporal's services, APIs, workers, and a scene."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from cluster.temporal_services import TemporalCluster
from scene import Scene, scene
from support.programs.terminal_process import TURNGATE
from support.stores.postgres_server import Cluster

from turngate.store.database import Database

STORE: Final = "postgres (store)"
TEMPORALS: Final = "postgres (Temporal)"
HEARTBEAT_SECONDS: Final = 3
COMMAND_SECONDS: Final = 120
Change = Callable[[TemporalCluster], None]


@asynccontextmanager
async def cluster_stage(
    server: Path,
    directory: Path,
    *,
    workers: int = 2,
    durable: bool,
    heartbeat_seconds: int | None = HEARTBEAT_SECONDS,
    change: Change | None = None,
) -> AsyncIterator[tuple[Scene, Mapping[str, Cluster]]]:
    """Start all of it in ``directory``, which exists; at the end each process must have lived until then.

    ``server``: where ``scripts/cluster`` has built. ``durable``: both PostgreSQL servers wait for the disk at each commit.
    ``change``: what is different about the layout.
    """
    with ExitStack() as servers:
        postgres = {name: Cluster(dies_with_us=True, durable=durable) for name in (STORE, TEMPORALS)}
        for each in postgres.values():
            servers.callback(each.close)
            each.start()
        for each in postgres.values():
            each.wait_until_ready()
        layout = TemporalCluster(server, postgres[TEMPORALS], directory, workers=workers)
        if change is not None:
            change(layout)
        await asyncio.to_thread(layout.create_databases)
        url = postgres[STORE].server.fresh_url()
        store = Database(url)
        await store.migrate()
        await store.close()
        async with scene(directory, layout=layout, heartbeat_seconds=heartbeat_seconds, database_url=url) as on:
            yield on, postgres


async def command(on: Scene, *words: str, good: tuple[int, ...] = (0,)) -> str:
    """Run a command of ``turngate`` as its user does, beside the first API, and return what it prints."""
    arguments = [TURNGATE, *words, "--data-dir", str(on.processes.data_dir)]
    done = await asyncio.to_thread(
        subprocess.run,
        arguments,
        cwd=on.processes.directory,
        env={**on.processes.environment, "COLUMNS": "160", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode in good, (
        f"turngate {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout + done.stderr
