"""Policy files on this machine. An error names the line of the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, parse_policy

_POSITION: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_RULE: Final = re.compile(r"\brule\.(\d+)\b")
_HEADER: Final = re.compile(r"^[ \t]*\[\[[ \t]*rule[ \t]*\]\]", re.MULTILINE)


def read_text(file: Path, *, what: str = "the policy file") -> str:
    """Return a file's text. Raises ConfigurationError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{what} {str(file)!r} cannot be read: {reason}") from None


def read_policy(file: Path) -> Policy:
    """Return a file's rules. Raises ConfigurationError that begins with ``FILE:LINE:`` where the line is known."""
    return _parse(read_text(file), file)


def checked_source(file: Path) -> str:
    """Return a file's text after checking that it is valid rules. Raises ConfigurationError as :func:`read_policy` does."""
    text = read_text(file)
    _parse(text, file)
    return text


def _parse(text: str, file: Path) -> Policy:
    try:
        return parse_policy(text, source=repr(str(file)))
    except ConfigurationError as error:
        problem = error.message.removeprefix(f"policy {str(file)!r}").removeprefix(": ").strip()
        raise ConfigurationError(f"{file}{_place(text, error.message)}: {problem}") from None


def _place(text: str, message: str) -> str:
    at = _POSITION.search(message)
    if at is not None:
        return f":{at.group(1)}:{at.group(2)}"
    rule = _RULE.search(message)
    line = None if rule is None else _line_of_rule(text, int(rule.group(1)))
    return "" if line is None else f":{line}"


def _line_of_rule(text: str, place: int) -> int | None:
    """Return the line where a rule's table begins. A text that only looks like one, in a multi-line string, does not count."""
    number = -1
    for header in _HEADER.finditer(text):
        try:
            tomllib.loads(text[: header.start()])
        except tomllib.TOMLDecodeError:
            continue
        number += 1
        if number == place:
            return text.count("\n", 0, header.start()) + 1
    return None
