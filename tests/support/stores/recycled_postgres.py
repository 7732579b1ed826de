"""PostgreSQL databases reused by one test after another: emptied in between, or abandoned when that is not safe.

Creating a database takes ten times as long as a test in it: its files, and catalogues that each new connection reads again.
"""

from __future__ import annotations

from contextlib import suppress

import psycopg
from sqlalchemy.engine import make_url
from support.stores.postgres_server import PostgresServer

from turngate.store.database import Database

KEEP_SEEDS = """
CREATE SCHEMA IF NOT EXISTS seeds;
DO $$
DECLARE name text; seeded boolean;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO seeded;
    IF seeded THEN EXECUTE format('CREATE TABLE seeds.%I AS TABLE public.%I', name, name); END IF;
  END LOOP;
END $$
"""
EMPTY = """
DO $$
DECLARE name text;
BEGIN
  SET LOCAL lock_timeout = '2s';
  SET LOCAL session_replication_role = replica;  -- past foreign keys and the guards of the events
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('DELETE FROM public.%I', name);
  END LOOP;
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'seeds' LOOP
    EXECUTE format('INSERT INTO public.%I SELECT * FROM seeds.%I', name, name);
  END LOOP;
  PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
  FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL;
END $$
"""
CATALOGUES = ("pg_class", "pg_attribute", "pg_trigger", "pg_constraint", "pg_proc", "pg_attrdef", "pg_index")
STATE = "(SELECT (count(*), max(xmin::text::bigint))::text FROM {})"
SCHEMA = "SELECT " + ", ".join(STATE.format(name) for name in CATALOGUES)
"""Changes with any statement that changed the schema, even if a later one reverted it."""


class Recycled:
    """One database at a time, with its connections and their caches."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._current: Database | None = None
        self._schema: tuple[str, ...] | None = None
        self.created = 0
        """The number of databases created so far."""

    async def take(self) -> Database:
        """A database as it is after the migrations."""
        current = self._current
        if current is not None and self._emptied(current):
            database = Database(current.url)  # a new object, because a test may have changed the old one
            database._backend = current._backend
        else:
            if current is not None:
                await current.close()
            database = Database(self._server.fresh_url(template=self._template))
            self.created += 1
            with self._connected(database) as connection:
                connection.execute(KEEP_SEEDS)
                self._schema = connection.execute(SCHEMA).fetchone()
        self._current = database
        return database

    def _emptied(self, database: Database) -> bool:
        if database._backend._engine.pool.checkedout():
            return False  # something still uses it
        with suppress(psycopg.Error), self._connected(database) as connection:
            connection.execute(EMPTY)
            return connection.execute(SCHEMA).fetchone() == self._schema
        return False

    def _connected(self, database: Database) -> psycopg.Connection:
        url = make_url(database.url)
        return psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database, autocommit=True)
