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
    for name in ("_engine", "_reading", "_glancing"):
        engine = getattr(database._backend, name, None)
        if isinstance(engine, AsyncEngine):
            engine = engine.sync_engine
        if engine is not None:
            first = _first.setdefault(engine.dialect.name, engine)
            engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
    return database
