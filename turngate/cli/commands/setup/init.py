"""``turngate init``: a new directory with an app that runs, as a start for the user's own."""

from __future__ import annotations

import shlex
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from turngate.cli import terminal
from turngate.domain.errors import ConfigurationError
from turngate.models.script import script_schema

Template = Literal["support", "coding", "sql"]

SCAFFOLD: Final = "scaffold"
SUFFIX: Final = ".txt"
"""Added to the templates' names, so that linters and test runners of this repository ignore them."""

SCHEMA: Final = "script.schema.json"
"""What the script's first line names for editors."""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    template: Annotated[
        Template,
        typer.Option(
            help="support: a support desk that pays refunds. coding: a coding agent in a confined workspace. "
            "sql: a data agent that asks before it changes rows."
        ),
    ] = "support",
) -> None:
    """Make a new app in DIR: an agent with its tools, a policy, a scripted model, tests and eval cases."""
    names = write_scaffold(directory, template)
    terminal.line(f"wrote {', '.join(names)} to {directory}")
    terminal.line("")
    terminal.line("Next:")
    terminal.line(("  cd " + shlex.quote(str(directory)) + " && turngate up my_app:app", "bold"))


def write_scaffold(directory: Path, template: Template) -> list[str]:
    """Write the app's files and return their names. Raises ConfigurationError when the directory is not empty."""
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigurationError(f"{directory} is not an empty directory: choose an empty or a new one")
        directory.mkdir(parents=True, exist_ok=True)
        names = _copy(files("turngate.cli").joinpath(SCAFFOLD, template), directory)
        (directory / SCHEMA).write_text(script_schema(), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be written: {error.strerror or error}") from None
    return sorted([*names, SCHEMA])


def _copy(template: Traversable, directory: Path) -> list[str]:
    """Write a template's files, those of its folders too, and return their names."""
    directory.mkdir(exist_ok=True)
    names = []
    for entry in template.iterdir():
        name = entry.name.removesuffix(SUFFIX)
        if entry.is_dir():
            names += [f"{name}/{each}" for each in _copy(entry, directory / name)]
        else:
            (directory / name).write_text(entry.read_text(encoding="utf-8"), encoding="utf-8")
            names.append(name)
    return names
