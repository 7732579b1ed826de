"""The composed kit, and what the model and the gate see."""

from __future__ import annotations

import json

from turngate.domain.policy.policy import Policy, evaluate
from turngate.toolkits.coding import ask_person, coding_toolkit


def test_reading_runs_freely_and_everything_else_asks():
    """The tools' own ask says so, without any policy."""
    kit = coding_toolkit()
    answers = {tool.name: evaluate(Policy(), tool, None, agent="a").answer for tool in kit}
    assert answers == {
        "read_file": "allow",
        "write_file": "ask",
        "edit_file": "ask",
        "list_directory": "allow",
        "grep": "allow",
        "glob": "allow",
        "bash": "ask",
        "ask_person": "ask",
    }
    assert {tool.name: tool.effect for tool in kit if tool.effect != "read"} == {
        "write_file": "idempotent",
        "edit_file": "once",
        "bash": "once",
    }


def test_every_tool_describes_itself():
    """A description, a closed parameter schema, and a JSON manifest."""
    for tool in coding_toolkit():
        manifest = tool.manifest
        assert len(manifest.description) > 40
        assert manifest.parameters["additionalProperties"] is False
        json.dumps(manifest.model_dump(mode="json"))


def test_ask_person_takes_a_question_and_answers_with_text():
    """It is an interaction: no handler, one answer field."""
    assert (ask_person.kind, ask_person.handler) == ("interaction", None)
    assert ask_person.decode('{"question": "Which?"}').choices == []
    assert ask_person.success.validate_python({"answer": "this"}).answer == "this"
