"""The plots of "How we decide": approvals over time by how they ended, and how long an answer took. They name no one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from turngate.approvals_api.pages.pictures.drawing import Box, Drawing, Line, Scale, Words, count_ticks
from turngate.approvals_api.requests.statistics import ANSWERS, Answer, Period, Waits
from turngate.domain.text.durations import span

WIDTH: Final = 480
HEIGHT: Final = 190
LEFT: Final = 36
TOP: Final = 12
FOOT: Final = 160
EDGE: Final = 10
SHORT_PERIOD: Final = 86_400
MOST_LABELS: Final = 6
ANSWER_WORDS: Final[dict[Answer, str]] = {
    "approve": "approved as asked",
    "edit": "approved with edits",
    "taken_back": "taken back",
    "reject": "rejected",
    "respond": "answered by hand",
    "unanswered": "unanswered",
}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A column of a plot. ``parts``: kind → height in counts, from the foot up. ``title``: all of it in words."""

    label: str
    title: str
    parts: Sequence[tuple[str, int]]

    @property
    def count(self) -> int:
        """Its whole height."""
        return sum(count for _kind, count in self.parts)


def over_time(periods: Sequence[Period]) -> Drawing:
    """Return the approvals over time, stacked by how they ended."""
    bars = [
        Bar(
            label=period_label(each),
            title=f"{period_label(each)}: {counts_in_words(each)}",
            parts=[(name, each.counts[name]) for name in ANSWERS],
        )
        for each in periods
    ]
    return _columns(bars)


def time_to_answer(waits: Sequence[Waits]) -> Drawing:
    """Return how many decisions took how long."""
    labels = wait_labels(waits)
    short_labels = [*(each.removeprefix("under ") for each in labels[:-1]), "more"]
    bars = [
        Bar(label=short, title=f"{label}: {each.count:,}", parts=[("person", each.count)])
        for label, short, each in zip(labels, short_labels, waits, strict=True)
    ]
    return _columns(bars)


def period_label(period: Period) -> str:
    """Return when a period began (UTC): its day, or with the time where it is shorter than a day."""
    return f"{period.begin:%H:%M}" if period.seconds < SHORT_PERIOD else f"{period.begin.day} {period.begin:%b}"


def counts_in_words(period: Period) -> str:
    """Return how the approvals of a period ended."""
    counted = [f"{period.counts[name]:,} {words}" for name, words in ANSWER_WORDS.items() if period.counts[name]]
    return ", ".join(counted) or "none"


def wait_labels(waits: Sequence[Waits]) -> list[str]:
    """Return what each wait is called: ``under 5 s``, …, ``1 d or more``."""
    longest = [span(each.below) for each in waits if each.below is not None]
    return [f"under {each}" for each in longest] + [f"{longest[-1]} or more"]


def _columns(bars: Sequence[Bar]) -> Drawing:
    drawing = Drawing(width=WIDTH, height=HEIGHT)
    ticks = count_ticks(max(each.count for each in bars))
    up = Scale(low=0, high=ticks[-1], left=FOOT, right=TOP)
    for tick in ticks:
        drawing.lines.append(Line(points=((LEFT, up(tick)), (WIDTH - EDGE, up(tick)))))
        drawing.words.append(Words(x=LEFT - 6, y=up(tick) + 4, text=f"{tick:,}", kind="dim", anchor="end"))
    wide = (WIDTH - EDGE - LEFT) / len(bars)
    each_label = -(-len(bars) // MOST_LABELS) if len(bars) > MOST_LABELS + 2 else 1
    for index, bar in enumerate(bars):
        left, count = LEFT + index * wide, 0
        if index % each_label == 0:
            x = round(left + wide / 2, 1)
            drawing.words.append(Words(x=x, y=FOOT + 18, text=bar.label, kind="dim", anchor="middle"))
        for kind, height in bar.parts:
            if height:
                y = up(count + height)
                box = Box(
                    x=round(left + wide * 0.12, 1),
                    y=y,
                    width=round(wide * 0.76, 1),
                    height=round(up(count) - y, 1),
                    kind=f"mark {kind}",
                    title=bar.title,
                )
                drawing.boxes.append(box)
                count += height
    return drawing
