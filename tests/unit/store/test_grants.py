"""Grants in the store: limited uses, and revoked at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.store import tables
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.live import badges
from turngate.store.policy import grants


async def new_grant(database: Database, key: str = "k", **options: Any) -> grants.StoredGrant:
    options.setdefault("pattern", GrantPattern(tool="pay", fixed={"cents": 5}))
    target = {"run_id": options.pop("run_id", None), "agent": options.pop("agent", None)}
    wanted = WantedGrant(**{"scope": "everyone", "max_uses": 3, **options})
    async with database.write() as conn:
        return await grants.create(conn, wanted, grants.Origin(created_by="ann", role="admin", **target), key=key)


async def test_a_grant_allows_as_many_calls_as_it_says(database: Database) -> None:
    """Of ten calls at once three take a use, each with its own row; the count and the rows agree."""
    grant = await new_grant(database)

    async def take(number: int) -> bool:
        async with database.write() as conn:
            return await grants.take_use(conn, grant.id, run_id="run_1", tool_call_id=f"c{number}")

    taken = await asyncio.gather(*(take(number) for number in range(10)))
    assert taken.count(True) == 3
    async with database.read() as conn:
        stored = await grants.get(conn, grant.id)
        used = await grants.uses_of(conn, grant.id)
        assert [each.tool_call_id for each in await grants.uses_of(conn, grant.id, limit=2)] == [
            each.tool_call_id for each in used[:2]
        ]
    assert stored is not None
    assert (stored.uses, stored.created_by_role) == (3, "admin")
    assert {each.tool_call_id for each in used} == {f"c{number}" for number, won in enumerate(taken) if won}
    assert [each.used_at for each in used] == sorted((each.used_at for each in used), reverse=True)


async def test_valid_grants_are_listed_and_ended_ones_take_no_use(database: Database) -> None:
    """Revoked, expired and used-up grants are in the whole list only; each is revoked at most once."""
    ends = {"valid": {}, "revoked": {}, "expired": {}, "used": {"max_uses": 1}}
    every = {name: await new_grant(database, name, **options) for name, options in ends.items()}
    async with database.write() as conn:
        assert await grants.revoke(conn, every["revoked"].id, by="bea")
        assert not await grants.revoke(conn, every["revoked"].id, by="cid")
        assert await grants.take_use(conn, every["used"].id, run_id="r", tool_call_id="c")
        past = as_text(now() - timedelta(seconds=1))
        await conn.execute(
            update(tables.grants).where(tables.grants.c.id == every["expired"].id).values(expires_at=past)
        )
    async with database.write() as conn:
        for name in ("revoked", "expired", "used"):
            assert not await grants.take_use(conn, every[name].id, run_id="r", tool_call_id="late")
            assert not await grants.revoke(conn, every[name].id, by="dan")
        assert [each.id for each in await grants.active(conn)] == [every["valid"].id]
        assert (await badges.read(conn)).grants == 1
        assert [each.id for each in await grants.page(conn, limit=9, active_only=True)] == [every["valid"].id]
        newest = await grants.page(conn, limit=2)
        older = await grants.page(conn, limit=9, before=(newest[-1].created_at, newest[-1].id))
        revoked = await grants.get(conn, every["revoked"].id)
    assert [each.id for each in (*newest, *older)] == [every[name].id for name in reversed(ends)]
    assert revoked is not None
    assert revoked.revoked_by == "bea"


@pytest.mark.parametrize(
    ("scope", "options", "reached"),
    [
        ("everyone", {}, {("run_1", "a"), ("run_2", "a"), ("run_1", "b")}),
        ("agent", {"agent": "a"}, {("run_1", "a"), ("run_2", "a")}),
        ("run", {"run_id": "run_1"}, {("run_1", "a"), ("run_1", "b")}),
    ],
)
async def test_a_grant_covers_what_its_scope_says(sqlite: Database, scope: Any, options: Any, reached: Any) -> None:
    """The store gives a run exactly the grants that cover it according to the domain."""
    grant = await new_grant(sqlite, scope=scope, **options)
    for run_id, agent in (("run_1", "a"), ("run_2", "a"), ("run_1", "b"), ("run_2", "b")):
        async with sqlite.read() as conn:
            covering = await grants.active(conn, run_id=run_id, agent=agent)
        assert bool(covering) == ((run_id, agent) in reached or scope == "everyone")
        assert bool(covering) == grant.grant.covers(run_id=run_id, agent=agent)


async def test_the_same_key_makes_one_grant(database: Database) -> None:
    """A repeated decision makes no second grant, and every number of the pattern reads back unchanged."""
    pattern = GrantPattern(tool="pay", fixed={"a": 10**30, "b": 1.0, "c": 1, "d": 0.1, "e": [None, {"x": "é"}]})
    first = await new_grant(database, "same", pattern=pattern)
    again = await new_grant(database, "same", pattern=pattern, max_uses=9)
    assert again == first
    stored = first.grant.pattern
    assert stored == pattern
    assert [type(value) for value in stored.fixed.values()] == [int, float, int, float, list]
