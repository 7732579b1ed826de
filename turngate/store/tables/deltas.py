"""Deltas: what watchers are shown of responses that are still being made."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, Table

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import metadata

deltas = Table(
    "deltas",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("run_id", StorableString(64), nullable=False),
    Column("step", Integer, nullable=False),
    # The id of the attempt's first row: it grows from attempt to attempt.
    Column("attempt", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("payload", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_deltas_run_id", "run_id", "step", "n"),
)
