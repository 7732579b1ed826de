"""Where the arguments of a request come from, as it was found when the request was opened."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0009_origins"
down_revision = "0008_urgency"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of requests that are open already it isn't known."""
    op.add_column("requests", Column("origins", Text))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
