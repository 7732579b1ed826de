"""The alert rules of ``deploy/prometheus``, judged over real scrapes by Prometheus' own ``promtool test rules``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from support.project.scrapes import Scrape

ROOT: Final = Path(__file__).parents[3]
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
METRIC: Final = re.compile(r"\b(?:turngate|temporal)_[a-z_]+\b(?!\")")
COUNTED: Final = re.compile(r"_(?:total|bucket|count|sum)$")
BEFORE: Final = 10
"""Minutes as they were, before the fault; enough for the alerts' windows."""
AFTER: Final = 40
AGES: Final = frozenset(
    {
        "turngate_task_queue_oldest_task_seconds",
        "turngate_runs_longest_silence_seconds",
        "turngate_requests_oldest_pending_seconds",
        "turngate_outbox_oldest_seconds",
        "turngate_retention_late_seconds",
        "turngate_legal_holds_oldest_seconds",
    }
)
"""Of what waits; 0: nothing does."""
MOVED_BY: Final = {
    "turngate_store_up": "TurngateStoreDown",
    "turngate_store_failures_total": "TurngateStoreDown",
    "turngate_temporal_up": "TurngateTemporalDown",
    "turngate_task_queue_oldest_task_seconds": "TurngateTasksWait",
    "turngate_retention_late_seconds": "TurngateRetentionLate",
    "temporal_workflow_task_execution_failed_total": "TurngateWorkflowFails",
}
"""Metrics that need an outage to move → the alert whose fault does, in the test of that alert."""
OF_LOAD: Final = frozenset({"TurngateStoreSlow", "TurngateEventsLate", "TurngateEventLoopStalled"})
"""What a machine that is busy with other tests may cause, and rightly: looked at only where it is the fault."""


@dataclass(frozen=True)
class Alert:
    name: str
    expression: str
    runbook: str

    @property
    def metrics(self) -> set[str]:
        return metrics_of(self.expression)


def alerts() -> dict[str, Alert]:
    """Return name → alert."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {
        rule["alert"]: Alert(rule["alert"], rule["expr"], rule["annotations"]["runbook"]) for rule in group["rules"]
    }


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that an expression names, without its labels' values."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', '""', expression)))


def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        raise RuntimeError("promtool is not installed; run scripts/system-packages")
    return program


def firing(before: Scrape | None, after: Scrape | None) -> set[str]:
    """Return the alerts that fire when Prometheus first scrapes ``before`` for a while, then ``after``; without :data:`OF_LOAD`.

    None: the process did not answer. Prometheus adds ``up``, ``instance`` and ``job``. Raises AssertionError if one fires
    before the fault.
    """
    return set(after_fault(first_firing(before, after)))


def after_fault(fired: Mapping[str, int]) -> dict[str, int]:
    """Return what :func:`first_firing` did without :data:`OF_LOAD`. Raises AssertionError if an alert fires before the fault."""
    fired = {name: minute for name, minute in fired.items() if name not in OF_LOAD}
    early = [name for name, minute in fired.items() if minute < 0]
    assert not early, f"these fire before the fault: {early}"
    return fired


def first_firing(before: Scrape | None, after: Scrape | None, *, minutes: int = AFTER) -> dict[str, int]:
    """Return alert → how many minutes after the fault began it fires, by the rules as they are deployed.

    Time is promtool's, so four hours cost nothing: the fault continues for ``minutes``, and what waits grows older.
    """
    wanted = {name for alert in alerts().values() for name in alert.metrics}
    test = _test(_series(before, wanted), _series(after, wanted), minutes)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "test.yaml").write_text(json.dumps(test))
        outcome = subprocess.run(
            [promtool(), "test", "rules", "test.yaml"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    # promtool compares with what is expected, and nothing is: so it prints what it got.
    text = outcome.stdout + outcome.stderr
    assert outcome.returncode == 0 or "got:" in text, text
    fired = re.findall(r'alertname=\\?"(\w+)\\?"} ([\d.E+]+)', text.partition("got:")[2])
    return {name: round(float(seconds) / 60) - BEFORE - 1 for name, seconds in fired}


def of_load(before: Scrape, after: Scrape) -> set[str]:
    """Return which of :data:`OF_LOAD` fire."""
    return set(first_firing(before, after)) & OF_LOAD


def _series(scrape: Scrape | None, wanted: set[str]) -> dict[str, float]:
    up = 'up{instance="test:1",job="turngate"}'
    if scrape is None:
        return {up: 0.0}
    of_rules = {f"{name}{suffix}" for name in wanted for suffix in ("", "_bucket")}
    return {up: 1.0} | {name: value for name, value in scrape.series().items() if name.partition("{")[0] in of_rules}


def _test(before: Mapping[str, float], after: Mapping[str, float], minutes: int) -> dict[str, Any]:
    def values(name: str) -> str:
        first, then = before.get(name), after.get(name)
        beginning = f"_x{BEFORE + 1}" if first is None else f"{first}x{BEFORE}"
        if then is None:
            return f"{beginning} stale"
        return f"{beginning} {then}+{_more_a_minute(name.partition('{')[0], first or 0, then)}x{minutes}"

    until = BEFORE + 1 + minutes
    ever = f'min by (alertname) (min_over_time(timestamp(ALERTS{{alertstate="firing"}})[{until}m:1m]))'
    expected = {"expr": ever, "eval_time": f"{until}m", "exp_samples": []}
    series = [{"series": name, "values": values(name)} for name in sorted({*before, *after})]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    return {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}


def _more_a_minute(name: str, first: float, then: float) -> float:
    """Return by how much a series grows while the fault continues: what was counted once is counted every minute."""
    if COUNTED.search(name):
        return then - first
    return 60 if then > 0 and name in AGES else 0


def require_moved(alert: str, before: Scrape, after: Scrape) -> None:
    """Raise AssertionError unless the fault of an alert has moved what :data:`MOVED_BY` says of it."""
    names = {name for name, by in MOVED_BY.items() if by == alert}
    assert names
    assert names <= before.moved(after), f"{alert} leaves {names - before.moved(after)} as they are"
