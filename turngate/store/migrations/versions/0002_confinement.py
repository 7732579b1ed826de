"""Requests say how the processes of their call are confined."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Text

revision = "0002_confinement"
down_revision = "0001_initial"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the requests of before do not say it."""
    op.add_column("requests", Column("confinement", Text))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("requests", "confinement")
