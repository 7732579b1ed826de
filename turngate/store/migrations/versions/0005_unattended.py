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
    _add_schedules()
    _add_budgets()


def downgrade() -> None:
    """Take it away again."""
    _drop_budgets()
    _drop_schedules()
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


def _add_schedules() -> None:
    """Schedules, what became of their fires, and which run one of them opened."""
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("conversation_id", sa.String(length=64), nullable=True),
        sa.Column("unattended_asks", sa.String(length=16), nullable=False),
        sa.Column("timetable", sa.Text(), nullable=False),
        sa.Column("overlap", sa.String(length=16), nullable=False),
        sa.Column("catch_up_seconds", sa.Integer(), nullable=False),
        sa.Column("notes", sa.Text(), server_default="", nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("paused_at", sa.Text(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("pause_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("deleted_at", sa.Text(), nullable=True),
        sa.Column("deleted_by", sa.Text(), nullable=True),
        sa.Column("removed_at", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["conversations.id"], name=op.f("fk_schedules_conversation_id_conversations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    kept = sa.text("deleted_at IS NULL")
    op.create_index("uq_schedules_name", "schedules", ["name"], unique=True, sqlite_where=kept, postgresql_where=kept)
    op.create_index("ix_schedules_created_at_id", "schedules", ["created_at", "id"], unique=False)
    op.create_table(
        "schedule_fires",
        sa.Column("schedule_id", sa.String(length=64), nullable=False),
        sa.Column("fire_at", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("fired_by", sa.Text(), nullable=True),
        sa.Column("noted_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_fires_schedule_id_schedules")
        ),
        sa.PrimaryKeyConstraint("schedule_id", "fire_at", name=op.f("pk_schedule_fires")),
    )
    op.add_column("runs", sa.Column("schedule_id", sa.String(length=64), nullable=True))
    op.create_index("ix_runs_schedule_id", "runs", ["schedule_id"], unique=False)


def _drop_schedules() -> None:
    op.drop_index("ix_runs_schedule_id", table_name="runs")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("schedule_id")
    op.drop_table("schedule_fires")
    op.drop_table("schedules")


def _add_budgets() -> None:
    """What runs have used, beginning with what is known of those there are; and what was granted beyond their budgets."""
    op.add_column("runs", sa.Column("tokens_used", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("runs", sa.Column("cost_micros", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("runs", sa.Column("extensions", sa.Text(), server_default="[]", nullable=False))
    op.execute(
        "UPDATE runs SET tokens_used = "
        "(SELECT COALESCE(SUM(input_tokens + output_tokens), 0) FROM steps WHERE steps.run_id = runs.id)"
    )


def _drop_budgets() -> None:
    with op.batch_alter_table("runs") as batch:
        for name in ("extensions", "cost_micros", "tokens_used"):
            batch.drop_column(name)
