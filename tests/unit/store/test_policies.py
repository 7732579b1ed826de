"""Stored rules, and the rules and tools that workers publish."""

from __future__ import annotations

import asyncio

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from support.stores.stored_requests import request_row

from turngate import Policy, Rule
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools.known_tools import KnownTool
from turngate.store import tables
from turngate.store.database import Database
from turngate.store.policy import policies, recorded_calls
from turngate.store.requests import requests
from turngate.store.runs import calls


async def test_one_of_ten_writers_stores_a_version(database: Database) -> None:
    """Versions have no gaps and no forks: the database itself refuses a late writer."""

    async def write(number: int) -> None:
        async with database.write() as conn:
            await policies.append_version(
                conn, policies.StoredPolicy(version=1, source=f"# {number}", digest="d", changed_by="ann", comment="")
            )

    done = await asyncio.gather(*(write(number) for number in range(10)), return_exceptions=True)
    assert sum(isinstance(each, IntegrityError) for each in done) == 9
    async with database.read() as conn:
        newest = await policies.newest(conn)
        assert newest is not None
        assert newest.source == f"# {done.index(None)}"
        assert await policies.glance(conn) == (1, False)
        assert [each.version for each in await policies.versions(conn, limit=9)] == [1]
        assert await policies.versions(conn, limit=9, before=1) == []


async def test_a_worker_replaces_its_published_rules_and_tools(database: Database) -> None:
    """What the same task queue published before is gone; another queue's stays."""
    first = Policy(rule=[Rule(name="a", verdict="deny", tools=["x"], args=[{"at": "/n", "op": "gt", "value": 0.1}])])
    tools = [KnownTool(name="x", kind="local", effect="read", own_ask="computed", agents=("support", "intern"))]
    async with database.write() as conn:
        await policies.publish(conn, task_queue="one", policy=first, file="/srv/policy.toml", tools=tools)
        await policies.publish(conn, task_queue="two", policy=Policy(), file="", tools=[])
        await policies.publish(conn, task_queue="two", policy=first, file="", tools=tools)
    async with database.read() as conn:
        one, two = await policies.published(conn)
    assert (one.policy, one.version, one.known_tools) == (first, first.version, tools)
    assert (one.file, two.file, two.policy) == ("/srv/policy.toml", "", first)


def judged(
    run_id: str, call_id: str, step: int, position: int, *, tool: str = "pay", verdict: bool = True
) -> calls.Call:
    verdict_json = Verdict(answer="ask", rule="default", reason="", risk="low").model_dump_json(exclude_defaults=True)
    return calls.Call(
        run_id=run_id,
        tool_call_id=call_id,
        step=step,
        position=position,
        tool_name=tool,
        input="{}",
        repeat_key="k",
        disposition="ask",
        verdict=verdict_json if verdict else "",
        digest="d",
        policy_version="p",
        effect="once",
    )


async def test_recorded_calls_are_read_newest_first_each_once(database: Database, new_run) -> None:
    """Across runs, steps and pages, without calls that never reached policy, dry runs and runs with their own rules."""
    older, newer, dry, own = [await new_run() for _ in range(4)]
    rows = [judged(older.id, f"o{number}", 1, number) for number in range(3)]
    rows += [judged(newer.id, f"n{step}{position}", step, position) for step in (1, 2) for position in range(2)]
    rows += [judged(newer.id, "closed", 3, 0, verdict=False), judged(newer.id, "other", 3, 1, tool="look")]
    rows += [judged(each.id, "elsewhere", 1, 0) for each in (dry, own)]
    async with database.write() as conn:
        for run, column in ((dry, "replay_of_run_id"), (own, "world")):
            await conn.execute(update(tables.runs).where(tables.runs.c.id == run.id).values({column: "x"}))
        await calls.insert_planned(conn, rows)
    expected = ["other", "n21", "n20", "n11", "n10", "o2", "o1", "o0"]
    async with database.read() as conn:
        seen, last_place = [], None
        while page := await recorded_calls.page(conn, limit=3, after=last_place):
            seen += [each.tool_call_id for each in page]
            last_place = page[-1].place
    assert seen == expected

    async def newest(**options) -> list[str]:
        return [each.tool_call_id async for each in recorded_calls.newest(database, **options)]

    assert await newest(limit=2, tool="pay") == ["n21", "n20"]
    assert await newest(limit=99, since=newer.created_at) == expected[:5]
    assert await newest(limit=99, page_size=2) == await newest(limit=99) == expected
    assert await newest(limit=5, page_size=2) == expected[:5]


async def test_a_recorded_call_has_the_origins_of_the_models_arguments(database: Database, new_run) -> None:
    """Those of its first request, where they are wanted; an edited call's are those of a person."""
    run = await new_run()
    rows = [
        request_row(run, "rq_a", tool_call_id="c", origins="first"),
        request_row(
            run,
            "rq_b",
            tool_call_id="c",
            origins="after an edit",
            created_at="2999-01-01T00:00:00.000000Z",
            status="superseded",
        ),
    ]
    async with database.write() as conn:
        await calls.insert_planned(conn, [judged(run.id, "c", 1, 0), judged(run.id, "allowed", 1, 1)])
        await requests.insert_all(conn, rows)

    async def origins(**options) -> list[str | None]:
        return [each.origins_json async for each in recorded_calls.newest(database, limit=9, **options)]

    assert await origins(with_origins=True) == [None, "first"]
    assert await origins() == [None, None]


async def test_a_proposal_is_no_version(database: Database) -> None:
    """It waits until it has an outcome, a newer one takes its place, or its version is stored; one outcome only."""

    def text(number: int, version: int = 1) -> policies.StoredPolicy:
        return policies.StoredPolicy(
            version=version, source=f"# {number}", digest=f"{number}", changed_by="ann", comment="c"
        )

    async with database.write() as conn:
        assert await policies.waiting_proposal(conn) is None
        first = await policies.propose(conn, text(1), why="w")
        assert await policies.waiting_proposal(conn) == first
        second = await policies.propose(conn, text(2), why="w")
        assert (first.number, second.number, second.source) == (1, 2, "# 2")
        assert await policies.waiting_proposal(conn) == second
        assert (await policies.newest(conn), await policies.glance(conn)) == (None, (0, False))
        assert await policies.versions(conn, limit=9) == []
        assert await policies.end_proposal(conn, 2, outcome="refused", by="bob")
        assert not await policies.end_proposal(conn, 2, outcome="confirmed", by="bob")
        assert await policies.waiting_proposal(conn) is None
        third = await policies.propose(conn, text(3), why="w")
    async with database.write() as conn:
        assert await policies.waiting_proposal(conn) == third
        await policies.append_version(conn, text(4))
        assert await policies.waiting_proposal(conn) is None


async def test_of_two_outcomes_at_once_one_counts(database: Database) -> None:
    """The database itself refuses the late one, also from another connection."""
    async with database.write() as conn:
        await policies.propose(
            conn, policies.StoredPolicy(version=1, source="", digest="d", changed_by="a", comment=""), why="w"
        )

    async def end(outcome: policies.Outcome) -> bool:
        async with database.write() as conn:
            return await policies.end_proposal(conn, 1, outcome=outcome, by="bob")

    assert sorted(await asyncio.gather(end("confirmed"), end("refused"), end("confirmed"))) == [False, False, True]
