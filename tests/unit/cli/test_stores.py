import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turngate.cli import stores
from turngate.cli.api_link import find_api, read_cli_token
from turngate.cli.main import app
from turngate.domain.errors import ConfigurationError
from turngate.runtime.settings import load_settings
from turngate.store import schema
from turngate.store.access import access, people, tokens


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in (
        "TURNGATE_DATA_DIR",
        "TURNGATE_DATABASE_URL",
        "TURNGATE_TOKEN",
        "TURNGATE_API_URL",
        "TEMPORAL_ADDRESS",
    ):
        monkeypatch.delenv(name, raising=False)


async def test_the_token_file_is_its_owners_alone_and_is_kept(tmp_path: Path):
    """The commands' token may decide requests, so no one else may read it. A restart does not add another token."""
    async with stores.opened_store(load_settings(data_dir=tmp_path)) as database:
        await stores.ensure_cli_token(database, tmp_path)
        first = read_cli_token(tmp_path)
        await stores.ensure_cli_token(database, tmp_path)
        async with database.read() as conn:
            holder = await tokens.find(conn, first or "")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert read_cli_token(tmp_path) == first
    assert holder is not None
    assert holder.name.startswith("cli:")
    assert (holder.scopes, holder.role, holder.machine) == ({"admin"}, "admin", False)


def database_modes(below: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in below.rglob("*.db*")}


async def test_i13_a_new_store_is_its_owners_alone(tmp_path: Path):
    """SQLite's files get mode 0600, whatever the umask and wherever the URL leads."""
    url = f"sqlite:///{tmp_path}/apart/other.db"
    (tmp_path / "apart").mkdir()
    before = os.umask(0)
    try:
        for settings in (load_settings(data_dir=tmp_path), load_settings(data_dir=tmp_path, database_url=url)):
            async with stores.opened_store(settings, migrate=True) as database, database.write() as conn:
                await access.issue_link(conn, "ann", role="admin")
                modes = database_modes(tmp_path)
                assert modes
                assert set(modes.values()) == {0o600}
    finally:
        os.umask(before)
    assert {"turngate.db", "other.db"} <= set(database_modes(tmp_path))


async def test_a_token_of_another_database_is_replaced(tmp_path: Path):
    """After a store was deleted and created again, the token is one that it knows."""
    (tmp_path / "token").write_text("tg_stale\n")
    async with stores.opened_store(load_settings(data_dir=tmp_path)) as database:
        await stores.ensure_cli_token(database, tmp_path)
        async with database.read() as conn:
            assert await tokens.find(conn, read_cli_token(tmp_path) or "") is not None


async def test_i10_a_token_that_is_not_the_owners_is_replaced(tmp_path: Path):
    """I10: a token that anyone could have issued does not stay the owner's, whatever its scopes."""
    async with stores.opened_store(load_settings(data_dir=tmp_path)) as database:
        async with database.write() as conn:
            (tmp_path / "token").write_text(await tokens.issue(conn, tokens.NewToken(name="bot", scopes=["admin"])))
        await stores.ensure_cli_token(database, tmp_path)
        async with database.read() as conn:
            holder = await tokens.find(conn, read_cli_token(tmp_path) or "")
    assert holder is not None
    assert holder.name.startswith("cli:")


async def test_the_owners_link_is_an_admins(tmp_path: Path):
    """What `turngate up` prints logs in the user who runs it, as an admin."""
    async with stores.opened_store(load_settings(data_dir=tmp_path)) as database:
        link = await stores.owners_login_link(database, "http://127.0.0.1:1")
        async with database.write() as conn:
            visitor = await access.use_link(conn, link.partition("=")[2])
            person = await people.find(conn, stores.local_user())
    assert person is not None
    assert visitor == access.Visitor(name=person.id, role="admin")


async def test_a_login_link_lets_its_operator_in_once(tmp_path: Path):
    """The address carries a secret that the store knows, until it is used."""
    async with stores.opened_store(load_settings(data_dir=tmp_path)) as database:
        link = await stores.new_login_link(database, "http://127.0.0.1:1", "ole")
        secret = link.removeprefix("http://127.0.0.1:1/login?link=")
        async with database.write() as conn:
            ole = access.Visitor(name=await people.id_of(conn, "ole"), role="operator")
            assert await access.use_link(conn, secret) == ole
        async with database.write() as conn:
            assert await access.use_link(conn, secret) is None


async def test_a_database_with_another_owner_is_not_migrated_silently(tmp_path: Path):
    """Only the embedded default migrates by itself; elsewhere the error says to run `turngate migrate`."""
    settings = load_settings(data_dir=tmp_path, database_url=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(ConfigurationError, match="run `turngate migrate`"):
        async with stores.opened_store(settings):
            pass
    async with stores.opened_store(settings, migrate=True):
        pass
    async with stores.opened_store(settings) as database:
        assert await database.schema_revision() == schema.newest_revision()


def test_migrating_from_the_command_line_may_be_repeated(tmp_path: Path):
    """`turngate migrate` says which schema the store has; a deploy that runs it twice changes nothing."""
    for _ in range(2):
        migrated = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)])
        assert migrated.exit_code == 0
        assert f"schema is at {schema.newest_revision()}" in migrated.stdout


def test_a_data_directory_of_before_the_first_release_is_refused_in_words(tmp_path: Path):
    """Exit code 2 and what to do, not a traceback; the database stays as it is."""
    assert CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)]).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "turngate.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '0007'")
        database.commit()
    refused = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)])
    assert refused.exit_code == 2
    assert "has the schema 0007" in refused.stderr
    assert "before the first release" in refused.stderr
    assert "move the data directory away" in refused.stderr
    assert "Traceback" not in refused.stderr
    with closing(sqlite3.connect(tmp_path / "turngate.db")) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0007",)]


def test_without_a_stack_the_commands_say_how_to_get_one(tmp_path: Path):
    """A directory where nothing ever ran gives a fix, not a refused connection."""
    with pytest.raises(ConfigurationError, match="turngate up"):
        find_api(tmp_path)


def test_an_address_without_a_token_asks_for_one(tmp_path: Path):
    """An API elsewhere needs a token of its own."""
    with pytest.raises(ConfigurationError, match="TURNGATE_TOKEN"):
        find_api(tmp_path, "http://turngate.example:8321")


def test_token_and_address_may_come_from_the_environment(tmp_path: Path, monkeypatch):
    """Programs and remote operators set variables instead of owning a data directory."""
    monkeypatch.setenv("TURNGATE_TOKEN", "tg_x")
    monkeypatch.setenv("TURNGATE_API_URL", "http://turngate.example:8321")
    link = find_api(tmp_path)
    assert (link.url, link.token) == ("http://turngate.example:8321", "tg_x")
