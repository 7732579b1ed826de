"""What is said for watchers only, whatever it is: no part of the audit log, read on from a number, swept away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, delete, select

from turngate.store.clock import as_text, now
from turngate.store.database import Connection

KEPT_FOR = timedelta(days=1)
SWEPT_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveTable:
    """A table of what was said. ``goes_on``: the condition that what a row is about continues: others have its result.

    ``kept_after_the_end``: how long a row is kept when that has ended; a day at most when it has not.
    """

    table: Table
    goes_on: ColumnElement[bool]
    kept_after_the_end: timedelta

    @cached_property
    def _oldest(self) -> Select[tuple[str]]:
        return select(self.table.c.created_at).order_by(self.table.c.id).limit(1)

    async def sweep(self, conn: Connection) -> None:
        """Delete what is older than that: among the oldest 1,000 rows. Cheap if there is none."""
        said, at = self.table.c, now()
        ended_at = as_text(at - self.kept_after_the_end)
        oldest = (await conn.execute(self._oldest)).scalar_one_or_none()
        if oldest is not None and oldest < ended_at:
            first = select(said.id).order_by(said.id).limit(SWEPT_AT_ONCE)
            expired = (said.created_at < as_text(at - KEPT_FOR)) | ((said.created_at < ended_at) & ~self.goes_on)
            await conn.execute(delete(self.table).where(said.id.in_(first), expired))

    def after(
        self, last: int, *, ended_from: int, run_ids: Sequence[str] | Select[tuple[str]] | None, limit: int
    ) -> Select[Any]:
        """Return the query for rows after number ``last`` (exclusive), oldest first; of some runs when they are given.

        Up to number ``ended_from`` only of what continues now; from there on of everything.
        """
        said = self.table.c
        query = select(self.table).where(said.id > last).order_by(said.id).limit(limit)
        if run_ids is not None:
            query = query.where(said.run_id.in_(run_ids))
        if last < ended_from:
            query = query.where((said.id > ended_from) | self.goes_on)
        return query
