"""Every start of ``turngate init``: its tests and its eval pass offline, and doctor is content."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from support.programs.terminal_process import turngate

from turngate.cli.commands.setup.init import Template


@pytest.mark.exhaustive
@pytest.mark.parametrize("template", get_args(Template))
def test_a_start_works_before_anyone_changes_it(template: str, tmp_path: Path) -> None:
    """Its own tests, its eval cases with the script, and doctor, as its reader would run them."""
    directory = tmp_path / "new"
    initialised = turngate("init", str(directory), "--template", template, cwd=tmp_path)
    assert initialised.returncode == 0, initialised.stderr
    tests = subprocess.run([sys.executable, "-m", "unittest"], cwd=directory, capture_output=True, check=False)
    assert tests.returncode == 0, tests.stderr.decode()
    cases = turngate("eval", "my_app:app", "cases.yaml", cwd=directory)
    assert cases.returncode == 0, cases.stdout + cases.stderr
    assert "2 of 2" in cases.stdout
    doctor = turngate("doctor", "my_app:app", cwd=directory)
    assert doctor.returncode == 0, doctor.stdout
    listed = {name.removesuffix(",") for name in initialised.stdout.split()}
    assert {file.name for file in directory.iterdir()} >= listed & {
        "my_app.py",
        "policy.toml",
        "script.yaml",
        "cases.yaml",
    }


def test_init_help_lists_the_starts(tmp_path: Path) -> None:
    """With a sentence for each."""
    helped = turngate("init", "--help", cwd=tmp_path)
    assert [template for template in get_args(Template) if f"{template}:" not in helped.stdout] == []
