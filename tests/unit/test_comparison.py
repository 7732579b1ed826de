"""The page that compares Turngate with other systems: what it claims for us, a test proves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
PROOF = re.compile(r"\[`(test_\w{1,120})`\]\(\.\./(tests/[\w/]{1,80}\.py)\)")


def test_each_of_our_claims_links_a_test_that_exists() -> None:
    """A row without a test, or with the name of one that was renamed, is a claim without a proof."""
    proved = PAGE.read_text(encoding="utf-8").partition("## What proves our column")[2].partition("\n## ")[0]
    rows = [row for row in proved.splitlines() if row.startswith("|")][2:]
    named = [PROOF.findall(row) for row in rows]
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert [test for tests in named for test in tests if test[0] not in _functions(ROOT / test[1])] == []


def test_each_claim_about_another_system_has_its_source() -> None:
    """Each cell of another system's column says where its documentation says so, or that the code is the reader's own."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    sources = {line.partition(":")[0] for line in lines if re.match(r"\[\d\]: https://", line)}
    rows = [row.split("|")[2:7] for row in lines if row.startswith("| **")]
    cells = [cell.strip() for row in rows for cell in row]
    without = [cell for cell in cells if not re.search(r"\[\d\]", cell)]
    assert without == ["your code", "child workflows, your code"]
    assert {number for cell in cells for number in re.findall(r"\[\d\]", cell)} == sources


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
