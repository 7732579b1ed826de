"""Figure 12: gated turns as a user's client drives them: HTTP and the stream of events, from another process.

The client's own processor time isn't counted, but it shares the machine with both sides alike.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import cpu
from bench.figures import Figure, Ratio, milliseconds, percentile
from bench.scale import Scale
from bench.served import Served


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What a side is to reach, as ratios to the baseline."""

    rate: float
    cpu: float
    handler: float


GOALS = {
    "SQLite": Goals(rate=1.0, cpu=1.0, handler=1.2),
    "PostgreSQL": Goals(rate=0.85, cpu=1.15, handler=1.5),
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of one side. ``rate``: turns a second, many at once. Times in seconds, of turns one by one.

    ``waited``: start → the client sees the question. ``handled``: decision sent → the tool's first line. ``seen``: decision
    sent → the client sees the end.
    """

    rate: float
    cpu: float
    waited: list[float]
    handled: list[float]
    seen: list[float]


async def measure(
    ours: Sequence[Served], baseline: Served, scale: Scale, *, shared: Sequence[int], own: dict[str, int]
) -> list[Figure]:
    """Five lines for each of our sides. ``shared``: pids that serve everyone; ``own``: side → the pid of its database."""
    sides = [*ours, baseline]
    for side in sides:
        await _turns(side, scale.warm_up_turns, scale.api_concurrency, scale)
    rounds: dict[str, list[Round]] = {side.name: [] for side in sides}
    for _ in range(scale.api_rounds):
        for side in sides:
            pids = [side.pid, *shared, *([own[side.name]] if side.name in own else [])]
            rounds[side.name].append(await _round(side, scale, pids))
    return [figure for side in ours for figure in _figures(side.name, rounds[side.name], rounds[baseline.name])]


async def _round(side: Served, scale: Scale, pids: Sequence[int]) -> Round:
    """Many turns at once for the rate and the cost, then some one by one for the times."""
    used, began = _used(pids), time.perf_counter()
    await _turns(side, scale.api_turns, scale.api_concurrency, scale)
    rate, cost = scale.api_turns / (time.perf_counter() - began), (_used(pids) - used) / scale.api_turns
    alone = await _turns(side, scale.api_samples, 1, scale)
    return Round(rate=rate, cpu=cost, **alone)


async def _turns(side: Served, turns: int, at_once: int, scale: Scale) -> dict[str, list[float]]:
    """Run turns; returns the times of :class:`Round`."""
    left, decided = iter(range(turns)), {}
    waited, seen = [], []

    async def one_after_another() -> None:
        for _ in left:
            began = time.time()
            turn_id = await side.start()
            question = await side.question(turn_id)
            waited.append(time.time() - began)
            await asyncio.sleep(scale.think_seconds)
            decided[turn_id] = time.time()
            await side.approve(turn_id, question)
            await side.end(turn_id)
            seen.append(time.time() - decided[turn_id])

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one_after_another())
    starts = side.handler_starts()
    return {"waited": waited, "handled": [starts[turn_id] - at for turn_id, at in decided.items()], "seen": seen}


def _used(pids: Sequence[int]) -> float:
    return sum(cpu.of_tree(pid) for pid in pids) if cpu.readable() else 0.0


def _figures(name: str, ours: Sequence[Round], baseline: Sequence[Round]) -> list[Figure]:
    goals = GOALS[name]

    def medians(
        what: str, value: Callable[[Round], float], pattern: str, most: float = math.inf, least: float = 0
    ) -> Figure:
        mine, theirs = [value(each) for each in ours], [value(each) for each in baseline]
        ratio = Ratio.of(mine, theirs)
        return Figure(
            name=f"{what}, {name}",
            ours=pattern.format(statistics.median(mine)),
            baseline=pattern.format(statistics.median(theirs)),
            ratio=ratio,
            goal=f">= {least} x" if least else f"<= {most} x",
            reached=least <= ratio.median <= most,
        )

    return [
        medians("turns per second over HTTP", lambda each: each.rate, "{:.1f}/s", least=goals.rate),
        medians("CPU of a turn, servers and worker", lambda each: each.cpu * 1000, "{:.0f} ms", most=goals.cpu),
        _times(f"decision sent -> tool's first line, {name}", ours, baseline, lambda each: each.handled, goals.handler),
        _times(f"decision sent -> a watcher sees the end, {name}", ours, baseline, lambda each: each.seen),
        _times(f"start -> a watcher sees the request, {name}", ours, baseline, lambda each: each.waited),
    ]


def _times(
    name: str,
    ours: Sequence[Round],
    baseline: Sequence[Round],
    times: Callable[[Round], list[float]],
    goal: float | None = None,
) -> Figure:
    ratio = Ratio.of(
        [percentile(times(each), 0.5) for each in ours], [percentile(times(each), 0.5) for each in baseline]
    )
    samples = {
        side: [seconds for each in rounds for seconds in times(each)]
        for side, rounds in (("ours_seconds", ours), ("baseline_seconds", baseline))
    }
    return Figure(
        name=name,
        ours=milliseconds(samples["ours_seconds"]),
        baseline=milliseconds(samples["baseline_seconds"]),
        ratio=ratio,
        goal="" if goal is None else f"<= {goal} x",
        reached=None if goal is None else ratio.median <= goal,
        samples=samples,
    )
