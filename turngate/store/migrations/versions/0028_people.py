"""Names of people are in one table, and a switch says whether new people get ids (docs/adr/0056)."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer, String, Text

revision = "0028_people"
down_revision = "0027_retention_runs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both tables, empty: rows of before keep naming people by name."""
    op.create_table(
        "people",
        Column("id", String(255), primary_key=True),
        Column("name", Text),
        Column("created_at", Text, nullable=False),
        Column("erased_at", Text),
    )
    op.create_table(
        "people_switch",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("version", Integer, nullable=False),
        Column("since", Text, nullable=False),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
