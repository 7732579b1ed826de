"""PostgreSQL tells every process that listens of a commit that took a number, so that watchers need not wait for a poll."""

from __future__ import annotations

from typing import NoReturn

from alembic import op

revision = "0006_commits_announced"
down_revision = "0005_decision_credential"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the trigger. Equal notifications of one transaction are sent once; SQLite has none to send."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(
        "CREATE FUNCTION turngate_tell_of_commit() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_notify('turngate', ''); RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER tell_of_commit AFTER UPDATE ON event_counter "
        "FOR EACH STATEMENT EXECUTE FUNCTION turngate_tell_of_commit()"
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
