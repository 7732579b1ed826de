"""One module turns history into requests: no other writes a provider's messages or words a result for the model.

A rule about the source, like the import contracts: a second writer would skip the repair, and could show the model
something else than the operators see.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield every module of the product, by its path from the root."""
    for folder in ("turngate", "activities", "workflows", "approvals_api"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def keys(node: ast.AST) -> set[str]:
    """Return the constant keys of a dict display."""
    if not isinstance(node, ast.Dict):
        return set()
    return {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def where(matches: Callable[[ast.AST], bool]) -> set[str]:
    return {name for name, tree in sources() if any(matches(node) for node in ast.walk(tree))}


@pytest.mark.exhaustive
def test_one_module_writes_a_providers_messages() -> None:
    """Only the request's module, and the one that joins neighbours, write a ``role`` next to a ``content``."""
    assert where(lambda node: {"role", "content"} <= keys(node)) == {
        "turngate/models/openai/request.py",
    }


@pytest.mark.exhaustive
def test_one_module_words_a_failure_for_the_model() -> None:
    """Only ``wire_text`` writes ``{"error": {"kind", "message"}}``; models, bridges and editors use its text."""

    def writes_an_error(node: ast.AST) -> bool:
        return isinstance(node, ast.Dict) and any(
            isinstance(key, ast.Constant) and key.value == "error" and {"kind", "message"} <= keys(value)
            for key, value in zip(node.keys, node.values, strict=True)
        )

    def imports_wire_text(node: ast.AST) -> bool:
        return isinstance(node, ast.ImportFrom) and any(alias.name == "wire_text" for alias in node.names)

    assert where(writes_an_error) == {"turngate/domain/tools/results.py"}
    assert where(imports_wire_text) == {
        "turngate/bridges/mcp_gateway/results.py",
        "turngate/bridges/external_calls.py",
        "turngate/domain/agents/context_window.py",
        "turngate/domain/conversation/summaries.py",
        "turngate/frontends/acp/calls.py",
        "turngate/frontends/acp/history.py",
        "turngate/models/openai/request.py",
        "turngate/models/pydantic_ai/request.py",
        "turngate/models/scripted.py",
    }
