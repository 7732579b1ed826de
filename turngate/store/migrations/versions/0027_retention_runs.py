"""Retention runs by itself: when it ran, what went, who does it now; and all runs of a conversation are found by an index."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer, String, Text

revision = "0027_retention_runs"
down_revision = "0026_data_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the index."""
    op.create_table(
        "retention_runs",
        Column("id", String(64), primary_key=True),
        Column("started_at", Text, nullable=False),
        Column("started_by", Text, nullable=False),
        Column("ended_at", Text),
        Column("live", Integer, unique=True),
        Column("held_by", String(64), nullable=False),
        Column("held_until", Text, nullable=False),
        Column("counts", Text, nullable=False),
        Column("rule", Text, nullable=False),
        Column("place", String(64), nullable=False),
        Column("problem", Text, nullable=False, server_default=""),
    )
    op.create_index("ix_retention_runs_started_at", "retention_runs", ["started_at", "id"])
    op.create_index("ix_idempotent_answers_created_at", "idempotent_answers", ["created_at"])
    op.create_index("ix_runs_conversation_id", "runs", ["conversation_id"])


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
