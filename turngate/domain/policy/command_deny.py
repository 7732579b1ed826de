"""Whether one simple command holds what a pattern of a deny or ask rule names. See ``command_rules``. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from turngate.domain.policy.command_line import SimpleCommand, Word
from turngate.domain.policy.command_pattern import CommandPattern, Flag, FlagName
from turngate.domain.policy.facts import Match, all_of, any_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SUBCOMMAND_PROGRAMS = _names(
    "apt apt-get aws az brew cargo docker gcloud gh git go hg helm kubectl npm oc pip pip3 pnpm podman poetry svn "
    "systemctl terraform tofu uv yarn"
)
"""Programs whose first operand says what they do; for others an operand is compared in every position."""

_WHOLE_WORD_PROGRAMS = _names("find java javac terraform tofu openssl ffmpeg go gcc clang cc tcpdump nmap")
"""Programs whose flags have one dash and several letters, which are no bundle (``find -delete``)."""

_VALUED_FLAGS = {
    "git": _names("-C -c --git-dir --work-tree --namespace --super-prefix --config-env --attr-source"),
    "npm": frozenset(["--prefix"]),
    "kubectl": _names("-n --namespace --context --cluster --kubeconfig --user -s --server"),
    "docker": _names("-H --host --context -c --config -l --log-level"),
}
"""Flags before the subcommand that take the next word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """A command's words sorted out. ``flags``: with the word after each. ``operands``: with whether each is certainly one.

    ``maybe_flags``: words that may be flags: unknown ones, and those after a ``--`` that may be another flag's value.
    """

    flags: tuple[tuple[str, Word | None], ...]
    maybe_flags: tuple[Word, ...]
    operands: tuple[tuple[Word, bool], ...]


def denies(pattern: CommandPattern, command: SimpleCommand) -> Match:
    """Tell whether the command is (at least) what the pattern names."""
    program = _base_name(command.words[0].text or "")
    if not pattern.any_program and program not in {_base_name(name) for name in pattern.programs}:
        return "no"
    words = _Sorter(_VALUED_FLAGS.get(program, frozenset())).sort(command.words[1:])
    bundles = program not in _WHOLE_WORD_PROGRAMS
    answers = [_has_flag(flag, words, bundles=bundles) for flag in pattern.flags]
    operands = [globs for globs in pattern.operands if globs != ("--",)]
    anchored = program in SUBCOMMAND_PROGRAMS and not pattern.any_program
    answers.append(_has_operands(operands, words.operands, anchored=anchored))
    return all_of(answers)


_KEEPS_WORDS = _names(
    ". : [ [[ awk base64 basename builtin cat cd chgrp chmod chown cksum cmp column comm command curl cut date dd df "
    "diff dig dirname du echo egrep env eslint eval exec exit export expr false fgrep file find flake8 fmt fold gawk getent "
    "git grep groups gunzip gzip head host hostname iconv id jest join jq kill killall ls mawk md5sum mkdir "
    "mktemp mypy nice nl nohup nslookup od paste patch pgrep ping pip pip3 pkill prettier printenv printf ps pwd pytest "
    "read readlink realpath rev rg rm rmdir ruff sed seq set sha1sum sha256sum shift shuf sleep sort split stat strings "
    "sudo sum tac tail tar tee test time timeout touch tr trap tree true truncate tsc type umask uname uniq unlink unset "
    "unzip uptime vitest wait wc wget whereis which who whoami xargs xxd yes zip"
)
"""Programs that run none of their words, or whose commands are read on their own: what is denied may be named in them."""

_COPIES = _names("cp install link ln mv")
"""Programs that give another a new name, under which no pattern would know it (``ln -s /bin/rm x && ./x -r y``)."""


def may_carry(pattern: CommandPattern, command: SimpleCommand) -> bool:
    """Tell whether a program that is not known has words that may be the denied command (``anything --run 'rm -r x'``)."""
    program = _base_name(command.words[0].text or "")
    if pattern.any_program or program in _KEEPS_WORDS or command.guessed:
        return False
    wanted = {_base_name(name) for name in pattern.programs}
    if program in _COPIES:
        return any(_may_name(word, wanted) for word in command.words[1:])
    return _hold(command.words, pattern, wanted)


def _hold(words: Sequence[Word], pattern: CommandPattern, wanted: Collection[str]) -> bool:
    texts = [word.text or "" for word in words]
    named = [at for at, text in enumerate(texts) if at and _base_name(text) in wanted]
    if len(named) > _MAX_PLACES or any(_attaches(text, wanted) for text in texts[1:]):
        return True
    return any(denies(pattern, SimpleCommand(words=tuple(words[at:]))) != "no" for at in named)


def _may_name(word: Word, wanted: Collection[str]) -> bool:
    """Tell whether a word may be a path of one of the programs. Of those that only bash can know, ``*.py`` is not."""
    if word.text is not None:
        return _base_name(word.text) in wanted
    last = word.raw if not _SUBSTITUTED.isdisjoint(word.raw) else _base_name(word.raw)
    return "$" in last or "`" in last or any(fnmatchcase(name, last) for name in wanted)


def _attaches(text: str, wanted: Collection[str]) -> bool:
    """Tell whether a denied program is named inside a word, beside other text (``--run=rm``, ``-Irm``, ``'sh -c "rm x"'``).

    A word that is itself a text with substitutions may name any program.
    """
    if "$(" in text or "`" in text:
        return True
    plain = text.translate(_WITHOUT_QUOTES)
    attached = plain[2:] if plain.startswith("-") and not plain.startswith("--") else ""
    if _base_name(attached) in wanted:
        return True
    parts = plain.translate(_APART).split()
    return parts != [text] and any(_base_name(part) in wanted for part in parts)


_MAX_PLACES = 20
_SUBSTITUTED = frozenset("({`")
_WITHOUT_QUOTES = str.maketrans("", "", "'\"\\`")
_APART = str.maketrans(dict.fromkeys(" \t\n;&|()<>{}[]$,:=!@", " "))


def _base_name(program: str) -> str:
    return posixpath.basename(program).casefold()


class _Sorter:
    """One pass over a command's words, which sorts them into :class:`_Words`.

    ``valued``: the program's flags that take the next word. ``_after_flag``: the word before may take this one as its value.
    """

    def __init__(self, valued: frozenset[str]) -> None:
        self._valued = valued
        self._after_flag = False
        self._flags: list[tuple[str, Word | None]] = []
        self._maybe_flags: list[Word] = []
        self._operands: list[tuple[Word, bool]] = []

    def sort(self, words: Sequence[Word]) -> _Words:
        index = 0
        while index < len(words) and words[index].text != "--":
            index += self._take(words[index], words[index + 1] if index + 1 < len(words) else None)
        self._take_operands(words[index + 1 :])
        return _Words(flags=tuple(self._flags), maybe_flags=tuple(self._maybe_flags), operands=tuple(self._operands))

    def _take(self, word: Word, following: Word | None) -> int:
        """Take a word before any ``--``. Returns how many words that took."""
        if word.text is not None and word.text.startswith("-") and word.text != "-":
            self._flags.append((word.text, following))
            takes_next = word.text in self._valued
            self._after_flag = not takes_next and "=" not in word.text
            return 2 if takes_next else 1
        if word.may_be_option:
            self._maybe_flags.append(word)
        if not word.prefix.startswith("-"):
            self._operands.append((word, not self._after_flag))
        self._after_flag = word.text is None and word.may_be_option
        return 1

    def _take_operands(self, words: Sequence[Word]) -> None:
        """Take the words after a ``--``, which may itself be the value of the flag before it."""
        if self._after_flag:
            self._maybe_flags += [word for word in words if word.may_be_option]
        self._operands += [(word, True) for word in words]


def _has_flag(flag: Flag, words: _Words, *, bundles: bool) -> Match:
    answer = any_of(_written(name, words, bundles=bundles) for name in flag.names)
    if answer == "no" and any(_may_write(word, flag) for word in words.maybe_flags):
        return "unclear"
    return answer


def _may_write(word: Word, flag: Flag) -> bool:
    if word.text is not None:
        return True
    start = word.prefix.partition("=")[0]
    if "=" in word.prefix and start.startswith("--"):
        return any(name.name.startswith(start) for name in flag.names)
    return True


def _written(name: FlagName, words: _Words, *, bundles: bool) -> Match:
    if name.name.startswith("--"):
        return any_of(_long(name, text, following) for text, following in words.flags)
    whole = any_of(_single(name, text, following) for text, following in words.flags)
    if whole == "yes" or not bundles:
        return whole
    return any_of([whole, _bundled(name, [text for text, _ in words.flags if not text.startswith("--")])])


def _bundled(name: FlagName, texts: Sequence[str]) -> Match:
    """Tell whether short flags are written in a bundle; of one with a value, what in the bundle is its value is unclear."""
    if name.value is None:
        letters = {letter for text in texts for letter in text[1:].partition("=")[0]}
        return "yes" if set(name.name[1:]) <= letters else "no"
    hidden = len(name.name) == 2 and any(name.name[1] in text[2:] for text in texts)  # noqa: PLR2004 - '-' and a letter
    return "unclear" if hidden else "no"


def _long(name: FlagName, text: str, following: Word | None) -> Match:
    written, equals, value = text.partition("=")
    if written == name.name:
        return _value_fits(name.value, Word(text=value, raw=value) if equals else following)
    # getopt_long(3) takes any abbreviation that only one option begins with; which one that is, only the program knows.
    return "unclear" if len(written) > 2 and name.name.startswith(written) else "no"  # noqa: PLR2004 - more than '--'


def _single(name: FlagName, text: str, following: Word | None) -> Match:
    written, equals, value = text.partition("=")
    if written == name.name:
        return _value_fits(name.value, Word(text=value, raw=value) if equals else following)
    if name.value is not None and text.startswith(name.name) and not text.startswith("--"):
        joined = text.removeprefix(name.name)
        return _value_fits(name.value, Word(text=joined, raw=joined))
    return "no"


def _value_fits(glob: str | None, value: Word | None) -> Match:
    if glob is None:
        return "yes"
    return "no" if value is None else _fits((glob,), value)


def _has_operands(wanted: Sequence[tuple[str, ...]], operands: Sequence[tuple[Word, bool]], *, anchored: bool) -> Match:
    """Find the wanted operands in order. An unknown word may be any number of them, which is never more than unclear."""
    if not wanted:
        return "yes"
    none_yet: Sequence[Match] = ["no"] * len(wanted)
    state: list[Match] = ["yes", *none_yet]  # state[n]: whether the first n were found so far
    for word, certain in operands:
        grown = list(state)
        for count, globs in enumerate(wanted):
            fits: Match = _fits(globs, word)
            before = any_of([state[count], grown[count]]) if word.many else state[count]
            grown[count + 1] = any_of([state[count + 1], all_of([before, fits])])
        if anchored and certain and word.text is not None:
            grown[0] = "no"  # this was the subcommand: none that comes later can be it
        elif anchored:
            grown[0] = all_of([state[0], "unclear"])
        state = grown
    return state[-1]


def _fits(globs: Iterable[str], word: Word) -> Match:
    if word.text is None:
        plain = [glob for glob in globs if _may_begin(glob, word.prefix)]
        return "unclear" if plain else "no"
    normal = posixpath.normpath(word.text) if word.text else ""
    forms = {word.text, normal, "/" + normal.lstrip("/")} if word.text.startswith("/") else {word.text, normal}
    return "yes" if any(fnmatchcase(form, glob.replace("**", "*")) for form in forms for glob in globs) else "no"


def _may_begin(glob: str, prefix: str) -> bool:
    """Tell whether a word that begins so could fit. Paths may be written in many ways, so they always could."""
    plain = min((glob.index(char) for char in "*?[" if char in glob), default=len(glob))
    shared = min(plain, len(prefix))
    return "/" in glob or "/" in prefix or glob[:shared] == prefix[:shared]
