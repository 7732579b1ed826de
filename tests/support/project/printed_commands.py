"""The ``turngate`` commands that texts of this repository name: in strings of the code, templates, documents and examples."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer
from typer.main import get_command

from turngate.cli.main import app

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ("turngate", "approvals_api", "activities", "workflows", "worker.py", "examples")
TEXTS: Final = ("*.md", "*.html", "*.txt", "*.yaml", "*.yml", "*.toml", "*.sh", "*.js")
FOLDERS: Final = ("turngate", "approvals_api", "docs", "examples", "deploy")
ADR: Final = ROOT / "docs" / "adr"
"""Records of decisions keep the commands of their day."""
NAME: Final = "turngate"
OPTIONS: Final = " --data-dir D --url http://127.0.0.1:1"
"""What leads a printed command to its stack (``ApiLink.options``), where it is printed by a command that was led by options."""
FILLED: Final = {"options": OPTIONS, "here": OPTIONS, "outcome": "happened"}
"""What an f-string fills in, by the name of its value, if that is no number or name."""
ENDS: Final = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "2>", "<", "(", ")"})
OTHER: Final = frozenset({"import", "could", "ended", "revision", "package", "--build-id"})
"""Words that follow the name where it is no command: the module, the confined process's launcher, a deployment's name."""
EXPRESSION: Final = re.compile(r"\{\{[^{}\n]*\}\}")
"""What a template fills in, on one line."""
PLACEHOLDERS: Final = {
    **dict.fromkeys(("N", "STEP", "VERSION", "NUMBER", "PORT"), "1"),
    "SCOPE": "requests:read",
    "ROLE": "operator",
}
"""Words in capitals that take the place of a number or a choice; every other one takes the place of a text."""


@dataclass(frozen=True)
class Printed:
    """A command as it is printed. ``where``: file and line."""

    where: str
    command: str


def in_code(*packages: str) -> Iterator[Printed]:
    """Yield the commands in the strings of the code, or of these packages and files.

    What an f-string fills in is ``1``, which fits numbers and names.
    """
    for package in packages or PACKAGES:
        path = ROOT / package
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            if f"{NAME} " in source:
                for line, text in _strings(ast.parse(source)):
                    yield from _commands(text, file, line)


def in_texts() -> Iterator[Printed]:
    """Yield the commands in documents, templates, scaffolds and what is deployed."""
    files = {file for folder in FOLDERS for pattern in TEXTS for file in (ROOT / folder).rglob(pattern)}
    for file in sorted({*files, *ROOT.glob("*.md")}):
        if ADR not in file.parents and "node_modules" not in file.parts:
            yield from _commands(EXPRESSION.sub("1", file.read_text(encoding="utf-8")), file, 1)


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(tree))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_filled(part) for part in node.values)


def _filled(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    name = ast.unparse(part.value).rpartition(".")[2]
    return FILLED.get(name, "1")


def _commands(text: str, file: Path, line: int) -> Iterator[Printed]:
    """Yield the commands of a text: each ends with its backtick, its quote, its tag, or its line."""
    text = text.replace("\\\n", " ").replace("``", "`")
    start = text.find(f"{NAME} ")
    while start >= 0:
        before, rest = text[:start], text[start:]
        if not before or not (before[-1].isalnum() or before[-1] in "-_/.@"):
            end = "`" if before.rpartition("\n")[2].count("`") % 2 else "\n"
            end = before[-1] if before[-1:] in {'"', "'"} else end
            command = rest.partition(end)[0].partition("</")[0]
            command = " ".join(command.split())
            if _is_command(command):
                yield Printed(f"{file.relative_to(ROOT)}:{line + before.count(chr(10))}", command)
        start = text.find(f"{NAME} ", start + 1)


def _is_command(text: str) -> bool:
    words = text.split(" ")
    return len(words) > 1 and words[1].lower() not in OTHER and words[1].strip("`.,:;").replace("-", "").isalpha()


def problem_of(printed: Printed) -> str | None:
    """Return what is wrong with a command; None if it can be typed as it is printed."""
    return _problem_of(printed.command)


@cache
def _problem_of(command: str) -> str | None:  # most commands are printed more than once
    try:
        words = _words(command)
    except ValueError as error:
        return str(error)
    return _parse(_loaded(app), words)


@cache
def _loaded(listed: Any) -> Any:
    """Return the program's commands, or what a listed command loads. Making them takes longer than parsing."""
    return listed.load() if hasattr(listed, "load") else get_command(listed)


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if word in ENDS:
            break
        words.append(PLACEHOLDERS.get(word.strip("[]"), word.strip("[]")))
    return [word for word in words[1:] if word != "--help"]


def _parse(command: Any, words: list[str]) -> str | None:  # typer's command classes have no public names
    group = command
    names: list[str] = []
    context = None
    try:
        while hasattr(group, "commands"):
            if not words:
                return None  # it prints its help
            with group.make_context(names[-1] if names else NAME, list(words), parent=context) as context:
                words = [*context._protected_args, *context.args]
                if not words:
                    return None  # only options of its own: it answers by itself, or prints its help
                name, member, words = group.resolve_command(context, words)
            names.append(name)
            group = _loaded(member) if hasattr(member, "load") else member
        if all(word.startswith("--") for word in words):  # a name of the command or of its option, in a sentence
            unknown = set(words) - {option for each in group.params for option in each.opts}
            return f"there is no option {', '.join(sorted(unknown))}" if unknown else None
        with group.make_context(names[-1], list(words), parent=context):
            return None
    except typer.Exit:
        return None  # --help
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        return error.format_message()
