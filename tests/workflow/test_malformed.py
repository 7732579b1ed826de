"""I9: a malformed response is stored and answered, its calls never happen, and too many in a row end the run.

What is malformed on a wire, and what is the provider's failure: ``tests/unit/models``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import update
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Bench
from support.servers.fake_provider import FakeProvider, completion, serving_provider, tool_call
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Hooks, Limits
from turngate.activities.call_model import CallModel
from turngate.domain.contract import CallModelInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message, ModelResponse, ToolCallPart
from turngate.domain.tools.results import Failure
from turngate.models import OpenAICompatibleModel
from turngate.store.database import Database
from turngate.store.runs import runs
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


async def test_i9_a_malformed_response_is_stored_and_answered(client: Client, sqlite: Database, bench: Bench) -> None:
    """I9: its text stays in the conversation; the model reads what was wrong and which tools there are, and continues.

    An ungated call of it does not run, a gated one opens no request, a control call does nothing; none leaves a trace. The
    corrective message is no message of results to a step's hook.
    """

    class Steps(Hooks):
        def __init__(self) -> None:
            self.seen: list[tuple[int, list[str]]] = []

        async def after_step(self, scope: Any, results: Any) -> None:
            self.seen.append((scope.step, [message.role for message in results]))

    steps = Steps()
    pay, end = call("pay", '{"cents": 5}'), call("finish", '{"answer": "Never said."}')
    model = ListModel(broken("<tool_call>{", LOOK, pay, end), says(LOOK), DONE)
    async with stack(client, sqlite, bench.look, bench.pay, finish, model=model, hooks=[steps]) as engine:
        run = await engine.ended(await engine.start())
        await engine.closed(run)
        history = await engine.history(run)
        assert (run.status, history[-1].text) == ("completed", "Done.")
        assert roles(history) == ["user", "assistant", "user", "assistant", "tool", "assistant"]
        assert history[1].text == "<tool_call>{"
        assert f"could not be parsed: {WHY}." in history[2].text
        assert "The tools are: look, pay, finish." in history[2].text
        assert list(model.seen[1].messages)[1:] == history[:3]
        assert not history[1].calls
        assert (bench.looked, bench.paid) == (["x"], [])
        assert len(await engine.results(run)) == len(await engine.executions(run)) == 1
        assert await engine.requests_of(run) == []
        assert steps.seen == [(1, []), (2, ["tool"]), (3, [])]


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


async def test_i9_a_readable_mistake_is_answered_by_a_result_and_counts(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I9: a made-up name, a wrong shape, broken JSON: the call is answered as a call, not in words.

    A good response begins the count again; of three malformed ones in a row, the last ends the run.
    """
    wrong_shape = says(call("look", '{"nme": true}'))
    model = ListModel(EMPTY, UNKNOWN, says(LOOK), NOT_JSON, wrong_shape, UNKNOWN, says("Never."))
    async with stack(client, sqlite, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        history = await engine.history(run)
    assert (run.status, run.error_class, len(model.seen)) == ("failed", "malformed", 6)
    assert "3 responses in a row" in run.reason
    assert "empty" in model.seen[1].messages[-1].text
    assert roles(history) == ["user", "assistant", "user", *["assistant", "tool"] * 5]
    assert is_reconciled(history)
    assert bench.looked == ["x"]
    reasons = [
        part.result.reason for message in history for part in message.results if isinstance(part.result, Failure)
    ]
    for reason, problem in zip(reasons, ("'nope'", "not valid JSON", "name: ", "'nope'"), strict=True):
        assert problem in reason


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


# Over the wire, both ways


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serving_provider() as server:
        yield server


@asynccontextmanager
async def asking(client: Client, database: Database, provider: FakeProvider, bench: Bench) -> AsyncIterator[Stack]:
    model = OpenAICompatibleModel(provider.base_url, None, "some-model", timeout=10)
    async with stack(client, database, bench.look, bench.pay, model=model) as engine:
        yield engine
    await model.aclose()


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


TEXT = ["assistant", "user"]
ON_THE_WIRE: dict[str, tuple[int, Any, str, list[str]]] = {
    "text": (200, completion('<tool_call>{"name": "look"}'), "a call of look written as text", TEXT),
    "nothing": (200, completion(None), "was empty", []),
    "no list": (200, {"choices": [{"message": {"content": "Well.", "tool_calls": 7}}]}, "not a list", TEXT),
    "refused": (400, {"error": {"code": "tool_use_failed", "failed_generation": "look{"}}, "tool_use_failed", TEXT),
}
"""Name → status, body, what the model reads about it, and the roles of the messages that are added."""


@pytest.mark.parametrize("case", ON_THE_WIRE)
async def test_i9_from_the_wire_the_model_is_corrected_and_does_better(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider, case: str
) -> None:
    """I9: one response, paid for once: the next request corrects the model, and its good call runs.

    Any server takes that request: it has no empty message, and not the calls.
    """
    status, body, says_what, added = ON_THE_WIRE[case]
    provider.answer(body, status=status)
    provider.answer(completion(calls=[tool_call("look", '{"name": "x"}', call_id="c2")]))
    provider.answer(completion("Done."))
    async with asking(client, sqlite, provider, bench) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, bench.looked) == ("completed", ["x"])
        assert "model.retrying" not in [event.type for event in await engine.events(run)]
    assert len(provider.requests) == 3
    for request in provider.requests:
        assert acceptable(request.body["messages"])
    second = provider.requests[1].body["messages"]
    assert [message["role"] for message in second] == ["system", "user", *added]
    assert says_what in second[-1]["content"]
    assert "The tools are: look, pay." in second[-1]["content"]
    assert second[1]["content"].startswith("go")
    assert not any("tool_calls" in message for message in second)


async def test_i9_broken_calls_from_the_wire_harm_no_neighbour(
    client: Client, sqlite: Database, bench: Bench, provider: FakeProvider
) -> None:
    """I9: junk among the calls is answered as what it is, the whole calls run, and the provider takes the history back."""
    good = tool_call("look", '{"name": "x"}', call_id="good")
    junk = [
        None,
        "look",
        {"id": "j3", "type": "function"},
        {"id": "j4", "function": {"name": "look", "arguments": [1]}},
    ]
    provider.answer(completion(calls=[*junk[:2], good, *junk[2:]]))
    provider.answer(completion("Done."))
    async with asking(client, sqlite, provider, bench) as engine:
        run: runs.Run = await engine.ended(await engine.start())
        assert run.status == "completed"
        results = list((await engine.results(run)).values())
        kinds = [result.kind if isinstance(result, Failure) else "ok" for result in results]
        assert kinds == ["unknown_tool", "unknown_tool", "ok", "unknown_tool", "input_validation_error"]
        assert bench.looked == ["x"]
    sent = provider.requests[1].body["messages"]
    ids = [each["id"] for each in sent[2]["tool_calls"]]
    assert len(set(ids)) == 5
    assert ids == [message["tool_call_id"] for message in sent[3:]]
    assert all(
        isinstance(sent_call["function"]["arguments"], str) and sent_call["function"]["name"]
        for sent_call in sent[2]["tool_calls"]
    )
