"""What a measurement hands back, and how the table is printed. Knows nothing of what is measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


class MeasurementError(Exception):
    """What was measured did not happen as it must: a turn that did not complete, a once tool that ran twice."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ours divided by the baseline's, round by round: median and range."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(ours: Sequence[float], baseline: Sequence[float]) -> Ratio:
        """Pair the rounds in order; both sequences have the same length."""
        pairs = [one / other for one, other in zip(ours, baseline, strict=True)]
        return Ratio(median=statistics.median(pairs), low=min(pairs), high=max(pairs))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}-{self.high:.2f}]"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table. ``reached``: None for a line that has no goal; ``samples``: what the line was made from."""

    name: str
    ours: str
    baseline: str = ""
    ratio: Ratio | None = None
    goal: str = ""
    reached: bool | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """The line as shown."""
        reached = {None: "", True: "yes", False: "no"}[self.reached]
        return [self.name, self.ours, self.baseline, str(self.ratio or ""), self.goal, reached]

    def as_json(self) -> dict[str, object]:
        """The line with its samples."""
        return asdict(self)


HEADINGS = ["figure", "ours", "baseline", "ratio: median [min-max]", "goal", "reached"]


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table that also reads well in a terminal."""
    rows = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile; ``share``: 0-1."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def milliseconds(samples: Sequence[float]) -> str:
    """Return median and 95th percentile of samples in seconds, as milliseconds."""
    return f"p50 {percentile(samples, 0.5) * 1000:.1f} ms, p95 {percentile(samples, 0.95) * 1000:.1f} ms"
