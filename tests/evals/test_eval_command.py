"""``turngate eval`` as a user runs it: the example's cases, exit codes, files, Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.runtime.locations import TEMPORAL_DB

EXAMPLE = Path(__file__).parents[2] / "examples" / "evals"
TURNGATE = Path(sys.executable).parent / "turngate"
MODELS = ("scripted:clerk.yaml", "scripted:hasty.yaml")
DEADLINE_SECONDS = 90


def _started(*arguments: str, cwd: Path = EXAMPLE) -> subprocess.Popen[str]:
    """Start the command in the app's directory, without our settings and keys."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TURNGATE_", "TEMPORAL_", "OPENAI_"))
    }
    return subprocess.Popen(
        [TURNGATE, "eval", "evals_app:app", *arguments],
        cwd=cwd,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.exhaustive
def test_the_examples_cases_compare_two_models(tmp_path: Path) -> None:
    """The output has a column per model, reasons, changes, files and the way to the kept runs; exit code 1: a model is worse."""
    attempts = [{"case": "a person says no", "model": MODELS[0], "attempt": 1, "status": "failed"}]
    attempts += [{"case": "a small credit is given", "model": MODELS[1], "attempt": 1, "status": "passed"}]
    baseline, store, report, junit = (tmp_path / name for name in ("b.json", "kept", "r.json", "r.xml"))
    baseline.write_text(json.dumps({"attempts": attempts}))
    options = ("--baseline", baseline, "--keep", store, "--json", report, "--junit", junit, "--fail-under", "0.8")
    models = (each for model in MODELS for each in ("--model", model))
    output, progress = (run := _started("cases.yaml", *models, *map(str, options))).communicate(
        timeout=DEADLINE_SECONDS
    )
    assert run.returncode == 1, progress
    rows = [line.split("\t") for line in output.splitlines() if "\t" in line]
    assert [(row[0], row[1].partition(" ")[0], row[2].partition(" ")[0]) for row in rows] == [
        ("a small credit is given", "pass", "FAIL"),
        ("a person corrects the amount", "pass", "pass"),
        ("a person says no", "pass", "pass"),
        ("the ticket cannot be read", "pass", "FAIL"),
    ]
    changed = output.partition("compared with the baseline")[2].splitlines()[1:]
    assert changed[0].split() == [
        "newly",
        "failing",
        "a",
        "small",
        "credit",
        "is",
        "given",
        "100%",
        "→",
        "0%",
        MODELS[1],
    ]
    assert f"{MODELS[0]}: 4 of 4 passed (100%), 0.75 asks per run, 5,150 tokens, cost 0.0118" in output
    assert "8/8 " in progress
    written = json.loads(report.read_text())
    assert [each["status"] for each in written["attempts"]].count("failed") == 2
    assert written["totals"]["pass_rate"] == 0.75
    failed = next(each for each in written["attempts"] if each["status"] == "failed")
    assert f"turngate up evals_app:app --data-dir {store}" in output
    assert f"turngate explain {failed['run_ids'][0]} --data-dir {store}" in output
    assert (store / TEMPORAL_DB).is_file()
    assert [suite.get("failures") for suite in ET.parse(junit).getroot()] == ["0", "2"]  # noqa: S314 - our own


@pytest.mark.exhaustive
def test_ctrl_c_reports_what_is_known_so_far(tmp_path: Path) -> None:
    """After one Ctrl-C, finished cases are reported, the others are reported as not run, and no stored run looks alive."""
    here = Path(shutil.copytree(EXAMPLE, tmp_path / "app"))  # a script lies below its app
    (here / "slow.yaml").write_text("responses: [{text: late, delay_seconds: 60}]")
    cases, report = tmp_path / "cases.yaml", tmp_path / "r.json"
    slow = "{name: slow, message: go, model: 'scripted:slow.yaml'}"
    fast = "{name: fast, message: go, unanswered: reject, handlers: {read_ticket: {returns: {text: x}}}}"
    cases.write_text(f"cases: [{slow}, {fast}, {slow.replace('slow,', 'never,', 1)}]")
    run = _started(str(cases), "--parallel", "2", "--json", str(report), "--keep", str(tmp_path / "kept"), cwd=here)
    assert run.stderr is not None
    first = run.stderr.readline()
    assert "pass fast" in first, first + run.stderr.read()
    run.send_signal(signal.SIGINT)
    output, _rest = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 130
    assert "1 of 1 passed (100%), 2 not run" in output
    with sqlite3.connect(tmp_path / "kept" / "turngate.db") as store:
        # "never" may have started in the slot that "fast" left.
        assert set(store.execute("SELECT status FROM runs")) == {("completed",), ("interrupted",)}
    statuses = {each["case"]: each["status"] for each in json.loads(report.read_text())["attempts"]}
    assert statuses == {"slow": "not_run", "fast": "passed", "never": "not_run"}


def test_a_wrong_case_is_exit_code_2_before_anything_runs(tmp_path: Path) -> None:
    """The message names file, line and place; the app isn't even imported."""
    cases = tmp_path / "cases.yaml"
    cases.write_text("cases:\n- name: a\n  message: b\n  expct: {}\n")
    ran = CliRunner().invoke(app, ["eval", "no_such_app:app", str(cases), "--keep", str(tmp_path / "kept")])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert not (tmp_path / "kept").exists()
