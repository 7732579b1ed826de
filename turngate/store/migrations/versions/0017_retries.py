"""Runs that retry another one say so."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Boolean, Column, false, text

revision = "0017_retries"
down_revision = "0016_policy_proposals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. A run that continued another one in the same conversation retried it; a fork has its own."""
    op.add_column("runs", Column("is_retry", Boolean, nullable=False, server_default=false()))
    op.execute(
        text(
            "UPDATE runs SET is_retry = true WHERE replay_of_run_id IS NULL AND conversation_id = "
            "(SELECT source.conversation_id FROM runs AS source WHERE source.id = runs.forked_from_run_id)"
        )
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
