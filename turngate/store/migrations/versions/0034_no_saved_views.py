"""The inbox's filters are kept in bookmarks, not here."""

from __future__ import annotations

from typing import NoReturn

from alembic import op

revision = "0034_no_saved_views"
down_revision = "0033_repeats_of_executions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the saved views."""
    op.drop_table("saved_views")


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
