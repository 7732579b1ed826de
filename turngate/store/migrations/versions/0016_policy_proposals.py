"""Stored rules that wait for a second admin."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer, String, Text

revision = "0016_policy_proposals"
down_revision = "0015_looks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "policy_proposals",
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("version", Integer, nullable=False),
        Column("source", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("proposed_by", Text, nullable=False),
        Column("comment", Text, nullable=False),
        Column("why", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("outcome", String(16)),
        Column("ended_by", Text),
        Column("ended_at", Text),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
