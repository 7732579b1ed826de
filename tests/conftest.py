"""The real servers and stores that any test may use: Temporal's dev server, SQLite, PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from argon2 import PasswordHasher
from httpx._transports import default as transports
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from temporalio.client import Client

sys.path.insert(0, str(Path(__file__).parent))

from support.engine.tools import Bench
from support.programs import forked_programs
from support.programs.ctrl_c import restore_sigint
from support.runner.forked_workers import ForkedWorkers
from support.stores.encryption import encrypted
from support.stores.postgres_server import PostgresServer, running_postgres
from support.stores.recycled_postgres import Recycled
from support.stores.statement_cache import compiled_once

from turngate.activities.engine import bounded_flush
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import passwords
from turngate.store.database import Database
from turngate.testing.harness import TIME_SKIPPING
from turngate.wire import people


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, help="how many workers to fork once the tests are collected")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the programs that tests start, also those of the test workers, which start after this."""
    restore_sigint()
    if config.option.forks:
        config.pluginmanager.register(ForkedWorkers(config, config.option.forks))
    if "not exhaustive" in config.option.markexpr:
        settings.load_profile("fewer")
        # It would parse all of turngate for constants to try.
        providers._get_local_constants = lambda: providers._local_constants


# How long an example takes depends on how busy the machine is, not on the code under test.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fewer", settings.get_profile("steady"), max_examples=30)
settings.load_profile("steady")


ENGINE_TESTS = {"api", "bridges", "evals", "frontends", "workflow"}
INVARIANT = re.compile(r"test(_i[0-9]+)+_")


def folder_of(item: pytest.Item) -> str:
    """Return the folder of tests that a test is in."""
    return item.nodeid.removeprefix("tests/").partition("/")[0]


def place_among_cases(item: pytest.Item) -> tuple[int, ...]:
    """Return which of its parameters' values a case has; in a random order, the first case isn't the first item."""
    case = getattr(item, "callspec", None)
    return () if case is None else tuple(case.indices.values())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of an engine test but its first as exhaustive: `make test` leaves them out.

    The first is on SQLite. A test of an invariant keeps the first on each database, and can't be exhaustive as a whole. A test
    that is ``ALSO_ENCRYPTED`` keeps that case. The store's own tests (``unit/store``) all run on both databases.
    """
    known: set[tuple[str, bool, bool]] = set()
    for item in sorted(items, key=place_among_cases):
        is_invariant = INVARIANT.match(item.name) is not None
        if is_invariant and "exhaustive" in {mark.name for mark in getattr(item.function, "pytestmark", ())}:
            raise pytest.UsageError(
                f"{item.nodeid}: `make test` proves every invariant; this one must not be exhaustive"
            )
        name, _, cases = item.nodeid.partition("[")
        case = name, is_invariant and "postgresql" in item.name, "encrypted" in cases
        if case in known and folder_of(item) in ENGINE_TESTS:
            item.add_marker(pytest.mark.exhaustive)
        known.add(case)


def pytest_unconfigure() -> None:
    forked_programs.close()


def pytest_collection() -> None:
    """Collect garbage less often: everything that is imported from here on stays."""
    gc.set_threshold(20_000, 20, 20)


STARTS_PROGRAMS = {"chaos", "e2e"}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the objects that stay out of every garbage collection, which would take a tenth of an engine test's time.

    Programs of all workers are forked from one process, which is started before them.
    """
    if {folder_of(item) for item in session.items} & STARTS_PROGRAMS and not session.config.option.collectonly:
        forked_programs.prepare()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands keep their data unless a test says where: never this user's own directories."""
    home = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(home)
    return home


@pytest.fixture(autouse=True)
def no_odd_tools() -> Iterator[None]:
    """Forget the odd tools of MCP servers that a test listed: a process has one app."""
    yield
    if (mcp := sys.modules.get("turngate.toolkits.mcp")) is not None:
        mcp.ODD_TOOLS.clear()


@pytest.fixture(autouse=True)
def plain_logging() -> None:
    """Log exceptions plainly. Some tests reset structlog at their end, so each test gets this again.

    Left alone, it draws a traceback with every local of every frame. That takes a second or more, in which the event loop
    of the engine under test is blocked; a value of many levels takes so long that the call counts as lost.
    """
    # A command that a test ran in this process logs to the stream that it had then, which is closed by now.
    for handler in list(logging.root.handlers):
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            logging.root.removeHandler(handler)
    if not structlog.is_configured():
        plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[structlog.processors.add_log_level, plain])


@pytest.fixture(scope="session", autouse=True)
def password_hasher() -> PasswordHasher:
    """The product's hasher. This process gets a cheaper one, because the real one takes a fifth of a second of CPU each time.

    Programs that tests start use the real one.
    """
    real = passwords._HASHER
    passwords._HASHER = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    return real


@pytest.fixture(scope="session", autouse=True)
def certificates() -> None:
    """Read the machine's certificates once. Each HTTP client reads them, which takes 25 ms of CPU; few of them need any."""
    read = transports.create_ssl_context

    @cache
    def read_once(trust_env: bool, _file: str | None, _directory: str | None) -> ssl.SSLContext:
        return read(trust_env=trust_env)

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            return read(verify=verify, cert=cert, trust_env=trust_env)
        return read_once(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    transports.create_ssl_context = context


@pytest.fixture(scope="session", autouse=True)
def last_writes() -> None:
    """Give the last write for watchers more than a second on a busy machine, so that it isn't lost."""
    bounded_flush.LAST_WRITE_SECONDS = 30.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file. Copying it is ten times faster than migrating for each test."""
    file = tmp_path_factory.mktemp("template") / "turngate.db"
    _migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a migrated PostgreSQL database to copy."""
    url = postgres.fresh_url()
    _migrate(url)
    return url.rpartition("/")[2]


@pytest.fixture(scope="session")
def recycled(postgres: PostgresServer, postgres_template: str) -> Recycled:
    """Migrated PostgreSQL databases, one after another."""
    return Recycled(postgres, postgres_template)


def _migrate(url: str) -> None:
    async def migrate() -> None:
        database = Database(url)
        await database.migrate()
        await database.close()
        compiled_once(database)

    # On a thread of its own: a fixture that another one requests is set up while the session's loop runs.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, migrate()).result()


async def _encrypted_if_wanted(request: pytest.FixtureRequest, database: Database) -> None:
    """Encrypt a database if TURNGATE_TEST_ENCRYPTED is set: tests that go through the store pass then, too.

    Not of a module whose tests encrypt it themselves, nor of a test with the mark ``unencrypted``.
    """
    if not os.environ.get("TURNGATE_TEST_ENCRYPTED") or hasattr(request.module, "encrypted"):
        return
    if request.node.get_closest_marker("unencrypted") is None:
        await encrypted(database)


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reads one store: a test with a store of its own has no names of others' people, and leaves them none."""
    monkeypatch.setattr(people.MEMORY, "names", {})
    monkeypatch.setattr(people.MEMORY, "ids", {})


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated database; every test that uses it runs on both kinds, and with ``ALSO_ENCRYPTED`` on an encrypted one."""
    if request.param.startswith("postgresql"):
        recycled = await request.getfixturevalue("recycled").take()
        if request.param.endswith("encrypted"):
            await encrypted(recycled)
        else:
            await _encrypted_if_wanted(request, recycled)
        yield recycled
        return
    database = compiled_once(Database(_copied(request.getfixturevalue("sqlite_template"), tmp_path)))
    if request.param == "encrypted":
        await encrypted(database)
    else:
        await _encrypted_if_wanted(request, database)
    yield database
    await database.close()


@pytest.fixture
async def sqlite(request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated SQLite database, for tests that are not about the database."""
    database = compiled_once(Database(_copied(sqlite_template, tmp_path)))
    await _encrypted_if_wanted(request, database)
    yield database
    await database.close()


def _copied(template: Path, directory: Path) -> str:
    shutil.copy(template, directory / "turngate.db")
    return f"sqlite:///{directory}/turngate.db"


@pytest.fixture(scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedTemporal]:
    """One real Temporal dev server for the session, which makes no test wait.

    By default, a retry is up to a second late, and the next workflow of an id begins a second after the one before.
    """
    switches = [*TIME_SKIPPING, 'history.workflowIdReuseMinimalInterval="0s"']
    async with EmbeddedTemporal(tmp_path_factory.mktemp("temporal"), switches=switches, lasting=False) as server:
        yield server


@pytest.fixture(scope="session")
async def client(temporal: EmbeddedTemporal) -> Client:
    return await Client.connect(temporal.address, data_converter=data_converter())


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Tools that count what happened to them; calls that still wait are released at the end."""
    bench = Bench()
    yield bench
    bench.release.set()
