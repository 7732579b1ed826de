"""Options in front of what a program is really about, read by getopt(3)'s rules.

Only options that are known are passed over: which word an unknown one would take as its value decides what is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from turngate.domain.policy.command_line import Word


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set: a table of many names reads best as a line."""
    return frozenset(text.split())


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionTable:
    """The options of a program. ``flags``, ``valued``: short ones, by letter; ``long_flags``, ``long_valued``: by name.

    ``optional``: short ones whose value, if any, is in the same word.
    """

    flags: str = ""
    valued: str = ""
    optional: str = ""
    long_flags: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()


@dataclass(slots=True)
class Options:
    """What was read. ``options``: each option with its value, None without one. ``rest``: from the first operand on.

    ``problem``: what is not known, None when all of it is.
    """

    pairs: list[tuple[str, Word | None]] = field(default_factory=list)
    rest: list[Word] = field(default_factory=list)
    problem: str | None = None

    def has(self, *names: str) -> bool:
        """Tell whether one of the options was given."""
        return any(name in names for name, _ in self.pairs)

    def values(self, *names: str) -> list[Word]:
        """Return the values given to these options, in order."""
        return [value for name, value in self.pairs if name in names and value is not None]


def read_options(args: Sequence[Word], table: OptionTable) -> Options:
    """Read options up to the first operand or ``--``; stop with a ``problem`` at the first that is not in the table."""
    options = Options()
    index = 0
    while index < len(args):
        word = args[index]
        if word.text is None:
            if word.may_be_option:
                options.problem = f"{word.raw!r} may be an option"
            break
        if word.text == "--":
            index += 1
            break
        if not word.text.startswith("-") or word.text == "-":
            break
        used = _long(word, args[index + 1 : index + 2], table, options)
        if not used:
            options.problem = f"the option {word.raw!r} is not known"
            break
        index += used
    options.rest = list(args[index:])
    return options


def _long(word: Word, following: Sequence[Word], table: OptionTable, options: Options) -> int:
    """Return how many words the option takes: 0 when it is not known."""
    text = word.text or ""
    if not text.startswith("--"):
        return _bundle(text, following, table, options)
    name, equals, value = text.partition("=")
    if name in table.long_valued:
        if equals:
            options.pairs.append((name, Word(text=value, raw=value)))
            return 1
        options.pairs.append((name, following[0] if following else None))
        return 2
    if name in table.long_flags and not equals:
        options.pairs.append((name, None))
        return 1
    return 0


def _bundle(text: str, following: Sequence[Word], table: OptionTable, options: Options) -> int:
    for at, letter in enumerate(text[1:], start=1):
        attached = text[at + 1 :]
        if letter in table.flags:
            options.pairs.append((f"-{letter}", None))
        elif letter in table.optional:
            options.pairs.append((f"-{letter}", Word(text=attached, raw=attached) if attached else None))
            return 1
        elif letter in table.valued:
            if attached:
                options.pairs.append((f"-{letter}", Word(text=attached, raw=attached)))
                return 1
            options.pairs.append((f"-{letter}", following[0] if following else None))
            return 2
        else:
            return 0
    return 1
