"""Reading, writing and editing text files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngate.domain.text.diff import read_diff
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.presentation import DiffBlock, TableBlock, TextBlock
from turngate.text.line_diff import changed_blocks, split_lines, unified_diff
from turngate.toolkits import text_files
from turngate.toolkits.edits import AmbiguousEdit, EditFileParams, TextNotFound, apply_edit
from turngate.toolkits.files import WriteFileParams, edit_file, list_directory, read_file, write_file
from turngate.toolkits.text_files import MAX_TEXT_BYTES, NotText, TooLarge
from turngate.toolkits.workspace import FileUnavailable, OutsideWorkspace, Place


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_read_file_returns_raw_text_and_says_where_to_continue(call, workspace):
    """Lines count from 1, line endings stay, and ``start_line + lines`` is the next offset."""
    (workspace / "a.txt").write_bytes(b"one\r\ntwo\nthree")
    whole = await call(read_file, path="a.txt")
    assert whole == {
        "path": "a.txt",
        "text": "one\r\ntwo\nthree",
        "start_line": 1,
        "lines": 3,
        "total_lines": 3,
        "truncated": False,
    }
    part = await call(read_file, path="a.txt", offset=2, limit=1)
    assert (part["text"], part["start_line"], part["lines"], part["truncated"]) == ("two\n", 2, 1, True)
    rest = await call(read_file, path="a.txt", offset=3)
    assert (rest["text"], rest["truncated"]) == ("three", False)
    beyond = await call(read_file, path="a.txt", offset=9)
    assert (beyond["text"], beyond["lines"], beyond["truncated"]) == ("", 0, False)


async def test_read_file_counts_lines_as_editors_do(call, workspace):
    """Form feed and U+2028 do not end a line; only a line feed does."""
    (workspace / "a.txt").write_text("a\x0cb\u2028c\nd\n")
    assert (await call(read_file, path="a.txt"))["total_lines"] == 2


async def test_read_file_bounds_one_endless_line(call, workspace):
    """A result never has more than 200,000 characters, whatever the lines are like."""
    (workspace / "a.txt").write_text("x" * 300_000 + "\nlast\n")
    part = await call(read_file, path="a.txt")
    assert (len(part["text"]), part["lines"], part["truncated"]) == (200_000, 1, True)
    assert (await call(read_file, path="a.txt", offset=2))["text"] == "last\n"


@pytest.mark.parametrize("raw", [b"a\0b", b"\xff\xfe", "ü".encode("latin-1")])
async def test_what_is_not_text_is_refused(call, workspace, raw):
    """NUL bytes and bytes that are not UTF-8 are refused, for reading and for editing."""
    (workspace / "a.bin").write_bytes(raw)
    with pytest.raises(NotText):
        await call(read_file, path="a.bin")
    with pytest.raises(NotText):
        await call(edit_file, path="a.bin", old_text="a", new_text="b")
    assert (workspace / "a.bin").read_bytes() == raw


async def test_the_size_limit_is_exact_and_holds_before_and_after(call, workspace):
    """2,000,000 bytes pass, one more does not; an edit that would exceed it is refused first."""
    path = workspace / "big.txt"
    path.write_text("a" * MAX_TEXT_BYTES)
    assert (await call(read_file, path="big.txt"))["total_lines"] == 1
    with pytest.raises(TooLarge):
        await call(edit_file, path="big.txt", old_text="a", new_text="b" * 1_000_000, replace_all=True)
    with pytest.raises(TooLarge) as caught:
        await call(write_file, path="new.txt", text="ü" * (MAX_TEXT_BYTES // 2) + "x")
    assert caught.value.fields["size_bytes"] == MAX_TEXT_BYTES + 1
    assert not (workspace / "new.txt").exists()
    path.write_text("a" * (MAX_TEXT_BYTES + 1))
    with pytest.raises(TooLarge):
        await call(read_file, path="big.txt")


@pytest.mark.parametrize("path", ["nope.txt", "no/such/dir.txt", "d", "f/below", "x" * 300])
async def test_a_file_that_cannot_be_read_says_why(call, workspace, path):
    """Missing, a directory, below a file, too long a name: a typed failure with the system's reason."""
    (workspace / "d").mkdir()
    (workspace / "f").write_text("x")
    with pytest.raises(FileUnavailable) as caught:
        await call(read_file, path=path)
    assert caught.value.fields["path"] == path
    assert caught.value.fields["reason"]


async def test_list_directory_names_types_and_sizes(call, workspace, outside):
    """Sorted by name; symlinks are named, not followed; a name that is not UTF-8 does not break the list."""
    (workspace / "b.txt").write_text("12345")
    (workspace / "a").mkdir()
    (workspace / "link").symlink_to(outside)
    (workspace / os.fsdecode(b"z\xff")).write_text("")
    listing = await call(list_directory)
    assert listing["entries"] == [
        {"name": "a", "type": "directory", "size": None},
        {"name": "b.txt", "type": "file", "size": 5},
        {"name": "link", "type": "symlink", "size": None},
        {"name": "z?", "type": "file", "size": 0},
    ]
    assert (listing["path"], listing["total"], listing["truncated"]) == (".", 4, False)


async def test_list_directory_is_capped(call, workspace):
    """The first 1000 by name are listed, with the true count."""
    for number in range(1005):
        (workspace / f"{number:04}").touch()
    listing = await call(list_directory, path=".")
    assert (len(listing["entries"]), listing["total"], listing["truncated"]) == (1000, 1005, True)
    assert listing["entries"][-1]["name"] == "0999"


async def test_list_directory_of_a_file_is_a_failure(call, workspace):
    """It is not a directory, and the failure says so."""
    (workspace / "f").write_text("x")
    with pytest.raises(FileUnavailable, match="not a directory"):
        await call(list_directory, path="f")


async def test_write_file_creates_directories_and_reports_the_change(call, workspace):
    """A new file is a diff from nothing; the same text again changes nothing."""
    first = await call(write_file, path="a/b/c.txt", text="hello\n")
    assert first == {
        "path": "a/b/c.txt",
        "diff": "--- /dev/null\n+++ b/a/b/c.txt\n@@ -0,0 +1,1 @@\n+hello\n",
        "size_bytes": 6,
    }
    assert (workspace / "a/b/c.txt").read_text() == "hello\n"
    assert (await call(write_file, path="a/b/c.txt", text="hello\n"))["diff"] == ""


async def test_write_file_keeps_the_mode(call, workspace):
    """An executable stays executable; a new file's mode follows the umask."""
    script = workspace / "run.sh"
    script.write_text("echo 1\n")
    script.chmod(0o750)
    await call(write_file, path="run.sh", text="echo 2\n")
    await call(write_file, path="new.sh", text="echo 3\n")
    assert script.stat().st_mode & 0o777 == 0o750
    umask = os.umask(0)
    os.umask(umask)
    assert (workspace / "new.sh").stat().st_mode & 0o777 == 0o666 & ~umask


async def test_write_file_replaces_a_binary_file(call, workspace):
    """The old content is not text, so there is nothing to compare with."""
    (workspace / "a").write_bytes(b"\0\1")
    preview = call.preview(write_file, path="a", text="new\n")
    assert preview.kind == "text"
    assert "whole content would be replaced" in preview.text
    await call(write_file, path="a", text="new\n")
    assert (workspace / "a").read_text() == "new\n"


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(workspace):
    """A full disk at the worst moment (here: a child process's file size limit) loses nothing."""
    (workspace / "a.txt").write_text("old\n")
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from turngate.toolkits.text_files import write_text\n"
        "from turngate.toolkits.workspace import FileUnavailable, Place\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    write_text(Place.inside(Path(sys.argv[1]), 'a.txt'), 'n' * 5000)\n"
        "except FileUnavailable as failure:\n"
        "    print(failure.fields['reason'])\n"
    )
    python = subprocess.run([sys.executable, "-c", program, workspace], capture_output=True, text=True, check=True)
    assert python.stdout == "file too large\n"
    assert (workspace / "a.txt").read_text() == "old\n"
    assert names(workspace) == ["a.txt"]


async def test_a_read_only_file_is_not_replaced(call, workspace):
    """Renaming over it would work, but its owner forbade writing."""
    path = workspace / "a.txt"
    path.write_text("old\n")
    path.chmod(0o444)
    with pytest.raises(FileUnavailable, match="read-only"):
        await call(write_file, path="a.txt", text="new\n")
    with pytest.raises(FileUnavailable, match="read-only"):
        await call(edit_file, path="a.txt", old_text="old", new_text="new")
    assert path.read_text() == "old\n"


@pytest.mark.parametrize("path", [".", "d", "f/below.txt"])
async def test_a_write_that_cannot_be_made_is_a_failure(call, workspace, path):
    """Onto a directory, or below a file; no file is left over."""
    (workspace / "d").mkdir()
    (workspace / "f").write_text("x")
    with pytest.raises(FileUnavailable):
        await call(write_file, path=path, text="x")
    assert names(workspace) == ["d", "f"]


async def test_edit_file_replaces_literally(call, workspace):
    r"""Neither side is a pattern: ``$&`` and ``\1`` are themselves, and line endings stay."""
    (workspace / "a.txt").write_bytes(b"x = f(a.*)\r\ny\r\n")
    edited = await call(edit_file, path="a.txt", old_text="f(a.*)", new_text=r"$& \1 \g<0>")
    assert (workspace / "a.txt").read_bytes() == b"x = $& \\1 \\g<0>\r\ny\r\n"
    assert edited["size_bytes"] == len(b"x = $& \\1 \\g<0>\r\ny\r\n")
    assert "-x = f(a.*)\r\n" in edited["diff"]


@pytest.mark.parametrize(("text", "old", "matches"), [("a b a b a", "a", 3), ("aaa", "aa", 2)])
async def test_edit_file_refuses_an_ambiguous_edit(call, workspace, text, old, matches):
    """More than one place, overlapping ones included, is refused unless all are requested."""
    (workspace / "a.txt").write_text(text)
    with pytest.raises(AmbiguousEdit) as caught:
        await call(edit_file, path="a.txt", old_text=old, new_text="c")
    assert caught.value.fields["matches"] == matches
    assert (workspace / "a.txt").read_text() == text
    await call(edit_file, path="a.txt", old_text=old, new_text="c", replace_all=True)
    assert (workspace / "a.txt").read_text() == text.replace(old, "c")


@pytest.mark.parametrize(
    "bad",
    [
        {"path": "a.txt", "old_text": "", "new_text": "X"},
        {"path": "a.txt", "old_text": "a", "new_text": "a"},
        {"path": "a.txt", "old_text": "a", "new_text": "b\0"},
        {"path": "a.txt", "old_text": "a", "new_text": "b", "force": True},
        {"path": "", "old_text": "a", "new_text": "b"},
    ],
    ids=["empty", "no change", "NUL", "a flag of its own", "no path"],
)
async def test_a_senseless_edit_is_refused_at_planning(call, workspace, bad):
    """An empty old_text would replace everything, and an invented ``force`` nothing."""
    with pytest.raises(InvalidToolInput):
        await call(edit_file, **bad)


async def test_edit_file_of_a_missing_file_creates_nothing(call, workspace):
    """Not even the directories of its path."""
    with pytest.raises(FileUnavailable):
        await call(edit_file, path="new/a.txt", old_text="a", new_text="b")
    assert names(workspace) == []


async def test_edits_of_one_file_at_the_same_time_lose_nothing(call, workspace):
    """The calls of one step run together; none undoes another."""
    (workspace / "a.txt").write_text("".join(f"<{number}>\n" for number in range(24)))
    edits = [call(edit_file, path="a.txt", old_text=f"<{number}>", new_text="done") for number in range(24)]
    await asyncio.gather(*edits)
    assert (workspace / "a.txt").read_text() == "done\n" * 24


def test_previews_show_the_diff_and_change_nothing(call, workspace):
    """For an edit, for a write over a file, and for a file that is not there yet."""
    (workspace / "a.txt").write_text("one\ntwo\n")
    edit = call.preview(edit_file, path="a.txt", old_text="two", new_text="2")
    assert (edit.kind, edit.text) == ("diff", "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n")
    assert "-one\n" in call.preview(write_file, path="a.txt", text="two\n").text
    new = call.preview(write_file, path="new/b.txt", text="x")
    assert new.text == "--- /dev/null\n+++ b/new/b.txt\n@@ -0,0 +1,1 @@\n+x\n\\ No newline at end of file\n"
    assert call.preview(write_file, path="a.txt", text="one\ntwo\n").text == "a.txt would stay as it is"
    assert (workspace / "a.txt").read_text() == "one\ntwo\n"
    assert names(workspace) == ["a.txt"]


@pytest.mark.parametrize(
    ("tool", "tool_input"),
    [
        (edit_file, {"path": "a.txt", "old_text": "zzz", "new_text": "y"}),
        (edit_file, {"path": "a.txt", "old_text": "o", "new_text": "y"}),
        (edit_file, {"path": "nope.txt", "old_text": "o", "new_text": "y"}),
        (edit_file, {"path": "../x", "old_text": "o", "new_text": "y"}),
        (write_file, {"path": "../x", "text": "y"}),
        (write_file, {"path": "d", "text": "y"}),
        (write_file, {"path": "a.txt/below", "text": "y"}),
    ],
)
def test_a_preview_that_cannot_be_made_says_what_would_go_wrong(call, workspace, tool, tool_input):
    """The operator learns that approving is pointless; planning does not fail."""
    (workspace / "a.txt").write_text("oo\n")
    (workspace / "d").mkdir()
    preview = call.preview(tool, **tool_input)
    assert preview.kind == "text"
    assert " would fail: " in preview.text


def test_previews_without_a_workspace_say_so():
    """A run without a workspace still gets a page, not a crash."""
    edit = edit_file.preview(edit_file.decode('{"path": "a", "old_text": "b", "new_text": "c"}'), None)
    assert "no workspace" in edit.text
    assert "no workspace" in write_file.preview(write_file.decode('{"path": "a", "text": "c"}'), None).text


CHANGES = [
    pytest.param(edit_file, {"path": "a.txt", "old_text": "o", "new_text": "y"}, id="edit"),
    pytest.param(write_file, {"path": "a.txt", "text": "y"}, id="write"),
]


def test_an_approved_write_is_for_the_file_as_it_was(call, workspace):
    """What it depends on differs for missing, created, changed and deleted, not for touched or changed back."""
    path = workspace / "a.txt"
    wanted = {"path": "a.txt", "text": "y"}
    missing = call.depends_on(write_file, **wanted)
    path.write_text("one\n")
    at_first = call.depends_on(write_file, **wanted)
    assert at_first == {"path": "a.txt", "sha256": hashlib.sha256(b"one\n").hexdigest()}
    path.write_text("two\n")
    changed = call.depends_on(write_file, **wanted)
    path.write_text("one\n")
    os.utime(path, (0, 0))
    assert call.depends_on(write_file, **wanted) == at_first
    path.unlink()
    assert call.depends_on(write_file, **wanted) == missing == {"path": "a.txt", "sha256": None}
    assert changed != at_first


def test_an_approved_edit_is_for_the_change_that_was_shown(call, workspace):
    """Moved lines and distant changes keep an approval valid; a change in the shown context does not."""
    path = workspace / "a.txt"
    wanted = {"path": "a.txt", "old_text": "target", "new_text": "hit"}

    def seen(*lines: str):
        path.write_text("".join(f"{line}\n" for line in lines))
        return call.depends_on(edit_file, **wanted)

    around = ["1", "2", "3", "target", "5", "6", "7"]
    before = seen("far", *around, "far away")
    assert before["path"] == "a.txt"
    assert seen("new first line", "far", *around, "changed") == before
    assert seen("far", "1", "2", "three", *around[3:], "far away") != before
    twice = seen(*around, "target")
    gone = seen("1")
    assert "more than once" in twice["unavailable"]
    assert "does not occur" in gone["unavailable"]


@pytest.mark.parametrize(("tool", "tool_input"), CHANGES)
def test_an_approval_is_for_the_file_at_the_end_of_the_path(call, workspace, tool, tool_input):
    """A symlink to another file with the same content is another file; one to the outside is no file at all."""
    (workspace / "one").write_text("o\n")
    (workspace / "two").write_text("o\n")
    seen = []
    for target in ("one", "two", "../outside", "/etc/passwd"):
        (workspace / "a.txt").unlink(missing_ok=True)
        (workspace / "a.txt").symlink_to(target)
        seen.append(call.depends_on(tool, **tool_input))
    assert (seen[0]["path"], seen[1]["path"]) == ("one", "two")
    assert seen[0] != seen[1]
    assert "outside the workspace" in seen[2]["unavailable"]
    assert seen[2] == seen[3]


@pytest.mark.parametrize(("tool", "tool_input"), CHANGES)
async def test_an_approved_change_is_made_at_the_place_that_was_approved(call, workspace, tool, tool_input):
    """A link that takes the file's place after the last check leads the change nowhere."""
    (workspace / "a.txt").write_text("o\n")
    (workspace / "b.txt").write_text("o\n")
    call.approved = call.depends_on(tool, **tool_input)
    (workspace / "a.txt").unlink()
    (workspace / "a.txt").symlink_to("b.txt")
    with pytest.raises(OutsideWorkspace, match="leads elsewhere"):
        await call(tool, **tool_input)
    assert (workspace / "b.txt").read_text() == "o\n"
    (workspace / "a.txt").unlink()
    (workspace / "a.txt").write_text("o\n")
    assert (await call(tool, **tool_input))["path"] == "a.txt"


@pytest.mark.parametrize(("tool", "tool_input"), CHANGES)
async def test_i6_a_change_that_was_not_approved_is_not_made(call, workspace, tool, tool_input):
    """What took the file's place after the last check is compared with what was approved, and stays as it is."""
    file = workspace / "a.txt"
    for approved, now in (("o\nours\n", "o\ntheirs\n"), ("o\n", None), (None, "o\n"), ("no\0text", "o\n")):
        file.unlink(missing_ok=True)
        if approved is not None:
            file.write_text(approved)
        call.approved = call.depends_on(tool, **tool_input)
        file.unlink(missing_ok=True)
        if now is not None:
            file.write_text(now)
        with pytest.raises(FileUnavailable):
            await call(tool, **tool_input)
        assert (file.read_text() if file.exists() else None) == now


async def test_a_failed_edit_that_was_approved_fails_as_was_shown(call, workspace):
    """The model learns why it can't be made, and not that a path leads elsewhere."""
    (workspace / "a.txt").write_text("one\n")
    wanted = {"path": "a.txt", "old_text": "zzz", "new_text": "y"}
    call.approved = call.depends_on(edit_file, **wanted)
    with pytest.raises(TextNotFound):
        await call(edit_file, **wanted)


def test_what_a_change_depends_on_never_fails(call, workspace, monkeypatch):
    """A directory, a path below a file, bytes that aren't text, a huge file, no workspace: each has a value."""
    (workspace / "d").mkdir()
    (workspace / "f").write_bytes(b"\0\xff")
    assert "directory" in call.depends_on(write_file, path=".", text="x")["unavailable"]
    assert call.depends_on(write_file, path="d", text="x")["unavailable"]
    assert call.depends_on(write_file, path="f/below", text="x")["unavailable"] == "not a directory"
    assert call.depends_on(write_file, path="f", text="x")["sha256"] == hashlib.sha256(b"\0\xff").hexdigest()
    monkeypatch.setattr(text_files, "MAX_HASHED_BYTES", 1)
    assert call.depends_on(write_file, path="f", text="x")["sha256"].startswith("2 bytes, changed at ")
    call.workspace = None
    assert call.depends_on(write_file, path="f", text="x") is None


async def test_people_see_what_a_change_changed(call, workspace):
    """A diff for an edit and a write; a sentence if nothing changed; the reason if it failed."""
    (workspace / "a.txt").write_text("one\n")
    assert await call.presented(edit_file, path="a.txt", old_text="one", new_text="two") == (
        DiffBlock(diff="--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,1 @@\n-one\n+two\n"),
    )
    assert await call.presented(write_file, path="a.txt", text="two\n") == (TextBlock(text="a.txt stays as it was"),)
    why, fields = await call.presented(edit_file, path="a.txt", old_text="zzz", new_text="x")
    assert "does not occur" in why.text
    assert fields.value == {"path": "a.txt"}


async def test_people_see_what_was_read_and_listed(call, workspace):
    """The line numbers, then the lines; a directory as rows, with a count of those not shown."""
    (workspace / "a.txt").write_text("one\ntwo\nthree\n")
    (workspace / "empty").touch()
    assert await call.presented(read_file, path="a.txt", offset=2, limit=1) == (
        TextBlock(text="a.txt: lines 2 to 2 of 3"),
        TextBlock(text="two\n"),
    )
    assert await call.presented(read_file, path="empty") == (TextBlock(text="empty: no lines of 0"),)
    assert await call.presented(list_directory) == (
        TextBlock(text=".: 2 entries"),
        TableBlock(columns=("name", "type", "size"), rows=(("a.txt", "file", 14), ("empty", "file", 0))),
    )
    (workspace / "many").mkdir()
    for number in range(1005):
        (workspace / "many" / f"{number:04}").touch()
    title, table = await call.presented(list_directory, path="many")
    assert (title.text, len(table.rows), table.more) == ("many: 1,005 entries", 100, 905)
    (workspace / "none").mkdir()
    assert await call.presented(list_directory, path="none") == (TextBlock(text="none: 0 entries"),)


def test_a_file_name_cannot_forge_lines_of_the_diff():
    """A line feed in a name is quoted in the header."""
    header = unified_diff("a\n+++ b/harmless", "x\n", "y\n", max_chars=10_000).splitlines()[:2]
    assert header == ['--- "a/a\\n+++ b/harmless"', '+++ "b/a\\n+++ b/harmless"']


def test_a_long_diff_is_clipped_at_a_line_and_says_so():
    """The reader knows how much is missing, and the note is not one of the file's lines."""
    diff = unified_diff("a", "", "x\n" * 1000, max_chars=100)
    last = diff.splitlines()[-1]
    assert last.startswith("\\ … ")
    assert last.endswith(" of them changed: not shown here")
    assert len(diff) < 200


LINE_ENDS = {
    "CRLF": (b"one\r\ntwo\r\nthree\r\n", "one\ntwo\n", "one\n2\nmore\n", b"one\r\n2\r\nmore\r\nthree\r\n"),
    "CR": (b"one\rtwo\rthree", "one\ntwo", "1\ntwo", b"1\rtwo\rthree"),
    "LF, asked for as CRLF": (b"one\ntwo\n", "one\r\ntwo", "1\r\n2", b"1\n2\n"),
    "mixed": (
        b"one\r\ntwo\nthree\r\nfour\n",
        "one\ntwo\nthree\n",
        "zero\none\nthree\n",
        b"zero\r\none\r\nthree\r\nfour\n",
    ),
    "mixed, one line": (b"one\r\ntwo\nthree\n", "two", "2\n3", b"one\r\n2\n3\nthree\n"),
    "no end of the last line": (b"one\r\ntwo", "two", "two\nthree", b"one\r\ntwo\r\nthree"),
    "from the end of a line on": (b"one\r\ntwo\r\n", "\ntwo", "\n2", b"one\r\n2\r\n"),
    "a byte order mark": ("\ufeffone\r\ntwo".encode(), "\ufeffone\ntwo", "1\ntwo", "\ufeff1\r\ntwo".encode()),
    "exactly those ends": (b"one\r\ntwo\n", "one\r\n", "one\n", b"one\ntwo\n"),
    "new ends on purpose": (b"one\ntwo\n", "one\n", "one\r\n", b"one\r\ntwo\n"),
    "one file, one line": (b"one", "one", "1\n2\n", b"1\n2\n"),
}


@pytest.mark.parametrize("name", LINE_ENDS)
async def test_i6_an_edit_keeps_line_ends_and_its_preview_shows_them(call, workspace, name):
    """I6: what a model writes with line feeds is found in any file; what is written is what the approved preview says."""
    before, old, new, after = LINE_ENDS[name]
    file = workspace / "a.txt"
    file.write_bytes(before)
    preview = edit_file.preview(EditFileParams(path="a.txt", old_text=old, new_text=new), workspace)
    await call(edit_file, path="a.txt", old_text=old, new_text=new)
    assert file.read_bytes() == after
    assert preview.text == unified_diff("a.txt", before.decode(), after.decode())


async def test_all_places_of_several_lines_are_replaced_each_with_its_own_ends(call, workspace):
    """Also where one place has other line ends than the next one; a single place must be unique among all of them."""
    (workspace / "a.txt").write_bytes(b"a\r\nb\r\n-\na\nb\n")
    with pytest.raises(AmbiguousEdit):
        await call(edit_file, path="a.txt", old_text="a\nb\n", new_text="b\n")
    await call(edit_file, path="a.txt", old_text="a\nb\n", new_text="b\na\nc\n", replace_all=True)
    assert (workspace / "a.txt").read_bytes() == b"b\r\na\r\nc\r\n-\nb\na\nc\n"


@given(
    parts=st.lists(st.sampled_from(["a", "b", "\n", "\r\n", "\r"]), max_size=12),
    place=st.integers(0, 12),
    length=st.integers(1, 6),
    new=st.text("ab\n", max_size=4),
)
def test_an_edit_changes_nothing_around_its_place(parts, place, length, new):
    """Whatever ends a file has: the text before and after the place stays, byte by byte, and no other kind of end appears."""
    old = "".join(parts[place : place + length])
    before = "".join(parts)
    as_models_write = old.replace("\r\n", "\n").replace("\r", "\n")
    one_end_of_two_parts = "\r\n" in "".join(each[-1:] for each in parts)
    if not old or as_models_write == new or one_end_of_two_parts:
        return
    params = EditFileParams(path="a", old_text=as_models_write, new_text=new)
    try:
        after = apply_edit(Place.inside(Path("/"), "a"), before, params)
    except AmbiguousEdit:
        return
    start, end = "".join(parts[:place]), "".join(parts[place + length :])
    assert after.startswith(start)
    assert after.endswith(end)
    assert after[len(start) : len(after) - len(end)].replace("\r\n", "\n").replace("\r", "\n") == new
    ends = set(re.findall("\r\n|\n|\r", before)) or {"\n"}
    assert set(re.findall("\r\n|\n|\r", after[len(start) : len(after) - len(end)])) <= ends


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (b"one\r\ntwo\r\n", "one\n2\n", b"one\r\n2\r\n"),
        ("\ufeffone\r\n".encode(), "1\n", "\ufeff1\r\n".encode()),
        (b"one\r\n", "one\r\n2\n", b"one\r\n2\n"),
        (b"one\r\ntwo\n", "1\n", b"1\n"),
        (None, "1\n", b"1\n"),
    ],
)
async def test_i6_a_file_that_is_replaced_keeps_its_line_ends(call, workspace, before, text, after):
    """I6: those that all its lines have, and its byte order mark; the preview says so."""
    file = workspace / "a.txt"
    if before is not None:
        file.write_bytes(before)
    preview = write_file.preview(WriteFileParams(path="a.txt", text=text), workspace)
    await call(write_file, path="a.txt", text=text)
    assert file.read_bytes() == after
    assert preview.text == unified_diff("a.txt", None if before is None else before.decode(), after.decode())


def changed_lines(diff: str) -> list[str]:
    return [line.text for line in read_diff(diff).lines if line.kind in {"added", "removed"}]


@pytest.mark.parametrize("length", [3_000, 60_000])
@pytest.mark.parametrize("line", ["{}", "row {} of the table", "x{}"])
def test_a_diff_shows_the_lines_that_change_and_no_others(line, length):
    """Three lines change, far from each other, in a file whose lines are all different, or all have their like."""
    old = [line.format(number if line.startswith("row") else number % 7) + "\n" for number in range(length)]
    new = [*old[:100], "one\n", *old[101 : length // 2], "os.system('x')\n", *old[length // 2 : -50], *old[-49:]]
    diff = unified_diff("a", "".join(old), "".join(new))
    changed = ["-" + old[100][:-1], "+one", "+os.system('x')", "-" + old[-50][:-1]]
    assert (changed_lines(diff), diff.count("@@ -")) == (changed, 3)


HOSTILE_TEXTS = {
    "nothing in common": ("a\n" * 50_000, "b\n" * 50_000),
    "a million equal lines": ("a\n" * 1_000_000, "a\n" * 999_999),
    "two lines in turn": ("a\nb\n" * 100_000, "b\na\nb\n" * 66_666),
    "digits": tuple("".join(f"{number * step % 10}\n" for number in range(100_000)) for step in (3, 7)),
    "the other way round": tuple("".join(f"{step * number}\n" for number in range(50_000)) for step in (1, -1)),
    "one long line": ("a" * 10_000_000, "a" * 10_000_000 + "b"),
}


FIRST, *OTHERS = HOSTILE_TEXTS


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)])
def test_i14_a_diff_takes_bounded_time_and_holds_the_whole_change(name):
    """I14: whatever the texts are like, some seconds are enough, and the new text can be read back from the diff."""
    before, after = HOSTILE_TEXTS[name]
    started = time.thread_time()
    old, new = split_lines(before), split_lines(after)
    blocks = changed_blocks(old, new)
    assert time.thread_time() - started < 5
    patched, at = [], 0
    for block in blocks:
        patched += [*old[at : block.old_start], *new[block.new_start : block.new_end]]
        at = block.old_end
    assert [*patched, *old[at:]] == new


_texts = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=30).map("".join)


@given(before=_texts, after=_texts, last=st.sampled_from(["", "end"]))
def test_old_and_new_text_can_be_read_back_from_the_diff(before, after, last):
    """The hunks account for every changed line: taking them apart gives the old and the new lines, in place."""
    after += last
    old, new = before.split("\n"), after.split("\n")
    at_old = at_new = 0
    for line in unified_diff("f", before, after, max_chars=10**6).splitlines()[2:]:
        if line.startswith("@@"):
            _, removed, added, _ = line.split(" ")
            start, count = (int(part) for part in removed[1:].split(","))
            begin, added_count = (int(part) for part in added[1:].split(","))
            next_old, next_new = start - (count > 0), begin - (added_count > 0)
            assert old[at_old:next_old] == new[at_new:next_new]
            at_old, at_new = next_old, next_new
        elif not line.startswith("\\"):
            if line[0] in " -":
                assert old[at_old] == line[1:]
                at_old += 1
            if line[0] in " +":
                assert new[at_new] == line[1:]
                at_new += 1
    assert old[at_old:] == new[at_new:] or before == after or {*old[at_old:], *new[at_new:]} == {""}


def test_git_accepts_the_diff(tmp_path):
    """``git apply`` turns the old text into the new one."""
    before, after = "".join(f"{n}\n" for n in range(60)), "".join(f"{n}\n" for n in range(3, 60) if n % 20) + "end"
    (tmp_path / "f.txt").write_text(before)
    diff = unified_diff("f.txt", before, after, max_chars=10**6)
    subprocess.run(["git", "apply"], input=diff, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "f.txt").read_text() == after
