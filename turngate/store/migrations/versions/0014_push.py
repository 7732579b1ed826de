"""Browsers that people have notified of the requests they may decide."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, String, Text

revision = "0014_push"
down_revision = "0013_totals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "push_subscriptions",
        Column("id", String(64), primary_key=True),
        Column("person", String(255), nullable=False),
        Column("role", String(16), nullable=False),
        Column("endpoint", Text, nullable=False, unique=True),
        Column("p256dh", String(88), nullable=False),
        Column("auth", String(24), nullable=False),
        Column("wanted", Text, nullable=False),
        Column("user_agent", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_push_subscriptions_person", "push_subscriptions", ["person"])


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
