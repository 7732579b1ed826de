"""Who may come in: links that work once, sessions and tokens that end, and no secret in the database."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from turngate.store import access
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.tables import api_tokens, login_links, metadata, sessions

PAST = as_text(now() - timedelta(seconds=1))


async def test_a_link_logs_in_once(database: Database) -> None:
    """The first use gives the operator, every later one nothing."""
    async with database.write() as conn:
        secret = await access.issue_link(conn, "ann")
    async with database.write() as conn:
        assert await access.use_link(conn, secret) == "ann"
    async with database.write() as conn:
        assert await access.use_link(conn, secret) is None
        assert await access.use_link(conn, "made up") is None


async def test_of_many_who_use_a_link_at_once_one_gets_in(database: Database) -> None:
    """A link that leaked and is used by twenty at the same moment lets one in."""
    async with database.write() as conn:
        secret = await access.issue_link(conn, "ann")

    async def use() -> str | None:
        async with database.write() as conn:
            return await access.use_link(conn, secret)

    used = await asyncio.gather(*(use() for _ in range(20)))
    assert sorted(used, key=str) == [None] * 19 + ["ann"]


async def test_a_link_that_is_out_of_date_lets_nobody_in(database: Database) -> None:
    """After its 24 hours a link is worth nothing, used or not."""
    async with database.write() as conn:
        secret = await access.issue_link(conn, "ann")
        expires_at = (await conn.execute(select(login_links.c.expires_at))).scalar_one()
        assert as_text(now() + timedelta(hours=23)) < expires_at < as_text(now() + timedelta(hours=25))
        await conn.execute(update(login_links).values(expires_at=PAST))
        assert await access.use_link(conn, secret) is None


async def test_a_session_lasts_twelve_hours_or_until_it_is_closed(database: Database) -> None:
    """A session is its operator's while it lasts; closed, expired and unknown ones are nobody's."""
    async with database.write() as conn:
        kept, closed = await access.open_session(conn, "ann"), await access.open_session(conn, "bob")
        await access.close_session(conn, closed)
        await access.close_session(conn, "made up")
    async with database.read() as conn:
        assert await access.session_operator(conn, kept) == "ann"
        assert await access.session_operator(conn, closed) is None
        assert await access.session_operator(conn, "made up") is None
        expires_at = (await conn.execute(select(sessions.c.expires_at))).scalar_one()
        assert as_text(now() + timedelta(hours=11)) < expires_at < as_text(now() + timedelta(hours=13))
    async with database.write() as conn:
        await conn.execute(update(sessions).values(expires_at=PAST))
        assert await access.session_operator(conn, kept) is None


@pytest.mark.parametrize("scopes", [frozenset(), frozenset({"admin", "runs:write"})])
async def test_a_token_carries_its_name_and_scopes_until_it_is_revoked(database: Database, scopes) -> None:
    """A token's holder is found by its secret; a revoked or unknown one is nobody's."""
    async with database.write() as conn:
        secret = await access.issue_token(conn, name="ci", scopes=scopes)
        other = await access.issue_token(conn, name="ci", scopes=scopes)
    async with database.read() as conn:
        assert await access.find_token(conn, secret) == access.Token(name="ci", scopes=scopes)
        assert await access.find_token(conn, secret + "x") is None
    async with database.write() as conn:
        revoked = api_tokens.c.token_hash == access._hashed(secret)
        await conn.execute(update(api_tokens).where(revoked).values(revoked_at=as_text(now())))
        assert await access.find_token(conn, secret) is None
        assert await access.find_token(conn, other) is not None


async def test_no_secret_is_in_the_database(database: Database) -> None:
    """Whoever reads the whole database finds no link, session or token that would let them in."""
    async with database.write() as conn:
        secrets = [
            await access.issue_link(conn, "ann"),
            await access.open_session(conn, "ann"),
            await access.issue_token(conn, name="ci", scopes=frozenset({"admin"})),
        ]
        assert await access.use_link(conn, secrets[0]) == "ann"
    assert len(set(secrets)) == 3
    assert all(len(secret) >= 43 for secret in secrets)
    async with database.read() as conn:
        rows = [row for table in metadata.sorted_tables for row in await conn.execute(select(table))]
    stored = "\n".join(str(row) for row in rows)
    assert stored.count("ann") >= 2
    for secret in secrets:
        assert secret.removeprefix("tg_") not in stored
        assert access._hashed(secret) in stored
