"""The two streams: results on stdout, notes and errors on stderr. Plain where they are not a terminal (or NO_COLOR)."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Final

from rich.console import Console
from rich.text import Text

from turngate.domain.text.hidden_text import escape_hidden
from turngate.text.plain_text import Piece, plain, plain_line

NARROWEST: Final = 60
GAP: Final = 2
"""Spaces between two columns of a table."""
LEAST: Final = 10
"""No column is made narrower than this. One that is narrower by itself keeps its width."""
_margin: ContextVar[str] = ContextVar("margin", default="")
PLAIN_WIDTH: Final = 200
"""How long a value on one line may get where no window limits it."""


@cache
def out() -> Console:
    """Return the console on stdout. It never wraps, highlights or reads markup: a text is printed as it is."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """Return the console on stderr."""
    return _console(stderr=True)


def prepare_streams() -> None:
    """Write characters that the terminal's encoding lacks as escapes instead of failing on them.

    A closed stream (``>&-``) is replaced by an empty one, as for any program that does not look.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - to the end of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_interactive() -> bool:
    """Return whether stdin and stdout are both terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def line(*pieces: Piece) -> None:
    """Print one line of a result."""
    text, margin = _text(pieces), _margin.get()
    if margin:
        text = Text("\n").join(Text.assemble((margin, "magenta"), each) for each in text.split(allow_blank=True))
    out().print(text)


def piece(text: str, style: str = "") -> None:
    """Print a piece of a line. The caller has made it plain."""
    out().print(Text(text, style=style), end="")


@contextmanager
def margin(text: str) -> Iterator[None]:
    """Put a text before each line of results that the block prints. The caller has made it plain."""
    before = _margin.set(text)
    try:
        yield
    finally:
        _margin.reset(before)


def note(*pieces: Piece) -> None:
    """Print one line on stderr, apart from the result."""
    err().print(_text(pieces))


def warning(message: str) -> None:
    """Print on stderr what may be a mistake, and doesn't end the command."""
    note(("warning: ", "bold yellow"), plain_line(message))


def error(message: str) -> None:
    """Print an error. Its message says what happened, and then what to do."""
    err().print(_text((("error: ", "bold red"), (message, "red"))))


def width() -> int:
    """Return how many characters a line should have at most."""
    return max(out().width, NARROWEST) if out().is_terminal else PLAIN_WIDTH


def raw(text: str) -> None:
    """Print a text exactly as it is to a pipe or file (rich would turn tabs into spaces), and made plain to a terminal."""
    print(plain(text) if out().is_terminal else text, flush=True)


def document(json_text: str) -> None:
    """Print JSON for programs, with hidden characters as escapes: the same values, harmless wherever it is looked at."""
    print(escape_hidden(json_text), flush=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[Piece]]) -> None:
    """Print rows: as a table for a person, as tab-separated lines without headers for a program."""
    if not out().is_terminal:
        for row in rows:
            raw("\t".join(plain_line(piece if isinstance(piece, str) else piece[0]) for piece in row))
        return
    lines = [[Text(header, style="bold") for header in headers], *([_text((piece,)) for piece in row] for row in rows)]
    widths = column_widths([max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)], out().width)
    for cells in lines:
        for cell, column in zip(cells, widths, strict=True):
            cell.truncate(column, overflow="ellipsis", pad=True)
        drawn = Text(" " * GAP).join(cells)
        drawn.rstrip()
        out().print(drawn)


def column_widths(natural: Sequence[int], room: int) -> list[int]:
    """Return how wide each column of a table is in a window of this many characters.

    The first is an id, which people copy: it is never cut. The last has the longest text and is cut first, then the widest of
    the others. If that is not enough, the window wraps.
    """
    widths = list(natural)
    excess = sum(widths) + GAP * (len(widths) - 1) - room
    for places in ([len(widths) - 1], range(1, len(widths) - 1)):
        while (
            excess > 0 and (widest := max(places, key=lambda at: widths[at], default=0)) > 0 and widths[widest] > LEAST
        ):
            widths[widest] -= 1
            excess -= 1
    return widths


def wants_traceback() -> bool:
    """Return whether errors are printed with a traceback (``TURNGATE_LOG_LEVEL=debug``)."""
    return os.environ.get("TURNGATE_LOG_LEVEL", "").lower() == "debug"


def _console(*, stderr: bool) -> Console:
    # Under NO_COLOR rich itself keeps bold and dim. Users who set it want no escape sequences at all (https://no-color.org).
    no_color = bool(os.environ.get("NO_COLOR"))
    return Console(
        stderr=stderr,
        color_system=None if no_color else "auto",
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _text(pieces: tuple[Piece, ...]) -> Text:
    """Return the pieces with markers for hidden characters. Callers that cut or indent do so too; here no one can forget it."""
    return Text.assemble(*(plain(piece) if isinstance(piece, str) else (plain(piece[0]), piece[1]) for piece in pieces))


def when_unread(on_unread: Callable[[], None]) -> None:
    """Call ``on_unread`` once stdout is a pipe that has lost its reader (``turngate watch RUN | head -1``), and never otherwise.

    A write to such a pipe fails, but a command that waits for a decision may not write for days. The call comes from a thread
    of its own.
    """
    with suppress(OSError, ValueError):  # closed, or no stream of the operating system
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=_wait, args=(descriptor, on_unread), name="stdout-reader", daemon=True).start()


def _wait(descriptor: int, on_unread: Callable[[], None]) -> None:
    poller = select.poll()
    poller.register(descriptor, 0)  # for no event: errors and hang-ups are always reported
    with suppress(OSError):
        poller.poll()
        on_unread()
