"""Groups of commands that are known by name and help line alone until one of them is needed.

``turngate --help`` needs no more of a command than that, nor does an unknown command. So a command's module imports what the
command needs at its top, as any module does, and is itself imported when the command runs or its own ``--help`` is asked for.
"""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_group

MARKUP: Final = "markdown"
"""What help texts are written in."""


class CommandGroup(typer.Typer):
    """Commands that belong together, each declared in a module of one package.

    Args:
        package: the package's ``__name__``.
        panel: the heading above these commands in ``turngate --help``.
    """

    def __init__(self, package: str, *, panel: str) -> None:
        super().__init__()
        self._package = package
        self._panel = panel

    def add(self, name: str, place: str, help_line: str, **settings: Any) -> None:
        """Add a command, or a Typer of subcommands.

        Args:
            name: what people type.
            place: ``module:attribute`` in the group's package: the command's function, or the Typer.
            help_line: the first paragraph of its help (a test compares the two).
            settings: of the command, as ``typer.Typer.command`` takes them.
        """
        module, _, attribute = place.partition(":")
        path = f"{self._package}.{module}"

        class Listed(_ListedCommand):
            def load(self) -> Any:  # typer's command classes have no public name
                holder = typer.Typer(rich_markup_mode=MARKUP)
                declared = getattr(_import(path), attribute)
                if isinstance(declared, typer.Typer):
                    holder.add_typer(declared, name=name)
                else:
                    holder.command(name, **settings)(declared)
                return get_group(holder).commands[name]

        self.command(name, cls=Listed, help=help_line, rich_help_panel=self._panel)(_not_loaded)


class _ListedCommand(TyperCommand):
    """A command in a list: its name and help line. Parsing its arguments loads it."""

    def load(self) -> Any:
        """Import the command's module and return the command itself."""
        raise NotImplementedError

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return a context of the loaded command, which is what runs."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


def _import(path: str) -> ModuleType:
    """Import a command's module while the garbage collector rests.

    Modules stay for the life of the process. The collector would go through them again and again while they are imported,
    which is a fifth of the time, and once more at its next full collection.
    """
    if not gc.isenabled():
        return import_module(path)
    gc.disable()
    try:
        return import_module(path)
    finally:
        gc.freeze()
        gc.enable()


def _not_loaded() -> None:
    """Take the place of a command's function in a list."""
