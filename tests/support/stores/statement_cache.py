"""SQL compiled once for all databases of a test session: SQLAlchemy keeps compiled statements by engine and dialect."""

from __future__ import annotations

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from turngate.store.database import Database

_first: dict[str, Engine] = {}


def compiled_once(database: Database) -> Database:
    """Let a database use what the first of its kind has compiled. A quarter of an engine test's Python time without.

    The first of a kind must have been connected: it is on connecting that a dialect learns about its server.
    """
    engine = database._backend._engine
    if isinstance(engine, AsyncEngine):
        engine = engine.sync_engine
    first = _first.setdefault(engine.dialect.name, engine)
    engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
    return database
