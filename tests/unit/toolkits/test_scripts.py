"""The scripts that a command names are part of what a person approves: their text is shown, their digest is compared."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turngate import ToolContext
from turngate.toolkits import scripts
from turngate.toolkits.shell import BashParams, bash


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    for name in ("x.sh", "x.py", "sub/y.sh", "build.mk", "run", "notes.txt"):
        (root / name).write_text(f"text of {name}\n")
    (tmp_path / "outside.sh").write_text("not part of it\n")
    (root / "link.sh").symlink_to("x.sh")
    (root / "leads-out.sh").symlink_to("../outside.sh")
    return root


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


NAMED = [
    ("sh x.sh", {"x.sh"}),
    ("bash -x ./x.sh a b", {"x.sh"}),
    ("sh sub/../x.sh", {"x.sh"}),
    ("sh link.sh", {"x.sh"}),
    ("s''h 'x.sh'", {"x.sh"}),
    ("./run --now", {"run"}),
    ("cd sub && sh y.sh", {"sub/y.sh"}),
    ("cd sub && ./y.sh", {"sub/y.sh"}),
    ("python3 x.py", {"x.py"}),
    ("python3 -W ignore x.py notes.txt", {"x.py", "notes.txt"}),
    ("make -f build.mk all", {"build.mk"}),
    ("make --file=build.mk", {"build.mk"}),
    ("source x.sh; . ./sub/y.sh", {"x.sh", "sub/y.sh"}),
    ("timeout 5 env A=1 sh x.sh | cat", {"x.sh"}),
    ("xargs sh x.sh", {"x.sh"}),
    ("bash -c 'sh x.sh'", {"x.sh"}),
    ("sh < x.sh", {"x.sh"}),
    ("for f in a b; do sh x.sh $f; done", {"x.sh"}),
    ("if true; then python3 x.py; fi; sh 'x.sh", {"x.py", "x.sh"}),
]
NOT_NAMED = [
    "ls x.sh",
    "cat x.sh notes.txt",
    "git add x.sh",
    "sh leads-out.sh",
    "sh ../outside.sh",
    "sh -c 'ls'",
    "sh missing.sh",
    "/bin/ls",
    "python3 -m pytest",
]


@pytest.mark.parametrize(("command", "expected"), NAMED)
def test_scripts_that_a_command_names_are_found(command: str, expected: set[str], work: Path) -> None:
    """Shells, interpreters, make and programs of the workspace name scripts, wherever the command enters and however quoted."""
    assert set(scripts.stamps(command, work)) == expected


@pytest.mark.parametrize("command", NOT_NAMED)
def test_other_files_are_not_scripts(command: str, work: Path) -> None:
    """What a command only reads, or what lies outside the workspace, is no script of it."""
    assert scripts.stamps(command, work) == {}


async def depends_on(command: str, workspace: Path | None) -> object:
    assert bash.precondition is not None
    ctx = ToolContext(
        run_id="r",
        tool_call_id="c",
        idempotency_key="k",
        workspace=workspace,
        deadline=datetime(2030, 1, 1, tzinfo=UTC),
    )
    return await bash.precondition.function(BashParams(command=command), ctx)


async def test_i6_a_script_is_part_of_what_was_approved(work: Path) -> None:
    """What a command depends on changes with the script's text, with its arrival, and with nothing else."""
    before = await depends_on("sh x.sh", work)
    assert before == {"scripts": {"x.sh": digest("text of x.sh\n")}}
    (work / "notes.txt").write_text("changed")
    assert await depends_on("sh x.sh", work) == before
    (work / "x.sh").write_text("rm -rf /\n")
    assert await depends_on("sh x.sh", work) != before
    assert await depends_on("ls", work) is None
    assert await depends_on("sh x.sh", None) is None


def test_the_text_of_a_script_is_shown(work: Path) -> None:
    """The person who is asked sees all of the script below the command; without scripts, the command alone."""
    assert bash.preview is not None
    preview = bash.preview(BashParams(command="sh x.sh"), work)
    assert preview is not None
    assert preview.text == "bash -c\nsh x.sh\n\n--- x.sh\ntext of x.sh\n"
    plain = bash.preview(BashParams(command="ls"), work)
    assert plain is not None
    assert plain.kind == "command"
    (work / "x.sh").write_text("a\n" * 100_000 + "the last line")
    long = bash.preview(BashParams(command="sh x.sh"), work)
    assert long is not None
    assert long.text.endswith("a\nthe last line")
