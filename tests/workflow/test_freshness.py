"""How long an approval counts: one that is older than its rule says runs only where nothing has changed since.

Runs are held between the decision and the call, as a pause, a full worker or a weekend does it; decisions are made old
in the store, or are sent with the time at which they were given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Table
from support.engine.stack import OPERATOR, ListModel, Stack, call, person, says, stack, until
from support.engine.tools import Amount
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Hooks, Policy, Preview, Rule, tool
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.runs import control
from turngate.domain.contract import RunToolInput
from turngate.domain.tools.tool import Tool
from turngate.store import tables
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs

HOURS = 3600
FRESH = Rule(name="fresh", verdict="ask", tools=["pay"], fresh_for_seconds=4 * HOURS)
LONG_AGO = timedelta(days=3, minutes=1)


@dataclass
class World:
    """What payments depend on, and what was paid."""

    balance: Any = 100
    paid: list[int] = field(default_factory=list)

    def tool(self, *, depends: bool, keeps_fresh: bool = True) -> Tool:
        @tool(
            effect="once",
            ask=True,
            precondition=self.look if depends else None,
            precondition_keeps_fresh=keeps_fresh,
            preview=lambda params, _: Preview(kind="text", text=f"{params.cents} of {self.balance}"),
        )
        async def pay(params: Amount) -> dict[str, int]:
            """Pay."""
            self.paid.append(params.cents)
            return {"paid": params.cents}

        return pay

    def look(self, params: Amount) -> Any:
        del params
        return self.balance


@asynccontextmanager
async def paying(
    client: Client, database: Database, tool: Tool, rule: Rule = FRESH, **more: Any
) -> AsyncIterator[Stack]:
    model = ListModel(says("I pay.", call("pay", '{"cents": 5}', "p")), says("Done."))
    async with stack(client, database, tool, model=model, policy=Policy(rule=[rule]), **more) as engine:
        yield engine


async def make_old(
    engine: Stack, table: Table, by: timedelta = LONG_AGO, column: str = "decided_at", **of: str
) -> None:
    """Move an instant of a row into the past, for the rest of the test."""
    await engine.change(table, of, **{column: as_text(now() - by)})


async def held_until_old(engine: Stack, run: runs.Run, verb: str = "approve", **options: Any) -> requests.Request:
    """Decide the run's request while the run is held, and let three days pass; returns the request as it was."""
    request = await engine.request(run)
    await control.pause(engine.services, OPERATOR, run.id)
    await engine.event(run, "run.paused")
    await engine.decide(request, verb, decision_id="first", **options)
    await make_old(engine, tables.requests, id=request.id)
    return request


async def resumed(engine: Stack, run: runs.Run) -> None:
    await control.resume(engine.services, OPERATOR, run.id)


async def in_place_of(engine: Stack, run: runs.Run, first: requests.Request) -> requests.Request:
    async def look() -> requests.Request | None:
        async with engine.database.read() as conn:
            opened = await requests.of_run(conn, run.id)
        return next((each for each in opened if each.status == "pending" and each.id != first.id), None)

    return await until(look, "request in place of the first")


async def count_requests(engine: Stack, run: runs.Run) -> int:
    async with engine.database.read() as conn:
        return len(await requests.of_run(conn, run.id))


async def test_i3_an_old_approval_is_asked_again_with_what_changed(client: Client, sqlite: Database) -> None:
    """I3, I6: the world changed meanwhile: the old yes runs nothing, the new request says who, when, and what changed."""
    world = World(100)
    async with paying(client, sqlite, world.tool(depends=True)) as engine:
        run = await engine.start()
        first = await held_until_old(engine, run)
        world.balance = 3
        await resumed(engine, run)
        second = await in_place_of(engine, run, first)
        assert second.reason == (
            "operator approved this 3 d ago, and its rule lets an approval count for 4 h. What it depends on has changed "
            "since: it was 100, and is now 3."
        )
        assert (second.digest, second.input, second.preview) == (first.digest, first.input, "5 of 3")
        async with engine.database.read() as conn:
            detail = await request_detail(conn, second.id)
        assert detail.earlier is not None
        assert (detail.instead_of, detail.earlier.request_id, detail.earlier.decided_by) == (
            first.id,
            first.id,
            "operator",
        )
        assert now() - from_text(detail.earlier.decided_at) > LONG_AGO
        assert (detail.earlier.precondition, detail.precondition) == ("100", "3")
        assert (world.paid, await engine.executions(run)) == ([], {})
        await engine.decide(second, "approve", decision_id="second")
        assert (await engine.ended(run)).status == "completed"
        assert (world.paid, (await engine.executions(run))["p"].decision_id) == ([5], "second")


@pytest.mark.exhaustive
async def test_an_old_approval_of_an_unchanged_world_runs(client: Client, database: Database) -> None:
    """If the tool's precondition is unchanged, no second approval is needed."""
    world = World(100)
    async with paying(client, database, world.tool(depends=True)) as engine:
        run = await engine.start()
        await held_until_old(engine, run)
        await resumed(engine, run)
        assert (await engine.ended(run)).status == "completed"
        assert (world.paid, await count_requests(engine, run)) == ([5], 1)


async def test_i3_a_call_that_depends_on_nothing_is_asked_about_again(client: Client, sqlite: Database) -> None:
    """A precondition that answers None says nothing of the world, so an old approval needs a new request."""
    world = World(None)
    async with paying(client, sqlite, world.tool(depends=True)) as engine:
        run = await engine.start()
        first = await held_until_old(engine, run)
        await resumed(engine, run)
        second = await in_place_of(engine, run, first)
        assert "Nothing tells whether what it depends on has changed since." in (second.reason or "")
        assert (world.paid, await engine.executions(run)) == ([], {})
        await engine.decide(second, "approve", decision_id="second")
        assert (await engine.ended(run)).status == "completed"
        assert world.paid == [5]


async def test_i3_a_precondition_that_knows_a_part_keeps_nothing_fresh(client: Client, sqlite: Database) -> None:
    """Where the tool says that its precondition is not all, an old approval needs a new request although it is unchanged."""
    world = World()
    async with paying(client, sqlite, world.tool(depends=True, keeps_fresh=False)) as engine:
        run = await engine.start()
        first = await held_until_old(engine, run)
        await resumed(engine, run)
        second = await in_place_of(engine, run, first)
        assert "What is known of what it depends on has not changed" in (second.reason or "")
        assert (world.paid, await engine.executions(run)) == ([], {})
        await engine.decide(second, "approve", decision_id="second")
        assert (await engine.ended(run)).status == "completed"
        assert world.paid == [5]


@pytest.mark.parametrize("hooks", [(), (Hooks(),)], ids=["no hooks", "hooks"])
async def test_i3_nothing_vouches_for_a_tool_without_precondition(client: Client, sqlite: Database, hooks: Any) -> None:
    """I2, I3: an old approval needs a new request with today's preview, and no late order redeems the old one."""
    world = World(100)
    async with paying(client, sqlite, world.tool(depends=False), hooks=hooks) as engine:
        run = await engine.start()
        first = await held_until_old(engine, run)
        world.balance = 3
        await resumed(engine, run)
        second = await in_place_of(engine, run, first)
        assert second.reason == (
            "operator approved this 3 d ago, and its rule lets an approval count for 4 h. Nothing tells whether what it "
            "depends on has changed since."
        )
        assert (first.preview, second.preview) == ("5 of 100", "5 of 3")
        await make_old(engine, tables.requests, timedelta(0), id=first.id)  # as if it had been given just now
        stray = RunToolInput(run_id=run.id, call="p")
        again = await ActivityEnvironment().run(RunTool(engine.engine).run_tool, stray)
        assert (again.state, again.again and again.again.request_id) == ("asks", second.id)
        assert (world.paid, await engine.executions(run)) == ([], {})
        await engine.decide(second, "approve", decision_id="second")
        assert (await engine.ended(run)).status == "completed"
        assert (world.paid, await count_requests(engine, run)) == ([5], 2)


@pytest.mark.parametrize(
    "rule", [FRESH, FRESH.model_copy(update={"fresh_for_seconds": None})], ids=["fresh", "no term"]
)
async def test_an_approval_that_is_young_enough_runs(client: Client, sqlite: Database, rule: Rule) -> None:
    """Held or not: an hour is less than four; and where no rule says how long, it takes as long as it takes."""
    world = World(100)
    async with paying(client, sqlite, world.tool(depends=False), rule) as engine:
        run = await engine.start()
        request = await held_until_old(engine, run)
        if rule.fresh_for_seconds is not None:
            await make_old(engine, tables.requests, timedelta(hours=1), id=request.id)
        await resumed(engine, run)
        assert (await engine.ended(run)).status == "completed"
        assert (world.paid, await count_requests(engine, run)) == ([5], 1)


async def test_i6_an_old_edit_is_asked_about_as_it_was_edited(client: Client, sqlite: Database) -> None:
    """I6: the person sees the call as they had edited it, and that runs."""
    world = World(100)
    async with paying(client, sqlite, world.tool(depends=False)) as engine:
        run = await engine.start()
        first = await held_until_old(engine, run, "edit", args='{"cents": 7}')
        await resumed(engine, run)
        second = await in_place_of(engine, run, first)
        assert second.input == '{"cents": 7}'
        await engine.decide(second, "approve")
        await engine.ended(run)
        assert world.paid == [7]


async def test_an_approval_is_as_old_as_the_person_who_gave_it_says_it(client: Client, database: Database) -> None:
    """Decided on Friday while no worker ran, seen by one on Monday: its age counts from Friday."""
    world = World(100)
    async with paying(client, database, world.tool(depends=False), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            first = await engine.request(run)
            await engine.idle(run)
        await make_old(engine, tables.requests, timedelta(days=4), "created_at", id=first.id)
        friday = now() - LONG_AGO
        await engine.decide(first, "approve", decision_id="first")
        await make_old(engine, tables.requests, now() - friday, "decided_at", id=first.id)
        async with engine.worker():
            second = await in_place_of(engine, run, first)
            assert "operator approved this 3 d ago" in second.reason
            await engine.decide(second, "reject")
            await engine.ended(run)
        async with engine.database.read() as conn:
            stored = await requests.get(conn, first.id)
        assert stored is not None
        assert stored.decision_id == "first"
        assert world.paid == []


async def test_of_several_approvals_the_one_that_completes_them_counts(client: Client, sqlite: Database) -> None:
    """Until then there was nothing to redeem: the first of two is three days old, the second is not, and the call runs."""
    world = World(100)
    rule = FRESH.model_copy(update={"quorum": 2})
    async with paying(client, sqlite, world.tool(depends=False), rule) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "approve", by=person("ann"))
        await make_old(engine, tables.approvals, column="created_at", request_id=request.id, decided_by="ann")
        await engine.decide(request, "approve", by=person("bob"))
        assert (await engine.ended(run)).status == "completed"
        assert (world.paid, await count_requests(engine, run)) == ([5], 1)
