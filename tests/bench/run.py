"""Measure the numbers the design promises: the entry point of `make bench`.

It asserts nothing about time. It exits with 1 when a measured turn did not complete or a once tool ran twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

# In place of this script's own directory, whose modules would stand in for others of the same name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import (
    commits,
    crowd,
    encryption,
    executor,
    history,
    inbox,
    interrupt,
    large_inbox,
    latency,
    long_run,
    metered,
    origins,
    precedents,
    restarts,
    storage,
    streaming,
    through_api,
    throughput,
    traces,
    watchers,
)
from bench.baseline import Baseline
from bench.figures import Figure, MeasurementError, table
from bench.profiling import measured_runtime, profile
from bench.scale import FULL, QUICK, Scale
from bench.served import served_baseline, served_turngate
from bench.turngate_side import Turngate, fresh_sqlite, turngate
from support.project.error_groups import leaves
from support.stores.postgres_server import Cluster, running_cluster
from temporalio.client import Client

from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter, sdk_runtime
from turngate.store.database import Database

NAMES = (
    "through-api",
    "throughput",
    "latency",
    "history",
    "traces",
    "executor",
    "interrupt",
    "inbox",
    "origins",
    "streaming",
    "watchers",
    "precedents",
    "storage",
    "commits",
    "large-inbox",
    "crowd",
    "encryption",
    "long-run",
    "restarts",
    "metrics",
)
WITH_DATABASES = {
    "inbox": inbox.measure,
    "streaming": streaming.measure,
    "watchers": watchers.measure,
    "precedents": precedents.measure,
    "large-inbox": large_inbox.measure,
    "commits": commits.measure,
}
OF_TURNS = {"throughput", "latency", "history", "storage"}
ON_POSTGRESQL = {*WITH_DATABASES, *OF_TURNS, "through-api"} - {"history"}
BY_HAND = {
    *("precedents", "storage", "commits", "large-inbox", "crowd", "long-run", "restarts", "metrics", "encryption"),
}
"""Minutes long: measured only when they are asked for."""


def main() -> int:
    """Run the selected measurements; returns the exit code."""
    options = _options()
    scale = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="turngate-bench-", ignore_cleanup_errors=True) as directory:
        failures: list[MeasurementError] = []
        figures: list[Figure] = []
        try:
            if options.profile:
                asyncio.run(_profile(Path(directory), scale))
            else:
                with _postgres(options.only) as server:
                    figures = asyncio.run(_measure(Path(directory), scale, options.only, server))
                figures += origins.measure(scale) if "origins" in options.only else []
        except* MeasurementError as group:
            failures.extend(leaves(group))
    if failures:
        print("\n".join(f"FAILED: {failure}" for failure in failures), file=sys.stderr)
        return 1
    if figures:
        print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(_report(figures, quick=options.quick), indent=1) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        type=_names,
        default=tuple(name for name in NAMES if name not in BY_HAND),
        metavar="NAME[,NAME]",
        help=f"of {', '.join(NAMES)}",
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample there")
    parser.add_argument("--profile", action="store_true", help="print where a gated turn's time goes, instead")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}: choose of {', '.join(NAMES)}")
    return names


@contextmanager
def _postgres(only: Sequence[str]) -> Iterator[Cluster | None]:
    """A durable PostgreSQL where one is installed and wanted; None where it is not, and then its lines are missing."""
    with ExitStack() as servers:
        server = None
        if ON_POSTGRESQL & set(only):
            try:
                server = servers.enter_context(running_cluster(durable=True))
            except (RuntimeError, KeyError) as missing:
                print(f"PostgreSQL is not measured: {missing}", file=sys.stderr)
        yield server


async def _measure(directory: Path, scale: Scale, only: Sequence[str], postgres: Cluster | None) -> list[Figure]:
    figures: list[Figure] = []
    async with EmbeddedTemporal(directory / "temporal") as server:
        client = await Client.connect(server.address, data_converter=data_converter(), runtime=sdk_runtime())
        if "through-api" in only:
            figures += await _timed(_through_api(client, directory, server, scale, postgres))
        if OF_TURNS & set(only):
            figures += await _of_turns(client, directory, scale, only, server_pid=server.pid, postgres=postgres)
        if "traces" in only:
            figures += await _timed(traces.measure(client, directory, scale))
        if "executor" in only:
            figures += await _timed(executor.measure(client, directory, scale))
        if "interrupt" in only:
            figures += await _timed(interrupt.measure(client, directory, scale))
        for name, measured in WITH_DATABASES.items():
            if name in only:
                async with AsyncExitStack() as stack:
                    databases = await _databases(stack, directory, name, postgres)
                    figures += await _timed(measured(client, databases, scale))
        figures += await _by_hand(
            client, directory, scale, only, server_pid=server.pid, temporal_address=server.address
        )
    return figures


async def _of_turns(
    client: Client, directory: Path, scale: Scale, only: Sequence[str], *, server_pid: int, postgres: Cluster | None
) -> list[Figure]:
    """Measure gated turns in this process, against a workflow written by hand."""
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        sqlite, *others = await _sides(stack, client, directory, postgres)
        baseline = Baseline(client)
        await stack.enter_async_context(baseline.worker(like=sqlite.worker))
        if "throughput" in only:
            figures += await _timed(throughput.measure([sqlite, *others], baseline, scale, server_pid=server_pid))
        if "latency" in only:
            figures += await _timed(latency.measure([sqlite, *others], baseline, scale))
        if "history" in only:
            figures += await _timed(history.measure(sqlite, baseline))
        if "storage" in only:
            figures += await _timed(storage.measure([sqlite, *others], scale))
    return figures


async def _through_api(
    client: Client, directory: Path, temporal: EmbeddedTemporal, scale: Scale, postgres: Cluster | None
) -> list[Figure]:
    async with AsyncExitStack() as stack:
        ours = [
            await stack.enter_async_context(
                served_turngate("SQLite", directory / "served-sqlite", temporal.address, None)
            )
        ]
        own = {}
        if postgres is not None and postgres.pid is not None:
            url = postgres.server.fresh_url()
            where = directory / "served-postgresql"
            ours.append(await stack.enter_async_context(served_turngate("PostgreSQL", where, temporal.address, url)))
            own["PostgreSQL"] = postgres.pid
        baseline = await stack.enter_async_context(
            served_baseline(directory / "served-baseline", client, temporal.address)
        )
        shared = [] if temporal.pid is None else [temporal.pid]
        return await through_api.measure(ours, baseline, scale, shared=shared, own=own)


async def _by_hand(
    client: Client, directory: Path, scale: Scale, only: Sequence[str], *, server_pid: int, temporal_address: str
) -> list[Figure]:
    """Measure what takes minutes."""
    figures: list[Figure] = []
    if "crowd" in only:
        database = await fresh_sqlite(directory, "crowd")
        figures += await _timed(crowd.measure(client, database, scale))
        await database.close()
    if "encryption" in only:
        figures += await _timed(encryption.measure(client, directory, scale, server_pid=server_pid))
    if "long-run" in only:
        figures += await _timed(long_run.measure(client, directory, scale, server_pid=server_pid))
    if "metrics" in only:
        figures += await _timed(metered.measure(client, directory, scale, server_pid=server_pid))
    if "restarts" in only:
        figures += await _timed(restarts.measure(directory / "restarts", scale))
    return figures


async def _timed(measuring: Coroutine[Any, Any, list[Figure]]) -> list[Figure]:
    """Measure, and say on stderr how long it took."""
    began = time.perf_counter()
    figures = await measuring
    print(f"{figures[0].name}: measured in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return figures


async def _sides(stack: AsyncExitStack, client: Client, directory: Path, postgres: Cluster | None) -> list[Turngate]:
    databases = await _databases(stack, directory, "turns", postgres)
    return [await stack.enter_async_context(turngate(name, client, database)) for name, database in databases.items()]


async def _databases(
    stack: AsyncExitStack, directory: Path, name: str, postgres: Cluster | None
) -> dict[str, Database]:
    databases = {"SQLite": await fresh_sqlite(directory, name)}
    stack.push_async_callback(databases["SQLite"].close)
    if postgres is not None:
        databases["PostgreSQL"] = Database(postgres.server.fresh_url())
        stack.push_async_callback(databases["PostgreSQL"].close)
        await databases["PostgreSQL"].migrate()
    return databases


async def _profile(directory: Path, scale: Scale) -> None:
    runtime, metrics = measured_runtime()
    async with EmbeddedTemporal(directory / "temporal") as server:
        client = await Client.connect(server.address, data_converter=data_converter(), runtime=runtime)
        async with AsyncExitStack() as stack:
            (ours,) = await _sides(stack, client, directory, None)
            baseline = Baseline(client)
            await stack.enter_async_context(baseline.worker(like=ours.worker))
            await profile(ours, baseline, scale, metrics=metrics, server_pid=server.pid)


def _report(figures: Sequence[Figure], *, quick: bool) -> dict[str, object]:
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "quick": quick,
        "figures": [figure.as_json() for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
