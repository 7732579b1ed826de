"""Text for the screen. Everything that an agent, a tool or another person wrote passes through here.

Textual reads markup in ``str`` and rich reads none in ``Text``: whatever is shown is a ``Text``, made here, with what
cannot be seen as markers. The functions of :mod:`turngate.text` are used through this module, so that a
call looks the same on the command line and here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from turngate.domain.text import json_text
from turngate.domain.text.folds import cut_line
from turngate.domain.text.hidden_text import escape_hidden
from turngate.text.folded_call import FoldedCall, fold_call, preview_line
from turngate.text.plain_text import Piece, plain, plain_line
from turngate.text.presentation import exact_arguments, first_lines, presentation_lines
from turngate.text.run_words import judgement_words

__all__ = [
    "FoldedCall",
    "Piece",
    "cut_line",
    "escape_hidden",
    "exact_arguments",
    "first_lines",
    "fold_call",
    "judgement_words",
    "plain",
    "plain_line",
    "presentation_lines",
    "preview_line",
]

TAB_CELLS: Final = 4
NARROWEST: Final = 10
COLOURLESS: Final = frozenset({"bold", "dim"})
FOLD_MARK: Final = "↳ "
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True)
class Line:
    """A line after a margin. Where it is folded, each further row has the margin, too, and a mark of its own.

    Without that, a long value could be padded so that a folded row of it looks like one of this program's lines.
    """

    margin: str
    text: Text


@dataclass(frozen=True)
class Folded:
    """Lines, folded to whatever width there is: what is shown in a pane."""

    lines: tuple[Line, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for each in self.lines:
            room = max(NARROWEST, options.max_width - cell_len(each.margin) - cell_len(FOLD_MARK))
            rows = each.text.wrap(console, room, overflow="fold") if each.text.cell_len > room else [each.text]
            for place, row in enumerate(rows):
                yield Text.assemble((each.margin, "dim"), (FOLD_MARK if place else "", "dim"), row)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


NOTHING: Final = Folded(())


def line(*pieces: Piece) -> Text:
    """Return one line of pieces, nothing in it read as markup and nothing hidden."""
    whole = Text()
    for piece in pieces:
        text, style = (piece, "") if isinstance(piece, str) else piece
        whole.append(plain(text).expandtabs(TAB_CELLS), style=_shown_style(style))
    return whole


def _shown_style(style: str) -> str:
    """Return a style without its colours under NO_COLOR (https://no-color.org): as greys, some are as dark as the ground."""
    if "NO_COLOR" not in os.environ:
        return style
    return " ".join(word for word in style.split() if word in COLOURLESS)


def joined(lines: Iterable[Text]) -> Text:
    """Return the lines as one text, for a list whose rows are cut off."""
    return Text("\n").join(lines)


def folded(lines: Iterable[Line]) -> Folded:
    """Return the lines for a pane."""
    return Folded(tuple(lines))


def at(margin: str, *pieces: Piece) -> Line:
    """Return :func:`line` after a margin."""
    return Line(margin, line(*pieces))


def lines_of(text: str, margin: str = "", style: str = "") -> Iterator[Line]:
    """Yield each line of a text after a margin, so that no line of it can pass for one of this program's."""
    for each in plain(text.rstrip("\n")).split("\n"):
        yield at(margin, (each, style))


def block(pieces: Iterable[Piece], margin: str) -> Iterator[Line]:
    """Yield pieces, a line each, after a margin."""
    for piece in pieces:
        yield at(margin, piece)


def arguments_on_one_line(raw_input: str, limit: int, more: int = 0) -> str:
    """Return the arguments in short, for a list. ``more``: as of :func:`cut_line`."""
    parsed = json_text.parse(raw_input[: limit * 8]) if len(raw_input) <= limit * 8 else None
    text = raw_input[: limit * 8] if parsed is None or parsed.doubled else json_text.dump(parsed.tree)
    return cut_line(plain_line(text), limit, more=more + (len(raw_input) - len(text) if parsed is None else 0))


def argument_values(raw_input: str) -> list[tuple[str, str]]:
    """Return each argument's name and its value as JSON text; none where the text is no JSON object."""
    parsed = json_text.parse(raw_input)
    if parsed is None or not isinstance(parsed.tree, dict):
        return []
    return [(name, json_text.dump(value)) for name, value in parsed.tree.items()]


def editable(raw_input: str) -> str:
    """Return the arguments as an editor shows them: nothing hidden, every number with its digits."""
    parsed = json_text.parse(raw_input)
    text = raw_input if parsed is None or parsed.doubled else json_text.dump(parsed.tree, indent=2)
    return escape_hidden(text)


def json_problem(text: str) -> str | None:
    """Return why a typed text cannot be sent as JSON; None when it can."""
    parsed = json_text.parse(text)
    if parsed is None:
        return "This is not JSON. Nothing was sent; fix it here."
    if parsed.doubled:
        return f"Given twice: {plain_line(', '.join(parsed.doubled), 100)}. Nothing was sent; keep one of each."
    return None


def same_json(one: str, other: str) -> bool:
    """Tell whether two texts say the same JSON: the members in the same order, numbers digit by digit."""
    first, second = json_text.parse(one), json_text.parse(other)
    if first is None or second is None or first.doubled or second.doubled:
        return one == other
    return json_text.dump(first.tree) == json_text.dump(second.tree)


def ago(instant: str, now: datetime | None = None) -> str:
    """Return how long ago an instant of the API's was, in the largest whole unit."""
    return span(((now or datetime.now(UTC)) - datetime.fromisoformat(instant)).total_seconds())


def until(instant: str, now: datetime | None = None) -> str:
    """Return how long it is until then; ``now`` once it has passed."""
    seconds = (datetime.fromisoformat(instant) - (now or datetime.now(UTC))).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "now"


def span(seconds: float) -> str:
    """Return a length of time in the largest whole unit."""
    whole = max(0, int(seconds))
    for size, unit in _SPANS:
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"
