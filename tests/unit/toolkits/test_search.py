"""grep and glob."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from turngate.domain.tools.presentation import TableBlock, TextBlock
from turngate.toolkits import search
from turngate.toolkits.search import InvalidPattern, SearchTimeout, glob, grep
from turngate.toolkits.search_worker import matches_glob
from turngate.toolkits.workspace import FileUnavailable, OutsideWorkspace


@pytest.fixture
def tree(workspace, outside) -> Path:
    for path, text in {
        "a.py": "import os\nprint('Hello')\n",
        "src/b.py": "hello = 1\n",
        "src/deep/c.txt": "hello there\r\n",
        ".git/config": "hello\n",
        ".hidden": "hello\n",
    }.items():
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_bytes(text.encode())
    (workspace / "binary").write_bytes(b"hello\0")
    (workspace / "out").symlink_to(outside)
    (workspace / "out.txt").symlink_to(outside / "secret.txt")
    return workspace


async def test_grep_finds_lines_in_a_stable_order(call, tree):
    """Path, line number and text; `.git`, binary files and symlinks are left out."""
    result = await call(grep, pattern="hello")
    assert result["matches"] == [
        {"path": ".hidden", "line": 1, "text": "hello"},
        {"path": "src/b.py", "line": 1, "text": "hello = 1"},
        {"path": "src/deep/c.txt", "line": 1, "text": "hello there"},
    ]
    assert (result["truncated"], result["files_searched"], result["files_skipped"]) == (False, 4, 3)


async def test_grep_never_leaves_through_a_symlink(call, tree):
    """The target of a symlink is not searched, and a path through one is refused."""
    assert (await call(grep, pattern="secret"))["matches"] == []
    with pytest.raises(OutsideWorkspace):
        await call(grep, pattern="secret", path="out")


@pytest.mark.parametrize(
    ("tool_input", "paths"),
    [
        ({"ignore_case": True, "glob": "*.py"}, ["a.py", "src/b.py"]),
        ({"path": "src"}, ["src/b.py", "src/deep/c.txt"]),
        ({"path": "src", "glob": "deep/*"}, ["src/deep/c.txt"]),
        ({"path": "src/b.py"}, ["src/b.py"]),
        ({"glob": "**/*.txt"}, ["src/deep/c.txt"]),
    ],
)
async def test_grep_can_be_narrowed(call, tree, tool_input, paths):
    """By directory, by one file, by name pattern, by path pattern."""
    result = await call(grep, pattern="hello", **tool_input)
    assert [match["path"] for match in result["matches"]] == paths


async def test_grep_stops_at_its_limit_and_says_so(call, workspace):
    """Exactly ``limit`` matches are not truncated; one more is."""
    (workspace / "a").write_text("x\n" * 10)
    assert not (await call(grep, pattern="x", limit=10))["truncated"]
    result = await call(grep, pattern="x", limit=9)
    assert (len(result["matches"]), result["truncated"]) == (9, True)


async def test_grep_clips_long_lines_around_the_match(call, workspace):
    """A minified file does not flood the model, and the match is still in view."""
    (workspace / "a.js").write_text("a" * 50_000 + "needle" + "b" * 50_000)
    [match] = (await call(grep, pattern="needle"))["matches"]
    assert "needle" in match["text"]
    assert len(match["text"]) == 402


async def test_grep_reports_a_bad_pattern(call, workspace):
    """The failure has the reason from Python's re."""
    with pytest.raises(InvalidPattern, match="unterminated"):
        await call(grep, pattern="(a")


async def test_grep_of_a_missing_path_is_a_failure(call, workspace):
    """It does not answer "no matches"."""
    with pytest.raises(FileUnavailable):
        await call(grep, pattern="a", path="nope")


async def test_a_pattern_that_backtracks_forever_is_stopped(call, workspace, monkeypatch):
    """The search process is killed, and the event loop stays responsive meanwhile."""
    monkeypatch.setattr(search, "SEARCH_SECONDS", 1)
    (workspace / "a").write_text("a" * 60 + "!\n")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    with pytest.raises(SearchTimeout):
        await call(grep, pattern="(a+)+$")
    ticking.cancel()
    assert time.monotonic() - began < 120
    assert ticks > 5
    assert _search_processes() == []


async def test_a_cancelled_search_leaves_no_process(call, workspace, until):
    """The process is killed before the cancellation is passed on."""
    (workspace / "a").write_text("a" * 60 + "!\n")
    searching = asyncio.create_task(call(grep, pattern="(a+)+$"))
    await until(_search_processes)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert _search_processes() == []


def _search_processes() -> list[int]:
    mine = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = [int(pid) for file in mine for pid in file.read_text().split()]
    return [pid for pid in children if b"search_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_glob_finds_files_directory_by_directory(call, tree):
    """``*`` stays in its directory, ``**`` does not; symlinks are named, never entered; `.git` is left out."""
    assert (await call(glob, pattern="*.py"))["paths"] == ["a.py"]
    assert (await call(glob, pattern="./**/*.py"))["paths"] == ["a.py", "src/b.py"]
    everything = (await call(glob, pattern="**"))["paths"]
    assert everything == [".hidden", "a.py", "binary", "out", "out.txt", "src/b.py", "src/deep/c.txt"]


async def test_glob_stops_at_its_limit_and_says_so(call, workspace):
    """Exactly ``limit`` paths are not truncated; one more is."""
    for number in range(5):
        (workspace / str(number)).touch()
    assert await call(glob, pattern="*", limit=5) == {"paths": list("01234"), "truncated": False}
    assert await call(glob, pattern="*", limit=4) == {"paths": list("0123"), "truncated": True}


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*"])
async def test_glob_refuses_a_pattern_that_points_outside(call, workspace, pattern):
    """An empty list would mislead."""
    with pytest.raises(InvalidPattern):
        await call(glob, pattern=pattern)


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("a.py", "*.py", True),
        ("src/a.py", "*.py", False),
        ("src/a.py", "**/*.py", True),
        ("a.py", "**/*.py", True),
        ("a/b/c/d.py", "a/**/d.py", True),
        ("a/d.py", "a/**/d.py", True),
        ("a/b", "a/**", True),
        ("b/a", "a/**", False),
        ("a/b/c", "**/b/**/c", True),
        ("a/b", "a", False),
        ("a", "a/b", False),
        ("file[1]", "file[[]1]", True),
        ("A.py", "a.py", False),
        ("/".join("a" * 60), "/".join(["**"] * 30) + "/b", False),
        ("a" * 200, "*a" * 60 + "b", False),
    ],
)
def test_glob_patterns(path, pattern, fits):
    """Each case is decided at once, even those that make a naive matcher try every combination."""
    assert matches_glob(path, pattern) is fits


async def test_people_see_the_matches_as_a_table(call, tree):
    """Rows of path, line and text, or of paths; one sentence says how many there are, and if that is not all."""
    assert await call.presented(grep, pattern="hello", path="src") == (
        TextBlock(text="2 matching lines in 2 files searched, 0 skipped"),
        TableBlock(
            columns=("path", "line", "text"), rows=(("src/b.py", 1, "hello = 1"), ("src/deep/c.txt", 1, "hello there"))
        ),
    )
    [none] = await call.presented(grep, pattern="nowhere", path="src")
    assert none.text == "0 matching lines in 2 files searched, 0 skipped"
    title, table = await call.presented(glob, pattern="**/*.py", limit=1)
    assert (title.text, table.rows) == ("the first 1 file", (("a.py",),))
    why, *_ = await call.presented(grep, pattern="(a")
    assert "unterminated" in why.text
