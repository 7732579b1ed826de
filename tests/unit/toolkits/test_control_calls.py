"""The shipped control calls: what they accept, what they refuse, and what the loop gets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel, ValidationError

from turngate import Finish, HandOff, SwitchModel, Tool, Toolkit, WaitUntil, control_call_tool
from turngate.domain.policy.policy import Policy, Rule, evaluate
from turngate.domain.tools.control_calls import MAX_WAIT
from turngate.domain.tools.failures import InvalidToolInput
from turngate.toolkits.control_calls import finish, hand_off, switch_model, wait_until

EVERY = (finish, wait_until, hand_off("helper", "expert"), switch_model("openai:big"))


def interpreted(tool: Tool, raw_input: str) -> object:
    assert tool.interpret is not None
    return tool.interpret(tool.decode(raw_input))


@pytest.mark.parametrize(
    ("tool", "raw_input", "control_call"),
    [
        (finish, '{"answer": "é"}', Finish(answer="é")),
        (wait_until, '{"seconds": 90}', WaitUntil(seconds=90)),
        (
            wait_until,
            '{"until": "2026-11-30T09:00:00+01:00"}',
            WaitUntil(until=datetime(2026, 11, 30, 8, tzinfo=UTC)),
        ),
        (EVERY[2], '{"agent": "expert"}', HandOff(agent="expert")),
        (EVERY[3], '{"model": "openai:big"}', SwitchModel(model="openai:big")),
    ],
)
def test_arguments_become_the_control_call(tool: Tool, raw_input: str, control_call: object) -> None:
    """Each tool gives one small value."""
    assert interpreted(tool, raw_input) == control_call


@pytest.mark.parametrize(
    ("tool", "raw_input", "message"),
    [
        (finish, "{}", "answer: Field required"),
        (finish, '{"answer": ""}', "at least 1 character"),
        (finish, '{"answer": "x", "force": true}', "Extra inputs"),
        (wait_until, "{}", "give either until or seconds"),
        (wait_until, '{"until": "2026-11-30T09:00:00Z", "seconds": 1}', "give either until or seconds"),
        (wait_until, '{"until": "2026-11-30T09:00:00"}', "timezone"),
        (wait_until, '{"seconds": -1}', "greater than or equal to 0"),
        (wait_until, '{"seconds": 31622401}', "less than or equal to 31622400"),
        (wait_until, '{"seconds": Infinity}', "seconds|JSON"),
        (wait_until, '{"seconds": NaN}', "seconds|JSON"),
        (EVERY[2], '{"agent": "stranger"}', "'helper' or 'expert'"),
        (EVERY[2], '{"agent": "agent__class__"}', "'helper' or 'expert'"),
        (EVERY[3], '{"model": "openai:huge"}', "openai:big"),
    ],
)
def test_i9_invalid_arguments_give_the_model_a_message(tool: Tool, raw_input: str, message: str) -> None:
    """I9: missing, surplus, unbounded and unknown values are refused at their place, with the valid names."""
    with pytest.raises(InvalidToolInput, match=message):
        tool.decode(raw_input)


def test_every_wait_is_bounded() -> None:
    """An author's own control call can't wait longer than a year either, nor for a time that is not a number."""
    assert WaitUntil(seconds=MAX_WAIT.total_seconds()).seconds == timedelta(days=366).total_seconds()
    for seconds in (MAX_WAIT.total_seconds() + 1, float("inf"), float("nan"), -1.0):
        with pytest.raises(ValidationError):
            WaitUntil(seconds=seconds)
    with pytest.raises(ValidationError):
        WaitUntil(until=datetime(2026, 11, 30, 9))  # noqa: DTZ001 - an instant without an offset is the point


def test_the_model_sees_the_names_it_may_choose() -> None:
    """Agents and models are an enumeration in the schema, in the builder's order; each builder gets its own tool."""
    assert EVERY[2].manifest.parameters["properties"]["agent"]["enum"] == ["helper", "expert"]
    assert hand_off("a", "b").manifest.digest != hand_off("a").manifest.digest
    only = switch_model("openai:big").manifest.parameters["properties"]["model"]
    assert only.get("enum", [only.get("const")]) == ["openai:big"]


def test_signals_are_descriptors_without_a_handler() -> None:
    """They have kind ``signal`` and nothing to override or wrap, and compose with other kits under their names."""
    kit = Toolkit.of(*EVERY)
    assert kit.names == ["finish", "wait_until", "hand_off", "switch_model"]
    assert {tool.kind for tool in kit} == {"signal"}
    assert {tool.handler for tool in kit} == {None}
    assert next(tool.name for tool in Toolkit.namespace("loop", kit)) == "loop__finish"


def test_policy_applies_to_control_calls_as_to_every_tool() -> None:
    """By default no one is asked; a rule may ask or deny, and so may the tool's own ``ask``."""
    params = finish.decode('{"answer": "x"}')
    assert evaluate(Policy(), finish, params, agent="agent").answer == "allow"
    for verdict in ("ask", "deny"):
        policy = Policy(rule=[Rule(name="r", verdict=verdict, tools=["finish"])])
        assert evaluate(policy, finish, params, agent="agent").answer == verdict

    class Note(BaseModel):
        text: str

    careful = control_call_tool(
        name="close",
        description="Close.",
        params=Note,
        interpret=lambda note: Finish(answer=note.text),
        ask=lambda note: "refund" in note.text,
    )
    answers = [evaluate(Policy(), careful, Note(text=text), agent="agent").answer for text in ("ok", "refund sent")]
    assert answers == ["allow", "ask"]
