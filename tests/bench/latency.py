"""Figure 2: from the decision's call to the tool handler's first line, one turn at a time, of workflows that wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

from bench.figures import Figure, Ratio, milliseconds, percentile
from bench.scale import Scale
from bench.sides import Side

GOAL = 1.5
WARM_UP = 3


async def measure(ours: Sequence[Side], baseline: Side, scale: Scale) -> list[Figure]:
    """One line per Turngate side. A ratio is that of two rounds' medians; the sides take turns sample by sample."""
    sides = [*ours, baseline]
    for side in sides:
        for _ in range(WARM_UP):
            await _decision_to_handler(side)
    rounds: dict[str, list[list[float]]] = {side.name: [] for side in sides}
    for _ in range(scale.latency_rounds):
        for side in sides:
            rounds[side.name].append([])
        for _ in range(scale.latency_samples):
            for side in sides:
                rounds[side.name][-1].append(await _decision_to_handler(side))
    return [_figure(side.name, rounds[side.name], rounds[baseline.name]) for side in ours]


async def _decision_to_handler(side: Side) -> float:
    """Run one turn; returns the seconds between the two."""
    turn_id = await side.start()
    ask = await side.ask_of(turn_id)
    # A person decides long after the workflow has come to rest; a decision that overtakes it would measure that race.
    await side.idle(turn_id)
    decided_at = time.perf_counter()
    await side.decide(ask)
    await side.complete(turn_id)
    return side.handlers.started_at[turn_id] - decided_at


def _figure(name: str, ours: list[list[float]], baseline: list[list[float]]) -> Figure:
    ratio = Ratio.of([percentile(samples, 0.5) for samples in ours], [percentile(samples, 0.5) for samples in baseline])
    all_ours, all_baseline = list(chain(*ours)), list(chain(*baseline))
    return Figure(
        name=f"decision -> tool handler, {name}",
        ours=milliseconds(all_ours),
        baseline=milliseconds(all_baseline),
        ratio=ratio,
        goal=f"<= {GOAL} x",
        reached=ratio.median <= GOAL,
        samples={"ours_seconds": all_ours, "baseline_seconds": all_baseline},
    )
