"""Files that people write are read alike, whichever editor saved them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turngate.approvals_api.retention.apply import read_rules
from turngate.domain.errors import ConfigurationError
from turngate.evals.cases import load_cases
from turngate.models.profiles import load_profiles
from turngate.models.scripted import ScriptedModel
from turngate.notifications.configuration import read_tables
from turngate.runtime.policy_files import read_policy
from turngate.runtime.secret_files import secrets_from_files
from turngate.text_files import NotTextError, decoded, read_text

READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "policy": (read_policy, '[[rule]]\nname = "free"\nverdict = "allow"\ntools = ["look_*"]\n'),
    "models": (load_profiles, '[profile.fast]\nmodel = "openai:x"\n'),
    "notifications": (read_tables, '[[channel]]\nname = "ops"\nkind = "webhook"\nurl = "https://example.org"\n'),
    "retention": (read_rules, '[[retention]]\nname = "old"\nafter_days = 30\n'),
    "script": (ScriptedModel.from_file, "responses:\n  - text: Hi\n"),
    "cases": (load_cases, "cases:\n  - name: one\n    task: go\n    expect: {}\n"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_byte_order_mark_is_no_part_of_a_file_and_utf_16_is_named(tmp_path: Path, reader: str) -> None:
    """Notepad and PowerShell write both. A file is refused with the same words with the mark as without it."""
    read, text = READERS[reader]

    def outcome(content: bytes) -> str:
        file = tmp_path / "file"
        file.write_bytes(content)
        try:
            return type(read(file)).__name__
        except ConfigurationError as error:
            return error.message

    plain = outcome(text.encode())
    assert outcome(text.replace("\n", "\r\n").encode("utf-8-sig")) == plain
    for codec in ("utf-16", "utf-16-le", "utf-16-be"):
        assert "it is UTF-16 text: save it as UTF-8" in outcome(text.encode(codec))
    assert "it is not UTF-8 text" in outcome(b"# caf\xe9\n")


def test_a_secret_has_no_byte_order_mark(tmp_path: Path) -> None:
    """It would be sent with the key, and refused without a hint."""
    file = tmp_path / "key"
    file.write_bytes(b"\xef\xbb\xbfsk-1\r\n")
    assert secrets_from_files({"key": ["KEY"]}, {"KEY_FILE": str(file)}) == {"key": "sk-1"}


def test_only_a_mark_at_the_beginning_is_none_of_the_text(tmp_path: Path) -> None:
    """Everything else of a text stays, but its line ends."""
    file = tmp_path / "file"
    file.write_bytes("a\ufeffb\r\nc\rd\n".encode())
    assert read_text(file) == "a\ufeffb\nc\nd\n"
    assert (decoded(b""), decoded(b"x"), decoded(b"\xef\xbb\xbf")) == ("", "x", "")
    with pytest.raises(NotTextError):
        decoded(b"\xff\xfe")
