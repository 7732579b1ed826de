"""A file's name is a file's name, whatever characters it has."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from turngate.domain.text.sqlite_urls import sqlite_file, sqlite_url
from turngate.runtime.settings import load_settings
from turngate.store.database import Database

NAMES = (
    "issue#42",
    "what?x=1",
    "100%41",
    "100%",
    "two words",
    "quo'te\"",
    "ünïcode",
    "a&b;c:d@e",
    os.fsdecode(b"\xff"),
)


def names_in(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


@pytest.mark.parametrize("name", NAMES)
async def test_any_name_of_a_directory_is_taken_as_it_is(name: str, tmp_path: Path) -> None:
    """The store is in that directory, and nothing is beside it."""
    directory = tmp_path / name
    directory.mkdir()
    settings = load_settings(data_dir=directory)
    assert settings.database_files == (directory / "turngate.db",)
    assert sqlite_file(sqlite_url(directory / "turngate.db")) == directory / "turngate.db"
    database = Database(settings.resolved_database_url)
    try:
        await database.migrate()
    finally:
        await database.close()
    assert names_in(tmp_path) == [name]
    assert sqlite3.connect(directory / "turngate.db").execute("SELECT count(*) FROM runs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:////data/issue#42/a.db", "/data/issue#42/a.db"),
        ("sqlite:////data/a%3Fb%2541/a.db", "/data/a?b%41/a.db"),
        ("sqlite:///two words/a.db?timeout=5", "two words/a.db"),
    ],
)
def test_a_url_names_a_file_as_urls_do(url: str, file: str) -> None:
    """``?`` begins the options, and ``%3F`` is one in a name."""
    assert load_settings(database_url=url).database_files == (Path(file),)
