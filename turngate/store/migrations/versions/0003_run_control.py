"""What people ordered of a live run: who interrupted it and why, and whether its workflow has seen the newest order."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer, Text

revision = "0003_run_control"
down_revision = "0002_confinement"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; a run that is live has no order yet."""
    op.add_column("runs", Column("interrupted_at", Text))
    op.add_column("runs", Column("interrupted_by", Text))
    op.add_column("runs", Column("interrupt_reason", Text, nullable=False, server_default=""))
    op.add_column("runs", Column("control", Integer, nullable=False, server_default="0"))
    op.add_column("runs", Column("control_seen", Integer, nullable=False, server_default="0"))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
