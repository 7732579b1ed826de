"""What the judge said of calls."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import metadata

# Written when the judge has answered, which is before the call is planned: no foreign key to calls.
judgements = Table(
    "judgements",
    metadata,
    Column("run_id", StorableString(64), primary_key=True),
    Column("tool_call_id", StorableString(255), primary_key=True),
    # JSON of a Judgement.
    Column("judgement", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_judgements_created_at", "created_at"),
)
