"""Figure 1: gated turns per second, 16 at a time, in interleaved rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.figures import Figure, Ratio
from bench.scale import Scale
from bench.sides import Side, run_turns

GOAL = 0.85


async def measure(ours: Sequence[Side], baseline: Side, scale: Scale) -> list[Figure]:
    """One line per Turngate side, all against the same rounds of the baseline."""
    sides = [*ours, baseline]
    for side in sides:
        await run_turns(side, scale.warm_up_turns, scale)
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(scale.rounds):
        for side in sides:
            rates[side.name].append(await run_turns(side, scale.turns, scale))
    return [_figure(side.name, rates[side.name], rates[baseline.name]) for side in ours]


def _figure(name: str, ours: list[float], baseline: list[float]) -> Figure:
    ratio = Ratio.of(ours, baseline)
    return Figure(
        name=f"gated turns per second, {name}",
        ours=f"{statistics.median(ours):.1f}/s",
        baseline=f"{statistics.median(baseline):.1f}/s",
        ratio=ratio,
        goal=f">= {GOAL} x",
        reached=ratio.median >= GOAL,
        samples={"ours_per_second": ours, "baseline_per_second": baseline},
    )
