"""What a tenant notices of another with thousands of waiting tasks: its runs' time alone, and beside them, in one worker."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from bench.figures import Figure, MeasurementError, Ratio, milliseconds, percentile
from bench.scale import Scale
from httpx_sse import aconnect_sse
from support.terminal_process import Background, turngate

from turngate.runtime.embedded_temporal import choose_port

GOAL = 2.0
BUSY, QUIET = "acme", "bolt"
APP = "neighbour_app:app"
AT_ONCE = 16
ENDED = "run.ended"
WATCHED_SECONDS = 10.0


async def measure(directory: Path, temporal_address: str, scale: Scale) -> list[Figure]:
    """Return two lines: the quiet tenant's p95 of a run, alone and beside the other's tasks; and what it costs the other."""
    _prepare(directory)
    port = choose_port()
    environment = {
        "TURNGATE_TENANTS": str(directory / "tenants.toml"),
        "TURNGATE_DATA_DIR": str(directory / "state"),
        "TURNGATE_API_PORT": str(port),
        "TURNGATE_STREAMING": "off",
        "TEMPORAL_ADDRESS": temporal_address,
    }
    created = await asyncio.to_thread(turngate, "tenants", "create", cwd=directory, **environment)
    if created.returncode:
        raise MeasurementError(created.stderr)
    with _running("api", directory=directory, environment=environment) as api:
        await asyncio.to_thread(api.wait_for, f"{QUIET}.test")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            tenants = {name: _headers(directory, name) for name in (BUSY, QUIET)}
            with _running("worker", APP, directory=directory, environment=environment) as worker:
                await asyncio.to_thread(worker.wait_for, "tenant bolt")
                await _timed_runs(http, tenants[QUIET], scale.neighbour_warm_up)
                alone = await _timed_runs(http, tenants[QUIET], scale.neighbour_runs)
            await _load(http, tenants[BUSY], scale.neighbour_waiting)
            with _running("worker", APP, directory=directory, environment=environment) as worker:
                await asyncio.to_thread(worker.wait_for, "tenant bolt")
                await _timed_runs(http, tenants[QUIET], scale.neighbour_warm_up)
                with _counting(directory) as of_busy:
                    beside = await _timed_runs(http, tenants[QUIET], scale.neighbour_runs)
                with _counting(directory) as of_busy_alone:
                    await asyncio.sleep(WATCHED_SECONDS)
                if not await _has_waiting(http, tenants[BUSY]):
                    raise MeasurementError("the busy tenant's tasks were done before the quiet one's runs")
    ratio = percentile(beside, 0.95) / percentile(alone, 0.95)
    return [
        Figure(
            name=f"a run beside {scale.neighbour_waiting:,} waiting tasks of another tenant",
            ours=milliseconds(beside),
            baseline=milliseconds(alone),
            ratio=_ratio(ratio),
            goal=f"p95 <= {GOAL:g} x",
            reached=ratio <= GOAL,
            samples={"beside_seconds": beside, "alone_seconds": alone},
        ),
        Figure(
            name="runs a second of the tenant with the backlog, beside the other and alone",
            ours=f"{of_busy.rate:.1f}/s",
            baseline=f"{of_busy_alone.rate:.1f}/s",
            ratio=_ratio(of_busy.rate / of_busy_alone.rate),
            samples={"per_second": [of_busy.rate, of_busy_alone.rate]},
        ),
    ]


def _ratio(value: float) -> Ratio:
    return Ratio(median=value, low=value, high=value)


@dataclass
class _Counted:
    rate: float = 0.0


@contextmanager
def _counting(directory: Path) -> Iterator[_Counted]:
    """Count how many of the busy tenant's runs end a second while the block runs."""
    store, counted = directory / "state" / "tenants" / BUSY / "turngate.db", _Counted()

    def ended() -> int:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM runs WHERE status = 'completed'").fetchone()[0])

    before, began = ended(), time.perf_counter()
    yield counted
    counted.rate = (ended() - before) / (time.perf_counter() - began)


def _prepare(directory: Path) -> None:
    directory.mkdir()
    for name in ("neighbour_app.py", "neighbour_model.yaml"):
        shutil.copy(Path(__file__).with_name(name), directory)
    tables = "".join(f'[{name}]\nhosts = ["{name}.test"]\n' for name in (BUSY, QUIET))
    (directory / "tenants.toml").write_text(tables)


@contextmanager
def _running(*words: str, directory: Path, environment: dict[str, str]) -> Iterator[Background]:
    process = Background(*words, cwd=directory, **environment)
    try:
        yield process
    finally:
        process.stop()


def _headers(directory: Path, name: str) -> dict[str, str]:
    token = (directory / "state" / "tenants" / name / "token").read_text().strip()
    return {"Host": f"{name}.test", "Authorization": f"Bearer {token}"}


async def _start(http: httpx.AsyncClient, headers: dict[str, str]) -> str:
    started = await http.post("/api/v1/runs", headers=headers, json={"agent": "clerk", "input": "Note hello."})
    started.raise_for_status()
    run: dict[str, Any] = started.json()
    return str(run["id"])


async def _load(http: httpx.AsyncClient, headers: dict[str, str], runs: int) -> None:
    """Start runs that no worker takes."""
    left = iter(range(runs))

    async def start_some() -> None:
        for _ in left:
            await _start(http, headers)

    await asyncio.gather(*(start_some() for _ in range(AT_ONCE)))


async def _timed_runs(http: httpx.AsyncClient, headers: dict[str, str], runs: int) -> list[float]:
    """Return the seconds from the request that starts a run to the event of its end, one run after the other."""
    samples = []
    for _ in range(runs):
        began = time.perf_counter()
        run_id = await _start(http, headers)
        async with aconnect_sse(http, "GET", f"/api/v1/runs/{run_id}/events", headers=headers) as source:
            async for sent in source.aiter_sse():
                if json.loads(sent.data or "{}").get("type") == ENDED:
                    break
        samples.append(time.perf_counter() - began)
    return samples


async def _has_waiting(http: httpx.AsyncClient, headers: dict[str, str]) -> bool:
    listed = await http.get("/api/v1/runs", headers=headers, params={"status": "running", "limit": 1})
    listed.raise_for_status()
    return bool(listed.json()["items"])
