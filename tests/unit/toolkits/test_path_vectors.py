"""Confinement and edits as tables of cases: each is an attack or mistake that some earlier system let through."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from turngate.domain.tools.failures import InvalidToolInput
from turngate.toolkits.coding import coding_toolkit
from turngate.toolkits.edits import AmbiguousEdit, TextNotFound
from turngate.toolkits.files import edit_file, write_file
from turngate.toolkits.text_files import MAX_TEXT_BYTES, TooLarge
from turngate.toolkits.workspace import OutsideWorkspace


@dataclass(frozen=True)
class PathCase:
    """A path written to, in a workspace with ``src/a.py`` and the symlinks ``out`` (outside) and ``in`` (``src``).

    ``lands``: where the text ends up, below the workspace; None: refused.
    """

    path: str
    lands: str | None


PATHS = {
    "existing": PathCase("src/a.py", "src/a.py"),
    "new": PathCase("n.txt", "n.txt"),
    "missing parents": PathCase("a/b/c.txt", "a/b/c.txt"),
    "missing directory and back": PathCase("newdir/../n.txt", "n.txt"),
    "a name that begins with two dots": PathCase("..notes", "..notes"),
    "a directory that begins with two dots": PathCase("..d/n.txt", "..d/n.txt"),
    "a name of three dots": PathCase("...", "..."),
    "through a symlink that stays inside": PathCase("in/new/x", "src/new/x"),
    "dotdot": PathCase("../x", None),
    "dotdot after a directory": PathCase("src/../../x", None),
    "absolute": PathCase("/etc/turngate-was-here", None),
    "symlink": PathCase("out", None),
    "symlinked parent": PathCase("out/x", None),
    "symlinked grandparent of what is missing": PathCase("out/new/x", None),
    "symlinked ancestor far above": PathCase("out/a/b/c/d/x", None),
    "dotdot after a symlink, which leads next to its target": PathCase("out/../x", None),
    "a sibling whose name begins alike": PathCase("../work-2/x", None),
    "NUL": PathCase("n\0.txt", None),
    "NUL that would cut off the rest": PathCase("../x\0/../work/n.txt", None),
    "the workspace's own parent": PathCase("..", None),
}


@pytest.mark.parametrize("case", PATHS.values(), ids=list(PATHS))
async def test_the_end_of_a_path_decides(call, workspace, outside, case):
    """The text ends up inside or nowhere, and the refusal names the path as the model wrote it."""
    (workspace / "src").mkdir()
    (workspace / "src/a.py").write_text("old\n")
    (workspace / "out").symlink_to(outside)
    (workspace / "in").symlink_to("src")
    if case.lands is None:
        with pytest.raises(OutsideWorkspace) as caught:
            await call(write_file, path=case.path, text="new\n")
        assert caught.value.fields["path"] == case.path.replace("\0", "\ufffd")
    else:
        written = await call(write_file, path=case.path, text="new\n")
        assert written["path"] == case.lands
        assert (workspace / case.lands).read_text() == "new\n"
    assert sorted(path.name for path in workspace.parent.iterdir()) == ["outside", "work"]
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


@dataclass(frozen=True)
class EditCase:
    """An edit of ``before``; ``after`` is the text, or the failure that leaves it as it was."""

    before: str
    old: str
    new: str
    after: str | type[Exception]
    every: bool = False


EDITS = {
    "one place": EditCase("a b", "a", "c", "c b"),
    "not there": EditCase("abc", "zzz", "x", TextNotFound),
    "nothing to find": EditCase("abc", "", "X", InvalidToolInput),
    "two places": EditCase("aa", "a", "b", AmbiguousEdit),
    "two places that overlap": EditCase("aba ba", "ba", "x", AmbiguousEdit),
    "every place": EditCase("aa", "a", "b", "bb", every=True),
    "the whole match": EditCase("price", "price", "$& $` $' $1", "$& $` $' $1"),
    "a dollar": EditCase("cost", "cost", "$$5", "$$5"),
    "groups and escapes": EditCase("x", "x", r"\g<0> \1 \n", r"\g<0> \1 \n"),
    "what looks like a pattern": EditCase("a.c abc", "a.c", "x", "x abc"),
    "spaces count": EditCase("a  b", "a b", "x", TextNotFound),
    "case counts": EditCase("A", "a", "x", TextNotFound),
    "line ends do not count": EditCase("a\r\nb", "a\nb", "x", "x"),
    "line ends stay": EditCase("a\r\nb\r\n", "b", "c", "a\r\nc\r\n"),
    "the new text holds the old": EditCase("aa", "a", "aa", "aaaa", every=True),
    "NUL in the new text": EditCase("a", "a", "a\0b", InvalidToolInput),
    "NUL in the old text": EditCase("a", "a\0", "b", InvalidToolInput),
    "a very long line": EditCase("a", "a", "b" * 2_001, "b" * 2_001),
    "larger than any file we write": EditCase("a", "a", "b" * (MAX_TEXT_BYTES + 1), TooLarge),
}


@pytest.mark.parametrize("case", EDITS.values(), ids=list(EDITS))
async def test_an_edit_is_literal_and_certain_or_it_is_refused(call, workspace, case):
    """Neither side is a pattern; more than one match is refused; a refused edit changes nothing."""
    path = workspace / "f"
    path.write_bytes(case.before.encode())
    edit = {"path": "f", "old_text": case.old, "new_text": case.new, "replace_all": case.every}
    if isinstance(case.after, str):
        await call(edit_file, **edit)
        assert path.read_bytes() == case.after.encode()
        return
    with pytest.raises(case.after):
        await call(edit_file, **edit)
    assert path.read_bytes() == case.before.encode()


GATED: dict[str, dict[str, Any]] = {
    "edit_file": {"path": "f", "old_text": "a", "new_text": "b"},
    "write_file": {"path": "f", "text": "b"},
    "bash": {"command": "true"},
}
FLAGS = ("force", "preview", "confirm", "approved", "ask", "skip_checks", "dangerously", "yes", "sandbox")


TOOLS = {tool.name: tool for tool in coding_toolkit()}


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("flag", FLAGS)
def test_no_flag_of_the_model_switches_a_gate_or_a_check_off(name, flag):
    """The model sets arguments, so none may decide: an unknown flag makes the call invalid before anyone is asked."""
    TOOLS[name].decode(json.dumps(GATED[name]))
    for value in (True, False, None):
        with pytest.raises(InvalidToolInput, match=flag):
            TOOLS[name].decode(json.dumps(GATED[name] | {flag: value}))


@pytest.mark.parametrize("name", GATED)
def test_the_gate_of_a_shipped_tool_looks_at_no_argument(name):
    """It always asks; only policy, which the model cannot write, may answer instead of a person."""
    assert TOOLS[name].ask is True


@pytest.mark.parametrize("flags", [{"replace_all": True}, {"replace_all": False}])
async def test_the_one_flag_of_an_edit_loosens_no_check(call, workspace, flags):
    """``replace_all`` says how often; confinement, text only and the size limit apply with and without it."""
    (workspace / "bin").write_bytes(b"a\0")
    for path in ("bin", "../x", "missing"):
        with pytest.raises(Exception, match="path"):
            await call(edit_file, path=path, old_text="a", new_text="b", **flags)
    assert (workspace / "bin").read_bytes() == b"a\0"
    assert [path.name for path in workspace.iterdir()] == ["bin"]
