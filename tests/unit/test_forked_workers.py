"""``pytest --forks``: what the workers run, what they report, and that none dies or hangs unseen."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONFTEST = """
import os
from pathlib import Path
import pytest
from support.runner.forked_workers import ForkedWorkers

def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers(config, 2, bound={bound}))

def note(line):
    with Path(__file__).with_name("log").open("a") as log:
        log.write(f"{line} {os.getpid()}\\n")

@pytest.fixture(scope="session", autouse=True)
def session():
    note("begins")
    yield
    note("ends")

@pytest.fixture(autouse=True)
def each(request, tmp_path):
    note(request.node.name)
"""


def ran(tmp_path: Path, *, bound: float = 100.0, **files: str) -> tuple[int, str, list[list[str]]]:
    """Run these files with two workers; return the exit code, the output, and lines of a name and a pid."""
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("{bound}", str(bound)))
    for name, content in files.items():
        (tmp_path / f"test_{name}.py").write_text(content)
    own = {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/t"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    with (tmp_path / "output").open("w") as output:  # a pipe would end with the last program that holds it
        done = subprocess.run(command, env=os.environ | own, cwd=tmp_path, stdout=output, check=False)
    log = tmp_path / "log"
    return done.returncode, (tmp_path / "output").read_text(), [line.split() for line in log.read_text().splitlines()]


def test_each_test_runs_once_and_a_file_in_one_worker(tmp_path: Path) -> None:
    """A worker's session begins and ends once, whatever the number of its files."""
    many = "def test_{0}(): pass\ndef test_{0}_more(): pass\n"
    code, output, log = ran(tmp_path, **{name: many.format(name) for name in "abcde"})
    assert (code, "10 passed" in output) == (0, True)
    names = [name for name, _pid in log]
    assert sorted(each for each in names if each.startswith("test_")) == sorted(
        f"test_{name}{more}" for name in "abcde" for more in ("", "_more")
    )
    pids = {name: pid for name, pid in log if name.startswith("test_")}
    assert all(pids[f"test_{name}"] == pids[f"test_{name}_more"] for name in "abcde")
    workers = set(pids.values())
    assert str(os.getpid()) not in workers
    for pid in workers:
        own = [name for name, of in log if of == pid]
        assert (own[0], own[-1], own.count("begins"), own.count("ends")) == ("begins", "ends", 1, 1)


def test_what_was_imported_before_the_fork_still_writes(tmp_path: Path) -> None:
    """A module that took ``sys.stderr`` when the tests were collected writes into its own worker's report, and only there."""
    taken = """
import os, subprocess, sys
from pathlib import Path
STDERR = sys.stderr

def test_{0}():
    print("printed by {0}")
    STDERR.write("written by {0}\\n")
    subprocess.run(["echo", "echoed by {0}"], stdout=STDERR, check=True)
    assert not "failed {0}"
"""
    _code, output, _log = ran(tmp_path, **{name: taken.replace("{0}", name) for name in "ab"})
    reports = {name: output.partition(f"\ntest_{name}.py:")[2].partition("____")[0] for name in "ab"}
    for name, report in reports.items():
        for how in ("printed", "written", "echoed"):
            line = f"\n{how} by {name}\n"
            assert (report.count(line), output.count(line)) == (1, 1)


def test_a_failure_is_reported_with_its_output(tmp_path: Path) -> None:
    """What a test printed in a worker is in the report, and nothing else is on the terminal."""
    code, output, _log = ran(
        tmp_path, a="def test_a():\n    print('said' + ' here')\n    assert 1 == 2\n", b="def test_b(): pass\n"
    )
    assert (code, "1 failed, 1 passed" in output, output.count("said here")) == (1, True, 1)
    assert "assert 1 == 2" in output


def test_a_worker_that_dies_fails_its_test(tmp_path: Path) -> None:
    """The report says how it died, even if a program that it has started lives on. A new worker runs the rest of its file."""
    killed = """
import os, signal, time
def test_before(): pass
def test_a():
    if os.fork() == 0:
        time.sleep(20)  # holds the worker's channel open
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
"""
    code, output, log = ran(tmp_path, a=killed, b="import os\ndef test_b(): os._exit(3)\n", c="def test_c(): pass\n")
    assert (code, "2 failed, 3 passed" in output) == (1, True)
    assert "test_a.py::test_a - worker" in output
    assert "by SIGKILL, which the kernel sends when memory is used up" in output
    assert "test_b.py::test_b - worker" in output
    assert "it exited with 3" in output
    names = [name for name, _pid in log if name.startswith("test_")]
    assert sorted(names) == ["test_a", "test_after", "test_b", "test_before", "test_c"]
    assert [name for name, _pid in log].count("ends") in {1, 2}


HANGS = {
    "lock": """
import threading
def test_lock():
    threading.Event().wait()
""",
    "task": """
import asyncio
async def never(): await asyncio.get_running_loop().create_future()
async def outer(): await asyncio.create_task(never(), name="the inner one")
def test_task(): asyncio.run(outer())
""",
    "teardown": """
import pytest, subprocess, sys
from pathlib import Path
@pytest.fixture(scope="session")
def waits_for_process():
    program = subprocess.Popen(["sleep", "1000"])
    Path(__file__).with_name("pid").write_text(str(program.pid))
    yield
    program.wait()
def test_teardown(waits_for_process): pass
""",
}


def test_a_test_that_hangs_fails_with_its_stacks(tmp_path: Path) -> None:
    """In the main thread, in a task, in the session's teardown: the report says where. All of its processes are gone."""
    # By name: the teardown of the session comes last.
    code, output, _log = ran(tmp_path, bound=3, **HANGS)
    assert (code, "2 failed, 1 passed, 1 error" in output) == (1, True), output
    stacks = {name: output.partition(f" test_{name} _")[2].partition("\n____")[0] for name in ("lock", "task")}
    stacks["teardown"] = output.partition(" ERROR at teardown of test_teardown _")[2].partition("\n____")[0]
    for name, place in (("lock", "call"), ("task", "call"), ("teardown", "teardown")):
        assert f"it hung in {place} for 3 seconds" in stacks[name]
    assert '/test_lock.py", line 4 in test_lock' in stacks["lock"]
    assert '/test_task.py", line 4 in outer\n' in stacks["task"]
    assert "Task the inner one, which awaits" in stacks["task"]
    assert '/test_task.py", line 3 in never\n' in stacks["task"]
    assert '/test_teardown.py", line 9 in waits_for_process' in stacks["teardown"]
    program = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    with suppress(FileNotFoundError):
        assert program.read_text().rpartition(")")[2].split()[0] == "Z", "dead, and not yet noted by init"
