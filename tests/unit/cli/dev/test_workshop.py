"""The process beside the worker: what it watches, and what it says of an app that can't be loaded."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.engine.stack import until
from typer.testing import CliRunner

from turngate.cli.dev.workshop import WORKER, Workshop, times_of
from turngate.cli.main import app
from turngate.runtime import import_guard
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


LOADS_FOREVER = """\
import os, pathlib, time
pathlib.Path("loading").write_text(str(os.getpid()))
time.sleep(600)
"""


async def _pid(directory: Path) -> str | None:
    """Return the pid of the worker that loads an app here; None: not yet."""
    file = directory / "loading"
    return file.read_text() or None if file.exists() else None


async def _is_gone(pid: str) -> bool:
    return not _runs(pid)


def _runs(pid: str) -> bool:
    status = Path("/proc", pid, "status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


async def test_a_stop_while_the_app_loads_ends_its_process_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that loads is no one's worker yet: nothing would end it later."""
    (tmp_path / "slow_app.py").write_text(LOADS_FOREVER)
    monkeypatch.chdir(tmp_path)
    workshop = Workshop("slow_app:app", load_settings(data_dir=tmp_path / "data"))

    async def serve() -> None:
        async with workshop.serving("127.0.0.1:1"):
            raise AssertionError("it never loads")

    serving = asyncio.create_task(serve())
    pid = await until(lambda: _pid(tmp_path), "the app loads")
    serving.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([serving])
    assert await _is_gone(pid)


KILLED_PARENT = f"""\
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
subprocess.Popen(
    [sys.executable, "-P", "-S", {import_guard.__file__!r}, {WORKER!r}, str(theirs.fileno()), "",
     str(os.getpid()), "slow_app:app", "run", "-"],
    pass_fds=[theirs.fileno()],
)
ours.sendall(b"{{}}\\n")
time.sleep(600)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's setting is Linux's")
async def test_a_worker_that_loads_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Also by SIGKILL, where no one can end it in order and it doesn't read its socket yet."""
    (tmp_path / "slow_app.py").write_text(LOADS_FOREVER)
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_PARENT, cwd=tmp_path)
    pid = await until(lambda: _pid(tmp_path), "the app loads")
    parent.kill()
    await parent.wait()
    assert await until(lambda: _is_gone(pid), "the worker is gone", 5)


def test_dev_refuses_an_address_beyond_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows source lines and tries calls out: nothing for others."""
    monkeypatch.chdir(tmp_path)
    settings = {"TURNGATE_API_HOST": "192.0.2.1", "TURNGATE_DATA_DIR": str(tmp_path / "data")}
    result = CliRunner().invoke(app, ["dev", "shop:app"], env=settings)
    assert result.exit_code == 2
    assert "listens on this machine only" in result.stderr
