"""The Python samples of the documents, and the modules beside a reader's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import turngate

ROOT = Path(__file__).parents[3]
PAGES = (
    ROOT / "README.md",
    ROOT / "turngate-client" / "README.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
)
EXAMPLES = ("announce", "evals", "refunds", "research")
"""A page that is about an example imports from its module."""
_SAMPLE = re.compile(r"^```(\w{1,20})\n(.*?)^```", re.DOTALL | re.MULTILINE)


def samples_of(page: Path, language: str = "python") -> list[str]:
    """Return a page's samples in a language, in order."""
    return [text for of, text in _SAMPLE.findall(page.read_text(encoding="utf-8")) if of == language]


def run_sample(page: Path, number: int) -> dict[str, Any]:
    """Run a sample as a module that is imported, and return its names."""
    names: dict[str, Any] = {"__name__": "sample"}
    code = compile(samples_of(page)[number], f"{page.name}, sample {number}", "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102 - our own documents
    return names


def write_scaffold(directory: Path) -> None:
    """Write the module that ``turngate init`` makes, which the README shows."""
    scaffold = Path(turngate.__file__).parent / "cli" / "scaffold" / "support" / "my_app.py.txt"
    (directory / "my_app.py").write_text(scaffold.read_text(encoding="utf-8"), encoding="utf-8")
