"""Stored users: one name is one person, changes apply at once, and what the audit log records of them."""

from __future__ import annotations

import asyncio

import pytest
from argon2 import PasswordHasher
from support.stores.users import added, audit_events

from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from turngate.store.access import access, passwords, people, sessions, tokens, users
from turngate.store.database import Database
from turngate.wire.people import display_name

ISSUER = "https://login.example/realm"


async def test_a_name_means_one_person_or_machine(database: Database) -> None:
    """However it is spelled: no second user, no token like a user, no user like a token; revoking frees a token's name."""
    await added(database, "Straße  Ann")
    async with database.write() as conn:
        await tokens.issue(conn, tokens.NewToken(name="robo", scopes=["runs:write"]))
        for taken in ("straße ann", "STRASSE ANN", "\uff33traße Ann", "ROBO"):
            with pytest.raises(ConflictError) as refused:
                await users.add(conn, users.User(name=taken, role="viewer", password_hash=None), by="boss")
            assert refused.value.error_code == "name_taken"
        for taken in ("strasse ann", "Straße Ann"):
            with pytest.raises(ConflictError, match="a user's name"):
                await tokens.issue(conn, tokens.NewToken(name=taken, scopes=[]))
        await tokens.revoke(conn, name="robo", by="boss")
        await users.add(conn, users.User(name="robo", role="viewer", password_hash=None), by="boss")
        assert [display_name(each.name) for each in await users.all_users(conn)] == ["Straße Ann", "robo"]


async def test_of_many_claims_to_a_name_at_once_one_succeeds(database: Database) -> None:
    """Of twenty users and tokens in twenty spellings at the same moment one gets the name, the others an error."""

    async def take(number: int) -> str:
        spelled = "".join(c.upper() if number >> at & 1 else c for at, c in enumerate("taken"))
        try:
            async with database.write() as conn:
                if number % 2:
                    await tokens.issue(conn, tokens.NewToken(name=spelled, scopes=[]))
                else:
                    await users.add(conn, users.User(name=spelled, role="viewer", password_hash=None), by="boss")
        except ConflictError as error:
            return error.error_code
        return "user" if number % 2 == 0 else "token"

    outcomes = await asyncio.gather(*(take(number) for number in range(20)))
    assert set(outcomes) <= {"user", "token", "name_taken"}
    # Tokens of one name may be several; a user and a token may not.
    assert outcomes.count("user") <= 1
    assert ("user" in outcomes) != ("token" in outcomes)


async def test_a_changed_role_or_status_counts_at_once(database: Database) -> None:
    """A session has the user's current role; disabling ends sessions and links for good."""
    ann = (await added(database, "ann")).name
    async with database.write() as conn:
        secret = await sessions.begin(conn, ann, role="admin", via="password")
        link = await access.issue_link(conn, ann)
    for role in ("operator", "viewer", "admin"):
        async with database.write() as conn:
            await users.set_role(conn, "ANN", role, by="boss")
            session = await sessions.find(conn, secret)
            assert session is not None
            assert session.role == role
    async with database.write() as conn:
        await users.set_disabled(conn, "ann", disabled=True, by="boss")
        assert await sessions.find(conn, secret) is None
    async with database.write() as conn:
        await users.set_disabled(conn, "ann", disabled=False, by="boss")
        await users.set_disabled(conn, "ann", disabled=False, by="boss")
        assert await sessions.find(conn, secret) is None
        assert await access.use_link(conn, link) is None
        with pytest.raises(NotFoundError, match="user list"):
            await users.set_role(conn, "zoe", "admin", by="boss")
    assert [(kind, payload.get("role"), payload.get("by")) for kind, payload in await audit_events(database)] == [
        ("user.added", "operator", "boss"),
        ("session.opened", None, ann),
        ("user.changed", "viewer", "boss"),
        ("user.changed", "admin", "boss"),
        ("user.disabled", None, "boss"),
        ("session.ended", None, "boss"),
        ("user.enabled", None, "boss"),
    ]


async def test_a_changed_password_ends_the_sessions(database: Database) -> None:
    """Sessions by password or link end, and the audit log does not hold the hash."""
    ann = (await added(database, "ann", password_hash="old-hash")).name
    async with database.write() as conn:
        secrets = [await sessions.begin(conn, ann, via=via) for via in ("password", "link")]
        link = await access.issue_link(conn, ann)
        await users.set_password(conn, "ann", "new-hash", by="ann")
        assert [await sessions.find(conn, each) for each in secrets] == [None, None]
        assert await access.use_link(conn, link) is None
        await users.renew_hash(conn, ann, old="old-hash", new="lost race")
        assert (await users.existing(conn, "ann")).password_hash == "new-hash"
    assert "hash" not in str(await audit_events(database))


async def test_a_new_user_does_not_inherit_the_names_sessions(database: Database) -> None:
    """Sessions and links that were issued under the name end when it becomes a user's."""
    async with database.write() as conn:
        ann = await people.take_id(conn, "ann")
        secret = await sessions.begin(conn, ann, role="viewer")
        link = await access.issue_link(conn, ann, role="viewer")
    await added(database, "ANN", "admin")
    async with database.write() as conn:
        assert await sessions.find(conn, secret) is None
        assert await access.use_link(conn, link) is None


async def test_only_links_admit_people_without_a_user(database: Database) -> None:
    """A password session whose user is missing is invalid: it cannot fall back to its original role."""
    async with database.write() as conn:
        secret = await sessions.begin(conn, "ghost", role="admin", via="password")
        assert await sessions.find(conn, secret) is None
        assert await sessions.listed(conn) == []


async def from_oidc(database: Database, subject: str, name: str, **more: str) -> users.User:
    values = {"issuer": ISSUER, "email": "", "role": "operator", **more}
    async with database.write() as conn:
        return await users.from_oidc(conn, users.OidcIdentity(subject=subject, name=name, **values))


async def test_a_provider_knows_people_by_subject_alone(database: Database) -> None:
    """The same subject is the same user, whatever its current name and e-mail; another subject never is."""
    await added(database, "ann")
    first = await from_oidc(database, "s1", "Ida", email="ida@example.com")
    again = await from_oidc(database, "s1", "Ida Lovelace", email="new@example.com", role="admin")
    assert (display_name(again.name), again.role, again.email, again.created_at) == (
        "Ida",
        "admin",
        "new@example.com",
        first.created_at,
    )
    other = await from_oidc(database, "s2", "Ida", email="ida@example.com")
    assert display_name(other.name) == "Ida@login.example"
    local = await from_oidc(database, "s3", "ANN", email="")
    assert display_name(local.name) == "ANN@login.example"
    with pytest.raises(ConflictError, match="names of others"):
        await from_oidc(database, "s4", "ida")
    elsewhere = await from_oidc(database, "s1", "Mia", issuer="https://other.example")
    assert display_name(elsewhere.name) == "Mia"
    async with database.write() as conn:
        assert len(await users.all_users(conn)) == 5
        for change in (users.set_role(conn, "ida", "viewer", by="x"), users.set_password(conn, "ida", "h", by="x")):
            with pytest.raises(ConflictError, match="comes in by"):
                await change
        await users.set_disabled(conn, "ida", disabled=True, by="boss")
    with pytest.raises(ForbiddenError, match="disabled"):
        await from_oidc(database, "s1", "Ida")


async def test_a_password_is_stored_as_argon2id_and_checked(database: Database) -> None:
    """Right ones pass, wrong, damaged and missing ones do not; a hash with other parameters is replaced."""
    hashed = await passwords.hash_password("correct horse battery")
    assert hashed.startswith("$argon2id$")
    assert await passwords.verify_password(hashed, "correct horse battery") == passwords.Verified(right=True)
    weak = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("correct horse battery")
    verified = await passwords.verify_password(weak, "correct horse battery")
    assert verified.right
    assert verified.new_hash is not None
    assert verified.new_hash.split("$")[3] == hashed.split("$")[3]
    for stored, typed in (
        (hashed, "wrong"),
        (hashed, None),
        (None, "x"),
        (None, None),
        ("damaged", "x"),
        (weak, "wrong"),
    ):
        assert await passwords.verify_password(stored, typed) == passwords.Verified(right=False)


def test_a_password_costs_what_the_product_promises(password_hasher: PasswordHasher) -> None:
    """RFC 9106's low-memory profile: argon2id, 64 MiB, 3 passes, 4 lanes. The other tests pay less."""
    hashed = password_hasher.hash("correct horse battery")
    assert hashed.split("$")[1:4] == ["argon2id", "v=19", "m=65536,t=3,p=4"]
    assert passwords._HASHER.check_needs_rehash(hashed)


async def test_deceptive_names_are_refused(database: Database) -> None:
    """No control, direction-changing or invisible characters, nothing empty, nothing endless."""
    async with database.write() as conn:
        for name in ("", " ", "\u3164", "a\u202eb", "a\nb", "a\x00", "a\u200bb", "a\ufe0f", "x" * 101, "\ud800"):
            with pytest.raises(InvalidInputError):
                await users.add(conn, users.User(name=name, role="viewer", password_hash=None), by="boss")
            with pytest.raises(InvalidInputError):
                await tokens.issue(conn, tokens.NewToken(name=name, scopes=[]))
