"""What ``from turngate import …`` offers: each name is imported at its first use, and is known before."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import turngate

NAMES = [
    "Agent", "App", "CommandBlock", "ConfigurationError", "Context", "ControlCall", "Deny", "DidNotHappen",
    "DiffBlock", "Failure", "Finish", "HandOff", "Happened", "HookedCall", "Hooks", "InvalidToolInput",
    "Invocation", "JsonBlock", "Judge", "Limits", "NoProgress", "NothingHappened", "Ok",
    "OutcomeUnknown", "Parameters", "Policy", "Presentation",
    "Preview", "Price", "ProbeAnswer", "Proceed", "Rule", "RunScope", "SwitchModel", "TableBlock", "TextBlock",
    "Tool", "ToolContext", "ToolFailure", "ToolManifest", "Toolkit", "WaitUntil", "control_call_tool",
    "declare_tool", "interaction_tool", "provider_tool", "sub_agent", "tool",
]  # fmt: skip


def imported_for_type_checkers() -> dict[str, str]:
    """Return each name under ``if TYPE_CHECKING`` with its module."""
    tree = ast.parse(Path(turngate.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_the_public_names_are_these() -> None:
    """A name that builders import goes away, or comes, on purpose only."""
    assert turngate.__all__ == NAMES
    assert set(NAMES) <= set(dir(turngate))


def test_type_checkers_know_each_name_from_where_it_is_imported() -> None:
    """What mypy and editors see is what Python gets."""
    known = imported_for_type_checkers()
    assert sorted(known) == sorted(NAMES)
    for name, module in known.items():
        assert getattr(turngate, name) is getattr(import_module(module), name)


def test_a_star_import_has_every_name() -> None:
    """Also in a process that has used none of them yet."""
    code = "from turngate import *; print(*sorted(name for name in dir() if not name.startswith('_')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(NAMES)


def test_the_version_is_the_installed_one() -> None:
    """Asked of the package, and of the command as a module."""
    done = subprocess.run([sys.executable, "-m", "turngate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"turngate {turngate.__version__}\n" == f"turngate {version('turngate')}\n"


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    """The command line and the client import ``turngate`` too, and need few of its names."""
    code = "import sys, turngate; print(*(name for name in sys.modules if name.startswith(('turngate.', 'pydantic'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of any module, so that ``hasattr`` works."""
    with pytest.raises(AttributeError, match="module 'turngate' has no attribute 'Agents'"):
        _ = turngate.Agents  # type: ignore[attr-defined]
