"""Rows for watchers only: not part of the audit log, read from a number on, deleted after a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, delete, select

from turngate.store.clock import as_text, now
from turngate.store.database import Connection

RETENTION = timedelta(days=1)
SWEEP_BATCH = 1_000


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveTable:
    """A table of live rows. ``is_live``: the SQL condition that a row's call or response is still in progress.

    ``retention_after_end``: how long a row stays after its call or response has ended; while it has not, a day at most.
    """

    table: Table
    is_live: ColumnElement[bool]
    retention_after_end: timedelta

    @cached_property
    def _oldest(self) -> Select[tuple[str]]:
        return select(self.table.c.created_at).order_by(self.table.c.id).limit(1)

    async def sweep(self, conn: Connection) -> None:
        """Delete expired rows among the oldest 1,000. Cheap if there is none."""
        columns, at = self.table.c, now()
        ended_at = as_text(at - self.retention_after_end)
        oldest = (await conn.execute(self._oldest)).scalar_one_or_none()
        if oldest is not None and oldest < ended_at:
            first = select(columns.id).order_by(columns.id).limit(SWEEP_BATCH)
            ended = (columns.created_at < ended_at) & ~self.is_live
            expired = (columns.created_at < as_text(at - RETENTION)) | ended
            await conn.execute(delete(self.table).where(columns.id.in_(first), expired))

    def after(
        self, last: int, *, upto: int, ended_from: int, run_ids: Sequence[str] | Select[tuple[str]] | None, limit: int
    ) -> Select[Any]:
        """Return the query for rows after number ``last`` (exclusive), up to ``upto``, oldest first.

        ``run_ids``: only of these runs. Up to number ``ended_from`` it has only live rows; after that, all.
        """
        columns = self.table.c
        query = select(self.table).where(columns.id > last, columns.id <= upto).order_by(columns.id).limit(limit)
        if run_ids is not None:
            query = query.where(columns.run_id.in_(run_ids))
        if last < ended_from:
            query = query.where((columns.id > ended_from) | self.is_live)
        return query
