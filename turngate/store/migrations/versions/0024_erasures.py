"""What was erased and what must be kept; events keep words of people, models and tools apart from what is hashed."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, ForeignKey, String, Text

revision = "0024_erasures"
down_revision = "0023_traces"
branch_labels = None
depends_on = None

HASHED = "seq, run_id, run_seq, type, payload, created_at, previous_hash, hash"


def upgrade() -> None:
    """Add tables and columns; events that are there keep their words in what is hashed."""
    op.create_table(
        "erasures",
        Column("id", String(64), primary_key=True),
        Column("conversation_id", String(64), ForeignKey("conversations.id"), nullable=False),
        Column("what", String(16), nullable=False),
        Column("erased_by", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("rule", Text, nullable=False, server_default=""),
        Column("counts", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_erasures_conversation_id", "erasures", ["conversation_id"])
    op.create_index("ix_erasures_created_at_id", "erasures", ["created_at", "id"])
    op.create_table(
        "holds",
        Column("id", String(64), primary_key=True),
        Column("kind", String(16), nullable=False),
        Column("target", String(64), nullable=False),
        Column("reason", Text, nullable=False),
        Column("created_by", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("removed_by", Text),
        Column("removed_at", Text),
    )
    op.create_index("ix_holds_target", "holds", ["target", "kind"])
    op.add_column("runs", Column("erasure_id", String(64)))
    op.add_column("events", Column("words", Text))
    _let_words_go()


def _let_words_go() -> None:
    """Let the guards of events allow one change: that words are taken out."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP TRIGGER events_append_only ON events")
        op.execute(
            f"CREATE TRIGGER events_append_only BEFORE UPDATE OF {HASHED} OR DELETE OR TRUNCATE ON events "
            "FOR EACH STATEMENT EXECUTE FUNCTION turngate_events_are_append_only()"
        )
        op.execute(
            "CREATE TRIGGER events_words_only_go BEFORE UPDATE OF words ON events FOR EACH ROW "
            "WHEN (NEW.words IS NOT NULL) EXECUTE FUNCTION turngate_events_are_append_only()"
        )
        return
    op.execute("DROP TRIGGER events_no_update")
    op.execute(
        f"CREATE TRIGGER events_no_update BEFORE UPDATE OF {HASHED} ON events "
        "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
    )
    op.execute(
        "CREATE TRIGGER events_words_only_go BEFORE UPDATE OF words ON events WHEN NEW.words IS NOT NULL "
        "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
