"""``turngate keys``: from a new key to an encrypted store and a rotated key, and what is refused on the way."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turngate.cli.main import app

Typed = Callable[..., str]


@pytest.fixture
def typed(tmp_path: Path, sqlite_template: Path) -> Typed:
    """Type a command about one data directory, with these keys in the environment."""

    def type_command(*words: str, code: int = 0, key: str | None = None, former: str | None = None) -> str:
        env = {
            "TURNGATE_KEY_FILE": key and str(tmp_path / key),
            "TURNGATE_FORMER_KEY_FILE": former and str(tmp_path / former),
        }
        outcome = CliRunner().invoke(app, ["keys", *words], env={"TURNGATE_DATA_DIR": str(tmp_path / "data"), **env})
        assert outcome.exit_code == code, (outcome.output, outcome.stderr, outcome.exception)
        return " ".join((outcome.stdout + outcome.stderr).split())

    (tmp_path / "data").mkdir(mode=0o700)
    shutil.copy(sqlite_template, tmp_path / "data" / "turngate.db")
    return type_command


def wrapped_by(directory: Path) -> list[str]:
    with sqlite3.connect(directory / "data" / "turngate.db") as conn:
        return [
            row[0]
            for row in conn.execute("SELECT wrapped_by FROM key_ring WHERE kind = 'ring' ORDER BY created_at, id")
        ]


def test_a_store_is_encrypted_and_its_key_replaced(typed: Typed, tmp_path: Path) -> None:
    assert "not encrypted" in typed("status")
    typed("new", str(tmp_path / "one"))
    assert (tmp_path / "one").stat().st_mode & 0o077 == 0
    assert "encrypted from now on" in typed("init", key="one")
    assert "Encrypted 0 rows" in typed("encrypt", key="one")
    assert "encrypted with key:" in typed("status", key="one")
    typed("new", str(tmp_path / "two"))
    assert "by a new key" in typed("rotate", key="two", former="one")
    first, second = wrapped_by(tmp_path)
    assert first == second, "the key of the ring from before is wrapped by the new one, too"
    assert "encrypted with key:" in typed("status", key="two")
    assert "by a new key" in typed("rotate", key="two"), "the former key isn't needed any more"
    assert len(set(wrapped_by(tmp_path))) == 1


def test_what_is_stored_before_is_counted_and_encrypted(typed: Typed, tmp_path: Path) -> None:
    """The status is a failure while plain text is left, and `encrypt` may run again."""
    typed("status")
    with closing(sqlite3.connect(tmp_path / "data" / "turngate.db")) as conn, conn:
        conn.execute("INSERT INTO conversations (id, head_message_id, created_at) VALUES ('conv_1', 'm1', '2026')")
        columns = "id, conversation_id, run_id, role, parts, provider_options, created_at"
        conn.execute(f"INSERT INTO messages ({columns}) VALUES ('m1', 'conv_1', 'run_1', 'user', '[]', '{{}}', '2026')")  # noqa: S608
    typed("new", str(tmp_path / "one"))
    typed("init", key="one")
    left = typed("status", key="one", code=1)
    assert "messages: 0 rows encrypted, 1 rows with plain text" in left
    assert "Run `turngate keys encrypt`" in left
    assert "Encrypted 1 rows" in typed("encrypt", key="one")
    assert "messages: 1 rows encrypted, 0 rows with plain text" in typed("status", key="one")
    assert "Encrypted 0 rows" in typed("encrypt", key="one")
    assert "no key is configured" in typed("encrypt", code=2)


def test_each_mistake_is_refused_with_what_to_do(typed: Typed, tmp_path: Path) -> None:
    """No key, a file that isn't there or holds no key, a key of another deployment, twice, and over an old key."""
    assert "turngate keys new FILE" in typed("init", code=2)
    assert "TURNGATE_KEY_FILE" in typed("init", key="nowhere", code=2)
    (tmp_path / "text").write_text("not a key\n")
    message = typed("init", key="text", code=2)
    assert "32 random bytes in base64" in message
    assert "not a key" not in message
    (tmp_path / "a directory").mkdir()
    assert "cannot be read: Is a directory" in typed("init", key="a directory", code=2)
    assert "can't be written: No such file" in typed("new", str(tmp_path / "nowhere" / "one"), code=2)
    typed("new", str(tmp_path / "one"))
    assert "exists" in typed("new", str(tmp_path / "one"), code=2)
    assert "isn't encrypted: run `turngate keys init`" in typed("encrypt", key="one", code=2)
    typed("init", key="one")
    assert "is encrypted already" in typed("init", key="one", code=2)
    typed("new", str(tmp_path / "two"))
    assert "configure that key" in typed("rotate", key="two", code=2)
    assert "no key is configured" in typed("rotate", code=2)
    assert len(wrapped_by(tmp_path)) == 1


def test_one_stores_key_opens_no_other_store(typed: Typed, tmp_path: Path) -> None:
    """Each has its own key. A store that was put in the other's place is refused."""

    def of(name: str, *words: str, code: int = 0) -> str:
        env = {"TURNGATE_DATA_DIR": str(tmp_path / name), "TURNGATE_KEY_FILE": str(tmp_path / f"{name}.key")}
        outcome = CliRunner().invoke(app, [*words], env=env)
        assert outcome.exit_code == code, (outcome.output, outcome.stderr, outcome.exception)
        return " ".join((outcome.stdout + outcome.stderr).split())

    for name in ("acme", "bolt"):
        typed("new", str(tmp_path / f"{name}.key"))
        of(name, "keys", "init")
        of(name, "token", "list")
    places = {name: tmp_path / name / "turngate.db" for name in ("acme", "bolt")}
    for suffix in ("", "-wal", "-shm"):
        places["bolt"].with_name(f"turngate.db{suffix}").unlink(missing_ok=True)
    with closing(sqlite3.connect(places["acme"])) as acme, closing(sqlite3.connect(places["bolt"])) as bolt:
        acme.backup(bolt)
    assert "configure that key" in of("bolt", "token", "list", code=2)
