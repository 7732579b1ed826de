"""The corpus of bypasses, through the whole policy: no row runs unseen, and ordinary work does."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parent))

from bypasses import (
    ALLOWED_BY,
    ALLOWED_PATHS,
    EVERYDAY,
    HARMLESS,
    NO_DESTRUCTION,
    ORDINARY,
    PATHS,
    READING,
    SHELL,
)

from turngate import tool
from turngate.domain.policy.policy import Policy, evaluate, parse_policy
from turngate.domain.tools.tool import Tool
from turngate.policies.facts import call_facts


class Anything(BaseModel):
    pass


def declared(name: str) -> Tool:
    @tool(ask=True, name=name)
    async def some_tool(params: Anything) -> None:
        """Do it."""

    return some_tool


TOOLS = {name: declared(name) for name in ("bash", "write_file")}


@cache
def rules_of(policy: str) -> Policy:
    return parse_policy(policy, source="the table")


def answer(policy: str, name: str, raw: str, workspace: str | None = None) -> str:
    return evaluate(
        rules_of(policy), TOOLS[name], Anything(), agent="a", facts=lambda: call_facts(raw, workspace)
    ).answer


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real") / "workspace"
    for directory in ("src/inner", "docs", "config", "hidden"):
        (root / directory).mkdir(parents=True)
    links = {
        "config/secret": "../hidden",
        "src/link-to-env": "../.env",
        "src/link-to-link": "link-to-env",
        "src/link-to-secret": "../config/secret",
        "src/dangling": "../config/secret/none",
        "src/link-inside": "../src/inner",
        "src/loop": "loop",
        "link-to-src": "src",
        "src/link-to-git": "../.git",
    }
    (root / ".env").write_text("SECRET=1")
    for name, target in links.items():
        (root / name).symlink_to(target)
    (root.parent / "seen").symlink_to(root)
    return root


def command_answer(policy: str, command: str) -> str:
    return answer(policy, "bash", json.dumps({"command": command}))


def test_no_command_line_passes_unseen() -> None:
    """Each command line of the corpus is denied or asked for, as its row says."""
    assert [row for row in SHELL if command_answer(row[1], row[2]) != row[3]] == []


@pytest.mark.parametrize("by_symlink", [False, True])
def test_no_path_passes_unseen(by_symlink: bool, workspace: Path) -> None:
    """Each path of the corpus is denied or asked about, even if the workspace itself is a symlink."""
    root = str(workspace.parent / "seen" if by_symlink else workspace)
    raws = [json.dumps({"path": row[2].replace("@", root)}) for row in PATHS]
    answers = [answer(row[1], "write_file", raw, root) for row, raw in zip(PATHS, raws, strict=True)]
    assert [row for row, verdict in zip(PATHS, answers, strict=True) if verdict != row[3]] == []


def test_ordinary_commands_are_allowed() -> None:
    """Rules that stop every bypass still let a coding agent read, search and test without a request."""
    assert [command for command in ORDINARY if command_answer(READING, command) != "allow"] == []


def test_deny_rules_leave_other_commands_alone() -> None:
    """Deny rules and protected places do not ask about commands that only look like denied ones, nor about everyday ones."""
    assert [each for each in (*HARMLESS, *EVERYDAY) if command_answer(NO_DESTRUCTION, each) != "allow"] == []


def test_what_rules_name_is_allowed() -> None:
    """Options in git's tables, and input for a rule or a program that may have it, are allowed without a request."""
    assert [row for row in ALLOWED_BY if command_answer(*row) != "allow"] == []


def test_ordinary_paths_are_allowed(workspace: Path) -> None:
    """Paths that the rules allow run without a request."""
    raws = [json.dumps({"path": path.replace("@", str(workspace))}) for _policy, path in ALLOWED_PATHS]
    answers = [
        answer(policy, "write_file", raw, str(workspace))
        for (policy, _path), raw in zip(ALLOWED_PATHS, raws, strict=True)
    ]
    assert answers == ["allow"] * len(ALLOWED_PATHS)


def test_the_corpus_only_keeps_calls_back() -> None:
    """The corpus has at least 120 rows, and none expects a call to run."""
    rows = [*SHELL, *PATHS]
    assert len(rows) >= 120
    assert {row[3] for row in rows} == {"ask", "deny"}
