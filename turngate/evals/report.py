"""An evaluation's report: attempts and totals. It is written as JSON and read again, as a later report's baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal
from xml.etree import ElementTree as ET

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field

from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.failures import describe_validation

FORM: Final = 1
Z_95: Final = 1.959963984540054
"""The two-sided 95 % quantile of the normal distribution."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class ApproverDecision(_Part):
    """A scripted approver's decision. ``tool``: the tool of the call."""

    request_id: str
    tool: str
    verb: str
    by: str


class Attempt(_Part):
    """One attempt at a case with one model. ``not_run``: it was stopped before its end, or never started.

    ``reasons``: why it failed. ``asks``: requests that were opened. ``cost`` None: not known. ``seconds``: how long it took.
    """

    case: str
    model: str
    attempt: int = Field(ge=1)
    status: Literal["passed", "failed", "not_run"]
    reasons: tuple[str, ...] = ()
    outcome: str | None = None
    run_ids: tuple[str, ...] = ()
    steps: int = 0
    asks: int = 0
    decisions: tuple[ApproverDecision, ...] = ()
    tokens: int = 0
    cost: Decimal | None = None
    seconds: float = 0
    final_text: str = ""


class Totals(_Part):
    """Sums over the attempts that ended. ``pass_rate``, ``interval``: None if there are none.

    ``interval``: Wilson's, of 95 % confidence. ``cost`` None: it is known for none of them.
    """

    passed: int
    failed: int
    not_run: int
    pass_rate: float | None
    interval: tuple[float, float] | None
    asks: int
    asks_per_run: float | None
    decisions: int
    steps: int
    tokens: int
    cost: Decimal | None
    seconds: float


class Report(_Part):
    """A whole evaluation. ``attempts``: in the order of the cases. ``interrupted``: it was stopped before its end.

    ``directory``: where the store is; None: it was deleted. ``repeat``: how often each case was tried.
    """

    form: int = FORM
    attempts: tuple[Attempt, ...]
    repeat: int = 1
    interrupted: bool = False
    directory: str | None = None

    @property
    def models(self) -> list[str]:
        """The models, in order."""
        return list(dict.fromkeys(each.model for each in self.attempts))

    @property
    def cases(self) -> list[str]:
        """The cases' names, in order."""
        return list(dict.fromkeys(each.case for each in self.attempts))

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way to write a property into JSON
    @property
    def totals(self) -> Totals:
        """Totals over all attempts."""
        return totals(self.attempts)

    @property
    def all_passed(self) -> bool:
        """Whether every attempt ran and passed."""
        return all(each.status == "passed" for each in self.attempts)

    def of(self, *, case: str | None = None, model: str | None = None) -> list[Attempt]:
        """Return the attempts at a case, with a model, or both."""
        return [each for each in self.attempts if case in {None, each.case} and model in {None, each.model}]

    def as_json(self) -> str:
        """Return it as a file's text."""
        return self.model_dump_json(indent=2) + "\n"

    def check(self) -> None:
        """Raise AssertionError, naming every attempt that did not pass: for use in a test."""
        wrong = [each for each in self.attempts if each.status != "passed"]
        if wrong:
            lines = [f"- {each.case} ({each.model}): {'; '.join(each.reasons) or each.status}" for each in wrong]
            raise AssertionError(f"{len(wrong)} of {len(self.attempts)} attempt(s) did not pass:\n" + "\n".join(lines))


def totals(attempts: Sequence[Attempt]) -> Totals:
    """Return the totals of some attempts."""
    ended = [each for each in attempts if each.status != "not_run"]
    passed = sum(each.status == "passed" for each in ended)
    costs = [each.cost for each in ended if each.cost is not None]
    asks = sum(each.asks for each in ended)
    return Totals(
        passed=passed,
        failed=len(ended) - passed,
        not_run=len(attempts) - len(ended),
        pass_rate=passed / len(ended) if ended else None,
        interval=wilson(passed, len(ended)) if ended else None,
        asks=asks,
        asks_per_run=asks / len(ended) if ended else None,
        decisions=sum(len(each.decisions) for each in ended),
        steps=sum(each.steps for each in ended),
        tokens=sum(each.tokens for each in ended),
        cost=sum(costs, Decimal()) if costs else None,
        seconds=sum(each.seconds for each in ended),
    )


def wilson(passed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval for a rate (Wilson 1927); it holds for few attempts and for rates near 0 or 1.

    ``total``: at least 1.
    """
    rate, square = passed / total, Z_95**2
    middle = (rate + square / (2 * total)) / (1 + square / total)
    half = Z_95 / (1 + square / total) * math.sqrt(rate * (1 - rate) / total + square / (4 * total**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def load_report(path: str | Path) -> Report:
    """Read a report that ``--json`` wrote. Raises ConfigurationError when it cannot be read or is none."""
    file = Path(path)
    try:
        return Report.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"the report {file} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigurationError(
            f"{file} is not a report of `turngate eval --json`: {describe_validation(error)}"
        ) from None


# A report as JUnit XML, which continuous integration displays: a suite per model, a test per attempt.


NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 (§2.2, Char) does not allow in any form, but an agent's text may contain."""


def junit_xml(report: Report) -> str:
    """Return the report's text, with its declaration."""
    root = ET.Element("testsuites", name="turngate eval")
    for model in report.models:
        attempts = report.of(model=model)
        sums = totals(attempts)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_clean(model),
            tests=str(len(attempts)),
            failures=str(sums.failed),
            errors="0",
            skipped=str(sums.not_run),
            time=f"{sums.seconds:.3f}",
        )
        for each in attempts:
            _add(suite, each, several=report.repeat > 1)
    ET.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _add(suite: ET.Element, attempt: Attempt, *, several: bool) -> None:
    name = f"{attempt.case} [{attempt.attempt}]" if several else attempt.case
    test = ET.SubElement(
        suite, "testcase", classname=_clean(attempt.model), name=_clean(name), time=f"{attempt.seconds:.3f}"
    )
    if attempt.status == "failed":
        first = attempt.reasons[0] if attempt.reasons else "failed"
        failure = ET.SubElement(test, "failure", message=_clean(first))
        failure.text = _clean("\n".join(attempt.reasons))
    elif attempt.status == "not_run":
        ET.SubElement(test, "skipped", message="the evaluation was stopped before its end")
    if attempt.run_ids:
        ET.SubElement(test, "system-out").text = _clean(
            f"runs: {', '.join(attempt.run_ids)}\noutcome: {attempt.outcome}\n{attempt.final_text}"
        )


def _clean(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)


# What changed between two reports: newly failing first. Pure.


Kind = Literal["newly_failing", "newly_passing", "still_failing", "new", "gone"]
ORDER: Final[tuple[Kind, ...]] = ("newly_failing", "newly_passing", "still_failing", "new", "gone")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One case with one model. ``before``, ``now``: its pass rate; None: it was not run.

    A case counts as newly failing if fewer of its attempts passed than before.
    """

    kind: Kind
    case: str
    model: str
    before: float | None
    now: float | None


def changes(baseline: Report, now: Report) -> list[Change]:
    """Return the cases that changed or still fail: newly failing first, each kind in the report's order.

    If each report has one model, these are compared whatever their names; otherwise models of the same name are compared.
    """
    one_each = len(baseline.models) == len(now.models) == 1
    before = _rates(baseline, one_each=one_each)
    after = _rates(now, one_each=one_each)
    named = now.models[0] if one_each else ""
    listed = [
        Change(kind=kind, case=case, model=model or named, before=before.get(key), now=after.get(key))
        for key in dict.fromkeys((*after, *before))
        for case, model in [key]
        if (kind := _kind(before.get(key), after.get(key))) is not None
    ]
    return sorted(listed, key=lambda change: ORDER.index(change.kind))


def _rates(report: Report, *, one_each: bool) -> dict[tuple[str, str], float]:
    grouped: dict[tuple[str, str], list[Attempt]] = {}
    for each in report.attempts:
        grouped.setdefault((each.case, "" if one_each else each.model), []).append(each)
    return {key: rate for key, attempts in grouped.items() if (rate := totals(attempts).pass_rate) is not None}


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
