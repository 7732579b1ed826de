"""The loop and the executor against test cases of earlier systems, through the real engine.

Stricter than they were: a crash of a tool is a result and never ends the run; a result that does not fit its type is
said to be the tool's own fault, not shown; an interrupted call has its one result; the model is not asked again after a
step limit; arguments that do not fit are answered by a result in the call's place, in place of words beside it.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import ListModel, call, says, stack
from temporalio.client import Client

from turngate import Limits, ToolContext, ToolFailure, Toolkit, declare_tool, tool
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database


class Value(BaseModel):
    value: str


class NotFound(ToolFailure):
    reason: str


@tool(effect="read", ask=False, failures=[NotFound])
async def echo(params: Value) -> str:
    """Say it again."""
    if params.value == "missing":
        raise NotFound(reason="missing")
    if params.value == "boom":
        raise RuntimeError("boom")
    return params.value


ELSEWHERE = declare_tool(name="escalate", description="Elsewhere.", ask=False)
KIT = Toolkit.of(echo, ELSEWHERE)
PING = '{"value": "ping"}'

TURNS: dict[str, tuple[list[Any], list[str], str, list[str]]] = {
    # responses of the model; roles in the conversation; how the run ends; what the calls came to
    "plain text": ([says("Hi.")], ["user", "assistant"], "completed", []),
    "a tool turn": (
        [says(call("echo", PING)), says("Done.")],
        ["user", "assistant", "tool", "assistant"],
        "completed",
        ["ok"],
    ),
    "wrong parameters": (
        [says(call("echo", '{"wrong": true}')), says("fixed")],
        ["user", "assistant", "tool", "assistant"],
        "completed",
        ["input_validation_error"],
    ),
    "a made-up name": (
        [says(call("not_a_tool", "{}")), says("recovered")],
        ["user", "assistant", "tool", "assistant"],
        "completed",
        ["unknown_tool"],
    ),
    "of every kind at once": (
        [
            says(
                call("escalate", "{}"),
                call("echo", PING),
                call("ghost", "{}"),
                call("echo", '{"value": "missing"}'),
                call("echo", '{"value": "boom"}'),
            ),
            says("Done."),
        ],
        ["user", "assistant", "tool", "assistant"],
        "completed",
        ["non_local_tool", "ok", "unknown_tool", "not_found", "execution_error"],
    ),
    "cut off": (
        [says(call("echo", PING), finish_reason="length"), says("Done.")],
        ["user", "assistant", "tool", "assistant"],
        "completed",
        ["cancelled"],
    ),
    "a step limit": (
        [says(call("echo", PING))] * 3,
        ["user", "assistant", "tool", "assistant", "tool"],
        "failed",
        ["ok", "ok"],
    ),
}


@pytest.mark.parametrize("case", TURNS)
async def test_a_turn_of_the_loop(client: Client, sqlite: Database, case: str) -> None:
    """What the model says decides the course: each call one result, all of a step in one message, in the model's order."""
    responses, roles, status, kinds = TURNS[case]
    model = ListModel(*responses)
    async with stack(client, sqlite, model=model, toolkit=KIT, limits=Limits(steps=2)) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == status
        history = await engine.history(run)
        assert [message.role for message in history] == roles
        assert is_reconciled(history)
        results = (await engine.results(run)).values()
        assert [each.kind if isinstance(each, Failure) else "ok" for each in results] == kinds
        assert len(model.seen) == min(len(responses), 2)


async def test_one_at_a_time_is_the_models_order(client: Client, sqlite: Database) -> None:
    """With one slot, calls start in order; equal calls differ by their ids and keys."""
    started: list[tuple[str, str]] = []

    @tool(effect="read", ask=False)
    async def note(params: Value, ctx: ToolContext) -> str:
        """Note."""
        started.append((ctx.tool_call_id, ctx.idempotency_key))
        return ctx.tool_call_id

    ids = ["b", "a", "c"]
    model = ListModel(says(*(call("note", PING, each) for each in ids)), says("Done."))
    async with stack(client, sqlite, note, model=model, limits=Limits(concurrency=1)) as engine:
        run = await engine.start()
        await engine.ended(run)
        assert [each for each, _ in started] == ids
        assert len({key for _, key in started}) == 3
        assert (await engine.results(run))["a"] == Ok(value={"value": "a"})
