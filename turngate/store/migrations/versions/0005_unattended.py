"""Runs that are left alone: schedules, changed worlds for forks and dry replays, budgets that ask."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what unattended runs need."""
    _add_worlds()


def downgrade() -> None:
    """Take it away again."""
    _drop_worlds()


def _add_worlds() -> None:
    """What a run has of its own, and which run a dry replay takes its results from."""
    op.create_table(
        "worlds",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_worlds")),
    )
    op.add_column("runs", sa.Column("world", sa.String(length=64), nullable=True))
    op.add_column("runs", sa.Column("replay_of_run_id", sa.String(length=64), nullable=True))
    op.add_column("calls", sa.Column("recorded_call_id", sa.String(length=255), nullable=True))


def _drop_worlds() -> None:
    with op.batch_alter_table("calls") as batch:
        batch.drop_column("recorded_call_id")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("replay_of_run_id")
        batch.drop_column("world")
    op.drop_table("worlds")
