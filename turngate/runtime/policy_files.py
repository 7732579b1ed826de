"""Policy files on this machine. An error names the line of the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from turngate import text_files
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy, parse_policy

_POSITION: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_RULE: Final = re.compile(r"\brule\.(\d+)\b(?:\.([A-Za-z_]\w*))?")
_HEADER: Final = re.compile(r"^[ \t]*\[\[[ \t]*rule[ \t]*\]\]", re.MULTILINE)


def read_text(file: Path, *, what: str = "the policy file") -> str:
    """Return a file's text. Raises ConfigurationError when it cannot be read."""
    try:
        return text_files.read_text(file)
    except (OSError, text_files.NotTextError) as error:
        reason = text_files.why_unreadable(error)
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
    if rule is None:
        table = message.rpartition(": there is no such key")[0].rpartition(" ")[2]
        line = next((at for at, each in enumerate(text.splitlines(), 1) if each.strip("[] \t").startswith(table)), None)
        return f":{line}" if table and line else ""
    line = _line_of_rule(text, int(rule.group(1)))
    if line is None:
        return ""
    return f":{_line_of_key(text, line, rule.group(2)) or line}"


def _line_of_key(text: str, header: int, key: str | None) -> int | None:
    """Return the line of a rule's key, or of its table below; None: it is missing. ``header``: the line where the rule begins."""
    for number, line in enumerate(text.splitlines()[header:], header + 1):
        stripped = line.strip()
        if _HEADER.match(line):
            return None
        if stripped.partition("=")[0].strip() == key or stripped.strip("[] ").partition(".")[2] == key:
            return number
    return None


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
