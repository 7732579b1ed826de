"""Figures: what one gated turn leaves in the store: rows, bytes with their indexes, and bytes of PostgreSQL's log.

The bench's turn says little (a short task, one call with one argument), so its bytes are what a turn costs at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import Figure
from bench.scale import Scale
from bench.sides import run_turns
from bench.turngate_side import Turngate
from sqlalchemy import func, select, text

from turngate.store.database import Connection
from turngate.store.tables import metadata

SIZES = text("SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables")
LOG_BYTES = text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")


@dataclass(frozen=True)
class _Store:
    """What a store holds. ``log_bytes``: of all that PostgreSQL ever wrote to its log; SQLite's is emptied as it goes."""

    rows: dict[str, int]
    bytes: dict[str, int]
    log_bytes: int


async def measure(sides: Sequence[Turngate], scale: Scale) -> list[Figure]:
    """Two lines per database."""
    return [figure for side in sides for figure in await _figures(side, scale)]


async def _figures(side: Turngate, scale: Scale) -> list[Figure]:
    await run_turns(side, scale.warm_up_turns, scale)
    before = await _look(side)
    await run_turns(side, scale.stored_turns, scale)
    after = await _look(side)
    turns = scale.stored_turns
    rows = {name: (count - before.rows[name]) / turns for name, count in after.rows.items()}
    sizes = {name: (size - before.bytes.get(name, 0)) / turns for name, size in after.bytes.items()}
    several = ", ".join(
        f"{name} {count:.1f}" for name, count in sorted(rows.items(), key=lambda each: -each[1]) if count >= 0.05
    )
    largest = ", ".join(
        f"{name} {size:,.0f}" for name, size in sorted(sizes.items(), key=lambda each: -each[1]) if size >= 1
    )
    log = f"; log {(after.log_bytes - before.log_bytes) / turns:,.0f}" if after.log_bytes else ""
    return [
        Figure(name=f"rows of a gated turn, {side.name}", ours=f"{sum(rows.values()):.1f}: {several}"),
        Figure(name=f"bytes of a gated turn, {side.name}", ours=f"{sum(sizes.values()):,.0f}: {largest}{log}"),
    ]


async def _look(side: Turngate) -> _Store:
    async with side.engine.database.glance() as conn:
        rows = {
            table.name: int((await conn.execute(select(func.count()).select_from(table))).scalar_one())
            for table in metadata.sorted_tables
        }
        if conn.dialect.name == "sqlite":
            return _Store(rows, {"file": await _file_bytes(conn)}, 0)
        await conn.execute(text("VACUUM"))
        sizes = {str(name): int(size) for name, size in await conn.execute(SIZES)}
        return _Store(rows, sizes, int((await conn.execute(LOG_BYTES)).scalar_one()))


async def _file_bytes(conn: Connection) -> int:
    pages = (await conn.execute(text("PRAGMA page_count"))).scalar_one()
    free = (await conn.execute(text("PRAGMA freelist_count"))).scalar_one()
    size = (await conn.execute(text("PRAGMA page_size"))).scalar_one()
    return int((pages - free) * size)
