"""Precedents are found by what calls have in common, and nothing of a call stays when its request goes."""

from __future__ import annotations

import json
from dataclasses import replace

from sqlalchemy import delete, func, insert, select
from support.planted.precedents import TOOLS, planted, store, twins
from support.stores.stored_requests import live_run, open_requests, request_row

from turngate.approvals_api.requests.precedents import precedent_of
from turngate.domain.digest import repeat_key
from turngate.domain.likeness import features
from turngate.store.database import Connection, Database
from turngate.store.requests import precedents
from turngate.store.tables import decisions, precedent_features
from turngate.store.tables import precedents as precedents_table
from turngate.store.tables import requests as requests_table

ALIKE = '{"cents": 5}'


async def count(conn: Connection, table: object) -> int:
    return int((await conn.execute(select(func.count()).select_from(table))).scalar_one())  # type: ignore[arg-type]


async def test_planted_twins_are_among_the_nearest(sqlite: Database) -> None:
    """Of 40 calls that differ from one of 600 decided ones in a known way, 38 find it among the three nearest."""
    decided = list(planted(600))
    await store(sqlite, decided)
    missed = []
    async with sqlite.read() as conn:
        for twin in twins(decided, 40):
            precedent = await precedent_of(conn, "rq_new", twin.tool_name, twin.input)
            if twin.of not in [each.request_id for each in precedent.nearest]:
                missed.append(twin)
    assert len(missed) <= 2, missed


async def test_decisions_are_counted_with_how_their_calls_ended(database: Database) -> None:
    """By verb, of this tool alone; the newest rejection with its reason; how its newest 50 approved calls ended."""
    decided = list(planted(300))
    await store(database, decided)
    async with database.read() as conn:
        precedent = await precedent_of(conn, "rq_new", "refund", json.dumps({"order": "A-1"}))
        none = await precedent_of(conn, "rq_new", "unheard_of", "{}")
    of_tool = [each for each in decided if each.tool_name == "refund"]
    verbs = [each.verb for each in of_tool]
    assert (precedent.approved, precedent.edited) == (verbs.count("approve") + verbs.count("edit"), verbs.count("edit"))
    assert precedent.rejected == verbs.count("reject")
    assert precedent.last_rejection is not None
    newest = max((each for each in of_tool if each.verb == "reject"), key=lambda each: each.seq)
    assert (precedent.last_rejection.request_id, precedent.last_rejection.message) == (
        newest.request_id,
        "Not this one.",
    )
    approved = sorted((each for each in of_tool if each.verb != "reject"), key=lambda each: -each.seq)[:50]
    failed = sum(each.seq % 10 == 0 for each in approved)
    assert (precedent.ran, precedent.failed, precedent.unknown) == (50 - failed, failed, 0)
    assert precedent.record == f"Of the last 50 approved calls, {failed} failed."
    assert (none.nearest, none.decisions) == ([], "No one has decided about a call of this tool before.")


async def test_of_the_same_call_one_of_each_verb_comes_first(database: Database) -> None:
    """Ten approvals of the same call don't hide that it was rejected once, nor the next nearest call."""
    async with database.write() as conn:
        run = await live_run(conn, "run_same")
        await open_requests(conn, [request_row(run, f"rq_{n}", input=ALIKE) for n in range(1, 13)])
        same = [
            precedents.Decided(seq=n, request_id=f"rq_{n}", tool_name="pay", input=ALIKE, verb="approve")
            for n in range(1, 13)
        ]
        same[0] = replace(same[0], verb="reject")
        same[1] = replace(same[1], input='{"cents": 6}')
        await conn.execute(requests_table.update().values(decided_by="ann", decided_at="2026-11-23T00:00:00+00:00"))
        await conn.execute(requests_table.update().where(requests_table.c.id == "rq_2").values(input='{"cents": 6}'))
        await precedents.add(conn, [(each, features("pay", each.input)) for each in same])
        precedent = await precedent_of(conn, "rq_new", "pay", ALIKE)
    assert [(each.request_id, each.same) for each in precedent.nearest] == [
        ("rq_12", True),
        ("rq_1", True),
        ("rq_2", False),
    ]


async def test_other_requests_that_ask_for_the_same_call_are_counted(database: Database) -> None:
    """Pending ones of any run, however the arguments are written; not the request itself, ended ones or other arguments."""
    async with database.write() as conn:
        run, other = await live_run(conn, "run_a"), await live_run(conn, "run_b")
        key = repeat_key("pay", ALIKE)
        waiting = [request_row(each, f"rq_{each.id}", input=ALIKE, repeat_key=key) for each in (run, other)]
        ended = request_row(run, "rq_ended", input=ALIKE, repeat_key=key, status="expired")
        unlike = request_row(run, "rq_unlike", input="{}", repeat_key=repeat_key("pay", "{}"))
        await open_requests(conn, [*waiting, ended, unlike])
        precedent = await precedent_of(conn, "rq_run_a", "pay", '{ "cents":5 }')
    assert (precedent.waiting_alike, precedent.waiting) == (1, "One other request waits for the same call.")


async def test_precedents_go_with_their_requests(database: Database) -> None:
    """Adding twice changes nothing; when a request goes, so do its precedent and every hash of its arguments."""
    decided = list(planted(20))
    await store(database, decided)
    async with database.write() as conn:
        before = await count(conn, precedent_features)
        await precedents.add(conn, [(each, features(each.tool_name, each.input)) for each in decided])
        assert await count(conn, precedent_features) == before > len(decided)
        assert await count(conn, precedents_table) == len(decided)
        await conn.execute(delete(decisions))
        await conn.execute(
            delete(requests_table).where(requests_table.c.id.in_([each.request_id for each in decided[1:]]))
        )
        assert await count(conn, precedents_table) == 1
        left = features(decided[0].tool_name, decided[0].input)
        assert set((await conn.execute(select(precedent_features.c.feature))).scalars()) == set(left)


async def test_no_more_is_read_than_is_compared(database: Database) -> None:
    """A decided call of a megabyte is found by its beginning, and does not count as the same."""
    text = json.dumps({"content": "line " * 200_000})
    decided = replace(next(planted(1)), input=text, tool_name=TOOLS[3])
    async with database.write() as conn:
        run = await live_run(conn, "run_long")
        row = request_row(run, decided.request_id, tool_name=decided.tool_name, input=text)
        await conn.execute(insert(requests_table), [vars(replace(row, decided_by="ann", decided_at=row.created_at))])
        await precedents.add(conn, [(decided, features(decided.tool_name, text))])
        precedent = await precedent_of(conn, "rq_new", decided.tool_name, text)
        (case,) = (await precedents.cases(conn, [decided.seq])).values()
    assert len(case.input) < len(text) / 10
    assert [each.same for each in precedent.nearest] == [False]
