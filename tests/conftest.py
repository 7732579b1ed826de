"""The real parts every test may ask for: Temporal's dev server, SQLite, PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog
from temporalio.client import Client

sys.path.insert(0, str(Path(__file__).parent))

from postgres_server import PostgresServer, running_postgres
from tools_under_test import Bench

from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database


@pytest.fixture(autouse=True)
def plain_logging() -> None:
    """Log exceptions plainly. Some tests reset structlog at their end, so this is looked at before each.

    Left alone, it draws a traceback with every local of every frame. That takes a second or more, in which the event loop
    of the engine under test stands still; a value of many levels takes so long that the call counts as lost.
    """
    if not structlog.is_configured():
        plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[structlog.processors.add_log_level, plain])


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file. Copying it is ten times faster than migrating anew for each test."""
    file = tmp_path_factory.mktemp("template") / "turngate.db"
    _migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a migrated PostgreSQL database to copy."""
    url = postgres.fresh_url()
    _migrate(url)
    return url.rpartition("/")[2]


def _migrate(url: str) -> None:
    async def migrate() -> None:
        database = Database(url)
        await database.migrate()
        await database.close()

    # On a thread of its own: a fixture that is asked for by another is set up while the session's loop runs.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, migrate()).result()


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated database; every test that asks runs on both kinds."""
    if request.param == "sqlite":
        url = _copied(request.getfixturevalue("sqlite_template"), tmp_path)
    else:
        template = request.getfixturevalue("postgres_template")
        url = request.getfixturevalue("postgres").fresh_url(template=template)
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
async def sqlite(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated SQLite database, for tests that are not about the database."""
    database = Database(_copied(sqlite_template, tmp_path))
    yield database
    await database.close()


def _copied(template: Path, directory: Path) -> str:
    shutil.copy(template, directory / "turngate.db")
    return f"sqlite:///{directory}/turngate.db"


@pytest.fixture(scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedTemporal]:
    """One real Temporal dev server for the session."""
    async with EmbeddedTemporal(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture(scope="session")
async def client(temporal: EmbeddedTemporal) -> Client:
    return await Client.connect(temporal.address, data_converter=data_converter())


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Tools that count what happened to them; whatever still waits is released at the end."""
    made = Bench()
    yield made
    made.release.set()
