"""What a new database gets: the declared tables, the rows that every store has, the guards of the events, and the revision."""

from __future__ import annotations

from typing import Final

import sqlalchemy
from sqlalchemy import text

from turngate.store.tables import event_chains, event_counter, metadata, people_version

HASHED: Final = "seq, run_id, run_seq, type, payload, created_at, previous_hash, hash"
"""The columns of an event that no one changes. Its words may go, and nothing else (docs/adr/0055)."""
ON_SQLITE: Final = f"""
CREATE TRIGGER events_no_update BEFORE UPDATE OF {HASHED} ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END

CREATE TRIGGER events_words_only_go BEFORE UPDATE OF words ON events WHEN NEW.words IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END

CREATE TRIGGER events_no_replace BEFORE INSERT ON events  -- INSERT OR REPLACE runs no DELETE trigger
WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq OR (run_id = NEW.run_id AND run_seq = NEW.run_seq))
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
"""  # noqa: S608 - our own names
"""Let the database itself refuse to change or remove an event, for every client (I15).

A migration that rebuilds the table on SQLite (``batch_alter_table``) drops the triggers: create them again.
"""
ON_POSTGRESQL: Final = f"""
CREATE FUNCTION turngate_events_are_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'events are append-only' USING ERRCODE = 'restrict_violation'; END $$

CREATE TRIGGER events_append_only BEFORE UPDATE OF {HASHED} OR DELETE OR TRUNCATE ON events
FOR EACH STATEMENT EXECUTE FUNCTION turngate_events_are_append_only()

CREATE TRIGGER events_words_only_go BEFORE UPDATE OF words ON events
FOR EACH ROW WHEN (NEW.words IS NOT NULL) EXECUTE FUNCTION turngate_events_are_append_only()

CREATE FUNCTION turngate_tell_of_commit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('turngate', ''); RETURN NULL; END $$

CREATE TRIGGER tell_of_commit AFTER UPDATE ON event_counter
FOR EACH STATEMENT EXECUTE FUNCTION turngate_tell_of_commit()
"""
"""The same. The last two tell every process that listens of a commit that took a number, so that watchers need not poll."""


def create(connection: sqlalchemy.Connection, revision: str) -> None:
    """Create everything in an empty database, which is at ``revision`` then."""
    metadata.create_all(connection)
    guards = ON_POSTGRESQL if connection.dialect.name == "postgresql" else ON_SQLITE
    for statement in guards.split("\n\n"):
        connection.exec_driver_sql(statement)
    connection.execute(event_counter.insert().values(id=1, last_seq=0))
    connection.execute(people_version.insert().values(id=1, version=1))
    connection.execute(event_chains.insert().values(id="system", event_count=0, event_hash=""))
    # As Alembic makes it.
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})
