"""The layout of the house: folders that fit on a screen, and no module of a few lines for one other.

Import contracts (`.importlinter`) check directions and cycles.

The lists of exceptions can only shrink: an entry that is no longer needed fails the test, so it is deleted with its cause.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("turngate", "workflows", "activities", "approvals_api")
MOST_ENTRIES = 25
FEWEST_LINES = 60

CROWDED: dict[str, str] = {}
"""Folder → why it may show more than 25 modules and folders."""

SMALL: dict[str, str] = {
    "activities/close_step.py": "an activity: one file each",
    "activities/open_scheduled.py": "an activity: one file each",
    "activities/settle_call.py": "an activity: one file each",
    "activities/steer_run.py": "an activity: one file each",
    "approvals_api/gateway/expedite.py": "one thing asked of Temporal's server, with the versions that know it",
    "approvals_api/v1/agents.py": "a noun of the API: its router",
    "turngate/cli/default_app.py": "an app that is loaded by name, as a builder's is",
    "turngate/domain/contract/names.py": "the names on the wire, read beside recorded histories",
    "turngate/models/pydantic_ai/loader.py": "imports nothing of the extra, which its neighbours do",
    "turngate/runtime/die_with_parent.py": "a program of its own, run by path",
    "turngate/runtime/secret_files.py": "opens files; settings declare what there is",
    "turngate/store/access/idempotent_answers.py": "SQL stays in the store; its importer is an operation",
    "turngate/store/badges.py": "SQL stays in the store; its importer is a page",
    "turngate/toolkits/coding.py": "a toolkit that builders import",
}
"""Module of less than 60 lines with a single importer → why it is a module of its own."""


def modules() -> Iterator[Path]:
    """Every module of the product, relative to the root; migrations and the demo's own project are data."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if not {"versions", "demo_project", "__pycache__"} & set(file.parts):
                yield file.relative_to(ROOT)


def importers() -> dict[str, set[str]]:
    """Dotted module → the modules that import it, wherever in their text; type-checking imports count."""
    names = {_dotted(file) for file in modules()}
    by_target: dict[str, set[str]] = defaultdict(set)
    for file in [*modules(), Path("worker.py")]:
        for target in _imports(ROOT / file, names):
            if target != _dotted(file):
                by_target[target].add(_dotted(file))
    return by_target


def test_a_folder_shows_at_most_25_entries() -> None:
    """More than that means that a family inside has no folder yet."""
    entries: dict[str, set[str]] = defaultdict(set)
    for file in modules():
        for parent, child in zip(file.parents, [file, *file.parents], strict=False):
            if child.name != "__init__.py" and parent != Path():
                entries[parent.as_posix()].add(child.name)
    crowded = {folder for folder, inside in entries.items() if len(inside) > MOST_ENTRIES}
    assert crowded == set(CROWDED)


def test_a_small_module_has_more_than_one_importer() -> None:
    """What only one module uses belongs in that module."""
    used_by = importers()
    small = {
        file.as_posix()
        for file in modules()
        if file.name != "__init__.py"
        and len((ROOT / file).read_text(encoding="utf-8").splitlines()) < FEWEST_LINES
        and len(used_by[_dotted(file)]) == 1
    }
    assert small == set(SMALL)


@pytest.mark.parametrize("exceptions", [CROWDED, SMALL])
def test_an_exception_has_a_reason(exceptions: dict[str, str]) -> None:
    """The next reader need not guess why it is in the list."""
    assert all(exceptions.values())


def _dotted(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def _imports(file: Path, names: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module
