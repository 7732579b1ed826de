"""Edits as a table of cases, and flags that switch nothing off: each is a mistake that some earlier system let through."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from turngate.domain.tools.failures import InvalidToolInput
from turngate.toolkits.coding import coding_toolkit
from turngate.toolkits.edits import AmbiguousEdit, TextNotFound
from turngate.toolkits.files import edit_file
from turngate.toolkits.text_files import MAX_TEXT_BYTES, TooLarge


@dataclass(frozen=True)
class EditCase:
    """An edit of ``before``; ``after`` is the text, or the failure that leaves it as it was."""

    before: str
    old: str
    new: str
    after: str | type[Exception]
    every: bool = False


EDITS = {
    "not there": EditCase("abc", "zzz", "x", TextNotFound),
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
