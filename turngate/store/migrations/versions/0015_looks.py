"""How long a request was looked at before its decision, and how much of its call was seen."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer

revision = "0015_looks"
down_revision = "0014_push"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; of earlier decisions it isn't known."""
    op.add_column("decisions", Column("looked_ms", Integer))
    op.add_column("decisions", Column("seen_percent", Integer))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
