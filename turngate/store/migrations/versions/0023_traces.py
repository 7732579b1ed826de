"""Runs know the trace they belong to, steps when their model was asked; and how far traces are exported."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer, String, Text

revision = "0023_traces"
down_revision = "0022_nonces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns and table. An earlier run's trace follows from its id; when an earlier step's model was asked isn't known."""
    op.add_column("runs", Column("traceparent", String(55)))
    op.add_column("steps", Column("asked_at", Text))
    op.create_table(
        "trace_export",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("last_seq", Integer, nullable=False),
        Column("salt", String(64), nullable=False),
        Column("held_by", String(64), nullable=False),
        Column("held_until", Text, nullable=False),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
