"""Browsers are no longer notified by messages of our own."""

from __future__ import annotations

from typing import NoReturn

from alembic import op

revision = "0031_no_push"
down_revision = "0030_external_conversations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the subscriptions: their addresses are secrets, and nothing uses them any more."""
    op.drop_table("push_subscriptions")


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
