"""I9: the traces of a malformed response: in the workflow's history, in the run's reason, in the next request.

How one is answered and counted is in ``test_malformed.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update
from support.engine.stack import ListModel, call, says, stack
from support.engine.tools import Bench
from support.servers.fake_provider import FakeProvider, completion, serving_provider, tool_call
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Limits
from turngate.activities.call_model import CallModel
from turngate.domain.contract import CallModelInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message, ModelResponse, ToolCallPart
from turngate.domain.tools.results import Failure
from turngate.models import OpenAICompatibleModel
from turngate.models.scripted import ScriptedModel
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.tables import steps as steps_table
from turngate.toolkits.control_calls import finish

LOOK = call("look", '{"name": "x"}')
WHY = "its call was never closed"
UNKNOWN = says(call("nope", "{}"))
NOT_JSON = says(call("look", '{"name": '))
EMPTY = says()
DONE = says("Done.")


def broken(*parts: ToolCallPart | str, why: str = WHY) -> ModelResponse:
    """A response that its adapter could not read, with the parts that it could."""
    return says(*parts).model_copy(update={"malformed": why})


def roles(messages: list[Message]) -> list[str]:
    return [message.role for message in messages]


async def test_i9_the_calls_of_a_malformed_response_never_happen(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I9: an ungated call does not run, a gated one opens no request, a control call does nothing; none leaves a trace."""
    pay, end = call("pay", '{"cents": 5}'), call("finish", '{"answer": "Never said."}')
    model = ListModel(broken(LOOK, pay, end), DONE)
    async with stack(client, sqlite, bench.look, bench.pay, finish, model=model) as engine:
        run = await engine.ended(await engine.start())
        history = await engine.history(run)
        assert (run.status, history[-1].text) == ("completed", "Done.")
        assert (bench.looked, bench.paid) == ([], [])
        assert (await engine.results(run), await engine.executions(run)) == ({}, {})
        assert all(not message.calls and not message.results for message in history)
        async with sqlite.read() as conn:
            assert await requests.of_run(conn, run.id) == []


@pytest.mark.parametrize(("limits", "responses"), [(Limits(), 3), (Limits(malformed_in_a_row=1), 1)])
@pytest.mark.unencrypted  # it reads Temporal's history itself
async def test_i9_too_many_in_a_row_end_the_run_and_say_why(
    client: Client, sqlite: Database, bench: Bench, limits: Limits, responses: int
) -> None:
    """I9, I8: exactly so many requests; the reason says what was wrong with the last; no text of a response is in the history."""
    secret = "The customer's number is 4711."
    model = ListModel(broken(secret, LOOK))
    async with stack(client, sqlite, bench.look, model=model, limits=limits) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class, len(model.seen)) == ("failed", "malformed", responses)
        assert f"{responses} responses in a row" in run.reason
        assert f"it could not be parsed: {WHY}" in run.reason
        await engine.closed(run)
        recorded = b"".join(event.SerializeToString() for event in (await engine.workflow(run).fetch_history()).events)
        assert WHY.encode() in recorded  # so the bytes can be read, and the next line can fail
        assert secret.encode() not in recorded
        assert roles(await engine.history(run)) == ["user", *["assistant", "user"] * responses]
        assert bench.looked == []


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (broken(), f"it could not be parsed: {WHY}."),
        (broken("Words.", why="it broke\noff. "), "it could not be parsed: it broke off."),
        (EMPTY, "it was empty."),
        (UNKNOWN, "unknown_tool (1)."),
        (NOT_JSON, "input_validation_error (1)."),
        (
            says(call("nope", "{}"), call("look", "["), call("look", "{}")),
            "unknown_tool (1), input_validation_error (2).",
        ),
    ],
)
async def test_i9_every_kind_counts_and_the_last_is_named(
    client: Client, sqlite: Database, bench: Bench, last: ModelResponse, problem: str
) -> None:
    """I9: after two of other kinds and then this one, the reason names the last."""
    model = ListModel(UNKNOWN, broken("Hm."), last)
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class, len(model.seen)) == ("failed", "malformed", 3)
        assert run.reason.endswith(f"Of the last one: {problem}")


async def test_i9_a_good_response_begins_the_count_again(client: Client, sqlite: Database, bench: Bench) -> None:
    """I9: of a malformed response, a good one and three malformed ones in a row, the last ends the run."""
    model = ListModel(EMPTY, says(LOOK), UNKNOWN, NOT_JSON, EMPTY, says("Never."))
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class, len(model.seen)) == ("failed", "malformed", 5)
        assert "3 responses in a row" in run.reason
        assert "empty" in model.seen[1].messages[-1].text


@pytest.mark.parametrize(
    ("mistake", "says_what"),
    [(UNKNOWN, "'nope'"), (says(call("look", '{"nme": true}')), "name: "), (NOT_JSON, "not valid JSON")],
)
async def test_i9_a_readable_mistake_is_answered_by_a_result_and_not_in_words(
    client: Client, sqlite: Database, bench: Bench, mistake: ModelResponse, says_what: str
) -> None:
    """I9: a made-up name, a wrong shape, broken JSON: the call is answered as a call, and the model does it right."""
    model = ListModel(mistake, says(LOOK), DONE)
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        history = await engine.history(run)
        assert (run.status, bench.looked) == ("completed", ["x"])
        assert roles(history) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert is_reconciled(history)
        (wrong,) = history[2].results
        assert isinstance(wrong.result, Failure)
        assert says_what in wrong.result.reason


async def test_i5_a_retry_after_the_response_was_stored_does_not_ask_the_model_again(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: a worker that dies between storing and planning; the next attempt makes the same plan of what is stored."""
    model = ListModel(broken("Words.", LOOK), DONE)
    async with stack(client, sqlite, bench.look, model=model, working=False) as engine:
        run = await engine.start()
        activity, step = CallModel(engine.engine).call_model, CallModelInput(run_id=run.id, step=1)
        first = await ActivityEnvironment().run(activity, step)
        assert (first.malformed, first.final, first.problem) == (True, False, f"it could not be parsed: {WHY}")
        async with sqlite.write() as conn:
            await conn.execute(update(steps_table).where(steps_table.c.run_id == run.id).values(plan=None))
        assert await ActivityEnvironment().run(activity, step) == first
        assert await ActivityEnvironment().run(activity, step) == first  # and that one's answer was lost
        assert len(model.seen) == 1
        last = await ActivityEnvironment().run(activity, CallModelInput(run_id=run.id, step=2))
        assert (last.final, len(model.seen)) == (True, 2)
        assert roles(await engine.history(run)) == ["user", "assistant", "user", "assistant"]


async def test_a_script_plays_a_malformed_response(client: Client, sqlite: Database, bench: Bench) -> None:
    """Demos and builders' tests can script one, and continue with the script's next response."""
    script = (
        'responses: [{malformed: "it broke off", text: Half}, {calls: [{tool: look, input: {name: x}}]}, {text: Done.}]'
    )
    async with stack(client, sqlite, bench.look, model=ScriptedModel.from_text(script, "test")) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, bench.looked) == ("completed", ["x"])
        assert "it broke off" in (await engine.history(run))[2].text


# Over the wire, both ways


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serving_provider() as server:
        yield server


def acceptable(messages: list[dict[str, Any]]) -> bool:
    """Whether a strict server takes them: no empty assistant message, and every call answered directly after it."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not waiting or message["tool_call_id"] != waiting.pop(0):
                return False
            continue
        calls = message.get("tool_calls", [])
        if waiting or not (calls or (message["content"] or "").strip()):
            return False
        if any(not each["id"] or not each["function"]["name"] for each in calls):
            return False
        waiting = [each["id"] for each in calls]
    return not waiting


MALFORMED_ANSWERS: list[tuple[int, Any, list[str]]] = [
    (200, completion('<tool_call>{"name": "look"}'), ["assistant", "user"]),
    (200, completion(None, finish_reason="function_call_filter: MALFORMED_FUNCTION_CALL"), []),
    (200, completion("I call.", calls=[tool_call("look", "{}")], finish_reason="malformed_function_call"), ["assistant", "user"]),
    (200, {"choices": [{"message": None, "finish_reason": "stop"}]}, []),
    (200, {"choices": [{"message": {"content": "Well.", "tool_calls": 7}}]}, ["assistant", "user"]),
    (200, completion(None, reasoning_content="Only thinking."), []),
    (400, {"error": {"code": "tool_use_failed", "failed_generation": "look{", "message": "no"}}, ["assistant", "user"]),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "added"), MALFORMED_ANSWERS)
async def test_i9_a_malformed_answer_on_the_wire_and_the_next_request(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider, status: int, body: Any, added: list[str]
) -> None:
    """I9: the model is asked again, in a form that any server takes, without an empty message or the calls; then it continues."""
    provider.answer(body, status=status)
    provider.answer(completion(calls=[tool_call("look", '{"name": "x"}', call_id="c2")]))
    provider.answer(completion("Done."))
    model = OpenAICompatibleModel(provider.base_url, None, "some-model", timeout=10)
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, bench.looked) == ("completed", ["x"])
        assert "model.retrying" not in [event.type for event in await engine.events(run)]
    await model.aclose()
    assert len(provider.requests) == 3
    for request in provider.requests:
        assert acceptable(request.body["messages"])
    second = provider.requests[1].body["messages"]
    assert [message["role"] for message in second] == ["system", "user", *added]
    assert "The tools are: look." in second[-1]["content"]
    assert second[1]["content"].startswith("go")
    assert not any("tool_calls" in message for message in second)
