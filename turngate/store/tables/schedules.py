"""Schedules, and what happened to each of their fires."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, text

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import metadata

schedules = Table(
    "schedules",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("name", StorableString(64), nullable=False),
    Column("agent", StorableString(64), nullable=False),
    Column("input", StorableText, nullable=False),
    Column("workspace", StorableText),
    Column("model", StorableText),
    # NULL: each fire begins a conversation of its own.
    Column("conversation_id", StorableString(64), ForeignKey("conversations.id")),
    Column("unattended_asks", StorableString(16), nullable=False),
    # JSON of turngate.domain.agents.schedules.Timetable.
    Column("timetable", StorableText, nullable=False),
    Column("overlap", StorableString(16), nullable=False),
    Column("catch_up_seconds", Integer, nullable=False),
    Column("notes", StorableText, nullable=False, server_default=""),
    # Counts the changes; Temporal's schedule carries the one that it was made from.
    Column("revision", Integer, nullable=False),
    Column("created_by", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    # Of the timetable, no earlier instant counts.
    Column("fires_after", StorableText, nullable=False, server_default=""),
    Column("paused_at", StorableText),
    Column("paused_by", StorableText),
    Column("pause_reason", StorableText, nullable=False, server_default=""),
    Column("deleted_at", StorableText),
    Column("deleted_by", StorableText),
    # When Temporal's schedule was seen to be gone, after it was deleted here.
    Column("removed_at", StorableText),
    Index(
        "uq_schedules_name",
        "name",
        unique=True,
        sqlite_where=text("deleted_at IS NULL"),
        postgresql_where=text("deleted_at IS NULL"),
    ),
    Index("ix_schedules_created_at_id", "created_at", "id"),
)

schedule_fires = Table(
    "schedule_fires",
    metadata,
    Column("schedule_id", StorableString(64), ForeignKey("schedules.id"), primary_key=True),
    # The instant on the timetable, not when it was handled: a fire that is reported twice is one.
    Column("fire_at", StorableText, primary_key=True),
    Column("outcome", StorableString(16), nullable=False),
    Column("run_id", StorableString(64)),
    Column("reason", StorableText, nullable=False, server_default=""),
    # Who asked for an extra fire; NULL: the clock.
    Column("fired_by", StorableText),
    Column("noted_at", StorableText, nullable=False),
)
