"""The demo's project: a copy under git for the agent to work in, and what became of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from turngate.domain.errors import ConfigurationError

IDENTITY: Final = (
    "-c",
    "user.name=Turngate Demo",
    "-c",
    "user.email=demo@example.invalid",
    "-c",
    "commit.gpgsign=false",
)
TESTS: Final = (sys.executable, "-m", "unittest", "-q")


@dataclass(frozen=True)
class DemoProject:
    """The copy, and the commit it began with."""

    path: Path
    first_commit: str

    def tests_pass(self) -> bool:
        """Run the project's tests."""
        return subprocess.run(TESTS, cwd=self.path, capture_output=True, check=False).returncode == 0

    def new_commits(self) -> list[str]:
        """Return the commits made since, newest first, one line each."""
        return _git(self.path, "log", "--oneline", f"{self.first_commit}..HEAD").splitlines()

    def is_untouched(self) -> bool:
        """Tell whether no file differs from the first commit and nothing was committed."""
        changed = _git(self.path, "status", "--porcelain")
        return not changed and _git(self.path, "rev-parse", "HEAD").strip() == self.first_commit


def copy_project(path: Path) -> DemoProject:
    """Copy the project to a new directory and commit it there. Raises ConfigurationError without git."""
    if shutil.which("git") is None:
        raise ConfigurationError("the demo's agent commits its work, and there is no git on PATH: install git")
    with as_file(files("turngate.cli").joinpath("demo_project")) as source:
        shutil.copytree(source, path, ignore=shutil.ignore_patterns("__pycache__"))
    _git(path, "init", "-q", "-b", "main")
    _git(path, "add", "-A")
    _git(path, *IDENTITY, "commit", "-q", "-m", "An invoice with a failing test")
    return DemoProject(path, _git(path, "rev-parse", "HEAD").strip())


def _git(path: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=path, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"git {arguments[0]} failed in {path}: {error.stderr.strip()}") from None
    return done.stdout
