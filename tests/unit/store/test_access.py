"""Access: links work once, sessions and tokens end, and the database holds no secret."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from support.stores.users import added, audit_events

from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from turngate.store.access import access, sessions, tokens, users
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.tables import api_tokens, login_links, metadata
from turngate.store.tables import sessions as session_rows
from turngate.wire.people import display_name

PAST = as_text(now() - timedelta(seconds=1))
ANN = access.Visitor(name="ann", role="operator")


async def test_a_link_logs_in_once(database: Database) -> None:
    """The first use returns the operator with the link's role; later uses return nothing."""
    async with database.write() as conn:
        secret = await access.issue_link(conn, "ann")
        admins = await access.issue_link(conn, "eve", role="admin")
    async with database.write() as conn:
        assert await access.use_link(conn, secret) == ANN
        assert await access.use_link(conn, admins) == access.Visitor(name="eve", role="admin")
    async with database.write() as conn:
        assert await access.use_link(conn, secret) is None
        assert await access.use_link(conn, "made up") is None


async def test_of_many_uses_of_a_link_at_once_one_succeeds(database: Database) -> None:
    """A leaked link that twenty people use at the same moment works for one of them."""
    async with database.write() as conn:
        secret = await access.issue_link(conn, "ann")

    async def use() -> access.Visitor | None:
        async with database.write() as conn:
            return await access.use_link(conn, secret)

    used = await asyncio.gather(*(use() for _ in range(20)))
    assert [each for each in used if each is not None] == [ANN]


async def test_an_expired_link_works_for_no_one(database: Database) -> None:
    """After 24 hours a link is worth nothing, used or not."""
    async with database.write() as conn:
        secret = await access.issue_link(conn, "ann")
        expires_at = (await conn.execute(select(login_links.c.expires_at))).scalar_one()
        assert as_text(now() + timedelta(hours=23)) < expires_at < as_text(now() + timedelta(hours=25))
        await conn.execute(update(login_links).values(expires_at=PAST))
        assert await access.use_link(conn, secret) is None


async def test_a_link_for_a_user_has_the_users_name_and_role(database: Database) -> None:
    """A link's own name and role don't count then; a token's name and a disabled user get no link."""
    ann = (await added(database, "Ann", "viewer")).name
    async with database.write() as conn:
        await tokens.issue(conn, tokens.NewToken(name="ci", scopes=["runs:write"]))
        assert await access.checked_visitor(conn, "ANN", None) == access.Visitor(name=ann, role="viewer")
        bob = await access.checked_visitor(conn, " bob ", "viewer")
        assert (display_name(bob.name), bob.role) == ("bob", "viewer")
        with pytest.raises(ConflictError, match="role"):
            await access.checked_visitor(conn, "ann", "admin")
        with pytest.raises(ConflictError, match="API token"):
            await access.checked_visitor(conn, "CI", None)
        secret = await access.issue_link(conn, ann, role="admin")
        assert await access.use_link(conn, secret) == access.Visitor(name=ann, role="viewer")
        later = await access.issue_link(conn, ann)
        await users.set_disabled(conn, "Ann", disabled=True, by="boss")
    async with database.write() as conn:
        assert await access.use_link(conn, later) is None
        with pytest.raises(ForbiddenError, match="disabled"):
            await access.checked_visitor(conn, "ann", None)


async def test_a_session_lasts_twelve_hours_or_until_it_is_closed(database: Database) -> None:
    """A session is valid for its person until then; closed, expired and unknown ones give no one."""
    async with database.write() as conn:
        secret = await sessions.begin(conn, "ann", user_agent="Firefox " * 99)
        closed = await sessions.begin(conn, "bob")
        await sessions.end(conn, closed)
        await sessions.end(conn, "made up")
    async with database.read() as conn:
        session = await sessions.find(conn, secret)
        assert session is not None
        assert (session.name, session.role, session.via, len(session.user_agent)) == ("ann", "operator", "link", 300)
        assert as_text(now() + timedelta(hours=11)) < session.expires_at < as_text(now() + timedelta(hours=13))
        assert await sessions.find(conn, closed) is None
        assert await sessions.find(conn, "made up") is None
        assert await sessions.listed(conn) == [session]
    async with database.write() as conn:
        await conn.execute(update(session_rows).values(expires_at=PAST))
        assert await sessions.find(conn, secret) is None
        assert await sessions.listed(conn) == []
        await sessions.begin(conn, "eve")
        assert (await conn.execute(select(session_rows.c.operator))).scalars().all() == ["eve"]
    opened, ended = await audit_events(database, "session.opened"), await audit_events(database, "session.ended")
    assert [payload["name"] for _kind, payload in opened] == ["ann", "bob", "eve"]
    assert [(payload["name"], payload["reason"]) for _kind, payload in ended] == [("bob", "logout")]


async def test_an_idle_session_ends(database: Database) -> None:
    """Its last use counts, and is recorded at most once a minute."""
    rested = as_text(now() - timedelta(minutes=90))
    async with database.write() as conn:
        secret = await sessions.begin(conn, "ann")
        session = await sessions.find(conn, secret)
        assert session is not None
        assert not session.seen_is_due
        await sessions.note_seen(conn, session.id)
        assert await sessions.find(conn, secret) == session
        await conn.execute(update(session_rows).values(last_seen_at=rested))
        assert await sessions.find(conn, secret, idle=timedelta(hours=1)) is None
        due = await sessions.find(conn, secret)
        assert due is not None
        assert due.seen_is_due
        await sessions.note_seen(conn, session.id)
        assert (await sessions.find(conn, secret, idle=timedelta(minutes=1))) is not None


async def test_sessions_are_ended_by_id_or_all_at_once(database: Database) -> None:
    """By id, one's own or another person's; all of a person's but one; the event says who ended them."""
    async with database.write() as conn:
        secrets = [await sessions.begin(conn, name) for name in ("ann", "ann", "ann", "bob")]
        ids = [session.id for each in secrets if (session := await sessions.find(conn, each))]
        assert len(set(ids)) == 4
        assert not await sessions.revoke(conn, ids[3], by="ann", of="ann")
        assert await sessions.revoke(conn, ids[0], by="ann", of="ann")
        assert not await sessions.revoke(conn, ids[0], by="ann", of="ann")
        assert await sessions.revoke_all(conn, "ANN", by="boss", but=ids[2]) == 1
        assert [each.id for each in await sessions.listed(conn, "ann")] == [ids[2]]
        assert await sessions.find(conn, secrets[3]) is not None
    ended = [(payload["session_id"], payload["by"]) for _kind, payload in await audit_events(database, "session.ended")]
    assert ended == [(ids[0], "ann"), (ids[1], "boss")]


@pytest.mark.parametrize("scopes", [frozenset(), frozenset({"admin", "runs:write"})])
async def test_a_token_carries_its_name_and_scopes_until_it_is_revoked(database: Database, scopes) -> None:
    """Its secret identifies its holder; a revoked or unknown token gives no one."""
    async with database.write() as conn:
        secret = await tokens.issue(conn, tokens.NewToken(name="ci", scopes=scopes))
        other = await tokens.issue(conn, tokens.NewToken(name="ci", scopes=scopes))
    async with database.read() as conn:
        token = await tokens.find(conn, secret)
        assert token is not None
        assert (token.acts_as, token.scopes, token.machine, token.owner) == ("ci", scopes, True, None)
        assert await tokens.find(conn, secret + "x") is None
        assert len(await tokens.listed(conn)) == 2
    async with database.write() as conn:
        assert await tokens.revoke(conn, token_id=token.id, by="boss") == [token.id]
        assert await tokens.find(conn, secret) is None
        assert await tokens.find(conn, other) is not None
        assert len(await tokens.revoke(conn, name="CI", by="boss")) == 1
        assert await tokens.revoke(conn, name="ci", by="boss") == []
        assert await tokens.find(conn, other) is None
    kinds = [kind for kind, _payload in await audit_events(database)]
    assert kinds == ["token.issued", "token.issued", "token.revoked", "token.revoked"]


async def test_a_token_may_expire(database: Database) -> None:
    """After its time it is invalid; one that would expire at once is refused; its last use is recorded."""
    async with database.write() as conn:
        with pytest.raises(InvalidInputError):
            await tokens.issue(conn, tokens.NewToken(name="ci", scopes=[], expires_at=now()))
        secret = await tokens.issue(conn, tokens.NewToken(name="ci", scopes=[], expires_at=now() + timedelta(days=1)))
        token = await tokens.find(conn, secret)
        assert token is not None
        assert (token.last_used_at, token.use_is_due) == (None, True)
        await tokens.note_used(conn, token.id)
        used = await tokens.find(conn, secret)
        assert used is not None
        assert not used.use_is_due
        await conn.execute(update(api_tokens).values(expires_at=PAST))
        assert await tokens.find(conn, secret) is None
        assert await tokens.listed(conn) == []


async def test_a_users_token_is_never_more_than_the_user(database: Database) -> None:
    """It acts under the user's name, within the user's current role, and not at all while the user is disabled."""
    await added(database, "Ann")
    async with database.write() as conn:
        both = ["runs:write", "requests:decide"]
        secret = await tokens.issue(conn, tokens.NewToken(name="ann-laptop", scopes=both, owner="ann"))
        with pytest.raises(ForbiddenError, match="ann is operator"):
            await tokens.issue(conn, tokens.NewToken(name="ann-admin", scopes=["admin"], owner="ann"))
        with pytest.raises(NotFoundError, match="no user 'zoe'"):
            await tokens.issue(conn, tokens.NewToken(name="zoe-laptop", scopes=[], owner="zoe"))

    async def scopes() -> set[str] | None:
        async with database.read() as conn:
            token = await tokens.find(conn, secret)
        assert token is None or (display_name(token.acts_as), token.machine) == ("Ann", False)
        return None if token is None else set(token.scopes)

    assert await scopes() == {"runs:write", "requests:decide"}
    async with database.write() as conn:
        await users.set_role(conn, "ann", "viewer", by="boss")
    assert await scopes() == set()
    async with database.write() as conn:
        await users.set_role(conn, "ann", "admin", by="boss")
    assert await scopes() == {"runs:write", "requests:decide"}
    async with database.write() as conn:
        await users.set_disabled(conn, "ann", disabled=True, by="boss")
    assert await scopes() is None
    async with database.write() as conn:
        await users.set_disabled(conn, "ann", disabled=False, by="boss")
    assert await scopes() == {"runs:write", "requests:decide"}


async def test_i10_no_ownerless_token_both_starts_and_decides(database: Database) -> None:
    """I10: creating one is refused with the reason, and a row that lists both scopes has no power to decide."""
    async with database.write() as conn:
        with pytest.raises(InvalidInputError, match="could approve its own calls"):
            await tokens.issue(
                conn, tokens.NewToken(name="bot", scopes=["runs:write", "requests:read", "requests:decide"])
            )
        assert await tokens.listed(conn) == []
        secret = await tokens.issue(conn, tokens.NewToken(name="bot", scopes=["runs:write"]))
        await conn.execute(update(api_tokens).values(scopes="requests:decide requests:read runs:write"))
        token = await tokens.find(conn, secret)
        assert token is not None
        assert token.scopes == {"requests:read", "runs:write"}


async def test_the_owners_token_is_a_persons(database: Database) -> None:
    """The token of a stack's owner may do anything and is no machine's; no other token can have such a name."""
    async with database.write() as conn:
        token = await tokens.find(conn, await tokens.issue_owner_token(conn, "ole"))
        assert token is not None
        assert (token.machine, token.role, token.scopes) == (False, "admin", {"admin"})
        assert display_name(token.acts_as) == "cli:ole"
        for name in ("cli:ole", "CLI:eve", "\uff43\uff4c\uff49:eve"):
            with pytest.raises(InvalidInputError, match="are kept for"):
                await tokens.issue(conn, tokens.NewToken(name=name, scopes=["admin"]))


async def test_no_secret_is_in_the_database(database: Database) -> None:
    """A reader of the whole database gets no working link, session or token."""
    async with database.write() as conn:
        secrets = [
            await access.issue_link(conn, "ann"),
            await sessions.begin(conn, "ann"),
            await tokens.issue(conn, tokens.NewToken(name="ci", scopes=["admin"])),
        ]
        assert await access.use_link(conn, secrets[0]) == ANN
    assert len(set(secrets)) == 3
    assert all(len(secret) >= 43 for secret in secrets)
    async with database.read() as conn:
        rows = [row for table in metadata.sorted_tables for row in await conn.execute(select(table))]
    stored = "\n".join(str(row) for row in rows)
    assert stored.count("ann") >= 2
    for secret in secrets:
        assert secret.removeprefix("tg_") not in stored
        assert access.hashed(secret) in stored
