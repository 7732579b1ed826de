"""Conversations have a data key, wrapped by a key of the ring (docs/adr/0052). Nothing is encrypted by this."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, String, Text

revision = "0026_data_keys"
down_revision = "0025_long_sequences"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table."""
    op.add_column("conversations", Column("data_key", Text))
    op.create_table(
        "key_ring",
        Column("id", String(64), primary_key=True),
        Column("kind", String(16), nullable=False),
        Column("wrapped", Text, nullable=False),
        Column("wrapped_by", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
