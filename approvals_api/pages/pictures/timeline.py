"""A run's timeline as a picture: one row per request to the model and per call, or counts where that would be too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from turngate.approvals_api.pages.pictures.drawing import (
    Box,
    Drawing,
    Line,
    Scale,
    Words,
    fitted,
    lasted,
    moment,
    ticks,
)
from turngate.approvals_api.runs.timeline import Span, SpanKind, Timeline
from turngate.domain.text.sentences import counted
from turngate.wire.people import display_name

MOST_ROWS: Final = 40
OVERVIEW_ROWS: Final = 12
"""On the run's own page, where the steps follow."""
MOST_SPANS: Final = 80
MOST_FAILURES: Final = 3
"""Of one request to the model: the last ones. The table says how many there were."""
BINS: Final = 60
"""Parts of the time that are counted where rows would be too many: three boxes each at the most."""
SHORTEST_SECONDS: Final = 0.01
"""Of a window: clocks are not finer than what one would look for in it."""

WIDTH: Final = 960
LEFT: Final = 184
RIGHT: Final = 704
NAME_LETTERS: Final = 25
NOTE_LETTERS: Final = 38
ROW: Final = 20
LANE: Final = 44
TOP: Final = 24
TICKS: Final = 8
LANES: Final[dict[SpanKind, str]] = {"model": "model", "person": "people", "tool": "tools"}
OPENINGS: Final = {"model": "the model answers", "person": "waits for a person", "tool": "runs"}


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a run that is looked at, in seconds from its start."""

    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the picture and its table. ``spans``: waits for people first, then the execution."""

    step: int
    place: int
    name: str
    spans: Sequence[Span]

    @property
    def begin(self) -> float:
        """When the first of it began."""
        return min(each.begin for each in self.spans)

    @property
    def end(self) -> float:
        """When the last of it ended."""
        return max(each.end for each in self.spans)


@dataclass(kw_only=True)
class Bin:
    """A part of the time, and what was in it, by kind. ``busy``: for how many seconds of it, at most all."""

    begin: float
    end: float
    counts: dict[SpanKind, int] = field(default_factory=lambda: dict.fromkeys(LANES, 0))
    busy: dict[SpanKind, float] = field(default_factory=lambda: dict.fromkeys(LANES, 0.0))
    bad: dict[SpanKind, int] = field(default_factory=lambda: dict.fromkeys(LANES, 0))
    first_step: int = 0
    last_step: int = 0

    @property
    def words(self) -> str:
        """What was in it."""
        counted = [_counted(self.counts[kind], self.bad[kind], noun) for kind, noun in _NOUNS.items()]
        steps = f"step {self.first_step}" if self.first_step == self.last_step else ""
        steps = steps or f"steps {self.first_step} to {self.last_step}"
        return ", ".join([steps, *(each for each in counted if each)])


_NOUNS: Final[dict[SpanKind, str]] = {"model": "response", "person": "wait", "tool": "call"}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A timeline's part with its picture. Either ``rows`` or ``bins`` are what the table has."""

    window: Window
    whole: Window
    drawing: Drawing
    rows: Sequence[Row] = ()
    bins: Sequence[Bin] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all of the run is looked at."""
        return self.window.begin <= self.whole.begin and self.window.end >= self.whole.end

    def moved(self, share: float) -> Window | None:
        """Return the window next to this one, ``share`` of its length away; None: nothing is there."""
        length = self.window.end - self.window.begin
        begin = max(0.0, self.window.begin + share * length)
        if begin >= self.whole.end or begin == self.window.begin:
            return None
        return Window(begin=begin, end=begin + length)

    @property
    def wider(self) -> Window:
        """The window of three times the length around this one."""
        length = self.window.end - self.window.begin
        return Window(begin=max(0.0, self.window.begin - length), end=min(self.whole.end, self.window.end + length))


def address(run_id: str, part: Window | Bin) -> str:
    """Return where a part of a run's timeline is."""
    return f"/runs/{run_id}/timeline?{urlencode({'from': f'{part.begin:.3f}', 'to': f'{part.end:.3f}'})}"


def around(row: Row) -> Window:
    """Return the window in which a row is large: with a tenth of its length on both sides."""
    edge = max((row.end - row.begin) / 10, SHORTEST_SECONDS)
    return Window(begin=max(0.0, row.begin - edge), end=row.end + edge)


def picture_of(timeline: Timeline, window: Window | None = None, *, most_rows: int = MOST_ROWS) -> Picture:
    """Return the picture of a part of a run. ``window`` None: all of it. More than ``most_rows`` are counted instead."""
    whole = Window(begin=0.0, end=max(timeline.seconds, SHORTEST_SECONDS))
    window = whole if window is None else _clamped(window, whole)
    spans = timeline.within(window.begin, window.end)
    rows = rows_of(spans)
    if len(rows) > most_rows or len(spans) > MOST_SPANS:
        bins = _bins(spans, window)
        return Picture(window=window, whole=whole, drawing=_lanes(timeline.run.id, bins, window), bins=bins)
    return Picture(window=window, whole=whole, drawing=_rows(timeline.run.id, rows, window), rows=rows)


def _clamped(window: Window, whole: Window) -> Window:
    """Return the window without what comes after the run."""
    return Window(begin=window.begin, end=max(min(window.end, whole.end), window.begin + SHORTEST_SECONDS))


def rows_of(spans: Iterable[Span]) -> list[Row]:
    """Return the rows of spans, in the order of the run's page: a step's response, then its calls. Pauses are their own."""
    rows: dict[tuple[int, int, float], list[Span]] = defaultdict(list)
    for each in spans:
        rows[each.step, each.place, 0.0 if each.place else each.begin].append(each)
    return [
        Row(
            step=step,
            place=place,
            name=inside[0].name if place or inside[0].kind == "person" else f"step {step}",
            spans=sorted(inside, key=lambda each: each.begin),
        )
        for (step, place, _begin), inside in rows.items()
    ]


def note(row: Row) -> str:
    """Return how a row's spans ended, in a few words: ``approved by Ann after 3 min, 120 ms``."""
    return ", ".join(filter(None, map(span_words, row.spans)))


def span_words(span: Span) -> str:
    """Return how a span ended, and how long it took."""
    took = lasted(span.end - span.begin)
    if span.is_open:
        return f"{OPENINGS[span.kind]}, {took} so far"
    match span.kind:
        case "model":
            failed = f", failed attempts: {len(span.failures)}" if span.failures else ""
            tokens = f", {span.tokens:,} tokens" if span.tokens else ""
            return f"{took}{tokens}{failed}"
        case "person":
            who = f" by {display_name(span.by)}" if span.by else ""
            return f"{span.ended}{who} after {took}"
        case "tool":
            if span.ended == "not run":
                return "not run"
            again = f", {span.attempts} attempts" if span.attempts > 1 else ""
            return f"{span.ended} in {took}{again}" if span.is_bad or again else took


def _rows(run_id: str, rows: Sequence[Row], window: Window) -> Drawing:
    drawing = Drawing(width=WIDTH, height=TOP + ROW * max(len(rows), 1) + 6)
    scale = _axis(drawing, window)
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        target = f"/runs/{run_id}#" + (f"call-{row.step}-{row.place}" if row.place else f"step-{row.step}")
        name = Words(x=6 if row.place == 0 else 20, y=y + 14, text=fitted(row.name, NAME_LETTERS), href=target)
        drawing.words.append(name)
        drawing.words.append(Words(x=RIGHT + 10, y=y + 14, text=fitted(note(row), NOTE_LETTERS), kind="dim"))
        for span in row.spans:
            title = f"{row.name}: {span_words(span)}"
            drawing.boxes.append(_box(scale, span, y + 4, title, address(run_id, around(row))))
            drawing.boxes += [_failure(scale(each), y + 2) for each in span.failures[-MOST_FAILURES:]]
    return drawing


def _lanes(run_id: str, bins: Sequence[Bin], window: Window) -> Drawing:
    drawing = Drawing(width=WIDTH, height=TOP + LANE * len(LANES) + 6)
    scale = _axis(drawing, window)
    for lane, (kind, name) in enumerate(LANES.items()):
        foot = TOP + LANE * (lane + 1)
        drawing.words.append(Words(x=6, y=foot - LANE / 2 + 6, text=name))
        drawing.words.append(Words(x=RIGHT + 10, y=foot - LANE / 2 + 6, text=_sum(bins, kind), kind="dim"))
        drawing.lines.append(Line(points=((LEFT, foot), (RIGHT, foot))))
        for each in bins:
            if each.counts[kind]:
                height = round(3 + (LANE - 11) * each.busy[kind] / (each.end - each.begin), 1)
                left = scale(each.begin)
                drawing.boxes.append(
                    Box(
                        x=left,
                        y=round(foot - height, 1),
                        width=round(max(1.0, scale(each.end) - left - 1), 1),
                        height=height,
                        kind=f"mark {kind}{' bad' if each.bad[kind] else ''}",
                        title=f"{moment(each.begin)} to {moment(each.end)}: {each.words}",
                        href=address(run_id, each),
                    )
                )
    return drawing


def _axis(drawing: Drawing, window: Window) -> Scale:
    scale = Scale(low=window.begin, high=window.end, left=LEFT, right=RIGHT)
    for each in ticks(window.begin, window.end, TICKS):
        x = scale(each)
        drawing.lines.append(Line(points=((x, TOP - 4), (x, drawing.height))))
        drawing.words.append(Words(x=x, y=14, text=moment(round(each, 3)), kind="dim", anchor="middle"))
    return scale


def _box(scale: Scale, span: Span, y: float, title: str, href: str) -> Box:
    left = scale(span.begin)
    marks = {"bad": span.is_bad, "again": span.was_repeated, "open": span.is_open}
    kind = " ".join(["mark", span.kind, *(each for each, applies in marks.items() if applies)])
    width = round(max(2.0, scale(span.end) - left), 1)
    return Box(x=left, y=y, width=width, height=ROW - 8, kind=kind, title=title, href=href)


def _failure(x: float, y: float) -> Box:
    return Box(x=x, y=y, width=2, height=ROW - 4, kind="mark failure", title="the request to the model failed")


def _bins(spans: Sequence[Span], window: Window) -> list[Bin]:
    wide = max((window.end - window.begin) / BINS, SHORTEST_SECONDS / BINS)
    bins = [Bin(begin=window.begin + n * wide, end=window.begin + (n + 1) * wide) for n in range(BINS)]
    for span in spans:
        begin, end = max(span.begin, window.begin), min(span.end, window.end)
        first = min(int((begin - window.begin) / wide), BINS - 1)
        last = min(int((end - window.begin) / wide), BINS - 1)
        for each in bins[first : last + 1]:
            each.counts[span.kind] += 1
            each.bad[span.kind] += span.is_bad or span.was_repeated
            overlap = min(end, each.end) - max(begin, each.begin)
            each.busy[span.kind] = min(each.busy[span.kind] + max(overlap, 0.0), wide)
            each.first_step = min(each.first_step or span.step, span.step)
            each.last_step = max(each.last_step, span.step)
    return [each for each in bins if each.last_step]


def _sum(bins: Sequence[Bin], kind: SpanKind) -> str:
    busy = sum(each.busy[kind] for each in bins)
    return f"{lasted(busy)} in all" if busy else "none"


def _counted(count: int, bad: int, noun: str) -> str:
    if not count:
        return ""
    return counted(count, noun) + (f" ({bad:,} not as planned)" if bad else "")
