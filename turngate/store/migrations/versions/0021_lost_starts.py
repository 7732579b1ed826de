"""Executions know their worker; a request about a lost call has how that call started and how to check whether it took effect."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0021_lost_starts"
down_revision = "0020_run_filters"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; of earlier starts and requests it isn't known."""
    op.add_column("executions", Column("worker", Text))
    op.add_column("executions", Column("build", Text))
    op.add_column("requests", Column("lost_start", Text))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
