"""Calls from outside: their turn, and which of them mean the same."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows of before have no key, and so repeat nothing and are repeated by nothing."""
    op.add_column("external_calls", sa.Column("turn", sa.String(length=255), nullable=True))
    op.add_column("external_calls", sa.Column("repeat_key", sa.String(length=64), server_default="", nullable=False))
    op.create_index("ix_external_calls_repeat_key", "external_calls", ["repeat_key"])


def downgrade() -> None:
    """Take both away again."""
    op.drop_index("ix_external_calls_repeat_key", table_name="external_calls")
    with op.batch_alter_table("external_calls") as batch:
        batch.drop_column("repeat_key")
        batch.drop_column("turn")
