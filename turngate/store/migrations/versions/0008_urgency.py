"""The instant by which pending requests are ordered: between their opening and their deadline."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text, text

revision = "0008_urgency"
down_revision = "0007_model_name_queues"
branch_labels = None
depends_on = None

COLUMNS = ["urgent_at", "id", "created_at", "kind", "agent", "tool_name", "risk", "rule", "claimed_by", "claimed_until"]
SHARES = {"low": 1.0, "medium": 0.5, "high": 0.25}
PATIENCE = timedelta(days=30)


def upgrade() -> None:
    """Add the column, fill it where it is used, and make the inbox's index begin with it."""
    op.add_column("requests", Column("urgent_at", Text, nullable=False, server_default=""))
    connection = op.get_bind()
    pending = connection.execute(
        text("SELECT id, created_at, expires_at, parked_at, risk FROM requests WHERE status = 'pending'")
    ).mappings()
    filled = [{"request": row["id"], "at": _urgent_at(**row)} for row in pending.all()]
    if filled:
        connection.execute(text("UPDATE requests SET urgent_at = :at WHERE id = :request"), filled)
    op.drop_index("ix_requests_pending", "requests")
    op.create_index(
        "ix_requests_pending",
        "requests",
        [*COLUMNS, "parked_at", "status"],
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    )


def _urgent_at(*, created_at: str, expires_at: str | None, parked_at: str | None, risk: str, **_id: str) -> str:
    opened = datetime.fromisoformat(created_at)
    waits_on = expires_at is None or parked_at is not None
    time_left = PATIENCE if waits_on else datetime.fromisoformat(str(expires_at)) - opened
    return (opened + time_left * SHARES[risk]).isoformat(timespec="microseconds")


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
