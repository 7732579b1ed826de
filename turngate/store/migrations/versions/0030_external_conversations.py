"""What the program of an external call says of the conversation that the call was made in."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0030_external_conversations"
down_revision = "0029_defaults"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, without a value: programs of before said nothing."""
    op.add_column("external_calls", Column("conversation", Text))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
