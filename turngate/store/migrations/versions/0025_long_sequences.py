"""Numbers of events and of what is streamed have 64 bits: a million runs a day would use up 32 within a year."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import BigInteger, text

revision = "0025_long_sequences"
down_revision = "0024_erasures"
branch_labels = None
depends_on = None

GUARD = "events_append_only"
COLUMNS = (
    ("event_counter", "last_seq"),
    ("events", "seq"),
    ("notification_cursors", "last_seq"),
    ("trace_export", "last_seq"),
    ("deliveries", "first_seq"),
    ("deliveries", "last_seq"),
    ("precedents", "seq"),
    ("precedent_features", "seq"),
    ("deltas", "id"),
    ("deltas", "attempt"),
    ("progress", "id"),
)


def upgrade() -> None:
    """Change the columns. PostgreSQL rewrites these tables, a minute for some ten million events; SQLite has 64 bits already."""
    if op.get_bind().dialect.name != "postgresql":
        return
    # PostgreSQL changes no column that a trigger names: the guard of the events is off within this transaction.
    named = text(
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = :name AND tgrelid = 'events'::regclass"
    ).bindparams(name=GUARD)
    guard = op.get_bind().scalar(named)
    op.execute(f"DROP TRIGGER {GUARD} ON events")
    for table, column in COLUMNS:
        op.alter_column(table, column, type_=BigInteger)
    op.execute(str(guard))


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
