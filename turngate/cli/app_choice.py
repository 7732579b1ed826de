"""Which app a command means that names none: never one that the user may not expect.

A directory's own apps are found by reading its modules, not by importing them: looking must not run anything.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from turngate.cli.options import DEFAULT_APP
from turngate.domain.errors import ConfigurationError
from turngate.text_files import read_regular

FILES_READ: Final = 200
MOST_BYTES: Final = 256 * 1024
APPS_NAMED: Final = 5


def require_app(target: str | None, command: str) -> str:
    """Return the app that a command serves. ``target`` None: the built-in agent, unless the directory has an app of its own.

    ``command``: as the user types it, without the app.

    Raises ConfigurationError, which names the directory's apps: a shell agent in their place would be a surprise.
    """
    if target is not None:
        return target
    apps = apps_here()
    if not apps:
        return DEFAULT_APP
    commands = " or ".join(f"`{command} {app}`" for app in apps[:APPS_NAMED])
    raise ConfigurationError(
        f"no app is named, and this directory has {'one' if len(apps) == 1 else 'some'}: use {commands}. For the built-in "
        f"coding agent, which edits files and runs commands, name it: `{command} {DEFAULT_APP}`"
    )


def apps_here() -> list[str]:
    """Return the apps of the current directory's modules and of its packages' modules, as ``module:attribute``, by name."""
    return sorted(app for module, file in _modules(Path.cwd()) for app in _apps_of(module, file))


def _modules(directory: Path) -> Iterator[tuple[str, Path]]:
    own = ((file.stem, file) for file in directory.glob("*.py"))
    packages = (
        (file.parent.name if file.stem == "__init__" else f"{file.parent.name}.{file.stem}", file)
        for package in directory.glob("*/__init__.py")
        for file in package.parent.glob("*.py")
    )
    for module, file in itertools.islice(itertools.chain(own, packages), FILES_READ):
        if not file.stem.startswith("test_") and all(part.isidentifier() for part in module.split(".")):
            yield module, file


def _apps_of(module: str, file: Path) -> Iterator[str]:
    """Yield the names at the top of a module that are given ``App(…)``, or annotated with ``App``."""
    try:
        text = read_regular(file, MOST_BYTES)
        if b"turngate" not in text:
            return
        body = ast.parse(text).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):  # it can't be an app that starts
        return
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=callee)) if _is_app(callee):
                yield f"{module}:{name}"
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if _is_app(kind):
                yield f"{module}:{name}"


def _is_app(node: ast.expr) -> bool:
    match node:
        case ast.Name(id="App") | ast.Attribute(attr="App"):
            return True
    return False
