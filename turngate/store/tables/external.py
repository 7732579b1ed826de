"""Calls that a program outside runs itself."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Table

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import metadata

# One call per run. ``tool``, ``input`` and ``context`` never change; the rest says who runs it, and what came of it.
external_calls = Table(
    "external_calls",
    metadata,
    Column("run_id", StorableString(64), ForeignKey("runs.id"), primary_key=True),
    Column("tool_call_id", StorableString(255), nullable=False),
    Column("tool", StorableText, nullable=False),
    Column("input", StorableText, nullable=False),
    Column("context", StorableText, nullable=False),
    # Who wants to start it, and who was let through at the door: the second is written in the redemption itself.
    Column("wanted_by", StorableString(64)),
    Column("running_for", StorableString(64)),
    Column("deadline_at", StorableText),
    Column("report", StorableText),
    # Equal for calls of one sender that mean the same, and within the same turn where one was named (I12).
    Column("turn", StorableString(255)),
    Column("repeat_key", StorableString(64), nullable=False, server_default=""),
    Index("ix_external_calls_repeat_key", "repeat_key"),
)
