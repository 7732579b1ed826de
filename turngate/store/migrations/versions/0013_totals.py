"""What the calls that a rule or grant lets run come to, per window."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import BigInteger, Column, String, Text

revision = "0013_totals"
down_revision = "0012_secrets"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. No rule has a total yet."""
    op.create_table(
        "totals",
        Column("meter", String(255), primary_key=True),
        Column("since", Text, nullable=False),
        Column("used", BigInteger, nullable=False),
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
