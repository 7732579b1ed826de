"""Commands are known by name before they are imported, and what is said of them then is what they say themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from turngate.cli.main import app

SLOW = {
    "alembic",
    "fastapi",
    "httpx",
    "pydantic",
    "sqlalchemy",
    "starlette",
    "temporalio",
    "turngate.domain.agents.app",
}
LOADED = "import sys; print(*sorted(set(sys.modules) & set(sys.argv[1].split())), file=sys.stderr)"
HELP = """
from turngate.cli.main import app
try:
    app({arguments!r}, prog_name="turngate")
except SystemExit:
    pass
"""
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"]])
def test_a_list_of_commands_imports_none_of_them(arguments: list[str]) -> None:
    """Only names and help lines are needed, so nothing that a command is made of is imported."""
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(arguments=arguments) + LOADED, " ".join(SLOW)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_listed_command_says_of_itself_what_the_list_says(name: str) -> None:
    """The list has the first paragraph of the command's own help."""
    listed = COMMANDS[name]
    command = listed.load()
    assert command.name == name
    assert listed.help == command.help.split("\n\n")[0].replace("\n", " ")


def test_completion_offers_every_command_by_name() -> None:
    """A shell that completes a word gets names, and no command is imported for it."""
    command = get_command(app)
    context = command.make_context("turngate", [], resilient_parsing=True)
    assert [item.value for item in command.shell_complete(context, "re")] == [
        "replay-check", "recover", "reconcile", "restore", "resume", "result", "retry", "replay", "requests", "retention",
    ]  # fmt: skip
