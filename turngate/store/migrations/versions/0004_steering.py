"""Pauses, and messages that are sent while a run is live. Revision 0004."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table; agents that are published already queue such messages."""
    op.create_table(
        "queued_messages",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("while_running", sa.String(length=16), nullable=False),
        sa.Column("sent_by", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_queued_messages")),
    )
    op.create_index("ix_queued_messages_run_id", "queued_messages", ["run_id", "created_at", "id"], unique=False)
    op.add_column("runs", sa.Column("paused_at", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("paused_by", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("pause_reason", sa.Text(), server_default="", nullable=False))
    op.add_column("agents", sa.Column("while_running", sa.String(length=16), server_default="queue", nullable=False))


def downgrade() -> None:
    """Remove them; messages that wait are lost."""
    with op.batch_alter_table("agents") as batch:
        batch.drop_column("while_running")
    with op.batch_alter_table("runs") as batch:
        for name in ("pause_reason", "paused_by", "paused_at"):
            batch.drop_column(name)
    op.drop_table("queued_messages")
