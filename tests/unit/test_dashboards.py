"""What ``deploy/`` has for Prometheus and Grafana: every expression parses, every alert has its runbook."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.project.alerts import RULES, alerts, metrics_of, promtool
from support.project.dashboards import DASHBOARD, expressions
from support.project.printed_commands import ROOT, in_texts, problem_of

RUNBOOKS = ROOT / "deploy" / "runbooks"


def test_the_rules_and_the_example_configuration_are_valid() -> None:
    """Prometheus' own tool accepts them."""
    for what, file in (("rules", RULES), ("config", RULES.with_name("prometheus.yaml"))):
        outcome = subprocess.run(
            [promtool(), "check", what, str(file)], capture_output=True, text=True, timeout=60, check=False
        )
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_each_expression_of_the_dashboard_parses(tmp_path: Path) -> None:
    """Prometheus' own parser accepts them, with Grafana's interval filled in."""
    rules = [{"record": f"panel:{n}", "expr": each} for n, each in enumerate(expressions())]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    outcome = subprocess.run(
        [promtool(), "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    """Grafana would draw one over the other."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _y in cells) < 24


def test_each_alert_has_one_runbook_and_each_runbook_one_alert() -> None:
    """The annotation names a file of this repository; no runbook is left over; its commands can be typed; its links lead on."""
    named = [ROOT / each.runbook for each in alerts().values()]
    assert sorted(named) == sorted(RUNBOOKS.glob("*.md"))
    printed = [each for each in in_texts() if each.where.startswith("deploy/runbooks/")]
    assert len(printed) > len(named), "the scanner finds them"
    assert not [f"{each.where}: {problem}" for each in printed if (problem := problem_of(each))]


@pytest.mark.parametrize("runbook", sorted(RUNBOOKS.glob("*.md")), ids=lambda file: file.stem)
def test_a_runbook_says_what_it_means_where_to_look_and_what_to_do(runbook: Path) -> None:
    """Its parts are there, and the files it links to exist."""
    text = runbook.read_text()
    assert re.findall(r"^#+ (.+)$", text, re.MULTILINE)[1:] == ["Look", "Fix", "Over when"]
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (runbook.parent / target).resolve().is_file(), target


def test_names_and_units_follow_prometheus_rules() -> None:
    """Every name that is read begins with its application, and a histogram's is in seconds."""
    read = {
        name
        for each in (*expressions(), *(alert.expression for alert in alerts().values()))
        for name in metrics_of(each)
    }
    assert all(re.fullmatch(r"(turngate|temporal)_[a-z_]+", name) for name in read)
    assert all("_seconds" in name for name in read if name.endswith("_bucket"))
