"""The inbox over HTTP with its filters."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import text
from support.api.store_app import Desk, desk_on
from support.stores.encryption import encrypted
from support.stores.stored_requests import AT

from turngate.domain.runs.inbox import count_words
from turngate.store.clock import as_text
from turngate.store.database import Database
from turngate.store.live import badges
from turngate.store.requests import requests
from turngate.store.tables import requests as requests_table

SOON = as_text(AT + timedelta(hours=1))


@pytest.fixture
async def desk(sqlite: Database) -> AsyncIterator[Desk]:
    async with desk_on(sqlite) as desk:
        run, other = await desk.run(), await desk.run("run_2")
        for place, changes in enumerate(
            (
                {"claimed_by": "ann", "claimed_until": SOON},
                {"claimed_by": "bob", "claimed_until": SOON, "risk": "high"},
                {"tool_name": "refund", "parked_at": SOON},
                {"kind": "question", "agent": "other"},
                {"rule": "four-eyes"},
            )
        ):
            await desk.put(run, "abcde"[place], created_at=as_text(AT + timedelta(seconds=place)), **changes)
        for place, name in enumerate("fgh"):
            await desk.put(other, name, created_at=as_text(AT + timedelta(minutes=1, seconds=place)))
        async with sqlite.write() as conn:
            await requests.settle(
                conn, "g", requests.Ending(status="rejected", at=AT, by="ann", verb="reject", decision_id="x")
            )
            await requests.settle(conn, "h", requests.Ending(status="expired", at=AT + timedelta(seconds=1)))
        yield desk


async def listed(client: httpx.AsyncClient, query: str, *, limit: int) -> str:
    """The ids of every page."""
    seen, cursor = "", ""
    while True:
        answer = await client.get(f"/api/v1/requests?{query}&limit={limit}{cursor}")
        assert answer.status_code == 200, answer.text
        seen += "".join(each["id"] for each in answer.json()["items"])
        if answer.json()["next_cursor"] is None:
            return seen
        cursor = f"&cursor={answer.json()['next_cursor']}"


@pytest.mark.exhaustive
async def test_each_filter_lists_and_counts_the_same(desk: Desk) -> None:
    """With every filter the count is the length of the list, over all pages; ``me`` is the person who asks."""
    ann = await desk.person("ann")
    for query, expected in {
        "": "bacdef",
        "order=age": "abcdef",
        "search=refund": "c",
        "search=four-eyes": "",
        "search=bob": "b",
        "status=decided": "hg",
        "status=rejected": "g",
        "status=all": "hgfedcba",
        "kind=question": "d",
        "agent=other": "d",
        "tool=refund": "c",
        "risk=high": "b",
        "rule=four-eyes": "e",
        "run_id=run_2": "f",
        "claimed=me": "a",
        "claimed=bob": "b",
        "claimed=nobody": "cdef",
        "parked=true": "c",
        "parked=false&run_id=run_1&claimed=nobody": "de",
    }.items():
        for limit in (1, 50):
            assert await listed(ann, query, limit=limit) == expected, query
        count = (await ann.get(f"/api/v1/requests/count?{query}")).json()
        assert count["count"] == len(expected), query


async def add_copies(database: Database, of: str, wanted: int, **own: str) -> None:
    """Store copies of a request. ``own``: SQL of the columns in which they differ, by ``n``."""
    own = {"id": "'copy' || n", **own}
    columns = ", ".join(column.name for column in requests_table.columns)
    values = ", ".join(own.get(column.name, column.name) for column in requests_table.columns)
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :wanted)"
    copies = f"{numbers} SELECT {values} FROM requests, numbers WHERE requests.id = :of"  # noqa: S608 - our own column names
    async with database.write() as conn:
        insert = text(f"INSERT INTO requests ({columns}) {copies}")
        await conn.execute(insert, {"wanted": wanted, "of": of})


@pytest.mark.parametrize(("more", "count", "is_more"), [(9_994, 10_000, False), (9_995, 10_000, True)])
async def test_a_count_ends_at_ten_thousand(desk: Desk, sqlite: Database, more: int, count: int, is_more: bool) -> None:
    """Beyond that, API and badge say that there are more, and the database looks no further."""
    await add_copies(sqlite, "a", more)
    async with sqlite.read() as conn:
        badge = (await badges.read(conn)).pending
    counted = (await (await desk.person("ann")).get("/api/v1/requests/count")).json()
    assert (counted["count"], counted["is_more"]) == (count, is_more)
    assert count_words(badge) == ("10,000+" if is_more else "10,000")


@pytest.mark.parametrize(
    ("query", "match", "newer", "copies"),
    [
        ("status=all&tool=refund", "c", "f", requests.MOST_SEARCHED - 6),
        pytest.param("status=rejected", "g", "h", requests.MOST_FILTERED - 1, marks=pytest.mark.exhaustive),
    ],
)
async def test_a_filter_looks_through_the_newest_alone(
    desk: Desk, sqlite: Database, query: str, match: str, newer: str, copies: int
) -> None:
    """One that few match must not read millions of rows. What is older is found by its run."""
    ann = await desk.person("ann")
    await add_copies(sqlite, newer, copies)
    assert await listed(ann, query, limit=50) == match
    await add_copies(sqlite, newer, 1, id="'one more'")
    assert await listed(ann, query, limit=50) == ""
    run_id = "run_1" if match == "c" else "run_2"
    assert await listed(ann, f"{query}&run_id={run_id}", limit=50) == match


@pytest.mark.parametrize(
    "query", ["status=open", "kind=x", "risk=huge", "parked=perhaps", "tool=", "agent=%00", "rule=" + "a" * 256]
)
async def test_an_invalid_filter_is_refused(desk: Desk, query: str) -> None:
    """422 for list and count alike; nothing reaches the database."""
    ann = await desk.person("ann")
    for path in ("/api/v1/requests", "/api/v1/requests/count"):
        assert (await ann.get(f"{path}?{query}")).status_code == 422


async def test_an_encrypted_store_says_what_it_cannot_search(sqlite: Database) -> None:
    """An empty list must not look like an answer: the database cannot read arguments and tasks."""
    await encrypted(sqlite)
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), "a", tool_name="refund")
        ann = await desk.person("ann")
        assert await listed(ann, "search=refund", limit=50) == "a"
        for path in ("/?search=cents", "/runs?search=go"):
            assert "The store is encrypted" in (await ann.get(path)).text


async def test_a_filter_offers_what_its_list_can_show(desk: Desk) -> None:
    """Tools, agents, rules and people of the list's requests, agents of its runs: none that was renamed, or is elsewhere."""
    ann = await desk.person("ann")

    async def offered(path: str) -> dict[str, list[str]]:
        page = (await ann.get(path, headers={"Accept": "text/html"})).text
        lists = re.findall(r'<datalist id="(\w+)">(.*?)</datalist>', page)
        return {name: re.findall(r'value="([^"]*)"', options) for name, options in lists}

    assert await offered("/?tool=none") == {
        "tools": ["pay", "refund"],
        "agents": ["agent", "other"],
        "rules": ["default", "four-eyes"],
        "claimed": ["me", "nobody", "ann", "bob"],
    }
    assert (await offered("/?status=rejected"))["rules"] == ["default"]
    assert await offered("/runs?agent=none") == {"agents": ["agent"]}
    assert await offered("/runs?status=failed") == {"agents": []}
