"""The token or session that sent a decision, to which its id belongs."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text

revision = "0005_decision_credential"
down_revision = "0004_token_bounds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier decisions it isn't known."""
    op.add_column("decisions", Column("credential", Text))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
