"""Answers in words, in an editor that has forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from support.api.api_server import Api
from support.api.frontend_app import inside, owner_token
from support.engine.stack import until
from support.programs.editor import Desk, desk_on, the_run

from turngate.frontends.acp.agent import serve_acp
from turngate.frontends.acp.gates import form_of


@pytest.fixture(scope="module")
async def desk(driven_api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """An editor that has forms."""
    project = tmp_path_factory.mktemp("project")
    serve = partial(serve_acp, agent="agent", model=None, sessions=project)
    async with (
        inside(driven_api, await owner_token(driven_api), serve) as (reader, writer, _served),
        desk_on(reader, writer, project, forms=True) as desk,
    ):
        yield desk


async def decision(api: Api) -> dict[str, Any]:
    """How the newest run's only request ended."""
    (call,) = (await the_run(api))["steps"][0]["calls"]
    return (await api.operator.get(f"/api/v1/requests/{call['requests'][-1]['id']}")).json()


@pytest.mark.exhaustive
async def test_a_question_is_answered_in_the_editor(driven_api: Api, desk: Desk) -> None:
    """The question is in a fence, its answer's schema is the form, and the agent reads what was typed."""
    await desk.fresh()
    desk.editor.filled = {"answer": "blue ü"}
    assert await desk.prompt("ask_person Which ```colour?") == "end_turn"
    ((message, mode),) = desk.editor.forms
    assert "ask_person asks:\n````text\ntext: Which ```colour?\n````" in message
    assert mode.requested_schema.required == ["answer"]
    assert not desk.editor.questions
    assert (await decision(driven_api))["result"]["value"] == {"answer": "blue ü"}


@pytest.mark.exhaustive
async def test_a_person_who_declines_to_answer_may_reject_and_say_why(driven_api: Api, desk: Desk) -> None:
    """Declining decides nothing by itself; the words of a rejection reach the agent."""
    await desk.fresh("reject")
    desk.editor.filled = "decline"
    assert await desk.prompt("ask_person Why?") == "end_turn"
    assert (await decision(driven_api))["status"] == "rejected"
    await desk.fresh("reject-why")
    desk.editor.filled = {"reason": "too *much*"}
    assert await desk.prompt("pay 61") == "end_turn"
    assert (await decision(driven_api))["decision"]["message"] == "too *much*"


@pytest.mark.exhaustive
async def test_a_high_risk_is_approved_by_the_tools_name_alone(driven_api: Api, desk: Desk) -> None:
    """Another word decides nothing, and neither does a form that is closed; the request stays open for all."""
    await desk.fresh()
    desk.editor.filled = {"name": "wire"}
    assert await desk.prompt("wire 62") == "end_turn"
    assert (await decision(driven_api))["status"] == "approved"
    for typed, message in [({"name": "wires"}, "not the tool's name"), ("cancel", "Left open")]:
        await desk.fresh()
        desk.editor.filled = typed
        prompted = asyncio.create_task(desk.prompt("wire 63"))
        await until(lambda message=message: asyncio.sleep(0, message in desk.editor.call_text()), message)
        request = await driven_api.request(await the_run(driven_api))
        assert request["status"] == "pending"
        assert (await driven_api.decide(request, "reject")).status_code == 200
        assert await prompted == "end_turn"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {}},
        {"properties": {"a": {"type": "array"}}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"properties": {"a": {"$ref": "#/$defs/A"}}},
        {"properties": {"a": {"type": "string", "enum": [1]}}},
        {"properties": {"a": True}},
    ],
)
def test_an_answer_of_more_than_plain_fields_is_given_on_the_page(schema: dict[str, Any]) -> None:
    """The page's form knows all of JSON Schema; an editor's half of a form would send half an answer."""
    assert form_of(schema) is None


def test_plain_fields_keep_what_an_editor_understands() -> None:
    """Titles have nothing hidden in them."""
    form = form_of(
        {
            "properties": {
                "n": {"type": "integer", "minimum": 1, "multipleOf": 2, "title": "N\u202e"},
                "b": {"type": "boolean", "default": True},
                "s": {"type": "string", "enum": ["x", "y"], "pattern": "(?<a>x)"},
            },
            "required": ["n"],
        }
    )
    assert form.model_dump(mode="json", by_alias=True, exclude_unset=True) == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "title": "N⟨U+202E⟩"},
            "b": {"type": "boolean", "default": True},
            "s": {"type": "string", "enum": ["x", "y"]},
        },
        "required": ["n"],
    }
