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
from support.scrapes import Scrape

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
METRIC: Final = re.compile(r"\b(?:turngate|temporal)_[a-z_]+\b(?!\")")
COUNTED: Final = re.compile(r"_(?:total|bucket|count|sum)$")
BEFORE: Final = 10
"""Minutes as they were, before the fault; enough for the alerts' windows."""
AFTER: Final = 40
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


def firing(before: Scrape | None, after: Scrape | None, thresholds: Mapping[str, str] | None = None) -> set[str]:
    """Return the alerts that fire when Prometheus first scrapes ``before`` for a while, then ``after``; without :data:`OF_LOAD`.

    None: the process did not answer. ``thresholds``: what is written in the rules → what a test puts there, which has no hours
    to wait. Prometheus adds ``up``, ``instance`` and ``job``.
    """
    return _firing(before, after, thresholds) - OF_LOAD


def _firing(before: Scrape | None, after: Scrape | None, thresholds: Mapping[str, str] | None = None) -> set[str]:
    rules = RULES.read_text()
    for written, short in (thresholds or {}).items():
        assert rules.count(written) == 1, written
        rules = rules.replace(written, short)
    wanted = {name for alert in alerts().values() for name in alert.metrics}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "alerts.yaml").write_text(rules)
        test = _test(_series(before, wanted), _series(after, wanted))
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
    return set(re.findall(r'alertname=\\?"(\w+)', text.partition("got:")[2]))


def of_load(before: Scrape, after: Scrape) -> set[str]:
    """Return which of :data:`OF_LOAD` fire."""
    return _firing(before, after) & OF_LOAD


def _series(scrape: Scrape | None, wanted: set[str]) -> dict[str, float]:
    up = 'up{instance="test:1",job="turngate"}'
    if scrape is None:
        return {up: 0.0}
    of_rules = {f"{name}{suffix}" for name in wanted for suffix in ("", "_bucket")}
    return {up: 1.0} | {name: value for name, value in scrape.series().items() if name.partition("{")[0] in of_rules}


def _test(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    def values(name: str) -> str:
        first, then = before.get(name), after.get(name)
        beginning = f"_x{BEFORE}" if first is None else f"{first}x{BEFORE}"
        if then is None:
            return f"{beginning} stale"
        # The fault continues: what was counted once is counted every minute.
        more = then - (first or 0) if COUNTED.search(name.partition("{")[0]) else 0
        return f"{beginning} {then}+{more}x{AFTER}"

    ever = f'group by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{BEFORE + AFTER}m]))'
    expected = {"expr": ever, "eval_time": f"{BEFORE + AFTER}m", "exp_samples": []}
    series = [{"series": name, "values": values(name)} for name in sorted({*before, *after})]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    return {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [case]}
