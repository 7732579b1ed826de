"""``turngate init``: a directory with an app that runs as it is, to be changed from there."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.domain.errors import ConfigurationError

SCAFFOLD: Final = "scaffold"
SUFFIX: Final = ".txt"
"""The templates carry it so that linters and test runners of this repository leave them alone."""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; it must not exist yet, or be empty.")],
) -> None:
    """Make a new app in DIR: an agent with two tools, a policy, a scripted model and tests."""
    made = write_scaffold(directory)
    terminal.line(f"made {', '.join(made)} in {directory}")
    terminal.line("")
    terminal.line("Next:")
    terminal.line(("  cd " + shlex.quote(str(directory)) + " && turngate up my_app:app", "bold"))


def write_scaffold(directory: Path) -> list[str]:
    """Write the app's files; returns their names. Raises ConfigurationError when something is there already."""
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigurationError(f"{directory} is not an empty directory: name one that is, or a new one")
        directory.mkdir(parents=True, exist_ok=True)
        made = []
        for template in sorted(files("turngate.cli").joinpath(SCAFFOLD).iterdir(), key=lambda entry: entry.name):
            name = template.name.removesuffix(SUFFIX)
            (directory / name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
            made.append(name)
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be written: {error.strerror or error}") from None
    return made
