"""What changed between two reports: newly failing first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from turngate.evals.report import Attempt, Report, totals

Kind = Literal["newly_failing", "newly_passing", "still_failing", "new", "gone"]
ORDER: Final[tuple[Kind, ...]] = ("newly_failing", "newly_passing", "still_failing", "new", "gone")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One case under one model. ``before``, ``now``: its pass rate; None: it was not run then, or is not now.

    With several attempts a case counts as failing when fewer of them passed than before.
    """

    kind: Kind
    case: str
    model: str
    before: float | None
    now: float | None


def changes(baseline: Report, now: Report) -> list[Change]:
    """Return what is not as it was, and what fails as it did: newly failing first, each kind in the report's order.

    Where each of the two has one model, these are compared whatever they are called; else models of one name.
    """
    one_each = len(baseline.models) == len(now.models) == 1
    before = _rates(baseline, one_each=one_each)
    after = _rates(now, one_each=one_each)
    named = now.models[0] if one_each else ""
    found = [
        Change(kind=kind, case=case, model=model or named, before=before.get(key), now=after.get(key))
        for key in dict.fromkeys((*after, *before))
        for case, model in [key]
        if (kind := _kind(before.get(key), after.get(key))) is not None
    ]
    return sorted(found, key=lambda change: ORDER.index(change.kind))


def _rates(report: Report, *, one_each: bool) -> dict[tuple[str, str], float]:
    grouped: dict[tuple[str, str], list[Attempt]] = {}
    for each in report.attempts:
        grouped.setdefault((each.case, "" if one_each else each.model), []).append(each)
    return {key: rate for key, made in grouped.items() if (rate := _rate(made)) is not None}


def _rate(attempts: Sequence[Attempt]) -> float | None:
    return totals(attempts).pass_rate


def _kind(before: float | None, now: float | None) -> Kind | None:
    if now is None:
        return "gone"
    if before is None:
        return "new"
    if now < before:
        return "newly_failing"
    if now > before:
        return "newly_passing"
    return None if now == 1 else "still_failing"
