"""Places that other programs obey: what is written there runs later, outside every gate. Pure.

A git hook, a workflow of the build server, an editor's task, a shell's start-up file. A call that may change one asks a person,
unless an allow rule names the place in its ``paths`` or ``command``. A command may change the places that the words of its
programs name in any way, unless a program is known to change no file that it names. What a program finds by itself (in an
archive, a patch, a directory, a list of files) is not seen: the confinement is what enforces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import PurePath
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


HELD: Final = _names(".envrc .vscode .idea .devcontainer .github .gitea .forgejo .circleci .claude .cursor")
"""Those of ``PLACES`` that a confined command can't change at all (:mod:`turngate.toolkits.confinement.sandbox`).

No everyday command changes them, and where they are absent an empty directory in their place harms none, as it would for
``.npmrc`` or ``.husky``.
"""

PLACES: Final = HELD | _names(
    # version control, its hooks, and build servers
    ".git .gitconfig .gitmodules .githooks .hg .hgrc .jj .svn .husky .lefthook .lefthook.yml lefthook.yml .overcommit.yml "
    ".pre-commit-config.yaml .lintstagedrc .lintstagedrc.json .gitlab .gitlab-ci.yml .travis.yml .drone.yml .woodpecker "
    ".woodpecker.yml .woodpecker.yaml .buildkite .cirrus.yml .appveyor.yml appveyor.yml .semaphore .builds .build.yml "
    "jenkinsfile azure-pipelines.yml bitbucket-pipelines.yml "
    # shells, what they start, and credentials with programs of their own
    ".profile .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc "
    ".cshrc .tcshrc .login .logout .inputrc .xprofile .xinitrc .xsession .tmux.conf .screenrc .config .ssh .gnupg .aws .kube "
    ".netrc .curlrc .wgetrc "
    # package and version managers
    ".npmrc .yarnrc .yarnrc.yml .yarn .pnp.cjs .pnpmfile.cjs .pypirc .bundle .gemrc .cargo .mvn .condarc .tool-versions .mise "
    ".mise.toml mise.toml .mise.local.toml mise.local.toml .rtx.toml .sdkmanrc "
    # editors, agents, debuggers and consoles
    ".vim .vimrc .exrc .nvimrc .nvim.lua .emacs .emacs.d .dir-locals.el .fleet .zed .mcp.json .windsurf .codex .gemini "
    ".roo .kiro .continue .gdbinit .lldbinit .pdbrc .ghci .irbrc .pryrc .rprofile .psqlrc .sqliterc"
)
"""Names of files and directories, in small letters; for a directory, all that is in it."""

WATCHED: Final = PLACES - _names(".git .hg .jj .svn") | _names(".hg/hgrc .jj/repo/config.toml")
"""What a command's output names if it changed at the top of a directory. What git obeys in ``.git`` is looked for apart."""

_GENERAL: Final = _names(".config")
"""Those of ``PLACES`` that hold directories for any purpose, too."""

_READERS: Final = _names(
    "[ [[ base64 basename cat cksum cmp comm cut diff dirname du echo egrep false fgrep grep head jq ls md5sum nl od printf pwd "
    "readlink realpath rg sha1sum sha256sum sha512sum stat strings sum tac tail test tr true wc which"
)
"""Programs that change none of the files they name, whatever their options."""

_EDITORS: Final = _names("awk gawk mawk nawk sed gsed")
"""Programs that change files by an option with an ``i`` only: what their scripts do is read elsewhere."""

_SPLITTERS: Final = _names("split csplit")
"""Programs that write files whose names only begin with one of their words."""

_LEFT_OUT: Final = re.compile(r"--(?:exclude|ignore)[a-z-]*=[^/]*")
"""An option that names what a program leaves out. It names no place either where a program takes it for a file."""

_WITHOUT_QUOTES: Final = str.maketrans("", "", "'\"\\")
_WORKSPACE: Final = re.compile(r"\$(?:PWD\b|\{PWD\})")
_PUT_TOGETHER: Final = ("$", "`", "~", "<(", ">(", "…")
"""Bash makes of a word with one of them what only bash knows; ``find`` and ``xargs`` do of ``…``."""
_ALL_BUT: Final = (":(", ":!", ":^")
"""How a pathspec of git begins that may name files by something else than their names (gitglossary(7))."""

_APART: Final = re.compile(r"[^\w.*?-]+")
_OPTION: Final = re.compile(r"(?<!\S)[-+][\w.*?-]*+")
_SET: Final = re.compile(r"\[[!^]?+\]?+(?:\[(?::\w{1,9}+:\])?+|[^\[\]]){0,99}+\]")
_STARS: Final = re.compile(r"\*+")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_MOST_BRACES, _MOST_CHOICES, _LONGEST_CHOICE, _LONGEST_NAME = 3, 12, 200, 64
_LONGEST_TEXT: Final = 1 << 20
_ENDINGS: Final = {
    beginning: [place.removeprefix(beginning) for place in PLACES if place.startswith(beginning) and place != beginning]
    for beginning in {place[:length] for place in PLACES for length in range(2, len(place))}
}
"""The beginning of a name → the rest of each name that begins so."""

HIDDEN: Final = "a place that is not written out"
"""In place of a name, where bash puts a word together, or a program finds its files by other things than their names."""


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
    """Return the names in ``PLACES`` that a text writes out: as a part of a path, or at the end of an option's first part.

    Of a text that is longer than any command or path can be: all of them.
    """
    return PLACES if len(text) > _LONGEST_TEXT else PLACES.intersection(_parts(text.casefold()))


def place_around(directory: PurePath) -> str | None:
    """Return the part of a directory's path because of which other programs obey what is in it; None: there is none.

    ``directory``: without links. No rule and no confinement would see the name in paths that begin there.
    """
    return next((part for part in directory.parts if part.casefold() in PLACES - _GENERAL), None)


def _parts(text: str) -> Iterator[str]:
    """Yield what of a text may be a name, of which a program may take an option's letters off (``-ft.git/hooks``)."""
    yield from _APART.split(text)
    for option in _OPTION.findall(text):
        end = option[-_LONGEST_NAME:]
        yield from (end[at:] for at, char in enumerate(end) if char in ".*?")


def _names_meant(text: str) -> frozenset[str]:
    """Return the names that a text writes out, or that fit a pattern in it by the rules of any program (``.env?c``, ``.{git}``).

    A pattern of stars alone says no more than the directory that it is in.
    """
    patterns = _STARS.sub("*", _SET.sub("?", text.casefold().replace("\\", "")))
    places = names_in(text) | names_in(patterns)
    for part in _parts(" ".join(each for word in patterns.split() for each in _choices(word))):
        if part in PLACES:
            places |= {part}
        elif has_wildcard(part) and part != "*" and len(part) <= _LONGEST_NAME:
            places |= {place for place in PLACES if fnmatchcase(place, part)}
    return places


def _choices(word: str) -> list[str]:
    """Return what braces may make of a word; of one with many, the word itself."""
    braces = None if _has_many_choices(word) else _BRACES.search(word)
    if braces is None:
        return [word]
    start, end = braces.span()
    return [each for choice in braces[1].split(",") for each in _choices(f"{word[:start]}{choice}{word[end:]}")]


def _has_many_choices(word: str) -> bool:
    return word.count("{") > _MOST_BRACES or word.count(",") > _MOST_CHOICES or len(word) > _LONGEST_CHOICE


def _names_joined(texts: Sequence[str]) -> frozenset[str]:
    """Return the names that a program may make of two words, as of a file and a suffix for its copy (``cp -bS rc x .env``)."""
    words = [text.casefold() for text in texts]
    beginnings = _ENDINGS.keys() & {part for word in words for part in _parts(word)}
    return frozenset(
        f"{beginning}{ending}"
        for beginning in beginnings
        for ending in _ENDINGS[beginning]
        if any(word == ending or (word.startswith("-") and word.endswith(ending)) for word in words)
    )


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
        return {Touch(place=place, program="") for place in names_in(line.translate(_WITHOUT_QUOTES))}
    spelled = partial(_spelled, keeps_workspace=_keeps_workspace(line, commands.simple))
    places = frozenset[str]().union(*map(spelled, commands.writes))
    if commands.doubts:
        places |= names_in(line.translate(_WITHOUT_QUOTES))
    touched = {Touch(place=place, program="") for place in places}
    for command in commands.simple:
        if command.words and not _only_reads(command):
            program = command.words[0].text or ""
            touched.update(Touch(place=place, program=program) for place in _places_of(command, spelled))
    return touched


def _places_of(command: SimpleCommand, spelled: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """Return the places that the command's own words may mean. ``spelled``: of a word that bash makes something of."""
    program, *words = command.own_words
    texts = [word.text for word in words if word.text is not None and not _LEFT_OUT.fullmatch(word.text)]
    end = "*" if program.text in _SPLITTERS else ""
    places = _names_joined(texts).union(*(_names_meant(f"{text}{end}") for text in texts))
    if any(text.startswith(_ALL_BUT) for text in texts):
        places |= {HIDDEN}
    return places.union(*(spelled(word.raw) for word in words if word.text is None))


def _keeps_workspace(line: str, commands: Sequence[SimpleCommand]) -> bool:
    """Tell whether ``$PWD`` is the workspace all over the line: it names the variable nowhere else, so can't set it."""
    texts = [_WORKSPACE.sub("", line), *(word.text or "" for command in commands for word in command.words)]
    return not any("PWD" in text for text in texts)


def _spelled(raw: str, *, keeps_workspace: bool) -> frozenset[str]:
    """Return the places that a word may mean which bash makes something of, or a redirection. ``raw``: as it is written."""
    plain = _WORKSPACE.sub("", raw) if keeps_workspace else raw
    hidden = any(mark in plain for mark in _PUT_TOGETHER)
    hidden = hidden or ("{" in plain and (".." in plain or _has_many_choices(plain)))
    return _names_meant(raw.translate(_WITHOUT_QUOTES)) | ({HIDDEN} if hidden else frozenset())


def _only_reads(command: SimpleCommand) -> bool:
    program = command.words[0].text or ""
    arguments = command.words[1:]
    if program in {"find", "git"}:
        is_reader = program == "find" or any(word.text in GIT_READERS for word in arguments[:1])
        return is_reader and not command.named
    if program in _EDITORS:
        return not any(word.may_be_option and (word.text is None or "i" in word.text) for word in arguments)
    return program in _READERS
