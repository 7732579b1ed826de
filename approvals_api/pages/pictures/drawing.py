"""What every picture is made of: boxes, lines and words at places, scales, and texts that fit.

The macro ``drawing`` writes them as SVG: it escapes every text and marks what is hidden in it, as pictures have no ``<bdi>``. No
picture writes SVG itself. Colours are classes of the style sheet. Pure.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass, field
from typing import Final, Literal

from turngate.domain.text.durations import span
from turngate.domain.text.hidden_text import marked_text

Anchor = Literal["start", "middle", "end"]

_STEPS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200),
    *(86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400, 30 * 86_400, 90 * 86_400, 365 * 86_400),
)
"""Between ticks of a time axis, in seconds."""
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle. ``kind``: classes of the style sheet. ``title``: appears under the pointer. ``href``: where a click leads."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class Words:
    """One line of text, its foot at ``y``. It is not wrapped or cut here: see :func:`fitted`."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: Anchor = "start"
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points (x, y)."""

    points: tuple[tuple[float, float], ...]
    kind: str = "grid"

    @property
    def path(self) -> str:
        """The path in SVG's words."""
        return "M" + " L".join(f"{_number(x)} {_number(y)}" for x, y in self.points)


@dataclass(kw_only=True)
class Drawing:
    """A picture of ``width`` by ``height`` units; some 7 of them are as wide as a letter."""

    width: int
    height: int
    boxes: list[Box] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def marks(self) -> int:
        """How many elements it is drawn with."""
        return len(self.boxes) + len(self.words) + len(self.lines)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Where a number from ``low`` to ``high`` is between ``left`` and ``right``. Numbers outside are at the border."""

    low: float
    high: float
    left: float
    right: float

    def __call__(self, number: float) -> float:
        """Return the place of a number."""
        if self.high <= self.low:
            return self.left
        share = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.left + share * (self.right - self.left), 1)


def fitted(text: str, letters: int) -> str:
    """Return one line of at most this many letters, hidden characters marked; wide ones (East Asian) count twice."""
    room, line = letters, ""
    # Each character is at most ten when marked, so no more of the text can matter.
    for char in marked_text(text[: letters + 1]):
        room -= 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if room < 0:
            return f"{line[:-1]}…"
        line += char
    return line


def moment(seconds: float) -> str:
    """Return how long after a start something is, to the second or, below ten seconds, finer: ``1 h 5 min``, ``2.5 s``, ``0``."""
    if seconds < 10:  # noqa: PLR2004 - said above
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + (" s" if seconds else "")
    for length, unit in _UNITS:
        whole, rest = divmod(round(seconds), length)
        if whole:
            return f"{whole} {unit} {span(rest)}" if rest else f"{whole} {unit}"
    return f"{seconds:.0f} s"


def lasted(seconds: float) -> str:
    """Return how long something took: below a second in milliseconds."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else moment(round(seconds, 1))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers of seconds from ``low`` to ``high``, at most this many."""
    wide = max(high - low, 0.001)
    step = next((each for each in _STEPS if wide / each < most), wide / (most - 1))
    first = math.ceil(low / step)
    return [n * step for n in range(first, first + most) if n * step <= high]


def count_ticks(most: int) -> list[int]:
    """Return round counts from 0 up to at least ``most``, five at the most."""
    step = 1
    while max(most, 1) / step > 4:  # noqa: PLR2004 - five ticks have four steps
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, max(most, 1) + step, step))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
