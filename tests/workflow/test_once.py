"""I2, I3: no handler without a redeemed record, and a ``once`` handler starts at most once, whatever dies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import AfterValidator, BaseModel
from sqlalchemy import update
from support.engine.stack import ListModel, OneModel, Stack, call, person, says, stack
from support.engine.tools import Bench
from support.stores.encryption import ALSO_ENCRYPTED
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Agent, App, Toolkit, tool
from turngate import worker as composition
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.recovery import redelivery
from turngate.approvals_api.requests.views import request_detail, request_page
from turngate.domain.contract import RunToolInput
from turngate.domain.errors import ConflictError
from turngate.domain.runs.inbox import InboxFilter
from turngate.frontends.tui.request_text import ended_words
from turngate.notifications.items import item_of
from turngate.notifications.message_text import headline
from turngate.runtime.app_loader import check_app
from turngate.store.database import Database
from turngate.store.runs import executions
from turngate.store.tables import calls as calls_table


def paying() -> ListModel:
    return ListModel(says(call("pay", '{"cents": 5}', "c1")), says("Done."))


async def run_directly(engine: Stack, run_id: str) -> str:
    """Call the activity as a stray task would: past the workflow."""
    order = RunToolInput(run_id=run_id, call="c1")
    return (await ActivityEnvironment().run(RunTool(engine.engine).run_tool, order)).state


@pytest.mark.parametrize("tampering", ["input", "edited_input"])
async def test_i2_bytes_changed_after_the_approval_do_not_run(
    client: Client, sqlite: Database, bench: Bench, tampering: str
) -> None:
    """I2, I6: if the stored arguments change after the approval, the log says otherwise, and nothing runs."""
    tampered = "the stored arguments change"
    async with stack(client, sqlite, bench.pay, model=paying(), working=False, tampered=tampered) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        await engine.decide(request, "approve")  # no worker
        async with sqlite.write() as conn:
            await conn.execute(update(calls_table).values({tampering: '{"cents": 999999}'}))
        async with engine.worker():
            ended = await engine.ended(run)
        assert bench.paid == []
        assert (ended.status, "what lets call" in ended.reason) == ("failed", True)


@pytest.mark.parametrize("now", ["changed", "gone", "validates less"])
async def test_i2_a_tool_that_changed_after_the_approval_does_not_run(
    client: Client, sqlite: Database, bench: Bench, now: str
) -> None:
    """I2, I6: a deploy after which the call doesn't fit its tool voids the approval, and people see that, not only the model.

    On the request's page and in the list, in the API, and by a notification.
    """
    fitting = Bench()
    async with stack(client, sqlite, fitting.pay, model=paying(), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
        await engine.decide(request, "approve")

        @tool(effect="once", ask=True, name="pay", description="Pay twice the amount.")
        async def changed() -> int:
            bench.paid.append(0)
            return 0

        class Less(BaseModel):
            cents: Annotated[int, AfterValidator(_refused)]

        async def stricter(params: Less) -> dict[str, int]:
            """Pay an amount."""
            bench.paid.append(0)
            return {}

        stricter.__annotations__["params"] = Less
        deployed = {
            "changed": [changed],
            "gone": [],
            "validates less": [tool(effect="once", ask=True, name="pay")(stricter)],
        }[now]
        agent = Agent(name="agent", instructions="", toolkit=Toolkit.of(*deployed), model="scripted:test")
        app = check_app(App(agents=[agent]), base=Path.cwd())
        engine.engine = composition.build_engine(app, sqlite, OneModel(ListModel(says("Done."))))
        async with engine.worker():
            await engine.ended(run)
        assert bench.paid == fitting.paid == []
        result = (await engine.results(run))["c1"]
        async with sqlite.read() as conn:
            detail = await request_detail(conn, request.id)
            listed = await request_page(conn, InboxFilter(status="decided"), limit=5)
            item = await item_of(conn, await engine.event(run, "call.closed"))
        assert detail.not_run == listed.items[0].not_run == result.reason
        assert "it did not run: " in ended_words(detail)
        assert item is not None
        assert (item.name, item.request_id, item.decided_by) == ("request.not_run", request.id, detail.decided_by)
        assert headline(item) == "Approved, and did not run"


def _refused(_cents: int) -> int:
    raise ValueError("no payments on Sundays")


@ALSO_ENCRYPTED
async def test_i2_i3_an_approval_is_redeemed_at_most_once(client: Client, database: Database, bench: Bench) -> None:
    """I2, I3: an order to run an undecided call does not run it, and does not close it either: it waits for its decision.

    Stray and repeated orders for an approved call start its handler once.
    """
    async with stack(client, database, bench.pay, model=paying()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert await run_directly(engine, run.id) == "asks"
        assert (bench.paid, (await engine.results(run))["c1"]) == ([], None)
        await engine.decide(request, "approve", decision_id="d-1")
        await engine.ended(run)
        states = await asyncio.gather(*(run_directly(engine, run.id) for _ in range(5)))
        assert set(states) == {"settled"}
        assert bench.paid == [5]
        async with database.write() as conn:
            with pytest.raises(Exception, match=r"(?i)unique"):
                await executions.begin(
                    conn,
                    executions.NewExecution(
                        run_id=run.id, tool_call_id="other", digest="", decision_id="d-1", idempotency_key="k"
                    ),
                )


async def test_i4_the_store_names_the_winner_when_a_crash_ate_its_answer(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I4: a decision recorded just before a crash wins; a later one learns that, and the run follows the first."""
    async with stack(client, sqlite, bench.pay, model=paying()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.record(request, "approve", decision_id="first", by="ann")
        with pytest.raises(ConflictError) as refused:
            await engine.decide(request, "reject", by=person("bob"))
        assert (refused.value.details["decision_id"], refused.value.details["decided_by"]) == ("first", "ann")
        assert await redelivery.redeliver(engine.services, request.id)
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]
