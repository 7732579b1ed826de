"""``make cluster``: what Turngate does on a real Temporal cluster, with a summary at the end.

story    a gated call from start to reply over two APIs, an interrupt, a sub-agent, a schedule, and the commands that ask Temporal
latency  from a decision to its tool's first line, with our dynamic configuration and with Temporal's defaults
upgrade  workers of an old build beside those of a new one while runs begin, wait and are decided
curve    gated turns a second with 1, 2 and 4 workers, and the processor time of each process
chaos    gated calls while every process is killed, stopped or partitioned, one at a time and several; then all is compared

`scripts/cluster run` starts this. It exits with 1 if anything was lost, ran twice or without approval, or did not end in time;
then the directory with all logs is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

# In place of this script's own directory, whose modules would stand in for others of the same name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "chaos"))

import chaos_report
from cluster import curve, upgrade
from cluster.stage import cluster_stage
from cluster.story import story
from run import one
from scene import Scene
from support.project.error_groups import leaves

PARTS: Final = ("story", "latency", "upgrade", "curve", "chaos")
PART_SECONDS: Final = {"story": 240, "latency": 240, "upgrade": 300, "curve": 420, "chaos": 1200}
"""After which a part has failed. A quiet machine with two cores takes 20 minutes for all of them."""
LIVE_RUNS: Final = 32
"""Of the chaos run, at the same time. Twice as many as without a cluster: more of them wait for a process to come back."""


@dataclass(kw_only=True)
class Sizes:
    """How much is done.

    ``calls``: gated, of the chaos run. ``turns``: of each round of the curve. ``samples``: of each latency. ``upgraded``: runs of
    each build.
    """

    calls: int = 1000
    turns: int = 150
    rounds: int = 2
    samples: int = 40
    upgraded: int = 24


QUICK: Final = Sizes(calls=40, turns=30, rounds=1, samples=8, upgraded=6)


@dataclass(kw_only=True)
class Result:
    """One part. ``lines``: Markdown. ``broke``: why it failed; empty when it didn't."""

    name: str
    seconds: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)
    """The load average at its beginning and end: others may use this machine."""
    lines: list[str] = field(default_factory=list)
    broke: str = ""


Part = Callable[[Path], Awaitable[list[str]]]


def main() -> int:
    """Run the chosen parts one after the other; returns the exit code."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    sizes.calls = options.calls or sizes.calls
    seed = options.seed or str(secrets.randbelow(1_000_000))
    print(f"CHAOS_SEED={seed}", flush=True)
    parts: dict[str, Part] = {
        "story": partial(_staged, options.server, story),
        "latency": partial(curve.latency, options.server, samples=sizes.samples),
        "upgrade": partial(upgrade.upgrade, options.server, runs=sizes.upgraded),
        "curve": partial(curve.throughput, options.server, turns=sizes.turns, rounds=sizes.rounds),
    }
    results = []
    for name in options.only:
        print(f"\n== {name}", flush=True)
        if name == "chaos":
            results.append(asyncio.run(_chaos(options.server, seed, sizes.calls, options.chaos_seconds)))
        else:
            results.append(asyncio.run(_part(name, parts[name])))
        print("\n".join(_written(results[-1])), flush=True)
        options.report.write_text("\n".join(_summary(results)), encoding="utf-8")
    print("\n" + "\n".join(_summary(results)) + f"\nwritten to {options.report}", flush=True)
    return 1 if any(result.broke for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/cluster run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", type=Path, required="--help" not in sys.argv, help=argparse.SUPPRESS)
    parser.add_argument("--only", type=_names, default=PARTS, metavar="PART[,PART]", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a few minutes: to see that it runs, not to quote")
    parser.add_argument("--calls", type=int, metavar="N", help="gated calls of the chaos run, default 1000")
    parser.add_argument(
        "--chaos-seconds",
        type=int,
        default=PART_SECONDS["chaos"],
        metavar="N",
        help="after which the chaos run has failed; more on a machine that others use, too",
    )
    parser.add_argument("--seed", metavar="SEED", help="of the chaos run; default: drawn, and printed")
    parser.add_argument(
        "--report", type=Path, default=Path(tempfile.gettempdir()) / "cluster-report.md", help="where the summary goes"
    )
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    return names


async def _staged(server: Path, part: Callable[[Scene], Awaitable[list[str]]], directory: Path) -> list[str]:
    """Run a part on a stage of its own, then compare all evidence of what happened there."""
    async with cluster_stage(server, directory, durable=True) as (on, _postgres):
        lines = await part(on)
        await on.audit()
    return lines


async def _part(name: str, part: Part) -> Result:
    directory = Path(tempfile.mkdtemp(prefix=f"cluster-{name}-"))
    result, began, load = Result(name=name), time.monotonic(), os.getloadavg()[0]
    try:
        async with asyncio.timeout(PART_SECONDS[name]):
            result.lines = await part(directory)
    except TimeoutError:
        result.broke = f"it took longer than {PART_SECONDS[name]} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported, with the logs kept
        result.broke = "; ".join(f"{type(each).__name__}: {each}" for each in leaves(error))
        (directory / "broke.txt").write_text("".join(traceback.format_exception(error)))
    result.seconds, result.load = time.monotonic() - began, (load, os.getloadavg()[0])
    if result.broke:
        result.lines.append(f"- everything is kept in `{directory}`")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return result


async def _chaos(server: Path, seed: str, calls: int, seconds: float) -> Result:
    load = os.getloadavg()[0]
    stage = partial(cluster_stage, server, durable=False)
    outcome = await one("cluster", seed, calls, seconds, stage, live_runs=LIVE_RUNS)
    return Result(
        name="chaos",
        seconds=outcome.seconds,
        load=(load, os.getloadavg()[0]),
        lines=[chaos_report.written([outcome])],
        broke=outcome.broke or ("" if outcome.good else f"{len(outcome.violations)} violations"),
    )


def _written(result: Result) -> list[str]:
    verdict = f"FAILED: {result.broke}" if result.broke else "clean"
    load = "at a load of {:.1f} to {:.1f}".format(*result.load)
    return [f"## {result.name}: {verdict} ({result.seconds:.0f} s, {load})", "", *result.lines, ""]


def _summary(results: list[Result]) -> list[str]:
    """Return the whole report, what matters first."""
    good = not any(result.broke for result in results)
    head = f"# Temporal cluster on PostgreSQL: {'everything clean' if good else 'SOMETHING IS WRONG'}"
    table = ["| part | result | seconds |", "|---|---|---|"]
    table += [
        f"| {result.name} | {('FAILED: ' + result.broke.splitlines()[0]) if result.broke else 'clean'} | {result.seconds:.0f} |"
        for result in results
    ]
    return [head, "", *table, "", *(line for result in results for line in _written(result))]


if __name__ == "__main__":
    sys.exit(main())
