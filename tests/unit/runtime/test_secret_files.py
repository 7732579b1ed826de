"""Secrets that come from files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.runtime.secret_files import MAX_SECRET_BYTES
from turngate.runtime.settings import load_settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("TURNGATE_DATABASE_URL_FILE", "database_url"),
        ("TEMPORAL_API_KEY_FILE", "temporal_api_key"),
        ("TURNGATE_OPENAI_API_KEY_FILE", "openai_api_key"),
        ("OPENAI_API_KEY_FILE", "openai_api_key"),
    ],
)
def test_every_secret_may_come_from_a_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, field: str
) -> None:
    """Its text without the line end; nothing is put into the environment."""
    file.write_text("postgresql://turngate:s3cret@db/turngate\n")
    monkeypatch.setenv(variable, str(file))
    secret = getattr(load_settings(), field)
    assert secret.get_secret_value() == "postgresql://turngate:s3cret@db/turngate"
    assert "s3cret" not in repr(secret) + str(dict(os.environ))


def test_a_file_is_opened_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be gone after the start."""
    file.write_text("key")
    monkeypatch.setenv("TEMPORAL_API_KEY_FILE", str(file))
    first = load_settings().temporal_api_key
    file.unlink()
    assert load_settings().temporal_api_key == first


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "no text in UTF-8"),
        (b"s3cret" * MAX_SECRET_BYTES, "larger than 65,536 bytes"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, problem: str
) -> None:
    """The error names the variable, the file and the problem, and quotes nothing of the content."""
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("TURNGATE_DATABASE_URL_FILE", str(file))
    with pytest.raises(ConfigurationError, match=problem) as refused:
        load_settings()
    assert f"TURNGATE_DATABASE_URL_FILE={file}" in refused.value.message
    assert "s3cret" not in refused.value.message


def test_a_variable_and_its_file_exclude_each_other(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers to one question are refused; an option of the command line overrides both."""
    file.write_text("postgresql://db/one")
    monkeypatch.setenv("TURNGATE_DATABASE_URL_FILE", str(file))
    monkeypatch.setenv("TURNGATE_DATABASE_URL", "postgresql://db/two")
    with pytest.raises(ConfigurationError, match="set one of them"):
        load_settings()
    assert load_settings(database_url="sqlite:///x.db").resolved_database_url == "sqlite:///x.db"
