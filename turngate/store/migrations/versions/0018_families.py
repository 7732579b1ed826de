"""An index of forks by what they were forked from."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import text

revision = "0018_families"
down_revision = "0017_retries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index(
        "ix_runs_forked_from_run_id",
        "runs",
        ["forked_from_run_id", "created_at"],
        sqlite_where=text("forked_from_run_id IS NOT NULL"),
        postgresql_where=text("forked_from_run_id IS NOT NULL"),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
