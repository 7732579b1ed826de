"""Places that other programs obey: what is written there runs later, outside every gate. Pure.

A git hook, a workflow of the build server, an editor's task, a shell's start-up file. A call that may change one asks a person,
unless an allow rule names the place in its ``paths`` or ``command``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from pydantic import JsonValue

from turngate.domain.policy.command_line import SimpleCommand, Unparsable
from turngate.domain.policy.command_pattern import parse_command_pattern
from turngate.domain.policy.commands import GIT_READERS
from turngate.domain.policy.facts import CallFacts
from turngate.domain.policy.globs import has_wildcard
from turngate.domain.policy.matchers import Matchers
from turngate.domain.text.json_pointers import value_at


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLACES: Final = _names(
    ".git .github .gitlab-ci.yml .circleci .gitmodules .gitconfig .vscode .idea .devcontainer .envrc .husky .npmrc .mcp.json "
    ".pre-commit-config.yaml .bashrc .bash_profile .profile .zshrc .zshenv .ssh"
)
"""Names of files and directories; for a directory, all that is in it."""

_READERS: Final = _names(
    "[ [[ base64 basename cat cksum cmp comm cut diff dirname du echo egrep false fgrep file grep head jq less ls md5sum more nl "
    "od printf pwd readlink realpath rg sha1sum sha256sum sha512sum stat strings sum tac tail test tr true wc which xxd "
    "command env exec nice nohup setsid stdbuf sudo time timeout xargs"
)
"""Programs that change none of the files they name, and wrappers, whose command is looked at on its own."""

_EDITORS: Final = _names("awk gawk mawk nawk sed gsed")
"""Programs that change files by an option with an ``i`` only: what their scripts do is read elsewhere."""

_FIND_CHANGES: Final = ("-delete", "-exec", "-ok", "-fprint", "-fls")
_NOT_MEANT: Final = ("--exclude", "--ignore", "--glob=!", "!")
"""Beginnings of words that name what a program leaves out."""
_WITHOUT_QUOTES: Final = str.maketrans("", "", "'\"\\\\")
_WORKSPACE: Final = re.compile(r"\$(?:PWD\b|\{PWD\})")
"""The workspace, in a line that names the variable nowhere else, and so can't give it another value."""
_NOTHING: Final = re.compile(r"(?!)")
_APART: Final = re.compile(r"[/\s=:,;'\"{}()<>|&]+")


HIDDEN: Final = "a place that only bash knows"
"""In place of a name, where a word is put together by bash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Touch:
    """One name in ``PLACES``, or ``HIDDEN``, that a call may change.

    ``program``: which does; None: the tool itself, by a path.
    """

    place: str
    program: str | None

    def is_named(self, rule: Matchers) -> bool:
        """Tell whether the rule's patterns for paths, or for this program, write the name out."""
        if self.program is None:
            return self.place in names_in(" ".join(rule.paths))
        patterns = [text for text in rule.command if self.program in parse_command_pattern(text).programs]
        return self.place in names_in(" ".join(patterns))


def touches(facts: CallFacts, rules: Sequence[Matchers]) -> frozenset[Touch]:
    """Return what a call may change in ``PLACES``, by its paths and commands where rules look for them."""
    paths = {"/path", *(pointer for rule in rules for pointer in rule.paths_at)}
    commands = {"/command", *(rule.command_at for rule in rules)}
    places: set[Touch] = set()
    for _written, arguments in facts.views:
        for path in _texts_at(arguments, paths):
            places.update(Touch(place=place, program=None) for place in _by_path(path, facts))
        for line in _texts_at(arguments, commands):
            places |= _by_command(line, facts)
    return frozenset(places)


def names_in(text: str) -> frozenset[str]:
    """Return the names in ``PLACES`` that a text writes out as a part of a path."""
    return PLACES.intersection(_APART.split(text.casefold()))


def _texts_at(arguments: JsonValue, pointers: Iterable[str]) -> Iterator[str]:
    for pointer in pointers:
        value = value_at(arguments, pointer)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each


def _by_path(path: str, facts: CallFacts) -> frozenset[str]:
    """Return the names on the way to a path, by its text and by its real place, from the workspace on."""
    places: frozenset[str] = frozenset()
    resolved, base = facts.resolve_path(path, facts.workspace), facts.resolve_path(".", facts.workspace)
    for place, start in ((resolved.lexical, base.lexical), (resolved.real, base.real)):
        if place is not None:
            inside = start is not None and start != "/" and place.startswith(f"{start}/")
            places |= names_in(place.removeprefix(start or "") if inside else place)
    return places


def _by_command(line: str, facts: CallFacts) -> set[Touch]:
    commands = facts.read_command(line)
    if isinstance(commands, Unparsable):
        return {Touch(place=place, program="") for place in names_in(line)}
    places = {Touch(place=place, program="") for place in names_in(" ".join(commands.writes))}
    harmless = _harmless(line, commands.simple)
    for command in commands.simple:
        if command.words and not _only_reads(command):
            program = command.words[0].text or ""
            places.update(Touch(place=place, program=program) for place in _places_of(command, harmless))
    return places


def _places_of(command: SimpleCommand, harmless: re.Pattern[str]) -> frozenset[str]:
    """Return the places that a command may mean: by the names in its words, and where bash puts one together."""
    hidden = any(word.text is None and _is_put_together(word.raw, harmless) for word in command.words)
    return names_in(" ".join(_meant(command))) | ({HIDDEN} if hidden else frozenset())


def _harmless(line: str, commands: Sequence[SimpleCommand]) -> re.Pattern[str]:
    """Return what is the workspace wherever it is in a line: ``$PWD``, unless the line may give it another value."""
    texts = [_WORKSPACE.sub("", line), *(word.text or "" for command in commands for word in command.words)]
    return _NOTHING if any("PWD" in text for text in texts) else _WORKSPACE


def _spelled(raw: str) -> str:
    """Return a word that only bash can know, with the names that its wildcards fit (``.gi*/hooks``), and without quotes."""
    plain = raw.translate(_WITHOUT_QUOTES)
    globs = [part for part in plain.casefold().split("/") if part.startswith(".") and has_wildcard(part)]
    return " ".join([plain, *(place for place in PLACES if any(fnmatchcase(place, glob) for glob in globs))])


def _is_put_together(raw: str, harmless: re.Pattern[str]) -> bool:
    """Tell whether bash makes more of a word than file names that fit its wildcards: those are compared with the names.

    ``harmless``: what it makes no more of than the workspace's path.
    """
    return any(mark in harmless.sub("", raw) for mark in ("$", "`", "{", "~", "<(", ">("))


def _meant(command: SimpleCommand) -> Sequence[str]:
    texts = [_spelled(word.raw) if word.text is None else word.text for word in command.words]
    return [text for text in texts if not text.startswith(_NOT_MEANT)]


def _only_reads(command: SimpleCommand) -> bool:
    texts = [word.text or "" for word in command.words]
    if texts[0] == "find":
        return not any(text.startswith(_FIND_CHANGES) for text in texts)
    if texts[0] == "git":
        return bool(GIT_READERS.intersection(texts[1:2])) and not command.named
    if texts[0] in _EDITORS:
        return not any(
            text.startswith("--i") or (text.startswith("-") and "i" in text[1:2] + text[2:3]) for text in texts
        )
    return texts[0] in _READERS
