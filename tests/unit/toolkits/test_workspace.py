"""The boundary: the real path decides, and no change between check and use gets around it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from turngate.toolkits.files import edit_file, list_directory, read_file, write_file
from turngate.toolkits.loaded_files import LOADED_FILES
from turngate.toolkits.private_files import PRIVATE_FILES
from turngate.toolkits.search import glob, grep
from turngate.toolkits.text_files import read_text, write_text
from turngate.toolkits.workspace import FileUnavailable, OutsideWorkspace, Place, resolve_inside


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/a.ts", "src/a.ts"),
        ("a/b/c.txt", "a/b/c.txt"),
        ("newdir/../n.txt", "n.txt"),
        ("newdir/deeper/../n.txt", "newdir/n.txt"),
        ("..notes", "..notes"),
        ("..d/n.txt", "..d/n.txt"),
        ("...", "..."),
        ("~/x", "~/x"),
        ("~", "~"),
        (".", "."),
        ("a//./b", "a/b"),
    ],
)
def test_a_path_inside_is_allowed_whether_it_exists_or_not(workspace, path, expected):
    """Names that begin with dots or a tilde are ordinary names, and missing parents are no obstacle."""
    assert resolve_inside(workspace, path) == Path(os.path.realpath(workspace)) / expected


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "..", "/", "../x\0/../work/n.txt", "\ud800", "../work-2/x"]
)
def test_a_path_that_leads_outside_is_refused(workspace, path):
    """Dot-dot, absolute paths, NUL, and a sibling whose name begins with the workspace's; the refusal names the path."""
    with pytest.raises(OutsideWorkspace) as caught:
        resolve_inside(workspace, path)
    assert caught.value.kind == "outside_workspace"
    assert caught.value.fields["path"] == path.replace("\0", "\ufffd").encode(errors="replace").decode()
    assert caught.value.fields["reason"]


def test_an_absolute_path_inside_is_allowed(workspace):
    """The real path counts, not its spelling."""
    assert resolve_inside(workspace, f"{workspace}/a.txt").name == "a.txt"


def test_a_workspace_that_is_itself_a_symlink_works(workspace, tmp_path):
    """The root is resolved too, so everything in it is inside."""
    (tmp_path / "alias").symlink_to(workspace)
    assert resolve_inside(tmp_path / "alias", "a") == Path(os.path.realpath(workspace)) / "a"


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "secret.txt", "link"),
        ("link", ".", "link/secret.txt"),
        ("link", ".", "link/new/deeper/x.txt"),
        ("link", "not-there-yet", "link"),
        ("link", "not-there-yet", "link/x"),
        ("link", ".", "link/../outside/secret.txt"),
    ],
    ids=["file", "directory", "grandparent of a new file", "dangling", "below dangling", "dotdot after it"],
)
async def test_a_symlink_out_is_refused_by_every_file_tool(call, workspace, outside, link, target, path):
    """The realpath of the deepest existing ancestor decides, and nothing outside is created or changed."""
    (workspace / link).symlink_to(outside / target)
    with pytest.raises(OutsideWorkspace):
        await call(read_file, path=path)
    with pytest.raises(OutsideWorkspace):
        await call(write_file, path=path, text="x")
    with pytest.raises(OutsideWorkspace):
        await call(edit_file, path=path, old_text="secret", new_text="x")
    with pytest.raises(OutsideWorkspace):
        await call(list_directory, path=path)
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret\n"


async def test_a_symlink_that_stays_inside_is_followed_and_stays(call, workspace):
    """A write through it changes its target; the result names the real file."""
    (workspace / "real.txt").write_text("a\n")
    (workspace / "link").symlink_to("real.txt")
    written = await call(write_file, path="link", text="b\n")
    assert written["path"] == "real.txt"
    assert (workspace / "real.txt").read_text() == "b\n"
    assert (workspace / "link").is_symlink()


def test_a_symlink_loop_ends_in_a_failure(workspace):
    """It neither hangs nor escapes."""
    (workspace / "loop").symlink_to("loop")
    with pytest.raises((OutsideWorkspace, FileUnavailable)):
        read_text(Place.inside(workspace, "loop/x"))


def test_a_directory_swapped_for_a_symlink_after_the_check_is_refused(workspace, outside):
    """Check, swap, use: each component is opened without following symlinks."""
    (workspace / "dir").mkdir()
    place = Place.inside(workspace, "dir/secret.txt")
    (workspace / "dir").rmdir()
    (workspace / "dir").symlink_to(outside)
    with pytest.raises(OutsideWorkspace, match="changed while it was being opened"):
        read_text(place)
    with pytest.raises(OutsideWorkspace, match="changed while it was being opened"):
        write_text(place, "x")
    assert (outside / "secret.txt").read_text() == "secret\n"


def test_a_file_swapped_for_a_symlink_after_the_check_is_refused(workspace, outside):
    """The last component is not followed either, for reading or writing."""
    place = Place.inside(workspace, "note.txt")
    (workspace / "note.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(OutsideWorkspace):
        read_text(place)
    with pytest.raises(OutsideWorkspace):
        write_text(place, "x")
    assert (outside / "secret.txt").read_text() == "secret\n"


async def test_a_fifo_does_not_hang_the_reader(call, workspace):
    """Opening one without a writer would block forever; it is refused because it is no regular file."""
    os.mkfifo(workspace / "pipe")
    with pytest.raises(FileUnavailable, match="not a regular file"):
        await call(read_file, path="pipe")


async def test_a_missing_workspace_is_a_failure_that_says_so(call, workspace):
    """The run's directory may be gone when the call runs."""
    workspace.rmdir()
    with pytest.raises(FileUnavailable, match="no such file"):
        await call(read_file, path="a.txt")


def test_no_descriptor_is_leaked(workspace, descriptors):
    """Each success and each failure closes what it opened."""
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("x")
    (workspace / "bin").write_bytes(b"\0")
    before = descriptors()
    for _ in range(20):
        read_text(Place.inside(workspace, "d/f"))
        write_text(Place.inside(workspace, "e/f/g"), "y")
        for bad in ("d", "nope/x", "d/f/x", "bin"):
            with pytest.raises(Exception):  # noqa: B017, PT011 - which failure is another test's business
                read_text(Place.inside(workspace, bad))
    assert descriptors() == before


async def assert_no_file_tool_opens(call, path: str) -> None:
    for tool, more in ((read_file, {}), (write_file, {"text": "x"}), (edit_file, {"old_text": "tg", "new_text": "x"})):
        with pytest.raises(OutsideWorkspace, match=r"Turngate's own"):
            await call(tool, path=path, **more)


async def test_i10_turngates_own_directory_is_not_part_of_the_workspace(call, workspace):
    """I10: no file tool opens a data directory inside the workspace or lists it: it holds a token."""
    for directory in (workspace / ".turngate", workspace / "sub" / ".turngate"):
        directory.mkdir(parents=True)
        (directory / "token").write_text("tg_secret\n")
    (workspace / "link").symlink_to(".turngate")
    for path in (".turngate/token", "sub/../.turngate/token", "link/token", "sub/.turngate/token"):
        await assert_no_file_tool_opens(call, path)
    with pytest.raises(OutsideWorkspace):
        await call(list_directory, path=".turngate")
    assert "tg_secret" not in str(await call(grep, pattern="tg_"))
    assert "token" not in str(await call(glob, pattern="**/*"))


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory with a token, made known as the composition roots do."""
    directory = tmp_path / "state"
    (directory / "logs").mkdir(parents=True)
    (directory / "token").write_text("tg_secret\n")
    (directory / "logs" / "temporal.log").write_text("tg_secret\n")
    key = tmp_path / "keys" / "audit.pem"
    key.parent.mkdir()
    key.write_text("tg_secret\n")
    PRIVATE_FILES.add(directories=[directory], databases=[tmp_path / "elsewhere.db"], files=[key])
    yield directory
    PRIVATE_FILES.clear()


async def test_i13_no_file_tool_changes_what_the_worker_runs_from(call, workspace):
    """I13: compared by device and inode, so another name doesn't help. It is read as other files are."""
    (workspace / ".venv").mkdir()
    (workspace / "app.py").write_text("ours\n")
    os.link(workspace / "app.py", workspace / "other.py")
    LOADED_FILES.add(directories=[workspace / ".venv"], files=[workspace / "app.py"])
    try:
        for path in ("app.py", "other.py", ".venv/sitecustomize.py", ".venv/lib/a.pth"):
            with pytest.raises(FileUnavailable, match="runs from it"):
                await call(write_file, path=path, text="theirs\n")
        with pytest.raises(FileUnavailable, match="runs from it"):
            await call(edit_file, path="app.py", old_text="ours", new_text="theirs")
        assert (await call(read_file, path="app.py"))["text"].endswith("ours\n")
        await call(write_file, path="beside.py", text="new\n")
    finally:
        LOADED_FILES.clear()
    assert (workspace / "app.py").read_text() == "ours\n"
    assert not list((workspace / ".venv").glob("**/*.p*"))


async def test_i13_what_the_worker_imports_later_is_held_from_then_on(call, workspace, monkeypatch):
    """I13: for the file tools and for each command that starts."""
    monkeypatch.syspath_prepend(workspace)
    module, policy = workspace / "imported_later.py", workspace / "policy.toml"
    LOADED_FILES.begin([policy])
    try:
        assert (await call(write_file, path=module.name, text="ours = 1\n"))["path"] == module.name
        assert {module, policy}.intersection(LOADED_FILES) == {policy}
        importlib.import_module("imported_later")
        assert {module, policy}.intersection(LOADED_FILES) == {module, policy}
        with pytest.raises(FileUnavailable, match="runs from it"):
            await call(write_file, path=module.name, text="theirs = 1\n")
    finally:
        LOADED_FILES.clear()
        sys.modules.pop("imported_later", None)
    assert list(LOADED_FILES) == []


async def test_i13_a_workspace_around_the_data_directory_opens_nothing_of_it(call, data_dir):
    """I13: a workspace that is, lies in or holds the data directory shows none of its files, and takes none."""
    for below, path in (
        ("", "token"),
        ("logs", "temporal.log"),
        ("..", "state/token"),
        ("..", "state/logs/temporal.log"),
    ):
        call = replace(call, workspace=data_dir / below)
        await assert_no_file_tool_opens(call, path)
        with pytest.raises(OutsideWorkspace):
            await call(list_directory, path=str(Path(path).parent))
        if below != "..":
            with pytest.raises(OutsideWorkspace, match=r"Turngate's own"):
                await call(grep, pattern="tg_")
    assert "tg_secret" not in str(await call(grep, pattern="tg_"))
    assert "token" not in str(await call(glob, pattern="**/*"))
    assert (data_dir / "token").read_text() == "tg_secret\n"


async def test_i13_a_private_file_in_a_workspace_of_others_is_refused(call, data_dir, tmp_path):
    """I13: the key that signs the log, and what is signed, open for no tool; the search passes them over."""
    keys = replace(call, workspace=tmp_path / "keys")
    await assert_no_file_tool_opens(keys, "audit.pem")
    assert "tg_secret" not in str(await keys(grep, pattern="tg_"))
    assert (tmp_path / "keys" / "audit.pem").read_text() == "tg_secret\n"


async def test_i13_a_hard_link_to_a_private_file_is_refused(call, workspace, data_dir, tmp_path):
    """I13: another name for a file of the data directory or of the store opens nothing; a hard link to any other file does."""
    private = ("state/token", "state/logs/temporal.log", "elsewhere.db", "elsewhere.db-wal")
    for name in private[2:]:
        (tmp_path / name).write_text("tg_secret")
    (workspace / "own.txt").write_text("mine")
    (workspace / "same.txt").hardlink_to(workspace / "own.txt")
    for number, name in enumerate(private):
        (workspace / f"notes{number}.txt").hardlink_to(tmp_path / name)
        await assert_no_file_tool_opens(call, f"notes{number}.txt")
    assert "tg_secret" not in str(await call(grep, pattern="tg_"))
    assert "mine" in str(await call(grep, pattern="mine"))
    assert "mine" in str(await call(read_file, path="same.txt"))
    assert all((tmp_path / name).read_text().startswith("tg_secret") for name in private)
