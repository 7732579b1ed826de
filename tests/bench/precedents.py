"""Figure: the precedents of a request among 100,000 decisions: whether a planted twin is among the three nearest, and how fast.

It is what a request's page adds to its other queries. The decisions are on four tools; a twin differs from one of them in a known
way (``support.planted.precedents``).
"""

from __future__ import annotations

import gc
import time

from bench.figures import Figure, milliseconds, percentile
from bench.scale import Scale
from sqlalchemy import text
from support.planted.precedents import planted, store, twins
from temporalio.client import Client

from turngate.approvals_api.requests.precedents import precedent_of
from turngate.store.database import Database

GOAL_SECONDS = 0.02
GOAL_SHARE = 0.95
MANIFEST = "x" * 1_500
WORDS = "I will do this now. " * 15
"""As large as real ones: the index lies among the rows that it leads to."""


async def measure(client: Client, databases: dict[str, Database], scale: Scale) -> list[Figure]:
    """Three lines per database."""
    del client
    return [figure for name, database in databases.items() for figure in await _figures(name, database, scale)]


async def _figures(name: str, database: Database, scale: Scale) -> list[Figure]:
    decided = list(planted(scale.decided))
    await store(database, decided, manifest=MANIFEST, agent_words=WORDS)
    async with database.glance() as conn:
        # PostgreSQL does so by itself within a minute after such an import.
        await conn.execute(text("ANALYZE" if database.url.startswith("sqlite") else "VACUUM ANALYZE"))
    gc.freeze()  # as `turngate up` does once it serves
    seconds: list[float] = []
    processor: list[float] = []
    hits = 0
    for twin in twins(decided, scale.twins):
        began, began_processor = time.perf_counter(), time.process_time()
        async with database.read() as conn:
            precedent = await precedent_of(conn, "rq_new", twin.tool_name, twin.input)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - began_processor)
        hits += twin.of in [each.request_id for each in precedent.nearest]
    among = f"among {scale.decided:,} decisions, {name}"
    return [
        Figure(
            name=f"precedents {among}",
            ours=milliseconds(seconds),
            goal=f"p95 <= {GOAL_SECONDS * 1000:.0f} ms",
            reached=percentile(seconds, 0.95) <= GOAL_SECONDS,
            samples={"ours_seconds": seconds},
        ),
        Figure(
            name=f"processor time of the API for it, {name}",
            ours=milliseconds(processor),
            samples={"ours_seconds": processor},
        ),
        Figure(
            name=f"planted twins in the top three {among}",
            ours=f"{hits} of {scale.twins}",
            goal=f">= {GOAL_SHARE:.0%}",
            reached=hits >= GOAL_SHARE * scale.twins,
        ),
    ]
