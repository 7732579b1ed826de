"""I7 through everything: a URL, an instant, a Decimal, an enum, parsed text, bytes, a duration and a set.

From the model's text through policy, gate, edit, restart and fork to the handler, who gets objects decoded once; and back
through store and next request as text that is never decoded again.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import JsonValue
from support.engine.stack import STARTER, ListModel, Script, Stack, call, says, stack
from support.engine.transforming_parameters import SECRET_WORDS, Money, Parcel, compact, decoded, encoded, raw, seen
from temporalio.client import Client

from turngate import (
    Deny,
    Failure,
    HookedCall,
    Hooks,
    Ok,
    Presentation,
    Preview,
    RunScope,
    TextBlock,
    Tool,
    ToolContext,
    declare_tool,
    interaction_tool,
)
from turngate.approvals_api.runs import fork as fork_run
from turngate.models.openai.request import request_body
from turngate.models.port import ModelRequest
from turngate.runtime.workflow_code import build_replayer
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import calls, runs
from turngate.toolkits.json_schema import json_schema_tool
from turngate.wire.orders import ForkOrder
from turngate.workflows.agent_turn import AgentTurn


@dataclass
class Shop(Hooks):
    """A tool and a hook. ``sightings``: who received parameters, and what they saw; ``handled``: the handler's alone."""

    sightings: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    handled: list[dict[str, Any]] = field(default_factory=list)
    hang: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def ship(self, *, ask: bool = True, effect: Any = "once") -> Tool:
        async def handler(params: Parcel, ctx: ToolContext) -> Parcel:
            del ctx
            self.handled.append(self.noted("handler", params))
            if self.hang:
                params.trail.append("spoilt by an attempt that was lost")
                params.tags.clear()
                self.started.set()
                await asyncio.Event().wait()
            return params

        def asks(params: Parcel) -> bool:
            return ask if self.noted("policy", params)["price"] else False

        def preview(params: Parcel, _workspace: Any) -> Preview:
            return Preview(kind="text", text=str(self.noted("preview", params)["fee"]))

        def precondition(params: Parcel) -> str:
            return str(self.noted("precondition", params)["at"])

        def present(params: Parcel, result: Ok | Failure) -> Presentation:
            return (TextBlock(text=f"{self.noted('presenter', params)['fee']} {result.tag}"),)

        return declare_tool(
            name="ship",
            description="Ship a parcel.",
            params=Parcel,
            success=Parcel,
            effect=effect,
            ask=asks,
            preview=preview,
            precondition=precondition,
            present=present,
            handler=handler,
        )

    def noted(self, who: str, params: Parcel) -> dict[str, Any]:
        values = {name: list(value) if name == "trail" else value for name, value in seen(params).items()}
        values["tags"] = set(values["tags"])
        self.sightings.append((who, values))
        return values

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        del scope
        self.noted("before_tool", call.params)
        return None

    async def after_tool(self, scope: RunScope, call: HookedCall, result: Ok | Failure) -> None:
        del scope, result
        self.noted("after_tool", call.params)

    def saw(self, trail: str) -> set[str]:
        """Who was given the parameters whose trail begins like this."""
        return {who for who, values in self.sightings if values["trail"][0] == trail}


def sent(request: ModelRequest) -> list[dict[str, Any]]:
    """The messages as a provider gets them."""
    return request_body("m", request)["messages"]


async def edited(engine: Stack, run: runs.Run, request: requests.Request, args: str) -> None:
    """Edit a call. Only a worker has the types: who edited it is shown what they make of the edit, and asked again."""
    await engine.decide(request, "edit", args=args)
    again = await engine.request(run)
    assert again.input == args
    await engine.decide(again, "approve")


async def call_of(engine: Stack, run: runs.Run, tool_call_id: str) -> calls.Call:
    async with engine.database.read() as conn:
        row = await calls.get(conn, run.id, tool_call_id)
    assert row is not None
    return row


@pytest.mark.unencrypted  # it reads Temporal's history itself
async def test_i7_approved_and_edited_calls_reach_the_handler_decoded_once(client: Client, sqlite: Database) -> None:
    """I7: policy, preview, precondition, hooks, handler and presenter see objects decoded once; store and wire hold text.

    I8: the workflow's history holds no content, so a replay of all of it reads, decodes and runs nothing.
    """
    shop = Shop()
    model = ListModel(says(call("ship", raw(), "c1"), call("ship", raw(price="2.50"), "c2")), says("Done."))
    async with stack(client, sqlite, shop.ship(), model=model, hooks=[shop]) as engine:
        run = await engine.start()
        for _ in range(3):
            request = await engine.request(run)
            assert request.preview == "Money(currency='EUR', amount=Decimal('0.70'))"
            if "2.50" in request.input:
                await engine.decide(request, "edit", args=raw(price="3.50", trail="operator"))
            else:  # Only a worker has the types: who edited it is shown what they make of the edit, and asked again.
                assert request.input in {raw(), raw(price="3.50", trail="operator")}
                await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"

        everybody = {"policy", "preview", "precondition", "before_tool", "handler", "presenter", "after_tool"}
        assert shop.saw("model") == everybody
        assert shop.saw("operator") == everybody
        for _who, values in shop.sightings:
            assert values == decoded(str(values["price"]), values["trail"][0])
        assert sorted(str(each["price"]) for each in shop.handled) == ["10.50", "3.50"]

        results = await engine.results(run)
        assert results["c1"] == Ok(value=encoded())
        assert results["c2"] == Ok(value=encoded("3.50", "operator"))
        edited = await call_of(engine, run, "c2")
        assert (edited.input, edited.edited_input) == (raw(price="2.50"), raw(price="3.50", trail="operator"))
        _system, _user, response, first, second = sent(model.seen[1])
        assert [each["function"]["arguments"] for each in response["tool_calls"]] == [raw(), raw(price="2.50")]
        assert first["content"] == compact(encoded())
        edited_result = json.loads(second["content"])
        assert edited_result["ran_with"] == json.loads(raw(price="3.50", trail="operator"))
        assert edited_result["result"] == encoded("3.50", "operator")

        await engine.closed(run)
        history = await engine.workflow(run).fetch_history()
        before, number = list(shop.sightings), len(model.seen)
        recorded = "\n".join(texts_of(history.to_json_dict()))
        assert run.id in recorded
        assert [word for word in (*SECRET_WORDS, "operator_message", "trail") if word in recorded] == []
        replay = await build_replayer(AgentTurn).replay_workflow(history, raise_on_replay_failure=False)
        assert replay.replay_failure is None
        assert (shop.sightings, len(model.seen), await engine.results(run)) == (before, number, results)


def texts_of(value: Any, key: str = "") -> list[str]:
    """Every text in a recorded history; payloads decoded."""
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in texts_of(each, name)]
    if isinstance(value, list):
        return [text for each in value for text in texts_of(each, key)]
    if isinstance(value, str):
        return [base64.b64decode(value).decode() if key in {"data", "encoding"} else value]
    return []


async def test_i7_a_predicate_decides_on_decoded_values(client: Client, sqlite: Database) -> None:
    """I7: a rule over a Decimal lets the cheap call through and asks for the dear one; on text it would raise, and ask."""

    async def handler(params: Parcel) -> Money:
        return params.fee

    ship = declare_tool(
        name="ship",
        description="Ship.",
        params=Parcel,
        success=Parcel.model_fields["fee"].rebuild_annotation(),
        ask=lambda p: p.price > 5,
        handler=handler,
    )
    model = ListModel(says(call("ship", raw(price="4.99"), "c1"), call("ship", raw(price="5.01"), "c2")), says("Done."))
    async with stack(client, sqlite, ship, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert (request.tool_call_id, request.rule) == ("c2", "tool:ask")
        await engine.decide(request, "approve")
        await engine.ended(run)
        assert [each["content"] for each in sent(model.seen[1])[-2:]] == ['{"value":"EUR 0.70"}'] * 2


async def test_i7_each_attempt_decodes_the_models_text_again(client: Client, sqlite: Database) -> None:
    """I7: planned by one worker, approved while none runs, run by one that was not there: the store holds the text.

    An attempt that was lost had changed its parameters; the next one gets them as the model sent them.
    """
    planner, shop = Shop(), Shop(hang=True)
    model = ListModel(says(call("ship", raw(), "c1")), says("Done."))
    async with (
        stack(client, sqlite, shop.ship(effect="idempotent"), model=model, working=False) as restarted,
        stack(client, sqlite, planner.ship(effect="idempotent"), model=model, working=False) as engine,
    ):
        restarted.task_queue = engine.task_queue
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        assert (await engine.decide(request, "approve")).status == "approved"
        async with restarted.worker(graceful_shutdown_seconds=0):
            await asyncio.wait_for(shop.started.wait(), 60)
        shop.hang = False
        async with restarted.worker():
            await engine.ended(run)
        assert (planner.handled, shop.handled) == ([], [decoded(), decoded()])
        assert (await engine.executions(run))["c1"].attempts == 2
        assert (await engine.results(run))["c1"] == Ok(value=encoded())
        assert sent(model.seen[-1])[-1]["content"] == compact(encoded())


async def test_i7_a_fork_is_sent_the_recorded_result_and_decodes_its_own_calls(
    client: Client, sqlite: Database
) -> None:
    """I7: of the past a fork sends the same bytes and runs nothing; its own call, edited, is decoded once."""
    shop = Shop()
    model = Script(says(call("ship", raw(), "c1")), says("Done."))
    async with stack(client, sqlite, shop.ship(), model=model, hooks=[shop]) as engine:
        run = await engine.start()
        await edited(engine, run, await engine.request(run), raw(trail="operator"))
        await engine.ended(run)
        past = sent(model.seen[1])
        assert json.loads(past[-1]["content"])["result"] == encoded(trail="operator")
        earlier = len(shop.sightings)

        fork = await fork_run.fork(engine.services, STARTER, run.id, ForkOrder(step=1, text="And another."))
        request = await engine.request(fork)
        assert [who for who, _values in shop.sightings[earlier:]] == ["policy", "preview", "precondition"]
        assert shop.handled == [decoded(trail="operator")]
        again = sent(model.seen[2])
        assert json.dumps(again[: len(past)]) == json.dumps(past)
        assert again[len(past) :] == [{"role": "user", "content": "And another."}]

        await edited(engine, fork, request, raw(price="7.00", trail="second operator"))
        await engine.ended(fork)
        assert shop.handled[1:] == [decoded("7.00", "second operator")]
        ids = [each["id"] for message in sent(model.seen[3]) for each in message.get("tool_calls", [])]
        assert ids[0] == "c1" != ids[1], "the model made the same id again; in the fork it is another call"
        assert json.loads(sent(model.seen[3])[-1]["content"])["result"] == encoded("7.00", "second operator")
        assert (await engine.results(run))["c1"] == Ok(value=encoded(trail="operator"))
        assert len(await engine.history(run)) == 4


async def test_i7_a_question_is_answered_in_transforming_types(client: Client, sqlite: Database) -> None:
    """I7: an answer is checked against its type and kept as the person sent it: nothing decodes it for the model."""
    ask = interaction_tool(name="ask", description="Ask.", params=Parcel, answer=Parcel)
    model = ListModel(says(call("ask", raw(), "c1")), says("Thanks."))
    async with stack(client, sqlite, ask, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run, kind="question")
        assert request.input == raw()
        await engine.decide(request, "respond", args=raw().replace("EUR 0.70", "EUR0.70"))
        again = await engine.request(run, kind="question")
        assert "an amount of money" in again.reason
        await engine.decide(again, "respond", args=raw(price="1.20", trail="person"))
        await engine.ended(run)
        answer = json.loads(raw(price="1.20", trail="person"))
        assert answer["trail"] == ["person"]
        assert (await engine.results(run))["c1"] == Ok(value=answer)
        assert sent(model.seen[1])[-1]["content"] == compact(answer)


SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "format": "uri"},
        "at": {"type": "string", "format": "date-time"},
        "price": {"type": "string", "pattern": r"^\d+\.\d\d$"},
        "label": {"type": "string", "contentEncoding": "base64"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "trail": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["url", "price"],
}


async def test_i7_a_tool_of_raw_json_schema_gets_what_was_sent(client: Client, sqlite: Database) -> None:
    """I7: JSON Schema describes and transforms nothing: the handler gets the JSON values, approved or edited."""
    handled: list[dict[str, JsonValue]] = []

    async def handler(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        handled.append(params)
        return params

    ship = json_schema_tool(
        name="ship", description="Ship.", parameters=SCHEMA, success=SCHEMA, ask=True, handler=handler
    )
    model = ListModel(says(call("ship", raw(), "c1"), call("ship", raw(price="2.50"), "c2")), says("Done."))
    async with stack(client, sqlite, ship, model=model) as engine:
        run = await engine.start()
        for _ in range(2):
            request = await engine.request(run)
            edits = "2.50" in request.input
            await engine.decide(request, "edit" if edits else "approve", args=raw("3.50") if edits else None)
        await engine.ended(run)
        assert sorted(handled, key=str) == sorted([json.loads(raw()), json.loads(raw("3.50"))], key=str)
        assert (await engine.results(run))["c1"] == Ok(value=json.loads(raw()))
        assert sent(model.seen[1])[3]["content"] == compact(json.loads(raw()))
