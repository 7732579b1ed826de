"""The demo's material: the script's calls, run on a copy of the project, tell the promised story."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest
import yaml

from turngate.toolkits.coding import coding_toolkit

DEMO = files("turngate.cli")


@pytest.fixture
def script() -> dict[str, Any]:
    return yaml.safe_load((DEMO / "demo_script.yaml").read_text())


@pytest.fixture
def project(workspace):
    shutil.copytree(
        str(DEMO / "demo_project"), workspace, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    commit = "git init -q && git add -A && git -c user.name=x -c user.email=x@example.invalid commit -qm start"
    subprocess.run(commit, shell=True, cwd=workspace, check=True)  # noqa: S602 - our own words
    return workspace


def follow(script: dict[str, Any], refuse_at: int | None = None) -> list[dict[str, Any]]:
    """Return the responses in order if every call succeeds, or if one step's calls are rejected."""
    taken: list[dict[str, Any]] = []
    for step, response in enumerate(script["responses"]):
        kind = "rejected" if refuse_at is not None and step == refuse_at + 1 else "ok"
        for case in response.get("cases", [response]):
            when = case.get("when")
            if when is None or (when["kind"] == kind and when["tool"] in {c["tool"] for c in taken[-1]["calls"]}):
                taken.append(case)
                break
        if not taken[-1].get("calls"):
            break
    return taken


async def test_the_story_ends_with_a_committed_fix(call, project, script):
    """Red, a one-line diff, green, one more commit, a clean tree, a reply without calls."""
    kit = coding_toolkit()
    story = follow(script)
    assert len(story) == len(script["responses"])
    results = []
    for response in story:
        for wanted in response.get("calls", []):
            tool = kit.find(wanted["tool"])
            if wanted["tool"] == "edit_file":
                assert call.preview(tool, **wanted["input"]).kind == "diff"
            results.append((wanted["tool"], await call(tool, **wanted["input"])))
    runs = [result for name, result in results if name == "bash"]
    assert [run["exit_code"] for run in runs] == [1, 0, 0]
    assert "AssertionError: 1700 != 1699" in runs[0]["output"]
    assert "FAILED (failures=1)" in runs[0]["output"]
    assert runs[2]["output"].endswith(" start\n")
    assert [name for name, _ in results if name == "edit_file"] == ["edit_file"]
    clean = await call(kit.find("bash"), command="git status --porcelain; git show --stat --format=%an | tail -1")
    assert clean["output"] == " 1 file changed, 1 insertion(+), 1 deletion(-)\n"
    assert not story[-1].get("calls")


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_rejection_at_any_gate_ends_the_run_politely(script, step):
    """The response after a refused call says so and has no further call."""
    story = follow(script, refuse_at=step)
    assert len(story) == step + 2
    assert story[-1]["when"]["kind"] == "rejected"
    assert not story[-1].get("calls")


def test_every_step_after_a_gate_has_an_end_for_expiry_and_denial(script):
    """The last case has no condition and no calls."""
    for response in script["responses"][2:]:
        assert "when" not in response["cases"][-1]
        assert not response["cases"][-1].get("calls")


def test_every_call_of_the_script_fits_its_tool(script):
    """Names and inputs are valid, so no step of the demo is malformed."""
    kit = coding_toolkit()
    for response in script["responses"]:
        for case in response.get("cases", [response]):
            for wanted in case.get("calls", []):
                kit.find(wanted["tool"]).decode(json.dumps(wanted["input"]))
