"""Install instructions: only names that an index has, files, or a checkout; and each extra where it belongs."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME_ON_NO_INDEX = re.compile(r"turngate\[\w|(?:pip|pipx|uv tool) install (?:\S+ )*['\"]?turngate\b(?!-)")
TEXTS = (
    "turngate",
    "approvals_api",
    "activities",
    "workflows",
    "docs",
    "examples",
    "turngate-client",
    "README.md",
    "CHANGELOG.md",
)
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def texts() -> Iterator[Path]:
    for top in TEXTS:
        files = (ROOT / top).rglob("*") if (ROOT / top).is_dir() else [ROOT / top]
        yield from (file for file in files if file.suffix in {".md", ".py", ".txt", ".html"})


def test_nothing_says_to_install_turngate_from_an_index() -> None:
    """No index has it: the command would fail, or install someone else's package."""
    by_file = {str(file.relative_to(ROOT)): NAME_ON_NO_INDEX.findall(file.read_text()) for file in texts()}
    assert {file: names for file, names in by_file.items() if names} == {}


def test_the_pattern_knows_a_name_from_a_file() -> None:
    """The check above can fail, and accepts the how-to's own commands."""
    for wrong in (
        "pip install turngate",
        "pip install -U 'turngate'",
        "the extra turngate[mcp]",
        "uv tool install turngate",
    ):
        assert NAME_ON_NO_INDEX.search(wrong), wrong
    for right in (
        "pip install ./turngate-0.2.0-py3-none-any.whl",
        "pipx inject turngate rich",
        "pip uninstall turngate",
    ):
        assert not NAME_ON_NO_INDEX.search(right), right


def test_every_extra_is_explained() -> None:
    """The how-to's table has each extra of pyproject.toml once, and no other."""
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "howto" / "install.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(EXTRAS)


def test_an_error_names_an_extra_that_there_is() -> None:
    """Each extra has code that says when it is missing, and none is misspelled."""
    named = set()
    raising = [text for file in (ROOT / "turngate").rglob("*.py") if "MissingExtraError(" in (text := file.read_text())]
    for node in (node for text in raising for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "MissingExtraError":
            named.add(ast.literal_eval(node.args[1]))
    assert named == EXTRAS
