"""What the call of a request does, in one sentence, as it was when the request was opened."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0011_summary"
down_revision = "0010_precedents"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; a request that is open already has none, and its page renders one."""
    op.add_column("requests", Column("summary", Text))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
