"""Figure 1: gated turns per second, 16 at a time, in interleaved rounds; and the processor time that one costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import cpu
from bench.figures import Figure, Ratio
from bench.scale import Scale
from bench.sides import Side, run_turns

GOAL = 0.85


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of one side. ``cpu_seconds``: per turn, of this process and the Temporal server together."""

    turns_per_second: float
    cpu_seconds: float


async def measure(ours: Sequence[Side], baseline: Side, scale: Scale, *, server_pid: int | None) -> list[Figure]:
    """One line per Turngate side, all against the same rounds of the baseline, and one for the first side's CPU time.

    CPU time hardly depends on what else the machine does, so it tells two builds apart where the rates are too noisy.
    """
    sides = [*ours, baseline]
    for side in sides:
        await run_turns(side, scale.warm_up_turns, scale)
    rounds: dict[str, list[Round]] = {side.name: [] for side in sides}
    for _ in range(scale.rounds):
        for side in sides:
            rounds[side.name].append(await _round(side, scale, server_pid))
    figures = [_rate(side.name, rounds[side.name], rounds[baseline.name]) for side in ours]
    if server_pid is not None and cpu.readable():
        figures.append(_cost(ours[0].name, rounds[ours[0].name], rounds[baseline.name]))
    return figures


async def _round(side: Side, scale: Scale, server_pid: int | None) -> Round:
    used = _used(server_pid)
    rate = await run_turns(side, scale.turns, scale)
    return Round(turns_per_second=rate, cpu_seconds=(_used(server_pid) - used) / scale.turns)


def _used(server_pid: int | None) -> float:
    server = cpu.of_process(server_pid) if server_pid is not None and cpu.readable() else 0.0
    return time.process_time() + server


def _rate(name: str, ours: Sequence[Round], baseline: Sequence[Round]) -> Figure:
    rates = [each.turns_per_second for each in ours]
    baselines = [each.turns_per_second for each in baseline]
    ratio = Ratio.of(rates, baselines)
    return Figure(
        name=f"gated turns per second, {name}",
        ours=f"{statistics.median(rates):.1f}/s",
        baseline=f"{statistics.median(baselines):.1f}/s",
        ratio=ratio,
        goal=f">= {GOAL} x",
        reached=ratio.median >= GOAL,
        samples={"ours_per_second": rates, "baseline_per_second": baselines},
    )


def _cost(name: str, ours: Sequence[Round], baseline: Sequence[Round]) -> Figure:
    costs, baselines = [each.cpu_seconds for each in ours], [each.cpu_seconds for each in baseline]
    return Figure(
        name=f"CPU time of a gated turn, {name}",
        ours=f"{statistics.median(costs) * 1000:.0f} ms",
        baseline=f"{statistics.median(baselines) * 1000:.0f} ms",
        ratio=Ratio.of(costs, baselines),
        samples={"ours_seconds": costs, "baseline_seconds": baselines},
    )
