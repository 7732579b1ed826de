"""The process beside the worker: what it watches, and what it says of an app that can't be loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turngate.cli.dev.workshop import Workshop, times_of
from turngate.cli.main import app
from turngate.runtime.settings import load_settings

APP = """\
import parts
from turngate import Agent, App, Toolkit
app = App(agents=[Agent(name="a", instructions="", toolkit=Toolkit.of(), modl="scripted:s.yaml")])
"""


def test_a_changed_a_new_and_a_removed_file_have_other_times(tmp_path: Path) -> None:
    """Two changes within the clock's resolution differ in size; a file that is missing has a time of its own."""
    file, other = tmp_path / "a.py", tmp_path / "b.py"
    file.write_text("1")
    before = times_of([str(file), str(other)])
    assert before == times_of([str(file), str(other)])
    assert before[str(other)] is None
    file.write_text("22")
    other.write_text("")
    after = times_of([str(file), str(other)])
    assert {path for path in after if after[path] != before[path]} == {str(file), str(other)}
    file.unlink()
    assert times_of([str(file)]) == {str(file): None}


async def test_an_app_that_cannot_be_loaded_leaves_no_worker_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never enters this process. Its files are watched, those that it imported too, so that a fix of either is seen."""
    (tmp_path / "broken_app.py").write_text(APP)
    (tmp_path / "parts.py").write_text("")
    monkeypatch.chdir(tmp_path)
    workshop = Workshop("broken_app:app", load_settings(data_dir=tmp_path / "data"))
    assert await workshop.load() is False
    assert workshop.worker is None
    assert "Agent() has no parameter 'modl'. Did you mean 'model'?\n  → broken_app.py, line 3" in workshop.error
    assert {Path(file).name for file in workshop.files} >= {"broken_app.py", "parts.py"}
    assert "broken_app" not in sys.modules


def test_dev_refuses_an_address_beyond_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows source lines and tries calls out: nothing for others."""
    monkeypatch.chdir(tmp_path)
    settings = {"TURNGATE_API_HOST": "192.0.2.1", "TURNGATE_DATA_DIR": str(tmp_path / "data")}
    result = CliRunner().invoke(app, ["dev", "shop:app"], env=settings)
    assert result.exit_code == 2
    assert "listens on this machine only" in result.stderr
