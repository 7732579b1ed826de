"""What a command line would run, as values: simple commands, their words, and what could not be known.

Made by ``turngate.policies.shell.parser`` and judged by ``command_rules``. Pure: nothing is parsed or looked up here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One word of a command after bash's quoting was taken off.

    ``text``: what the program gets; None when only bash can know (a variable, a glob, a substitution). Of an unknown
    word, ``prefix`` is what every word it becomes begins with (``src/*.py``: ``src/``), and ``many`` says that it may become
    no word or several. ``raw``: as it was written, for explanations only.
    """

    text: str | None
    raw: str
    many: bool = False
    prefix: str = ""

    @property
    def may_be_option(self) -> bool:
        """Tell whether a program may take it for an option."""
        start = self.prefix if self.text is None else self.text
        return start.startswith("-") or (self.text is None and not start)


def known(text: str) -> Word:
    """Return a word that stands for itself."""
    return Word(text=text, raw=text)


def unknown(raw: str = "…") -> Word:
    """Return a word of which nothing is known, not even whether it is one."""
    return Word(text=None, raw=raw, many=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimpleCommand:
    """One program that would be started, or a bare assignment (``words`` empty).

    ``words``: the program's word first; its text is always known. ``assigns``: variables set in front of it.
    ``opaque``: why it does more than its words say (``bash script.sh``, ``python -c …``), None when it does not.
    ``named``: words that an allow rule does not cover by a ``*``: they let the program write elsewhere, or run what lies there.
    ``stdin``: what of the line the program reads as its input (``a pipe``), None when it is nothing.
    ``guessed``: it is not certain that this is run (``docker exec box rm x``: the reader cannot tell options from operands).
    ``passed``: how many of its last words are another command, which is read on its own (``timeout 5 rm x``: two).
    """

    words: tuple[Word, ...]
    assigns: tuple[str, ...] = ()
    opaque: str | None = None
    named: frozenset[str] = frozenset()
    stdin: str | None = None
    guessed: bool = False
    passed: int = 0

    @property
    def own_words(self) -> tuple[Word, ...]:
        """The words without those of the command that it runs."""
        return self.words[: len(self.words) - self.passed]


@dataclass(frozen=True, kw_only=True, slots=True)
class Commands:
    """Everything a command line would run, in the order of its text.

    ``simple``: every simple command, those inside substitutions and after wrappers too (``sudo rm x`` gives both).
    ``doubts``: why there may be more than ``simple`` says; empty: there is not. ``writes``: redirections that an allow rule
    does not let through, as written. ``background``: something is left running with ``&``.
    """

    simple: tuple[SimpleCommand, ...]
    doubts: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    background: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Unparsable:
    """The text could not be read as a command line at all; ``reason`` says why, as part of a sentence."""

    reason: str
