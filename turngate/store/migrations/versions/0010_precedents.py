"""Decided approvals, found again by what their calls have in common; and which pending requests ask for the same call."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKey, Integer, String, Text, text

revision = "0010_precedents"
down_revision = "0009_origins"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, which the API fills from the decisions that are there already, and the key of pending requests."""
    op.add_column("requests", Column("repeat_key", String(64)))
    op.execute(
        "UPDATE requests SET repeat_key = (SELECT calls.repeat_key FROM calls WHERE calls.run_id = requests.run_id "
        "AND calls.tool_call_id = requests.tool_call_id AND calls.input = requests.input) WHERE status = 'pending'"
    )
    op.create_index(
        "ix_requests_repeat_key",
        "requests",
        ["repeat_key"],
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    )
    op.create_table(
        "precedents",
        Column("seq", Integer, primary_key=True, autoincrement=False),
        Column("request_id", String(64), ForeignKey("requests.id", ondelete="CASCADE"), nullable=False, unique=True),
        Column("tool_name", Text, nullable=False),
        Column("verb", String(16), nullable=False),
    )
    op.create_index("ix_precedents_tool_name", "precedents", ["tool_name", "seq", "verb"])
    op.create_table(
        "precedent_features",
        Column("feature", BigInteger, primary_key=True, autoincrement=False),
        Column("seq", Integer, ForeignKey("precedents.seq", ondelete="CASCADE"), primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_precedent_features_seq", "precedent_features", ["seq"])


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
