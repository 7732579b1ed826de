"""Sub-agents, forks, signals, preconditions, presentations, whole results, progress. Revision 0002."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables; every new column is NULL or empty for what is there already."""
    op.add_column("runs", sa.Column("parent_run_id", sa.String(length=64), nullable=True))
    op.add_column("runs", sa.Column("parent_tool_call_id", sa.String(length=255), nullable=True))
    op.add_column("runs", sa.Column("path", sa.Text(), server_default="", nullable=False))
    op.create_index("ix_runs_parent_run_id", "runs", ["parent_run_id"])
    op.add_column("runs", sa.Column("forked_from_run_id", sa.String(length=64), nullable=True))
    op.add_column("runs", sa.Column("forked_from_step", sa.Integer(), nullable=True))
    op.add_column("calls", sa.Column("signal", sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("child_run_id", sa.String(length=64), nullable=True))
    op.add_column("calls", sa.Column("presentation", sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("whole_result", sa.String(length=64), nullable=True))
    op.add_column("requests", sa.Column("path", sa.Text(), server_default="", nullable=False))
    op.add_column("requests", sa.Column("precondition", sa.Text(), nullable=True))
    op.add_column("agents", sa.Column("sub_agent_of", sa.Text(), server_default="", nullable=False))
    op.add_column("steps", sa.Column("corrective", sa.Text(), nullable=True))
    op.create_table(
        "whole_results",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_whole_results")),
    )
    op.create_table(
        "progress",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("tool_call_id", sa.String(length=255), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_progress")),
    )
    op.create_index("ix_progress_run_id", "progress", ["run_id", "tool_call_id", "n"])


def downgrade() -> None:
    """Take them away again; what they held is lost."""
    op.drop_index("ix_progress_run_id", table_name="progress")
    op.drop_table("progress")
    op.drop_table("whole_results")
    with op.batch_alter_table("agents") as agents:
        agents.drop_column("sub_agent_of")
    with op.batch_alter_table("steps") as steps:
        steps.drop_column("corrective")
    with op.batch_alter_table("requests") as requests:
        requests.drop_column("precondition")
        requests.drop_column("path")
    with op.batch_alter_table("calls") as calls:
        for name in ("whole_result", "presentation", "child_run_id", "signal"):
            calls.drop_column(name)
    op.drop_index("ix_runs_parent_run_id", table_name="runs")
    with op.batch_alter_table("runs") as runs:
        for name in ("forked_from_step", "forked_from_run_id", "path", "parent_tool_call_id", "parent_run_id"):
            runs.drop_column(name)
