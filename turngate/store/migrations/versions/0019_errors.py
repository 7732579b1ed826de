"""Errors of runs, with their tracebacks, under ids that people can read out."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Integer, String, Text

revision = "0019_errors"
down_revision = "0018_families"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. Of earlier errors there are only log lines."""
    op.create_table(
        "errors",
        Column("id", String(16), primary_key=True),
        Column("run_id", String(64), nullable=False),
        Column("step", Integer),
        Column("tool_call_id", String(255)),
        Column("attempt", Integer, nullable=False),
        Column("says", Text, nullable=False),
        Column("about", Text, nullable=False),
        Column("message", Text, nullable=False),
        Column("traceback", Text, nullable=False),
        Column("worker", Text, nullable=False),
        Column("build", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_errors_run_id", "errors", ["run_id", "created_at", "id"])
    op.create_index("ix_errors_created_at", "errors", ["created_at", "id"])


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
