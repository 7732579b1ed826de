"""The pattern of a command rule, read and checked: a program, then flags and operands in order.

``rm -r|--recursive *``: words apart by blanks; ``|`` inside a word separates alternatives; ``--flag=value`` means the value in
the same word or in the next one; ``*`` as the last word stands for any further words. What it means for a command is in
``command_rules``. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from turngate.domain.policy.globs import has_wildcard, parse_glob

_UNPRINTABLE = re.compile(r"[^\x20\x21-\x7e\u00a1-\U0010ffff]")
_SHELL = re.compile(r"[;&<>()$`\\\"'#]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_TEST_PROGRAMS = frozenset({"[", "[["})


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagName:
    """One way to write a flag. ``value``: a glob its value must fit; None: whatever follows is not looked at."""

    name: str
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """A flag that must be there, in one of several writings. ``after``: how many operands of the pattern precede it."""

    names: tuple[FlagName, ...]
    after: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandPattern:
    """``operands``: for each, the globs that will do (``--`` stands for itself). ``rest``: it ends with ``*``."""

    text: str
    programs: tuple[str, ...]
    flags: tuple[Flag, ...]
    operands: tuple[tuple[str, ...], ...]
    rest: bool

    @property
    def any_program(self) -> bool:
        """Tell whether the program does not matter."""
        return self.programs == ("*",)


@lru_cache(maxsize=1024)
def parse_command_pattern(text: str) -> CommandPattern:
    """Read a pattern. Raises ValueError that says the fix."""
    if _UNPRINTABLE.search(text):
        raise ValueError(f"{text!r} holds characters that cannot be seen: write one line of printable words")
    words = [word for word in text.split(" ") if word]
    if not words:
        raise ValueError("an empty command pattern matches nothing: write a program, like 'git status'")
    syntax = _shell_syntax(words, text)
    if syntax is not None:
        raise ValueError(
            f"{text!r} holds {syntax!r}: a pattern is one simple command without quotes. Write a pattern for each command of "
            "a line, and '?' in place of a character that is not allowed"
        )
    rest = words[-1] == "*"
    alternatives = [_alternatives(word, text) for word in words]
    flags: list[Flag] = []
    operands: list[tuple[str, ...]] = []
    for names in alternatives[1 : -1 if rest and len(words) > 1 else None]:
        ended = any("--" in operand for operand in operands)
        if names[0].startswith("-") and names[0] not in {"-", "--"} and not ended:
            flags.append(Flag(names=tuple(_flag(name, text) for name in names), after=len(operands)))
        else:
            operands.append(_operand(names, text))
    return CommandPattern(
        text=text, programs=_programs(alternatives[0], text), flags=tuple(flags), operands=tuple(operands), rest=rest
    )


def _shell_syntax(words: list[str], text: str) -> str | None:
    """Return what of a pattern would be the shell's syntax in a command line, or None. A word may contain ``|``."""
    if {"|", "||"}.intersection(words):
        return "|"
    character = _SHELL.search(text)
    return None if character is None else character.group()


def _alternatives(word: str, text: str) -> list[str]:
    names = word.split("|")
    if "" in names:
        raise ValueError(f"{text!r}: {word!r} has an empty alternative; write it like '-r|--recursive'")
    return names


def _programs(names: list[str], text: str) -> tuple[str, ...]:
    for name in names:
        if name == "*" and len(names) == 1:
            continue
        if (has_wildcard(name) and name not in _TEST_PROGRAMS) or name.startswith("-") or _ASSIGNMENT.match(name):
            raise ValueError(
                f"{text!r} must begin with a program's name, written out; {name!r} is none ('*': any program)"
            )
        if not name.isascii():
            raise ValueError(f"{text!r}: a program's name is ASCII; {name!r} may look like another one")
    return tuple(names)


def _flag(name: str, text: str) -> FlagName:
    flag, equals, value = name.partition("=")
    if not flag.startswith("-") or has_wildcard(flag) or flag in {"-", "--"}:
        raise ValueError(f"{text!r}: {name!r} is no flag written out, like '-f', '--force' or '--output=*'")
    if equals and not value:
        raise ValueError(f"{text!r}: {name!r} has no value; write '{flag}' alone, or '{flag}=*' for any value")
    if equals:
        parse_glob(value)
    return FlagName(name=flag, value=value if equals else None)


def _operand(names: list[str], text: str) -> tuple[str, ...]:
    for name in names:
        if len(names) > 1 and name.startswith("-"):
            raise ValueError(f"{text!r}: {name!r} is a flag beside operands; write it as a word of its own")
        parse_glob(name)
    return tuple(names)
