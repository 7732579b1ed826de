"""The corpus of bypasses, through the whole policy: no row runs unseen, and ordinary work does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parent))

from bypasses import (
    ALLOWED_ARGUMENTS,
    ALLOWED_BY,
    ALLOWED_PATHS,
    ARGUMENTS,
    EVERYDAY,
    HARMLESS,
    NO_DESTRUCTION,
    ORDINARY,
    PATHS,
    READING,
    SHELL,
)

from turngate import tool
from turngate.domain.policy.policy import evaluate, parse_policy
from turngate.domain.tools.tool import Tool
from turngate.policies.facts import call_facts


class Anything(BaseModel):
    pass


def declared(name: str) -> Tool:
    @tool(ask=True, name=name)
    async def some_tool(params: Anything) -> None:
        """Do it."""

    return some_tool


TOOLS = {name: declared(name) for name in ("bash", "pay", "write_file")}


def answer(policy: str, name: str, raw: str, workspace: str | None = None) -> str:
    rules = parse_policy(policy, source="the table")
    return evaluate(rules, TOOLS[name], Anything(), agent="a", facts=lambda: call_facts(raw, workspace)).answer


def row_names(rows: list[Any]) -> list[str]:
    return [row[0].replace(" ", "-") for row in rows]


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


@pytest.mark.parametrize(("_how", "policy", "command", "expected"), SHELL, ids=row_names(SHELL))
def test_no_command_line_passes_unseen(_how: str, policy: str, command: str, expected: str) -> None:
    """Each command line of the corpus is denied or asked for, as its row says."""
    assert answer(policy, "bash", json.dumps({"command": command})) == expected


@pytest.mark.parametrize(("_how", "policy", "raw", "expected"), ARGUMENTS, ids=row_names(ARGUMENTS))
def test_no_arguments_pass_unseen(_how: str, policy: str, raw: str, expected: str) -> None:
    """Each argument text of the corpus is denied or asked for, as its row says."""
    assert answer(policy, "pay", raw) == expected


@pytest.mark.parametrize("by_symlink", [False, True])
@pytest.mark.parametrize(("_how", "policy", "path", "expected"), PATHS, ids=row_names(PATHS))
def test_no_path_passes_unseen(
    _how: str, policy: str, path: str, expected: str, by_symlink: bool, workspace: Path
) -> None:
    """Each path of the corpus is denied or asked about, even if the workspace itself is a symlink."""
    root = str(workspace.parent / "seen" if by_symlink else workspace)
    raw = json.dumps({"path": path.replace("@", root)})
    assert answer(policy, "write_file", raw, root) == expected


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_commands_are_allowed(command: str) -> None:
    """Rules that stop every bypass still let a coding agent read, search and test without a request."""
    assert answer(READING, "bash", json.dumps({"command": command})) == "allow"


@pytest.mark.parametrize("command", [*HARMLESS, *EVERYDAY])
def test_deny_rules_leave_other_commands_alone(command: str) -> None:
    """Deny rules and protected places do not ask about commands that only look like denied ones, nor about everyday ones."""
    assert answer(NO_DESTRUCTION, "bash", json.dumps({"command": command})) == "allow"


@pytest.mark.parametrize(("policy", "command"), ALLOWED_BY)
def test_what_rules_name_is_allowed(policy: str, command: str) -> None:
    """Options in git's tables, and input for a rule or a program that may have it, are allowed without a request."""
    assert answer(policy, "bash", json.dumps({"command": command})) == "allow"


@pytest.mark.parametrize(("policy", "raw"), ALLOWED_ARGUMENTS)
def test_ordinary_arguments_are_allowed(policy: str, raw: str) -> None:
    """Arguments that the rules allow run without a request."""
    assert answer(policy, "pay", raw) == "allow"


@pytest.mark.parametrize(("policy", "path"), ALLOWED_PATHS)
def test_ordinary_paths_are_allowed(policy: str, path: str, workspace: Path) -> None:
    """Paths that the rules allow run without a request."""
    raw = json.dumps({"path": path.replace("@", str(workspace))})
    assert answer(policy, "write_file", raw, str(workspace)) == "allow"


def test_the_corpus_only_keeps_calls_back() -> None:
    """The corpus has at least 120 rows, and none expects a call to run."""
    rows = [*SHELL, *ARGUMENTS, *PATHS]
    assert len(rows) >= 120
    assert {row[3] for row in rows} == {"ask", "deny"}
