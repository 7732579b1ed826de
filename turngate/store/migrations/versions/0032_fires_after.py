"""From when on the instants of a schedule's timetable count."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0032_fires_after"
down_revision = "0031_no_push"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: of a schedule of before, each instant since it was created counts."""
    op.add_column("schedules", Column("fires_after", Text, nullable=False, server_default=""))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
