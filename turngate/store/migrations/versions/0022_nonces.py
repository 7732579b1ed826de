"""Digests of content are keyed with a nonce of their run, which goes with the content (docs/adr/0053)."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0022_nonces"
down_revision = "0021_lost_starts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Earlier runs have no nonce: their digests stay plain."""
    for table in ("runs", "calls", "requests"):
        op.add_column(table, Column("nonce", Text, nullable=False, server_default=""))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
