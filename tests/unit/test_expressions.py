"""The lint that keeps backtracking expressions out (I14)."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _program() -> ModuleType:
    """Import scripts/expressions, which has no .py at its end."""
    loader = importlib.machinery.SourceFileLoader("expressions", str(ROOT / "scripts" / "expressions"))
    spec = importlib.util.spec_from_loader("expressions", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["expressions"] = module  # dataclasses look their module up
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes_bytecode
    return module


expressions = _program()


def reasons(source: str) -> list[str]:
    return [hit.reason for hit in expressions.Module("a.py", source).hits()]


@pytest.mark.parametrize(
    "call",
    [
        r"re.fullmatch(r'(a+)+', text)",
        r"re.fullmatch(r'(a|b|ab)*c', text)",
        r"re.fullmatch(r'(a|a)*', text)",
        r"re.fullmatch(r'(x+x+)+y', text)",
        r"re.fullmatch(r'(?:a?b?){2,}c', text)",
        r"re.fullmatch(r'\d+\d*x', text)",
        r"re.fullmatch(r'.*a.*b', text)",
        r"re.fullmatch(r'\s*[;\n]?\s*p', text)",
        r"re.fullmatch(r'[a-z]*[é-ü]?[a-z]*', text)",
        r"re.fullmatch(r'[^é]*[^ü]*x', text)",
        r"re.fullmatch(r'(?=(a+)+b)a*', text)",
        r"re.fullmatch(r'(a)\1', text)",
        r"re.fullmatch(r'(?i)a*A*b', text)",
        r"re.search(r'\w+@', text)",
        r"re.sub(r'\s+$', '', text)",
        r"re.findall(r'\"(?:[^\"\\]|\\.)*\"', text)",
        r"re.search(rf'{text}', text)",
        r"re.compile(text)",
        "re.compile(A + B).match(text)\nA = 'a*'\nB = 'a*'",
        r"re.compile(b'x.*y.*z', re.DOTALL)",
    ],
)
def test_i14_expressions_that_a_text_can_keep_busy_are_refused(call: str) -> None:
    """Each takes the square of the text's length or worse, or no one can tell."""
    assert reasons(f"import re\n{call}")


@pytest.mark.parametrize(
    "call",
    [
        r"re.fullmatch(r'[a-z][a-z0-9_-]{0,63}', text)",
        r"re.fullmatch(r'(/([^~/]|~[01])*)*', text)",
        r"re.fullmatch(r'-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?', text)",
        r"re.fullmatch(r'\s*\S+\s*|\s+', text)",
        r"re.fullmatch(r'a*+a*+b', text)",
        r"re.search(r'\bsk-[\w-]{16,}', text)",
        r"re.search(r'://[^/:@]*:', text)",
        r"re.search(r'^[ \t]*x', text)",
        r"re.search(r'(?m)^[ \t]*x', text)",
        r"re.sub(r'[^a-z]', '_', text)",
        r"re.split(r'\s+', text)",
    ],
)
def test_expressions_in_linear_time_pass(call: str) -> None:
    """The time of each grows with the length of the text only."""
    assert reasons(f"import re\n{call}") == []


def test_constants_of_the_module_are_put_together() -> None:
    """An expression from constants is checked as what it becomes; how its name is used tells whether it is a search."""
    constant = "import re\nPART = r'[a-z]+'\nWHOLE = re.compile(rf'{PART}@')\n"
    assert reasons(f"{constant}WHOLE.search(text)")
    assert reasons(f"{constant}WHOLE.fullmatch(text)") == []


def test_no_import_hides_an_expression() -> None:
    """Functions of re are called by the module's name only."""
    assert reasons("from re import compile")


def test_i14_the_project_passes() -> None:
    """No expression in the product backtracks over text from outside, and each exception is needed."""
    assert expressions.main() == 0
