"""The data directory and the note of the running stack."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import RunningStack, ensure_data_dir, process_birth
from turngate.runtime.settings import load_settings


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_created_for_the_owner_only(tmp_path: Path):
    """A new data directory is closed to other users, whatever the umask, and the proof that it works leaves no file."""
    path = load_settings(data_dir=tmp_path / "a" / "b").ensure_data_dir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert list(path.iterdir()) == []
    assert ensure_data_dir(path) == path


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_path_that_cannot_be_a_directory(tmp_path: Path, below: str):
    """A file in the way is refused, naming the path and the setting."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match=f"{file}.*TURNGATE_DATA_DIR"):
        ensure_data_dir(file / below)


def test_a_directory_that_takes_no_files():
    """A directory that exists and cannot be written is refused, also for root (/proc takes no files from anyone)."""
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ensure_data_dir(Path("/proc"))


def test_note_round_trip(tmp_path: Path):
    """What `up` writes is what the CLI reads, closed to others, and gone after remove (which may be repeated)."""
    note = RunningStack(temporal_address="127.0.0.1:1", api_url="http://127.0.0.1:2")
    path = note.write(tmp_path)
    assert note.pid == os.getpid()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["runtime.json"]
    assert RunningStack.read(tmp_path) == note
    note.remove(tmp_path)
    note.remove(tmp_path)
    assert RunningStack.read(tmp_path) is None
    assert not path.exists()


def test_note_of_a_process_that_is_gone(tmp_path: Path, sleeper: subprocess.Popen[bytes]):
    """A stack that was killed does not count as running, not even while its parent has not reaped it."""
    note = RunningStack(temporal_address="127.0.0.1:1", api_url="http://127.0.0.1:2", pid=sleeper.pid)
    note.write(tmp_path)
    assert RunningStack.read(tmp_path) == note
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert RunningStack.read(tmp_path) is None
    sleeper.wait()
    assert RunningStack.read(tmp_path) is None


def test_note_whose_pid_was_given_to_another(tmp_path: Path):
    """After a reboot another process may have the pid: the process's birth shows it."""
    note = RunningStack(temporal_address="127.0.0.1:1", api_url="http://127.0.0.1:2", birth="1")
    note.write(tmp_path)
    assert process_birth(note.pid) not in {None, "1"}
    assert RunningStack.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"temporal_address": "x", "api_url": "y", "pid": -1}'])
def test_note_that_cannot_be_read(tmp_path: Path, text: str):
    """A broken note counts as none."""
    (tmp_path / "runtime.json").write_text(text)
    assert RunningStack.read(tmp_path) is None


def test_remove_leaves_a_newer_note(tmp_path: Path):
    """A stack that stops late does not remove its successor's note."""
    old = RunningStack(temporal_address="127.0.0.1:1", api_url="http://127.0.0.1:2")
    new = RunningStack(temporal_address="127.0.0.1:3", api_url="http://127.0.0.1:4")
    old.write(tmp_path)
    new.write(tmp_path)
    old.remove(tmp_path)
    assert RunningStack.read(tmp_path) == new
