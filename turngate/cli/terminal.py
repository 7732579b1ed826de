"""The two streams: results on stdout, notes and errors on stderr. Plain where they are not a terminal (or NO_COLOR)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turngate.cli.plain_text import plain, plain_line

Piece = str | tuple[str, str]
"""Text, or text with a rich style."""

NARROWEST: Final = 60
_margin: ContextVar[str] = ContextVar("margin", default="")
PLAIN_WIDTH: Final = 200
"""How long a one-line value may get where nobody's window limits it."""


@cache
def out() -> Console:
    """Return the console on stdout. It never wraps, highlights or reads markup: what is printed is what was said."""
    return Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


@cache
def err() -> Console:
    """Return the console on stderr."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def prepare_streams() -> None:
    """Let characters that the terminal's encoding lacks be written as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_interactive() -> bool:
    """Tell whether a person sits at both ends: stdin and stdout are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def line(*pieces: Piece) -> None:
    """Print one line of a result."""
    text, margin = _text(pieces), _margin.get()
    if margin:
        text = Text("\n").join(Text.assemble((margin, "magenta"), each) for each in text.split(allow_blank=True))
    out().print(text)


def piece(text: str, style: str = "") -> None:
    """Print a piece of a line, made plain by the caller."""
    out().print(Text(text, style=style), end="")


@contextmanager
def margin(text: str) -> Iterator[None]:
    """Put a text, made plain by the caller, before each line of results that the block prints."""
    before = _margin.set(text)
    try:
        yield
    finally:
        _margin.reset(before)


def note(*pieces: Piece) -> None:
    """Print one line beside the result, on stderr."""
    err().print(_text(pieces))


def error(message: str) -> None:
    """Print an error: what is wrong, then (its message says it) how to mend it."""
    err().print(_text((("error: ", "bold red"), (message, "red"))))


def width() -> int:
    """Return how many characters one line should have."""
    return max(out().width, NARROWEST) if out().is_terminal else PLAIN_WIDTH


def raw(text: str) -> None:
    """Print one line for programs, exactly as it is (rich would turn tabs into spaces)."""
    print(text, flush=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[Piece]]) -> None:
    """Print rows: as a table for a person, as tab-separated lines without headers for a program."""
    if not out().is_terminal:
        for row in rows:
            raw("\t".join(plain_line(piece if isinstance(piece, str) else piece[0]) for piece in row))
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        drawn.add_column(header, overflow="ellipsis", no_wrap=True)
    for row in rows:
        drawn.add_row(*(_text((piece,)) for piece in row))
    out().print(drawn, soft_wrap=False)


def wants_traceback() -> bool:
    """Tell whether the person asked to see our insides (``TURNGATE_LOG_LEVEL=debug``)."""
    return os.environ.get("TURNGATE_LOG_LEVEL", "").lower() == "debug"


def _text(pieces: tuple[Piece, ...]) -> Text:
    """Return the pieces with what cannot be seen as markers. Callers do that where they cut or indent; here none forgets it."""
    return Text.assemble(*(plain(piece) if isinstance(piece, str) else (plain(piece[0]), piece[1]) for piece in pieces))
