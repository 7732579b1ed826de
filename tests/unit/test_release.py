"""The version: pyproject.toml has it, other files name the release that it leads to, and none has a released one again."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
RELEASE = Version(VERSION).base_version
NAMED = re.compile(
    r"(?:\bturngate(?:[-_]client|-temporal)?[-:]|^version: |^appVersion: |^## )(\d+\.\d+\.\d+)\b", re.MULTILINE
)


@pytest.mark.parametrize(
    "file",
    [
        "deploy/Dockerfile",
        "deploy/compose.yaml",
        "deploy/helm/turngate/Chart.yaml",
        "docs/howto/install.md",
        "docs/howto/use-the-python-client.md",
    ],
)
def test_a_file_that_names_a_version_names_this_release(file: str) -> None:
    """The image that is built is the one that is run, and a command in the documents finds its file."""
    assert set(NAMED.findall((ROOT / file).read_text())) == {RELEASE}


def test_the_changelog_begins_with_this_release() -> None:
    """Its first heading is what a commit adds its line to."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)[0] == RELEASE
    assert NAMED.findall(text)[0] == RELEASE


def test_no_commit_after_a_release_has_its_version() -> None:
    """If the version has a tag, this is the commit with that tag."""

    def commit(name: str) -> str:
        line = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    assert commit(f"v{VERSION}") in {"", commit("HEAD")}
