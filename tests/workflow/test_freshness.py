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

    def tool(self, *, depends: bool, keeps_fresh: bool = True, name: str = "pay") -> Tool:
        @tool(
            name=name,
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


NO_ONE_KNOWS = "Nothing tells whether what it depends on has changed since."
NOT_VOUCHED_FOR = {
    "says_nothing": NO_ONE_KNOWS,
    "knows_a_part": "What is known of what it depends on has not changed",
    "without": f"operator approved this 3 d ago, and its rule lets an approval count for 4 h. {NO_ONE_KNOWS}",
}


@pytest.mark.parametrize("hooks", [(), (Hooks(),)], ids=["no hooks", "hooks"])
async def test_i3_an_old_approval_counts_where_the_world_is_known_to_be_the_same(
    client: Client, sqlite: Database, hooks: Any
) -> None:
    """I2, I3: an unchanged precondition vouches for it; one that answers None, or is not all, does not, and neither does none.

    Those calls get a new request with today's preview, and no late order redeems the old one. An approval that is younger than
    its rule says counts, and where no rule says how long, any does.
    """
    world, silent, moving = World(), World(None), World()
    tools = {
        "says_nothing": silent.tool(depends=True, name="says_nothing"),
        "knows_a_part": world.tool(depends=True, keeps_fresh=False, name="knows_a_part"),
        "without": moving.tool(depends=False, name="without"),
        "unchanged": world.tool(depends=True, name="unchanged"),
        "young": world.tool(depends=False, name="young"),
        "no_term": world.tool(depends=False, name="no_term"),
    }
    fresh = FRESH.model_copy(update={"tools": [name for name in tools if name != "no_term"]})
    free = FRESH.model_copy(update={"name": "free", "tools": ["no_term"], "fresh_for_seconds": None})
    calls = [call(name, f'{{"cents": {cents}}}', name) for cents, name in enumerate(tools)]
    options = {"model": ListModel(says(*calls), says("Done.")), "policy": Policy(rule=[fresh, free]), "hooks": hooks}
    async with stack(client, sqlite, *tools.values(), **options) as engine:
        run = await engine.start()
        first = {name: await engine.request_about(run, name) for name in tools}
        await control.pause(engine.services, OPERATOR, run.id)
        await engine.event(run, "run.paused")
        for name, request in first.items():
            await engine.decide(request, "approve", decision_id=f"first-{name}")
            await make_old(engine, tables.requests, timedelta(hours=1) if name == "young" else LONG_AGO, id=request.id)
        moving.balance = 3
        await resumed(engine, run)
        for name, words in NOT_VOUCHED_FOR.items():
            second = await engine.request_about(run, name)
            assert words in second.reason, name
            if name == "without":
                assert (first[name].preview, second.preview) == ("2 of 100", "2 of 3")
                await make_old(engine, tables.requests, timedelta(0), id=first[name].id)  # as if it were given just now
            stray = RunToolInput(run_id=run.id, call=name)
            again = await ActivityEnvironment().run(RunTool(engine.engine).run_tool, stray)
            assert (again.state, again.again and again.again.request_id) == ("asks", second.id), name
            await engine.decide(second, "approve", decision_id=f"second-{name}")
        assert (await engine.ended(run)).status == "completed"
        by_decision = {name: row.decision_id for name, row in (await engine.executions(run)).items()}
        assert by_decision == {name: f"{'second' if name in NOT_VOUCHED_FOR else 'first'}-{name}" for name in tools}
        assert sorted(world.paid + silent.paid + moving.paid) == list(range(len(tools)))
        assert await count_requests(engine, run) == len(tools) + len(NOT_VOUCHED_FOR)


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
