"""`turngate replay-check` on histories in files: what it reports about runs that today's workflow code cannot continue."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turngate.cli.main import app

RECORDED = Path(__file__).parents[4] / "replay" / "histories" / "0.2.0"
History = dict[str, Any]


def check(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    ran = CliRunner().invoke(app, ["replay-check", *map(str, words)])
    return ran.exit_code, ran.stdout, ran.stderr


def encoding(payload: dict[str, Any], name: str) -> None:
    payload["metadata"]["encoding"] = base64.b64encode(name.encode()).decode()


def start_of(history: History) -> dict[str, Any]:
    return history["events"][0]["workflowExecutionStartedEventAttributes"]


def other_activity(history: History) -> None:
    history["events"][4]["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "other"


def other_start(history: History) -> None:
    start_of(history)["input"]["payloads"][0]["data"] = base64.b64encode(b'{"run": 1}').decode()


def sealed_start(history: History) -> None:
    encoding(start_of(history)["input"]["payloads"][0], "binary/encrypted")


def sealed_start_not_begun(history: History) -> None:
    sealed_start(history)
    del history["events"][2:]


def sealed_result(history: History) -> None:
    encoding(history["events"][6]["activityTaskCompletedEventAttributes"]["result"]["payloads"][0], "binary/encrypted")


def other_workflow(history: History) -> None:
    start_of(history)["workflowType"]["name"] = "Billing"


def gap(history: History) -> None:
    del history["events"][5]


FAILING = [
    (other_activity, "incompatible", (5, "ActivityTaskScheduled"), "Activity type of scheduled event 'other'"),
    (other_start, "unreadable", (1, "WorkflowExecutionStarted"), "validation errors for AgentTurnInput"),
    (sealed_start, "unreadable", (1, "WorkflowExecutionStarted"), "is encrypted with the key"),
    (sealed_start_not_begun, "unreadable", (1, "WorkflowExecutionStarted"), "is encrypted with the key"),
    (sealed_result, "unreadable", (10, "WorkflowTaskCompleted"), "is encrypted with the key"),
    (other_workflow, "other_workflow", (1, "WorkflowExecutionStarted"), "'Billing'"),
    (gap, "broken", (7, "ActivityTaskCompleted"), "History is out of order"),
]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Callable[[History], None]], Path]:
    """A recorded history, changed, in a file."""

    def write(change: Callable[[History], None]) -> Path:
        recorded = json.loads((RECORDED / "approve.json").read_text(encoding="utf-8"))
        change(recorded["history"])
        path = tmp_path / f"{change.__name__}.json"
        path.write_text(json.dumps(recorded["history"]), encoding="utf-8")
        return path

    return write


@pytest.mark.exhaustive
def test_every_recorded_run_can_continue_and_is_saved(tmp_path: Path) -> None:
    """Files are replayed without Temporal; what --save writes is read again, and is the same."""
    saved = tmp_path / "saved"
    code, out, notes = check("--file", RECORDED, "--save", saved)
    assert (code, out) == (0, "")
    count = len(list(RECORDED.glob("*.json")))
    assert f"{count} runs replayed: this release can continue them" in notes
    code, out, _ = check("--file", saved, "--json")
    checked = json.loads(out)
    assert code == 0
    assert len({each["execution_run_id"] for each in checked}) == count
    assert all(each["ok"] and each["run_id"].startswith(("run_", "sched_")) and each["events"] > 3 for each in checked)


@pytest.mark.parametrize(("change", "kind", "event", "reason"), FAILING, ids=[row[0].__name__ for row in FAILING])
def test_each_reason_why_a_run_cannot_continue_has_a_kind(
    changed: Callable[[Callable[[History], None]], Path],
    change: Callable[[History], None],
    kind: str,
    event: tuple[int, str],
    reason: str,
) -> None:
    """Changed code, another converter's payloads, another workflow, a damaged history: each with its event and cause."""
    code, out, notes = check("--file", changed(change), "--json")
    [result] = json.loads(out)
    assert (code, result["ok"]) == (1, False)
    failing = result["failing"]
    assert (failing["kind"], (failing["event_id"], failing["event"])) == (kind, event)
    assert reason in failing["reason"]
    assert notes == "this release cannot continue 1 of 1 run\n"


def test_a_person_reads_the_run_the_event_the_meaning_and_the_fix(
    changed: Callable[[Callable[[History], None]], Path],
) -> None:
    """Three lines for a run that fails, none for one that does not, and no trace of the SDK's own."""
    code, out, notes = check("--file", changed(other_activity), "--file", RECORDED / "edit.json")
    assert code == 1
    first, second, third = out.splitlines()
    assert first.startswith("run_")
    assert first.endswith("fails at event 5, ActivityTaskScheduled")
    assert "cannot continue this run: keep a worker of its own release" in second
    assert "Nondeterminism" in third
    assert notes == "this release cannot continue 1 of 2 runs\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[]", "holds no workflow's history"),
        ('{"events": []}', "does not begin with the start"),
        ('{"events": [{"eventId": "x"}]}', "holds no workflow's history"),
    ],
)
def test_what_is_no_history_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    """A wrong file ends the check with one line that names it."""
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    code, out, notes = check("--file", path)
    assert (code, out) == (1, "")
    assert problem in notes
    assert "wrong.json" in notes
    assert check("--file", tmp_path.parent / "nowhere")[0] == 1


def test_without_temporal_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2 with no address to ask at, 1 with one where no server answers."""
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    code, _, notes = check("--data-dir", tmp_path)
    assert (code, "set TEMPORAL_ADDRESS" in notes) == (2, True)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    code, _, notes = check("run_1")
    assert (code, "does not answer at 127.0.0.1:1" in notes) == (1, True)
