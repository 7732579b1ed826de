"""Calls and requests have what the model left out and the tool fills in."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0029_defaults"
down_revision = "0028_people"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column to both. Calls of before have no value: what their tools filled in isn't on record."""
    op.add_column("calls", Column("defaults", Text))
    op.add_column("requests", Column("defaults", Text))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
