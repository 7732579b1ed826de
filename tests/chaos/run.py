"""``make chaos``: gated calls by the thousand while processes are killed, then all evidence is compared.

    CHAOS_SEED       repeats what a run was made of, as far as processes can be repeated (default: drawn, and printed)
    CHAOS_CALLS      gated calls in all, default 1000
    CHAOS_DATABASE   sqlite or postgres; default half of the calls on each
    CHAOS_REPORT     where the report is written, default chaos-report.md in the temporary directory
    CHAOS_SECONDS    after how long a database's part has failed, default 900

Exits with 1 if anything is wrong; then the directory with logs, ledger and databases is kept.
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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(1, str(Path(__file__).parent.parent))

from chaos_report import Outcome, written
from checker import violations
from forger import Forger
from killer import Killer
from load import LIVE_RUNS, Load
from operators import Operators
from processes import Embedded
from scene import Scene, scene
from support.project.error_groups import leaves
from support.stores.postgres_server import Cluster
from workload import scripts

from turngate.store.database import Database

HEARTBEAT_SECONDS: Final = 3
WORKERS: Final = 2
PAUSE_SECONDS: Final = (1.0, 4.0)
"""Between two random acts; the named instants have a pace of their own."""
PROGRESS_SECONDS: Final = 5.0
DATABASES: Final = ("sqlite", "postgres")
Stage = Callable[[Path], AbstractAsyncContextManager[tuple[Scene, Mapping[str, Cluster]]]]
"""Makes a scene in a directory, with the PostgreSQL servers that may be killed, by name."""


def main() -> int:
    """Run what the environment asks for; returns the exit code."""
    # Settings come from the environment; this answers --help and refuses arguments, which would otherwise start a run.
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    seed = os.environ.get("CHAOS_SEED") or str(secrets.randbelow(1_000_000))
    try:
        calls, seconds = (
            int(os.environ.get(name) or usual) for name, usual in (("CHAOS_CALLS", 1000), ("CHAOS_SECONDS", 900))
        )
    except ValueError as error:
        print(f"CHAOS_CALLS and CHAOS_SECONDS are whole numbers: {error}", file=sys.stderr)
        return 2
    report = Path(os.environ.get("CHAOS_REPORT") or Path(tempfile.gettempdir()) / "chaos-report.md")
    chosen = os.environ.get("CHAOS_DATABASE") or "both"
    if chosen not in {*DATABASES, "both"}:
        print(f"CHAOS_DATABASE is sqlite, postgres or not set, not {chosen!r}", file=sys.stderr)
        return 2
    databases = DATABASES if chosen == "both" else (chosen,)
    print(f"CHAOS_SEED={seed}", flush=True)
    outcomes = []
    for each in databases:
        outcomes.append(asyncio.run(one(each, seed, -(-calls // len(databases)), seconds, partial(embedded, each))))
        report.write_text(written(outcomes))
        print(f"\n{written(outcomes)}\nwritten to {report}", flush=True)
    return 0 if all(each.good for each in outcomes) else 1


async def one(name: str, seed: str, calls: int, seconds: float, stage: Stage, *, live_runs: int = LIVE_RUNS) -> Outcome:
    """Run one part on its stage, check it, and keep what is to be looked at. ``name``: of its database, or of its stage."""
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
    wanted = scripts(f"{seed}-{name}", calls)
    outcome = Outcome(
        database=name,
        seed=seed,
        gated=sum(script.gated for script in wanted),
        seconds=0.0,
        sent=Counter(),
        hits=Counter(),
        refused=0,
        away=0,
    )
    began = time.monotonic()
    load: Load | None = None
    try:
        async with asyncio.timeout(seconds):
            async with stage(directory) as (on, postgres):
                load = Load(on, wanted, seed, live_runs=live_runs)
                await play(on, outcome, seed, load, postgres)
    except TimeoutError:
        outcome.broke = f"it took longer than {seconds:.0f} s; {'nothing was ready' if load is None else load.progress}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported, with the logs kept
        outcome.broke = "; ".join(f"{type(each).__name__}: {each}" for each in leaves(error))
        (directory / "broke.txt").write_text("".join(traceback.format_exception(error)))
    outcome.seconds = time.monotonic() - began
    if outcome.good:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        outcome.directory = str(directory)
    return outcome


@asynccontextmanager
async def embedded(database: str, directory: Path) -> AsyncIterator[tuple[Scene, Mapping[str, Cluster]]]:
    """Two workers, an API and ``turngate temporal`` over this database."""
    with cluster_for(database) as cluster:
        url = None if cluster is None else await migrated(cluster)
        layout = Embedded(workers=WORKERS)
        async with scene(directory, layout=layout, heartbeat_seconds=HEARTBEAT_SECONDS, database_url=url) as on:
            yield on, {} if cluster is None else {"postgres": cluster}


async def play(on: Scene, outcome: Outcome, seed: str, load: Load, postgres: Mapping[str, Cluster]) -> None:
    """Let agents, operators, killers and someone who forges messages at it until every run has ended; then check."""
    killer = Killer(on, seed, heartbeat_seconds=HEARTBEAT_SECONDS, postgres=postgres)
    outcome.sent, outcome.hits, outcome.gave_up = killer.sent, killer.hits, killer.gave_up
    forger = Forger(on, seed)
    outcome.forged = forger.sent
    async with asyncio.TaskGroup() as everybody:
        killing = everybody.create_task(killer.work(PAUSE_SECONDS))
        deciding = everybody.create_task(Operators(on, seed).work())
        forging = everybody.create_task(forger.work())
        telling = everybody.create_task(tell(on, load, killer, outcome))
        await load.work()
        killer.enough()
        await killing
        deciding.cancel()
        forging.cancel()
        telling.cancel()
    outcome.refused, outcome.away = killer.refused, on.away
    outcome.evidence = await on.evidence()
    outcome.violations = violations(outcome.evidence)
    if not forger.sent:
        outcome.broke = "no forged message reached Temporal, so nothing is known about them"


async def tell(on: Scene, load: Load, killer: Killer, outcome: Outcome) -> None:
    """Print a line every few seconds."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        print(
            f"{outcome.database} {time.monotonic() - began:5.0f} s: {load.ended} of {len(load.wanted)} runs ended, "
            f"{len(on.answers)} answers, {on.processes.kills} kills, {sum(killer.hits.values())} named instants",
            flush=True,
        )


@contextmanager
def cluster_for(database: str) -> Iterator[Cluster | None]:
    """A PostgreSQL of this run's own; None for SQLite."""
    if database != "postgres":
        yield None
        return
    cluster = Cluster(dies_with_us=True)
    try:
        cluster.start()
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.close()


async def migrated(cluster: Cluster) -> str:
    """Return the URL of a new database with the store's schema."""
    url = cluster.server.fresh_url()
    database = Database(url)
    try:
        await database.migrate()
    finally:
        await database.close()
    return url


if __name__ == "__main__":
    sys.exit(main())
