"""A response is stored with its plan where the engine's own code makes that soon; else it is stored first (ADR 0037)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel
from support.engine.stack import ListModel, Script, Stack, call, person, says, stack
from support.engine.tools import Bench
from support.stores.database_faults import Fault, Faults
from support.stores.sql_census import SqlCensus
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import tool
from turngate.activities.call_model import CallModel
from turngate.approvals_api.runs import send_message
from turngate.domain.contract import CallModelInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.tools.tool import Tool
from turngate.models import ModelRequest
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.wire.orders import MessageOrder

PAY = call("pay", '{"cents": 5}', "p")
TOGETHER = ["_store"]
APART = ["_store", "_plan"]


class Amount(BaseModel):
    cents: int


class Checked(BaseModel):
    cents: Annotated[int, AfterValidator(abs)]


async def pay(params: Amount) -> int:
    """Pay an amount."""
    return params.cents


async def pay_checked(params: Checked) -> int:
    """Pay an amount."""
    return params.cents


def stock(params: Amount) -> int:
    return params.cents


TOOLS: dict[str, tuple[Tool, list[str]]] = {
    "plain": (tool(effect="once", name="pay")(pay), TOGETHER),
    "always asks": (tool(effect="once", name="pay", ask=True)(pay), TOGETHER),
    "predicate": (tool(effect="once", name="pay", ask=lambda _amount: True)(pay), APART),
    "preview": (tool(effect="once", name="pay", preview=lambda _amount: "5 cents")(pay), APART),
    "precondition": (tool(effect="once", name="pay", precondition=stock)(pay), APART),
    "validator": (tool(effect="once", name="pay")(pay_checked), APART),
}


def writers(census: SqlCensus) -> list[str]:
    """The functions of ``call_model`` that wrote, in order."""
    owners = [each.owner for each in census.of_product if each.kind == "write"]
    return [owner.rsplit(":")[-1] for owner in owners if "call_model.py" in owner]


async def completed(engine: Stack, run: runs.Run) -> None:
    await engine.decide(await engine.request(run), "approve")
    assert (await engine.ended(run)).status == "completed"
    assert is_reconciled(await engine.history(run))


@pytest.mark.parametrize("kind", TOOLS)
async def test_i14_only_what_runs_no_code_of_an_author_is_planned_before_it_is_stored(
    client: Client, sqlite: Database, kind: str
) -> None:
    """I14: a predicate, preview, precondition or validator is called once the response that was paid for is stored."""
    declared, expected = TOOLS[kind]
    async with stack(client, sqlite, declared, model=ListModel(says(PAY), says("Done."))) as engine:
        with SqlCensus(sqlite) as census:
            run = await engine.start()
            await engine.request(run)
            await engine.idle(run)
        assert writers(census) == expected
        await completed(engine, run)


async def test_i14_an_attempt_that_repeats_another_stores_first(client: Client, sqlite: Database, bench: Bench) -> None:
    """I14: if planning took the first attempt's worker along, the next one pays once more, and never again."""
    model = ListModel(says(PAY), says(PAY))
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        run = await engine.start()
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=2)
        with SqlCensus(sqlite) as census:
            order = CallModelInput(run_id=run.id, step=1)
            plan = await environment.run(CallModel(engine.engine).call_model, order)
        owners = [each.owner.rsplit("/")[-1] for each in census.of_product if each.kind == "write"]
        assert owners == [
            "call_model.py:_store",
            "lost_workers.py:_append",
            "lost_workers.py:_append",
            "call_model.py:_plan",
        ]
        assert (len(plan.calls), len(model.seen)) == (1, 1)
        await engine.workflow(run).terminate()


async def test_i5_a_plan_that_fails_leaves_the_response(client: Client, sqlite: Database, bench: Bench) -> None:
    """I5: if planning raises, the response is stored without its plan, and the model is not asked again."""
    model = ListModel(says(PAY), says("Done."))
    faults = [Fault(owner, ValueError("a bug"), kind="glance") for owner in ("_planned_at_once", "_plan")]
    async with stack(client, sqlite, bench.pay, model=model) as engine:
        with Faults(sqlite, *faults):
            await completed(engine, await engine.start())
        assert all(each.reached.is_set() for each in faults)
        assert (bench.paid, len(model.seen)) == ([5], 2)


async def test_what_came_while_the_model_answered_keeps_response_and_plan_apart(
    client: Client, database: Database, bench: Bench
) -> None:
    """A plan is not stored as it is where the run has changed since it began: a newer message supersedes the call."""
    request_came, go = asyncio.Event(), asyncio.Event()

    async def think(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].text == "Rather not.":
            return says("Done.")
        request_came.set()
        await go.wait()
        return says(PAY)

    async with stack(client, database, bench.pay, model=Script(think)) as engine:
        run = await engine.start()
        await asyncio.wait_for(request_came.wait(), 60)
        order = MessageOrder.model_validate({"input": "Rather not.", "while_running": "supersede"})
        await send_message.send(engine.services, person("ada"), run.id, order)
        with SqlCensus(database) as census:
            go.set()
            assert (await engine.ended(run)).status == "completed"
        assert writers(census)[:2] == APART
        assert bench.paid == []
        assert is_reconciled(await engine.history(run))
