"""Reports: totals, a rate's confidence interval, changes since a baseline, JUnit."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.evals import Attempt, Report, changes, junit_xml, load_report
from turngate.evals.report import wilson


def attempt(case: str, status: str = "passed", *, model: str = "m", attempt: int = 1, **more: object) -> Attempt:
    return Attempt.model_validate({"case": case, "model": model, "attempt": attempt, "status": status, **more})


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_wilsons(passed: int, of: int, low: float, high: float) -> None:
    """Published values of the score interval without continuity correction."""
    assert wilson(passed, of) == pytest.approx((low, high), abs=0.00005)


def test_totals_count_what_was_run() -> None:
    """Attempts that did not run are counted apart, and unknown costs are left out."""
    report = Report(
        attempts=(
            attempt("a", tokens=10, asks=1, cost=Decimal("0.1")),
            attempt("b", "failed", tokens=5, asks=2),
            attempt("c", "not_run"),
        )
    )
    sums = report.totals
    assert (sums.passed, sums.failed, sums.not_run, sums.pass_rate) == (1, 1, 1, 0.5)
    assert (sums.asks_per_run, sums.tokens, sums.cost) == (1.5, 15, Decimal("0.1"))
    nothing = Report(attempts=(attempt("c", "not_run"),)).totals
    assert (nothing.pass_rate, nothing.interval, nothing.asks_per_run, nothing.cost) == (None, None, None, None)


def test_what_newly_fails_comes_first() -> None:
    """Cases are compared by name and model; with several attempts, by how many passed."""
    before = Report(
        attempts=(
            attempt("stays"),
            attempt("breaks"),
            attempt("recovers", "failed"),
            attempt("old"),
            attempt("bad", "failed"),
            *(attempt("flaky", attempt=at) for at in (1, 2)),
        )
    )
    now = Report(
        attempts=(
            attempt("recovers", model="n"),
            attempt("stays", model="n"),
            attempt("new", model="n"),
            attempt("bad", "failed", model="n"),
            attempt("breaks", "failed", model="n"),
            attempt("flaky", model="n"),
            attempt("flaky", "failed", model="n", attempt=2),
        )
    )
    assert [(each.kind, each.case, each.before, each.now) for each in changes(before, now)] == [
        ("newly_failing", "breaks", 1, 0),
        ("newly_failing", "flaky", 1, 0.5),
        ("newly_passing", "recovers", 0, 1),
        ("still_failing", "bad", 0, 0),
        ("new", "new", None, 1),
        ("gone", "old", 1, None),
    ]
    two = Report(attempts=(attempt("stays"), attempt("stays", "failed", model="n")))
    assert [(each.kind, each.model) for each in changes(before, two) if each.case == "stays"] == [("new", "n")]


def test_junit_escapes_an_agents_text() -> None:
    """One suite per model, failures with their reasons, and no character that XML does not allow."""
    hostile = "\x1b[2J</failure>\x00\ud800&"
    report = Report(
        attempts=(
            attempt("a", "failed", reasons=(hostile, "second"), run_ids=("run_1",), final_text=hostile),
            attempt("b", "not_run", model="n"),
        )
    )
    root = ET.fromstring(junit_xml(report).partition("\n")[2])  # noqa: S314 - we have just written it
    first, second = root
    assert (first.get("failures"), second.get("skipped")) == ("1", "1")
    failure = first.find("testcase/failure")
    assert failure is not None
    assert failure.text == "\ufffd[2J</failure>\ufffd\ufffd&\nsecond"
    assert second.find("testcase/skipped") is not None


def test_a_baseline_that_is_none_is_refused(tmp_path: Path) -> None:
    """A file that is no report is an error of the command, reported before anything runs."""
    file = tmp_path / "r.json"
    file.write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a report of `turngate eval --json`"):
        load_report(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_report(tmp_path / "away.json")
