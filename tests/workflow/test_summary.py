"""What a call does, in one sentence, as the engine stores it when it opens a request."""

from __future__ import annotations

import json

from pydantic import BaseModel
from sqlalchemy import delete
from support.engine.stack import ListModel, call, says, stack
from temporalio.client import Client

from turngate import Policy, Rule, tool
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.store.tables import published_policies

PAY = {"cents": 500, "order": "A-1"}
LARGE = {"at": "/cents", "op": "gt", "value": 1000}
TWO_FOR_LARGE = Policy(
    rule=[
        Rule.model_validate({"name": "large", "verdict": "ask", "tools": ["pay"], "args": [LARGE], "quorum": 2}),
        Rule(name="small", verdict="ask", tools=["pay"]),
    ]
)


class Payment(BaseModel):
    cents: int
    order: str


def in_words(params: Payment) -> str:
    return f"Send {params.cents / 100:.2f} EUR for {params.order}"


@tool(effect="once", ask=True, summary=in_words)
async def pay(params: Payment) -> str:
    """Pay."""
    return params.order


@tool(effect="once", ask=True, summary="Note for {order}")
async def note(params: Payment) -> str:
    """Take a note."""
    return params.order


@tool(effect="once", ask=True)
async def plain(params: Payment) -> str:
    """Do something. It has no summary of its own."""
    return params.order


async def test_each_request_has_its_sentence(client: Client, database: Database) -> None:
    """An author's function, an author's text, and what Turngate renders, each from the call's own arguments."""
    every: tuple[Tool, ...] = (pay, note, plain)
    model = ListModel(says(*(call(each.name, json.dumps(PAY), each.name) for each in every)), says("Done."))
    async with stack(client, database, *every, model=model) as engine:
        run = await engine.start("Pay.")
        for each in every:
            await engine.request(run, tool=each.name)
        opened = {each.tool_name: each for each in await engine.requests_of(run)}
        assert {name: each.summary for name, each in opened.items()} == {
            "pay": "Send 5.00 EUR for A-1",
            "note": "Note for A-1",
            "plain": "Do something: cents 5.00 (500 cents), order A-1",
        }
        for request in opened.values():
            await engine.decide(request, "reject")
        await engine.ended(run)


async def test_a_call_that_is_asked_about_again_has_the_sentence_of_its_edit(client: Client, sqlite: Database) -> None:
    """The worker asks again under stricter terms: the sentence is about the edited arguments."""
    model = ListModel(says(call("pay", json.dumps(PAY), "c")), says("Done."))
    async with stack(client, sqlite, pay, model=model, policy=TWO_FOR_LARGE) as engine:
        run = await engine.start("Pay.")
        first = await engine.request(run)
        async with sqlite.write() as conn:  # only the worker knows the rule, so it asks again
            await conn.execute(delete(published_policies))
        await engine.decide(first, "edit", args=json.dumps({**PAY, "cents": 500_000}))
        again = await engine.request(run, first)
        assert (first.summary, again.summary) == ("Send 5.00 EUR for A-1", "Send 5000.00 EUR for A-1")
        await engine.decide(again, "reject")
        await engine.ended(run)
