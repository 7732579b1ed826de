"""Gated turns a second with 1, 2 and 4 workers, with the processor time of each process; and a decision's way to its tool.

The load is that of ``make bench`` over HTTP (``bench.through_api``), from this process, which shares the machine with all of it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from bench import cpu, restart_app
from bench.figures import milliseconds, percentile
from bench.scale import Scale
from bench.served import ServedTurngate
from bench.through_api import _turns as run_turns
from cluster.stage import cluster_stage
from cluster.temporal_services import TemporalCluster
from processes import numbered
from scene import Scene
from support.stores.postgres_server import Cluster

from turngate.cli.api_link import read_cli_token

FLEETS: Final = (1, 2, 4)
AT_ONCE: Final = 50
WARM_UP: Final = 40
LOAD: Final = "the load (this process)"
REREAD_SECONDS: Final = 6.5
"""The services read their dynamic configuration every five seconds."""
SCALE: Final = Scale()


@dataclass(frozen=True, kw_only=True)
class Round:
    """Turns a second, the seconds that it took, and the processor seconds of each process."""

    rate: float
    seconds: float
    used: Mapping[str, float]
    turns: int


async def throughput(server: Path, directory: Path, *, turns: int, rounds: int) -> list[str]:
    """Measure each fleet so often, up and down (1 2 4 4 2 1); returns a table and what limits it."""
    measured: defaultdict[int, list[Round]] = defaultdict(list)
    async with _payers(server, directory) as (on, postgres), _client(on) as side:
        order = itertools.islice(itertools.cycle([*FLEETS, *reversed(FLEETS)]), rounds * len(FLEETS))
        for workers in order:
            await _fleet(on, workers)
            await run_turns(side, WARM_UP, AT_ONCE, SCALE)
            measured[workers].append(await _round(on, side, postgres, turns))
            print(f"{workers} workers: {measured[workers][-1].rate:.1f} turns/s", flush=True)
        side.handler_starts()  # raises if a tool ran twice
    return _table(measured)


async def latency(server: Path, directory: Path, *, samples: int) -> list[str]:
    """Measure a decision's way to its tool, one turn at a time, with our dynamic configuration and with the defaults in turns."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    async with _payers(server, directory) as (on, _postgres), _client(on) as side:
        dynamic = _layout(on).dynamic
        ours = dynamic.read_text(encoding="utf-8")
        await _fleet(on, 2)
        for name in ("ours", "defaults", "ours", "defaults"):
            dynamic.write_text(ours if name == "ours" else "{}\n", encoding="utf-8")
            await asyncio.sleep(REREAD_SECONDS)
            await run_turns(side, 3, 1, SCALE)
            times[name] += (await run_turns(side, -(-samples // 2), 1, SCALE))["handled"]
    ratio = percentile(times["defaults"], 0.5) / percentile(times["ours"], 0.5)
    what = "decision sent → tool's first line"
    return [
        f"- {what}, with `deploy/temporal/dynamic-config.yaml`: {milliseconds(times['ours'])} ({len(times['ours'])} turns)",
        f"- {what}, with Temporal's defaults: {milliseconds(times['defaults'])}, {ratio:.1f} times as long (p50)",
    ]


@asynccontextmanager
async def _payers(server: Path, directory: Path) -> AsyncIterator[tuple[Scene, Mapping[str, Cluster]]]:
    """The cluster with workers of the benchmark's app: one gated ``once`` call a turn, and a ledger of its starts."""
    app = Path(restart_app.__file__)
    for file in (app, app.with_name("restart_model.yaml")):
        shutil.copy(file, directory)
    ledger = directory / "ledger.txt"
    ledger.touch()

    def change(layout: TemporalCluster) -> None:
        every = (*layout.apis, *numbered("worker", max(FLEETS)))
        layout.apps = dict.fromkeys(every, f"{app.stem}:app")
        quiet = {"TURNGATE_RATE_LIMITS": "false", "TURNGATE_LOG_LEVEL": "warning", restart_app.LEDGER: str(ledger)}
        layout.environment = {**layout.environment, **quiet}

    async with cluster_stage(
        server, directory, durable=True, workers=1, heartbeat_seconds=None, change=change
    ) as staged:
        yield staged


@asynccontextmanager
async def _client(on: Scene) -> AsyncIterator[_BothApis]:
    """A client of both APIs, which follows every run at the first one."""
    headers = {"Authorization": f"Bearer {read_cli_token(on.processes.data_dir)}"}
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200, keepalive_expiry=2)
    clients = [
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60, limits=limits)
        for url in on.processes.api_urls
    ]
    side = _BothApis(on, clients)
    watching = asyncio.create_task(side.watch())
    try:
        yield side
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for client in clients:
            await client.aclose()


class _BothApis(ServedTurngate):
    """Turns over two APIs: each request to the next one."""

    def __init__(self, on: Scene, clients: Sequence[httpx.AsyncClient]) -> None:
        self.name = "cluster"
        self._ledger = on.processes.directory / "ledger.txt"
        self._news = defaultdict(asyncio.Future)
        self._clients: Iterator[httpx.AsyncClient] = itertools.cycle(clients)
        self._first = clients[0]
        self._watches = False

    @property
    def _http(self) -> httpx.AsyncClient:
        return next(self._clients) if self._watches else self._first

    @_http.setter
    def _http(self, client: httpx.AsyncClient) -> None:
        raise NotImplementedError

    async def watch(self) -> None:
        """Follow every run at the first API, until cancelled."""
        following = super().watch()
        task = asyncio.ensure_future(following)
        await asyncio.sleep(0.5)
        self._watches = True
        await task


async def _fleet(on: Scene, workers: int) -> None:
    """Let so many workers run, no more and no less."""
    layout, wanted = _layout(on), numbered("worker", workers)
    for name in [each for each in layout.workers if each not in wanted]:
        await on.processes.terminate(name)
    new = [each for each in wanted if each not in layout.workers]
    layout.workers = wanted
    on.processes.start(*new)
    await on.processes.ready(*new)


def _layout(on: Scene) -> TemporalCluster:
    assert isinstance(on.processes.layout, TemporalCluster)
    return on.processes.layout


async def _round(on: Scene, side: _BothApis, postgres: Mapping[str, Cluster], turns: int) -> Round:
    before, began = _used(on, postgres), time.perf_counter()
    await run_turns(side, turns, AT_ONCE, SCALE)
    seconds = time.perf_counter() - began
    used = {name: now - before.get(name, 0.0) for name, now in _used(on, postgres).items()}
    return Round(rate=turns / seconds, seconds=seconds, used=used, turns=turns)


def _used(on: Scene, postgres: Mapping[str, Cluster]) -> dict[str, float]:
    """Return processor seconds so far, by process; workers together, and each PostgreSQL with its backends."""
    used: Counter[str] = Counter()
    for name in on.processes.names:
        group = name.rstrip("0123456789")
        used["workers" if group == "worker" else "APIs" if group == "api" else f"Temporal {name}"] += cpu.of_process(
            on.processes.pid(name)
        )
    for name, cluster in postgres.items():
        assert cluster.pid is not None
        used[name] += cpu.of_tree(cluster.pid)
    used[LOAD] = time.process_time()
    return dict(used)


def _table(measured: Mapping[int, Sequence[Round]]) -> list[str]:
    """Return the curve, the processor time of a turn, and which of the two is at its limit."""
    one = statistics.median(each.rate for each in measured[FLEETS[0]])
    rows = []
    for workers in FLEETS:
        rates = [each.rate for each in measured[workers]]
        busy = statistics.median(sum(each.used.values()) / each.seconds for each in measured[workers])
        cost = statistics.median(sum(each.used.values()) / each.turns for each in measured[workers])
        of_worker = statistics.median(each.used["workers"] / each.seconds / workers for each in measured[workers])
        rate = statistics.median(rates)
        cells = (
            f"{workers}",
            f"{rate:.1f}/s ({min(rates):.1f} to {max(rates):.1f})",
            f"{rate / one:.2f}",
            f"{cost * 1000:.0f} ms",
            f"{busy:.2f} of {os.cpu_count()} cores",
            f"{of_worker:.2f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    names = sorted(measured[FLEETS[0]][0].used, key=lambda name: -_cost(measured[FLEETS[0]], name))
    costs = [
        f"| {name} | " + " | ".join(f"{_cost(measured[workers], name) * 1000:.1f}" for workers in FLEETS) + " |"
        for name in names
    ]
    return [
        "| workers | turns a second (rounds) | ratio to one | processor time a turn | all processes, busy | one worker, busy |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "| processor time of a turn, ms | " + " | ".join(f"{workers} workers" for workers in FLEETS) + " |",
        "|---|" + "---|" * len(FLEETS),
        *costs,
    ]


def _cost(rounds: Sequence[Round], name: str) -> float:
    return statistics.median(each.used.get(name, 0.0) / each.turns for each in rounds)
