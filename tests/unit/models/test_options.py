"""What an author says about an answer reaches the provider: sampling, the choice of tools, strict schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from turngate import Agent, App, Tool, Toolkit, sub_agent
from turngate import tool as declare
from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.tool import ToolManifest
from turngate.models.openai.request import request_body
from turngate.models.openai.strict import NotStrictError, strict_schema
from turngate.models.port import ModelRequest
from turngate.models.profiles import parse_profiles
from turngate.runtime.app_loader import check_app

CLOSED = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
OPEN = {"type": "object", "properties": {"path": {"type": "string", "default": "."}}}


def tool(parameters: dict[str, Any], *, strict: bool = True, name: str = "look") -> ToolManifest:
    return ToolManifest(
        name=name, kind="local", effect="read", description="Look.", parameters=parameters, success={}, strict=strict
    )


def body(*tools: ToolManifest, **options: Any) -> dict[str, Any]:
    return request_body("m", ModelRequest([user_message("go")], tools=tools, options=ModelOptions(**options)))


def test_top_p_and_the_choice_of_tools_are_sent() -> None:
    """From models.toml or an agent, which takes precedence; a choice of tools only where there are some."""
    profile = parse_profiles('[profile.p]\nmodel = "openai:m"\ntop_p = 0.9\ntool_choice = "required"\n', source="x")
    options = ModelOptions(top_p=0.5).over(profile.options("p"))
    assert (options.top_p, options.tool_choice) == (0.5, "required")
    sent = body(tool(CLOSED), top_p=0.5, tool_choice="required")
    assert (sent["top_p"], sent["tool_choice"]) == (0.5, "required")
    assert body(tool_choice="required").keys() == {"model", "messages"}
    for wrong in ("top_p = 0", "top_p = 1.1", 'tool_choice = "any"'):
        with pytest.raises(ConfigurationError, match=wrong.partition(" ")[0]):
            parse_profiles(f'[profile.p]\nmodel = "openai:m"\n{wrong}\n', source="x")


def test_a_tool_that_has_to_be_called_is_sent_by_its_name() -> None:
    """In the provider's own form, to every provider; nothing where the run goes without the tool. A profile names no tool."""
    named = {"type": "function", "function": {"name": "look"}}
    assert body(tool(CLOSED), tool(CLOSED, name="other"), tool_choice="look")["tool_choice"] == named
    assert "tool_choice" not in body(tool(CLOSED, name="other"), tool_choice="look")
    assert "tool_choice" not in body(tool_choice="look")
    for wrong in ("", "no name", "look\n"):
        with pytest.raises(ValidationError):
            ModelOptions(tool_choice=wrong)


def test_a_tool_choice_that_names_no_tool_is_refused_when_the_app_is_loaded() -> None:
    """The error names the tools there are, and the nearest; so it is for a sub-agent."""

    @declare(effect="read")
    async def look() -> str:
        """Look."""
        return ""

    def agent(choice: Any, *tools: Tool) -> Agent:
        options = ModelOptions(tool_choice=choice)
        return Agent(name="a", instructions="", toolkit=Toolkit.of(*tools), model="openai:m", options=options)

    for choice in ("look", "required", "none", None):
        check_app(App(agents=[agent(choice, look)]), base=Path())
    above = Agent(name="b", instructions="", toolkit=Toolkit.of(sub_agent(agent("loock", look))), model="openai:m")
    for app in (App(agents=[agent("loock", look)]), App(agents=[above])):
        with pytest.raises(ConfigurationError, match=r"'loock'.* Its tools are: look; .*Did you mean.*look"):
            check_app(app, base=Path())
    with pytest.raises(ConfigurationError, match="Its tools are: none"):
        check_app(App(agents=[agent("read_result")]), base=Path())


def test_strict_sends_a_strict_schema_or_warns() -> None:
    """A schema that would mean something else then is sent as it is, with a warning that says why."""
    function = body(tool(CLOSED))["tools"][0]["function"]
    assert function["strict"] is True
    assert function["parameters"] == {**CLOSED, "additionalProperties": False}
    assert "strict" not in body(tool(CLOSED, strict=False))["tools"][0]["function"]
    with capture_logs() as logged:
        function = body(tool(OPEN, name="open"))["tools"][0]["function"]
    assert (function["parameters"], "strict" in function) == (OPEN, False)
    assert [(each["tool"], each["why"]) for each in logged] == [
        ("open", "'path' may be left out, and is not null then")
    ]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (OPEN, "may be left out"),
        ({"additionalProperties": {"type": "string"}}, "members of any name"),
        ({**CLOSED, "additionalProperties": True}, "members of any name"),
        ({"properties": {"a": {}}, "required": ["a"]}, "may be anything"),
        ({"properties": {"a": {"oneOf": [{"type": "string"}]}}, "required": ["a"]}, "'oneOf'"),
        ({"properties": {"a": {"type": "array", "items": {"type": "object"}, "minItems": 1}}}, "may be left out"),
    ],
)
def test_what_strict_cannot_say_is_named(schema: dict[str, Any], why: str) -> None:
    """The place, and what is there."""
    with pytest.raises(NotStrictError, match=why):
        strict_schema(schema)


def test_inner_objects_are_closed_and_what_takes_null_is_required() -> None:
    """Also where references lead; defaults are left out."""
    inner = {"type": "object", "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}}}
    strict = strict_schema({"properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"], "$defs": {"A": inner}})
    assert strict["$defs"]["A"] == {
        "type": "object",
        "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        "required": ["n"],
        "additionalProperties": False,
    }
