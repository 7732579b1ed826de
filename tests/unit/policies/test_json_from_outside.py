"""I14: no JSON that a model, tool, provider or token sends stops what reads it: it is read soon, or refused."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from turngate import Policy, declare_tool
from turngate.client.responses import check
from turngate.domain.digest import repeat_key
from turngate.domain.errors import TurngateError
from turngate.domain.policy.grants import GrantPattern
from turngate.domain.policy.policy import evaluate
from turngate.domain.runs.comparison import json_meaning
from turngate.domain.text import json_text
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.preview import command_words
from turngate.models.openai.errors import Endpoint, error_of_status
from turngate.models.openai.malformed import error_in
from turngate.models.pydantic_ai import errors, request, response
from turngate.policies.facts import call_facts
from turngate.toolkits.json_schema import json_schema_tool

BOMBS = {
    "deep": '{"x":' + "[" * 500_000 + "]" * 500_000 + "}",
    "deep and unclosed": '{"x":' * 300_000,
    "half as deep as Python reads": '{"x":' + "[" * 450 + "]" * 450 + "}",
    "integer": '{"x":' + "9" * 1_900_000 + "}",
    "exponent": '{"x":1e99999999999999999999}',
    "smaller exponent": '{"x":1e999999999}',
    "small number": '{"x":-1e-999999999999999999999}',
    "float": '{"x":1e400}',
    "long": '{"x":[' + "1," * 300_000 + "1]}",
    "longer": '{"x":"' + "a" * json_text.MAX_ARGUMENT_CHARS + '"}',
    "one name": "{" + ",".join(['"x":1'] * 100_000) + "}",
    "surrogate": '{"x":"\\ud800"}',
}


class Params(BaseModel):
    x: Any = None


ENDPOINT = Endpoint(url="http://provider/v1", model="m", secret="s")
TOOL = declare_tool(name="t", description="", params=Params, success=str)
BY_SCHEMA = json_schema_tool(name="t", description="", parameters={"type": "object"})
RULES = Policy.model_validate(
    {
        "rule": [
            {
                "name": f"{verdict}-{op}",
                "verdict": verdict,
                "tools": ["t"],
                "args": [{"at": "/x", "op": op, "value": 5}],
            }
            for verdict in ("deny", "ask", "allow")
            for op in ("gt", "eq", "ne")
        ]
    }
)


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_i14_json_bombs_are_read_soon_or_refused(bomb: str) -> None:
    """By rules, grants, decoders, digests, views, and where providers and other servers answer; nothing else is raised."""
    began = time.process_time()
    verdict = evaluate(RULES, TOOL, None, agent="a", facts=lambda: call_facts(bomb, "/tmp"))  # noqa: S108 - no file there
    assert verdict.answer in {"ask", "deny"}
    GrantPattern(tool="t", fixed={"x": 5}).fits("t", call_facts(bomb, None).arguments)
    for tool in (TOOL, BY_SCHEMA):
        with suppress(InvalidToolInput):
            tool.decode(bomb)
    repeat_key("t", bomb)
    json_text.parse(bomb)
    json_meaning(bomb[: json_text.MAX_CHARS])
    command_words(bomb)
    error_in(bomb.encode())
    error_of_status(500, {}, bomb.encode(), ENDPOINT)
    errors._message_in(bomb)
    request._as_object(bomb)
    response._canonical_text(bomb)
    with pytest.raises(TurngateError):
        check(httpx.Response(500, content=bomb.encode()), "http://api")
    assert time.process_time() - began < 30


def test_i14_arguments_have_a_size() -> None:
    """A call whose arguments have more than sixteen million characters is closed as malformed, whatever they are."""
    for tool in (TOOL, BY_SCHEMA):
        with pytest.raises(InvalidToolInput, match="more than 16,777,216 characters") as refused:
            tool.decode(BOMBS["longer"])
        assert refused.value.problem == "malformed_json"
