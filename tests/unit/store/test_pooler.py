"""PostgreSQL through PgBouncer in transaction mode, where a connection has another session with each transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import bindparam, make_url, select, text
from support.stores.pooler import pooled
from support.stores.recycled_postgres import Recycled

from turngate.domain.errors import ConfigurationError
from turngate.store.database import Database
from turngate.store.postgresql import NOT_THROUGH_A_POOLER
from turngate.store.prepared import PREPARE_AFTER
from turngate.store.runs import messages
from turngate.store.tables import conversations

ROUNDS = 15
"""More than a statement runs before it gets a name."""
WANTED = select(conversations.c.id).where(conversations.c.id == bindparam("wanted"))


@pytest.fixture
async def through(recycled: Recycled) -> AsyncIterator[Database]:
    """A database through a pooler with two sessions."""
    direct = await recycled.take()
    with pooled(direct.url) as url:
        database = Database(url)
        yield database
        await database.close()


async def test_clients_share_sessions_and_no_statement(through: Database) -> None:
    """Four processes' worth of clients read and write through two sessions: each gets its own answers, and none leaves a name."""
    clients = [through, *(Database(through.url) for _ in range(3))]
    mine = select(conversations.c.id).where(conversations.c.id.like(bindparam("mine")))

    async def work(client: Database, name: str) -> None:
        for turn in range(ROUNDS):
            async with client.write() as conn:
                await messages.create_conversation(conn, f"{name}-{turn}")
            async with client.glance() as conn:
                assert (await conn.execute(WANTED, {"wanted": f"{name}-{turn}"})).scalars().all() == [f"{name}-{turn}"]
                row = (await conn.execute(text(f"SELECT '{name}', CAST(:turn AS int)"), {"turn": turn})).one()
            assert tuple(row) == (name, turn)
        async with client.read() as conn:
            assert len((await conn.execute(mine, {"mine": f"{name}-%"})).all()) == ROUNDS

    await asyncio.gather(
        *(work(client, f"{number}-{task}") for number, client in enumerate(clients) for task in range(5))
    )
    async with through.read() as conn:
        assert (await conn.execute(text("SELECT count(*) FROM pg_prepared_statements"))).scalar_one() == 0
    for client in clients[1:]:
        await client.close()


async def test_no_session_is_left_listening(through: Database) -> None:
    """A pooler hands a listening session to the next client, so watchers look instead; a process's own commits ring at once."""
    rung = asyncio.Event()
    async with through.commits(rung.set):
        listening = next(each for each in asyncio.all_tasks() if each.get_name() == "listen-to-commits")
        await asyncio.wait_for(listening, 10)
        async with through.write() as conn:
            await messages.create_conversation(conn, "a")
        assert rung.is_set()
    async with through.read() as conn:
        assert (await conn.execute(text("SELECT count(*) FROM pg_listening_channels()"))).scalar_one() == 0


async def test_what_needs_a_session_of_its_own_is_refused(through: Database) -> None:
    """A binding to one schema, pg_dump's settings and a limit for VACUUM's lock would pass to another client with the session."""
    assert NOT_THROUGH_A_POOLER in await through.scrub()
    with pytest.raises(ConfigurationError, match=r"to a pooler .*: run the backup with one that leads to"):
        await through.require_own_sessions("run the backup")
    bound = make_url(through.url).update_query_dict({"schema": "public"})
    tenant = Database(bound.render_as_string(hide_password=False))
    with pytest.raises(ConfigurationError, match=r"to a pooler .*sees only that .*connect to PostgreSQL itself"):
        async with tenant.read():
            pass
    await tenant.close()


async def test_a_pooler_without_transactions_is_named(recycled: Recycled) -> None:
    """In statement mode nothing works, and waiting for the database would be in vain."""
    direct = await recycled.take()
    with pooled(direct.url, mode="statement") as url:
        database = Database(url)
        with pytest.raises(ConfigurationError, match="PgBouncer in statement mode, which allows no transactions: set"):
            async with database.read():
                pass
        await database.close()


async def test_without_a_pooler_sessions_are_its_own(recycled: Recycled) -> None:
    """PostgreSQL itself plans a statement of the hot path once a session: neither views nor other values make it plan again."""
    direct = await recycled.take()
    await direct.require_own_sessions("run the backup")
    for number in range(ROUNDS):
        async with direct.read() as conn:
            await conn.execute(WANTED, {"wanted": str(number)})
    async with direct.glance() as conn:
        plans = text("SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE :wanted")
        generic, custom = (await conn.execute(plans, {"wanted": "SELECT conversations.id %.id = $1%"})).one()
    assert (generic >= ROUNDS - PREPARE_AFTER, custom) == (True, 0)
