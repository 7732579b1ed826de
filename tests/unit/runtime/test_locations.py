"""The data directory and the note of the running stack."""

import os
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import (
    RunningStack,
    create_closed,
    data_dir_of_stack,
    default_data_dir,
    ensure_data_dir,
    linked_from_here,
    open_to_others,
    process_birth,
    stack_links,
)
from turngate.runtime.settings import load_settings, load_stack_settings


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


def test_a_path_that_cannot_be_a_directory(tmp_path: Path):
    """A file in the way, or a directory that takes none (/proc, also from root), is refused, naming the path and the setting."""
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "deeper"):
        with pytest.raises(ConfigurationError, match=f"{file}.*TURNGATE_DATA_DIR"):
            ensure_data_dir(place)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ensure_data_dir(Path("/proc"))


def modes(path: Path) -> dict[str, int]:
    """Each file's mode, by name; ``.`` is the directory's own."""
    return {".": stat.S_IMODE(path.stat().st_mode)} | {
        each.name: stat.S_IMODE(each.lstat().st_mode) for each in path.iterdir() if not each.is_symlink()
    }


def test_i13_a_directory_that_was_open_is_closed(tmp_path: Path):
    """Directory and files get 0700 and 0600 whatever they had before, so no other user reads the token or the store."""
    path = tmp_path / "data"
    path.mkdir()
    own = (
        "turngate.db",
        "turngate.db-wal",
        "turngate.db-shm",
        "temporal.db",
        "temporal.port",
        "runtime.json",
        "token",
        "models.toml",
    )
    for name in (*own, "notes.txt"):
        (path / name).touch()
        (path / name).chmod(0o666)
    path.chmod(0o777)
    assert {each.name for each in open_to_others(path)} == {"data", *own}
    ensure_data_dir(path)
    assert modes(path) == {".": 0o700, **dict.fromkeys(own, 0o600), "notes.txt": 0o666}
    assert open_to_others(path) == []


def test_a_link_in_the_directory_closes_nothing_elsewhere(tmp_path: Path):
    """A symbolic link with the name of one of Turngate's files does not change the mode of what it leads to."""
    path, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    path.mkdir()
    elsewhere.touch()
    elsewhere.chmod(0o644)
    (path / "token").symlink_to(elsewhere)
    ensure_data_dir(path)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644


@pytest.mark.parametrize(("mode", "names"), [(0o755, ["passwd"]), (0o1777, []), (0o1777, ["turngate.db"])])
def test_a_directory_that_others_use_is_refused(tmp_path: Path, mode: int, names: list[str]):
    """``/etc`` and ``/tmp`` are not closed to everyone else, and not used while they are open."""
    path = tmp_path / "shared"
    path.mkdir()
    for name in names:
        (path / name).touch()
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"TURNGATE_DATA_DIR.*chmod 700 {path}"):
        ensure_data_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_closed_directory_with_other_files_is_used(tmp_path: Path):
    """A directory that only its owner can enter may hold what it likes."""
    (tmp_path / "photo.jpg").touch()
    tmp_path.chmod(0o700)
    assert ensure_data_dir(tmp_path) == tmp_path


def test_a_new_file_is_closed_whatever_the_umask(tmp_path: Path):
    """A file that another program will fill is its owner's only, and one that is there keeps its content."""
    before = os.umask(0)
    try:
        create_closed(tmp_path / "turngate.db")
    finally:
        os.umask(before)
    assert modes(tmp_path)["turngate.db"] == 0o600
    (tmp_path / "turngate.db").write_text("content")
    create_closed(tmp_path / "turngate.db")
    assert (tmp_path / "turngate.db").read_text() == "content"


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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a project, and a state directory beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("TURNGATE_DATA_DIR", raising=False)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def running(data_dir: Path) -> RunningStack:
    """Note this very process as the stack of a data directory."""
    data_dir.mkdir(parents=True, exist_ok=True)
    note = RunningStack(temporal_address="127.0.0.1:1", api_url="http://127.0.0.1:2")
    note.write(data_dir)
    return note


def test_a_stack_with_another_data_directory_is_found_while_it_runs(here: Path, tmp_path: Path):
    """By a link that leads there and holds nothing, and that only its owner can reach."""
    own, other = default_data_dir(), tmp_path / "elsewhere"
    running(other)
    assert data_dir_of_stack() == own
    with linked_from_here(other):
        assert data_dir_of_stack() == other
        assert load_stack_settings().data_dir == other
        assert load_stack_settings(data_dir=tmp_path).data_dir == tmp_path
        assert load_settings().data_dir == own
        assert stat.S_IMODE(stack_links().stat().st_mode) == 0o700
        assert [each.is_symlink() for each in stack_links().iterdir()] == [True]
    assert data_dir_of_stack() == own
    assert list(stack_links().iterdir()) == []


def test_the_directorys_own_stack_comes_first_and_one_that_is_gone_never(here: Path, tmp_path: Path):
    """A link that a killed stack left leads nowhere."""
    own, other = default_data_dir(), tmp_path / "elsewhere"
    note = running(other)
    with linked_from_here(other):
        own_note = running(own)
        assert data_dir_of_stack() == own
        own_note.remove(own)
        note.remove(other)
        assert data_dir_of_stack() == own


def test_two_stacks_of_one_directory_do_not_take_each_others_link(here: Path, tmp_path: Path):
    """The newest is found; the end of the first leaves it."""
    first, second = tmp_path / "first", tmp_path / "second"
    for each in (first, second):
        running(each)
    with ExitStack() as of_second:
        with linked_from_here(first):
            of_second.enter_context(linked_from_here(second))
        assert data_dir_of_stack() == second


def test_a_link_that_cannot_be_made_stops_nothing(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A user without a home directory, or a state directory that is none."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with linked_from_here(tmp_path / "elsewhere"):
        assert data_dir_of_stack() == default_data_dir()
