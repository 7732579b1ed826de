"""Where a gated turn's time goes: CPU by thread, calls to Temporal, SQL by transaction, functions by their own time."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bench import cpu
from bench.scale import Scale
from bench.sides import Side, run_turns
from bench.turngate_side import Turngate
from support.stores.sql_census import SqlCensus
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

MAX_FUNCTIONS = 30
IDLE_SECONDS = 2.0
OWN_CODE = r"/(activities|approvals_api|workflows|turngate|worker\.py|bench)"


def measured_runtime() -> tuple[Runtime, MetricBuffer]:
    """Return a runtime of Temporal's SDK that counts its requests."""
    metrics = MetricBuffer(1_000_000)
    return Runtime(telemetry=TelemetryConfig(metrics=metrics)), metrics


async def profile(
    ours: Turngate, baseline: Side, scale: Scale, *, metrics: MetricBuffer, server_pid: int | None
) -> None:
    """Print everything. The two sides' CPU and requests are counted unprofiled; cProfile then slows its own part."""
    for side in (ours, baseline):
        await run_turns(side, scale.warm_up_turns, scale)
    if server_pid is not None:
        print(f"\n== idle: {await _idle_share(server_pid):.0%} of one core for the Temporal server")
    for side in (ours, baseline):
        print(f"\n== {side.name}: {scale.turns} gated turns, {scale.concurrency} at a time")
        with _resources(scale.turns, metrics, server_pid):
            rate = await run_turns(side, scale.turns, scale)
        print(f"turns per second: {rate:.1f} ({1000 / rate:.1f} ms of wall clock each)")
    print("\n== SQL of a gated turn")
    with SqlCensus(ours.engine.database) as census:
        await run_turns(ours, scale.turns, scale)
    print(census.report(scale.turns))
    profiler = cProfile.Profile()
    profiler.enable()
    await run_turns(ours, scale.turns, scale)
    profiler.disable()
    print(f"\n== event loop's thread under cProfile, {scale.turns} turns: functions by own time")
    stats = pstats.Stats(profiler).strip_dirs()
    stats.sort_stats("tottime").print_stats(MAX_FUNCTIONS)
    print("== the same, by time with what they call")
    stats.sort_stats("cumtime").print_stats(2 * MAX_FUNCTIONS)
    print("== the same, our own functions only")
    pstats.Stats(profiler).sort_stats("cumtime").print_stats(OWN_CODE, MAX_FUNCTIONS)


async def _idle_share(server_pid: int) -> float:
    """Return how much of one core the server uses for itself: it polls its own queues."""
    before = cpu.of_process(server_pid)
    await asyncio.sleep(IDLE_SECONDS)
    return (cpu.of_process(server_pid) - before) / IDLE_SECONDS


@contextmanager
def _resources(turns: int, metrics: MetricBuffer, server_pid: int | None) -> Iterator[None]:
    metrics.retrieve_updates()
    threads, server = cpu.by_thread(), 0.0 if server_pid is None else cpu.of_process(server_pid)
    yield
    threads = cpu.by_thread() - threads
    print("CPU ms per turn:")
    if server_pid is not None:
        threads["Temporal server (its own process)"] = cpu.of_process(server_pid) - server
    for role, seconds in threads.most_common():
        print(f"  {seconds / turns * 1000:7.2f}  {role}")
    print(f"  {sum(threads.values()) / turns * 1000:7.2f}  all")
    print("requests to Temporal per turn:")
    requests: Counter[str] = Counter()
    for update in metrics.retrieve_updates():
        if update.metric.name in {"temporal_request", "temporal_long_request"}:
            requests[str(update.attributes.get("operation"))] += int(update.value)
    for operation, count in requests.most_common():
        print(f"  {count / turns:7.2f}  {operation}")
