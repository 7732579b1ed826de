"""The schema's revision: which one a database has, which one this version needs, and the way between them.

:class:`turngate.store.database.Database` opens the connections. Alembic is slow to import, so only a store that lacks a
migration does that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy

from turngate import __version__
from turngate.domain.errors import UnfinishedRestoreError, UnknownSchemaError
from turngate.store.tables import new_database

MIGRATIONS: Final = Path(__file__).parent / "migrations"

MARK: Final = "unfinished_restore"
"""What a database has while a restore puts a backup in its place, and what no process opens it with: on PostgreSQL a table, on
SQLite a file beside the database's."""


def newest_revision() -> str:
    """Return the revision that this version's migrations lead to."""
    return _revisions()[-1]


def revisions() -> list[str]:
    """Return every revision that this version can bring up to date, oldest first."""
    return _revisions()


def mark_file(database: Path) -> Path:
    """Return the file that marks an SQLite database while a restore puts another in its place."""
    return database.with_name(f"{database.name}.{MARK}")


def require_no_mark(connection: sqlalchemy.Connection) -> None:
    """Raise UnfinishedRestoreError if a restore into this database has begun and hasn't finished."""
    name = connection.engine.url.database or ""
    if connection.dialect.name == "sqlite":
        if mark_file(Path(name)).exists():
            raise UnfinishedRestoreError(
                f"a restore into {name} was cut off, so its runs may not be held. Run `turngate restore FILE` again; it continues"
            )
    elif sqlalchemy.inspect(connection).has_table(MARK):
        raise UnfinishedRestoreError(
            f"a restore into the database {name} was cut off or failed, so its runs may not be held. Drop this database, create "
            "an empty one, and run `turngate restore FILE` again"
        )


def known_revision(connection: sqlalchemy.Connection, *, restoring: bool = False) -> str | None:
    """Return the revision of the database's schema, None for an empty one.

    ``restoring``: the caller is the restore. Raises UnknownSchemaError, and UnfinishedRestoreError for anyone else.
    """
    if not restoring:
        require_no_mark(connection)
    if not sqlalchemy.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(sqlalchemy.text("SELECT version_num FROM alembic_version"))
    if revision is None or revision in _revisions():
        return revision
    database = connection.engine.url.database
    raise UnknownSchemaError(
        f"the database {database} has the schema {revision}, which Turngate {__version__} doesn't know. If a newer version has "
        "migrated it, run that one, or restore a backup from before. If it is from before the first release, start with an empty "
        "one: move the data directory away, or choose another with --data-dir; if you set TURNGATE_DATABASE_URL, point it to an "
        "empty database",
        revision=revision,
    )


def upgrade(connection: sqlalchemy.Connection, *, restoring: bool = False) -> None:
    """Create what an empty database lacks, or run the migrations that an older one does.

    Raises as :func:`known_revision`, and changes nothing then.
    """
    revision, newest = known_revision(connection, restoring=restoring), newest_revision()
    if revision == newest:
        return
    if revision is None:
        new_database.create(connection, newest)
        return
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))  # it interpolates
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revisions() -> list[str]:
    """Return the revisions in their order: a revision is the name of its file, which begins with its number."""
    return sorted(path.stem for path in MIGRATIONS.glob("versions/*.py"))
