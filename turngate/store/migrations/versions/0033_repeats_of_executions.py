"""Executions are found by what ran, whatever run they belong to and whatever let them through."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, String

revision = "0033_repeats_of_executions"
down_revision = "0032_fires_after"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the key. Calls of before that a person edited have none: it would have to be computed of what they wrote."""
    op.add_column("executions", Column("repeat_key", String(64), nullable=False, server_default=""))
    op.execute(
        "UPDATE executions SET repeat_key = calls.repeat_key FROM calls WHERE calls.run_id = executions.run_id "
        "AND calls.tool_call_id = executions.tool_call_id AND calls.edited_input IS NULL"
    )
    op.create_index("ix_executions_repeat_key", "executions", ["repeat_key", "state", "started_at"])


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
