"""Indexes of runs by their agent, and of those that failed or were interrupted."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import text

revision = "0020_run_filters"
down_revision = "0019_errors"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the indexes."""
    op.create_index("ix_runs_agent", "runs", ["agent", "created_at", "id"])
    op.create_index(
        "ix_runs_stopped",
        "runs",
        ["created_at", "id"],
        sqlite_where=text("status IN ('failed', 'interrupted')"),
        postgresql_where=text("status IN ('failed', 'interrupted')"),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
