"""`scripts/check`: which tests it runs, and that it fails with any of its checks. The programs are stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "scripts" / "check"
PROGRAM = """#!/bin/bash
echo "$(basename "$0") $*" >> "$LOG"
[[ "$(basename "$0") $*" != $FAILING* ]]
"""
TESTS = "pytest --forks 3"
IN_MAKE_TEST = f"{TESTS} -m not exhaustive and not alone"


def checked(tmp_path: Path, *arguments: str, failing: str = "none") -> tuple[int, list[str]]:
    """Run it, with programs that fail when they are called like this; return its exit code and all calls."""
    (tmp_path / "bin").mkdir()
    for name in ("ruff", "lint-imports", "deptry", "python", "mypy", "pytest"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    log = tmp_path / "log"
    own = {"VENV": str(tmp_path), "LOG": str(log), "FAILING": failing, "TEST_WORKERS": "3"}
    done = subprocess.run([CHECK, *arguments], env=os.environ | own, capture_output=True, check=False)
    return done.returncode, log.read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "tests"),
    [
        ([], [IN_MAKE_TEST]),
        (["--all"], [f"{TESTS} -m not alone", "pytest --forks 1 -m alone tests/chaos"]),
        (["--no-tests"], []),
        (["tests/unit", "-k", "digest"], [f"{TESTS} tests/unit -k digest"]),
    ],
)
def test_what_it_runs(tmp_path: Path, arguments: list[str], tests: list[str]) -> None:
    """Every check but for the exhaustive tests, all tests, none, or those that the arguments name."""
    code, calls = checked(tmp_path, *arguments)
    assert code == 0
    assert [each for each in calls if each.startswith("pytest")] == tests
    assert {
        "ruff check .",
        "ruff format --check .",
        "lint-imports ",
        "deptry .",
        "python scripts/words",
        "mypy ",
    } <= set(calls)


@pytest.mark.parametrize(
    "failing", ["ruff check", "ruff format", "lint-imports", "deptry", "python scripts/words", "mypy", "pytest"]
)
def test_it_fails_with_any_check(tmp_path: Path, failing: str) -> None:
    """Also with one that runs while the tests do, and tests that fail don't hide what the others say."""
    code, calls = checked(tmp_path, failing=failing)
    assert code != 0
    if failing == "pytest":
        assert "mypy " in calls
