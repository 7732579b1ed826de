"""Rows of several tables that one query returns, taken apart again. One trip to the database in place of one per table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, Table


def parts(row: Row[Any], *tables: Table) -> list[dict[str, Any] | None]:
    """Return what a row has of each of its tables, in order, by column; None for one that an outer join has no row of.

    The query selects all columns of these tables first, in this order. What it selects after them is left out.
    """
    by_table: list[dict[str, Any] | None] = []
    begin = 0
    for table in tables:
        names = table.c.keys()
        values = dict(zip(names, row[begin : begin + len(names)], strict=True))
        begin += len(names)
        key = next(iter(table.primary_key))
        by_table.append(None if values[key.name] is None else values)
    return by_table
