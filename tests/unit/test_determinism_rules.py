"""Workflow code and pure rules take time and chance from outside: Temporal replays them (STYLE habit 8).

ruff's banned-api holds for a whole project, not for two folders; hence a test that resolves names as Python does.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("workflows", "turngate/domain")
BANNED = (
    "random",
    "secrets",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.perf_counter",
    "time.sleep",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)


def imported(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, local name and full name of everything the source imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a; `import a.b as c` binds a.b.
                top = alias.name.partition(".")[0]
                yield node.lineno, alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module}.{alias.name}"


def attributes(tree: ast.AST, origins: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every dotted name that begins with something imported."""
    for node in ast.walk(tree):
        trail: list[str] = []
        value = node
        while isinstance(value, ast.Attribute):
            trail.append(value.attr)
            value = value.value
        if trail and isinstance(value, ast.Name) and value.id in origins:
            yield node.lineno, ".".join([origins[value.id], *reversed(trail)])


def violations(source: str, name: str) -> list[str]:
    """Return ``name:line: what`` for each use of a banned name, whatever it was imported as."""
    tree = ast.parse(source)
    imports = list(imported(tree))
    used = [(line, origin) for line, _local, origin in imports]
    used += attributes(tree, {local: origin for _line, local, origin in imports})
    return [
        f"{name}:{line}: {origin}"
        for line, origin in sorted(set(used))
        if any(f"{origin}.".startswith(f"{banned}.") for banned in BANNED)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_clock_and_no_chance(folder: str):
    """Nothing in the folder reads a clock, sleeps, or draws a random value."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} holds no Python: has it moved?"
    problems = [
        problem
        for file in files
        for problem in violations(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)))
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("import random", "random"),
        ("from random import choice", "random.choice"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("from uuid import uuid4 as new", "uuid.uuid4"),
        ("import datetime as dt\ndt.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime\nx = datetime.now", "datetime.datetime.now"),
        ("import time\ntime.time()", "time.time"),
        ("import os\nos.urandom(3)", "os.urandom"),
    ],
)
def test_the_rule_finds(source: str, origin: str):
    """Each spelling is found."""
    assert violations(source, "f.py") == [f"f.py:{len(source.splitlines())}: {origin}"]


def test_the_rule_allows():
    """Temporal's own clock and ids, and values made elsewhere, are allowed."""
    source = (
        "from datetime import datetime, UTC\nfrom temporalio import workflow\n"
        "workflow.now(); workflow.uuid4(); workflow.random(); workflow.time()\n"
        "datetime(2026, 1, 1, tzinfo=UTC); datetime.fromisoformat('x')\n"
    )
    assert violations(source, "f.py") == []
