"""The schema's revision: which one a database has, which one this version needs, and the way between them.

:class:`turngate.store.database.Database` opens the connections. Alembic is slow to import, so only a store that lacks a
migration does that.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

import sqlalchemy

from turngate.domain.errors import UnknownSchemaError

MIGRATIONS: Final = Path(__file__).parent / "migrations"

UNRELEASED: Final = frozenset(f"000{n}" for n in range(1, 8))
"""Revisions of versions before 0.1.0. A released revision is the whole name of its file, so the two never meet."""


def newest_revision() -> str:
    """Return the revision that this version's migrations lead to."""
    return _revisions()[-1]


def revisions() -> list[str]:
    """Return every revision that this version can bring up to date, oldest first."""
    return _revisions()


def known_revision(connection: sqlalchemy.Connection) -> str | None:
    """Return the revision of the database's schema, None for an empty one. Raises UnknownSchemaError."""
    if not sqlalchemy.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(sqlalchemy.text("SELECT version_num FROM alembic_version"))
    if revision is None or revision in _revisions():
        return revision
    database = connection.engine.url.database
    if revision in UNRELEASED:
        raise UnknownSchemaError(
            f"the database {database} was made by a Turngate before 0.1.0 (schema {revision}), and this version can't use "
            "it. Start with an empty one: move the data directory away, or choose another with --data-dir; "
            "if you set TURNGATE_DATABASE_URL, point it to an empty database",
            revision=revision,
        )
    raise UnknownSchemaError(
        f"the database {database} has the schema {revision}, which Turngate {version('turngate')} doesn't know: "
        "a newer version has migrated it. Run that version or a newer one, or restore a backup from before",
        revision=revision,
    )


def upgrade(connection: sqlalchemy.Connection) -> None:
    """Run every migration that the database lacks. Raises UnknownSchemaError, and changes nothing then."""
    if known_revision(connection) == newest_revision():
        return
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revisions() -> list[str]:
    """Return the revisions in their order: a revision is the name of its file, which begins with its number."""
    return sorted(path.stem for path in MIGRATIONS.glob("versions/*.py"))
