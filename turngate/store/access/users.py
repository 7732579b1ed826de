"""Stored users: people with a role, and with a password or an identity at an OpenID provider.

Each function writes its audit events itself, so call it last in the transaction. A change of role, password or standing
works at once: sessions and tokens look their user up with every request, and a changed password ends the sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Literal
from urllib.parse import urlsplit

from sqlalchemy import delete, insert, select, update

from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from turngate.domain.identity import checked_name, name_key
from turngate.domain.policy.terms import Role
from turngate.store import sequences
from turngate.store.access import people
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import NewEvent
from turngate.store.events.row_digests import row_digest
from turngate.store.runs.new_run import NONCE_BYTES
from turngate.store.sequences import Numbered
from turngate.store.tables import api_tokens, login_links, sessions, users
from turngate.wire.people import display_name

# Whose name is whose: a name means one person or one machine, however it is spelled.
#
# Names are compared in Python, because no database folds Unicode as Python does; there are hundreds, not millions.


EndReason = Literal["logout", "revoked", "replaced", "password_changed", "user_disabled", "user_added", "restored"]


@dataclass(frozen=True, kw_only=True)
class User:
    """A stored user. ``name``: what rows call them (:mod:`turngate.store.access.people`).

    ``oidc_issuer`` None: a local user, who logs in with a password or by links only. ``created_at``, ``nonce``: set when they are
    stored; the nonce keys the digest of who they are at their provider.
    """

    name: str
    role: Role
    email: str = ""
    password_hash: str | None = None
    oidc_issuer: str | None = None
    oidc_subject: str | None = None
    created_at: str = ""
    disabled_at: str | None = None
    nonce: str = ""

    @property
    def disabled(self) -> bool:
        """Whether they can't log in."""
        return self.disabled_at is not None


@dataclass(frozen=True, kw_only=True)
class OidcIdentity:
    """A person as their OpenID provider describes them. ``name``: the one they would like to have here.

    Only ``issuer`` and ``subject`` identify them: e-mail addresses and names are reassigned, and providers let people choose
    them. ``role``: the one that the provider's claim means here.
    """

    issuer: str
    subject: str
    name: str
    email: str
    role: Role


async def all_users(conn: Connection) -> list[User]:
    """Return every stored user, by name."""
    rows = (await conn.execute(select(users))).mappings()
    return sorted((User(**row) for row in rows), key=lambda user: (display_name(user.name), user.name))


async def user_called(conn: Connection, name: str) -> User | None:
    """Return the stored user of this name, however it is spelled, or of this id."""
    key = name_key(await people.id_of(conn, name))
    names = (await conn.execute(select(users.c.name))).scalars()
    stored = next((each for each in names if name_key(each) == key), None)
    if stored is None:
        return None
    row = (await conn.execute(select(users).where(users.c.name == stored))).mappings().one()
    return User(**row)


async def existing(conn: Connection, name: str) -> User:
    """Return the stored user of this name, however it is spelled. Raises NotFoundError."""
    user = await user_called(conn, name)
    if user is None:
        raise NotFoundError(f"there is no user {name!r}: `turngate user list` shows who there is", code="no_such_user")
    return user


async def lock_identities(conn: Connection) -> None:
    """Wait until no other transaction changes names, links or sessions; what is read afterwards does not change.

    Every function that changes those calls it first. It takes the lock that every appended event takes, and such a
    transaction ends with an event anyway.
    """
    await sequences.take(conn, Numbered.EVENTS, 0)


async def require_no_user(conn: Connection, name: str) -> None:
    """Raise ConflictError (code ``name_taken``) when a stored user has this name."""
    user = await user_called(conn, name)
    if user is not None:
        raise ConflictError(
            f"{name!r} is a user's name: decisions must show who made them, so choose another", code="name_taken"
        )


async def require_no_token(conn: Connection, name: str) -> None:
    """Raise ConflictError (code ``name_taken``) when an API token that is not revoked has this name."""
    key = name_key(name)
    rows = await conn.execute(select(api_tokens.c.name).where(api_tokens.c.revoked_at.is_(None)).distinct())
    taken = next((each for each in rows.scalars() if name_key(each) == key), None)
    if taken is not None:
        raise ConflictError(
            f"{taken!r} is the name of an API token: decisions must show who made them, so choose another, "
            f"or revoke it with `turngate token revoke {taken}`",
            code="name_taken",
        )


__all__ = [
    "User",
    "add",
    "all_users",
    "existing",
    "from_oidc",
    "renew_hash",
    "set_disabled",
    "set_password",
    "set_role",
    "user_called",
]


async def add(conn: Connection, user: User, *, by: str) -> User:
    """Add a local user; returns them with their name as it is stored.

    Sessions and links that someone else got under this name end: a name means one person.

    Raises:
        InvalidInputError: the name is not allowed.
        ConflictError: ``name_taken`` by a user or an API token, in any spelling.
    """
    name = checked_name(user.name)
    await lock_identities(conn)
    await require_no_user(conn, name)
    await require_no_token(conn, name)
    return await _insert(conn, replace(user, name=await people.take_id(conn, name)), by=by)


async def from_oidc(conn: Connection, identity: OidcIdentity) -> User:
    """Return the user of this issuer and subject, added or updated.

    A name that is taken becomes ``name@host-of-the-issuer``.

    Raises:
        ForbiddenError: ``user_disabled`` here.
        ConflictError: ``name_taken``, both ways to spell it.
        InvalidInputError: the name is not allowed here.
    """
    await lock_identities(conn)
    issuer, role, email = identity.issuer, identity.role, identity.email
    known = (users.c.oidc_issuer == issuer) & (users.c.oidc_subject == identity.subject)
    row = (await conn.execute(select(users).where(known))).mappings().one_or_none()
    if row is None:
        free = await _free_name(conn, checked_name(identity.name), issuer)
        user = User(
            name=await people.take_id(conn, free),
            role=role,
            email=email,
            oidc_issuer=issuer,
            oidc_subject=identity.subject,
        )
        return await _insert(conn, user, by=issuer)
    user = User(**row)
    if user.disabled:
        raise ForbiddenError(f"{user.name} is disabled here: ask an admin of Turngate", code="user_disabled")
    if (user.role, user.email) != (role, email):
        await conn.execute(update(users).where(known).values(role=role, email=email))
        if user.role != role:
            await _changed(conn, user.name, by=issuer, role=role, before=user.role)
    return User(**{**row, "role": role, "email": email})


async def set_role(conn: Connection, name: str, role: Role, *, by: str) -> None:
    """Give a local user another role. Raises NotFoundError, or ConflictError when their provider says which they have."""
    await lock_identities(conn)
    user = await existing(conn, name)
    _require_local(user, "their role comes from the provider's claim with every login")
    if user.role == role:
        return
    await conn.execute(update(users).where(users.c.name == user.name).values(role=role))
    await _changed(conn, user.name, by=by, role=role, before=user.role)


async def set_password(conn: Connection, name: str, password_hash: str, *, by: str) -> None:
    """Give a local user another password; all their sessions end. Raises NotFoundError or ConflictError."""
    await lock_identities(conn)
    user = await existing(conn, name)
    _require_local(user, "they have no password here")
    await conn.execute(update(users).where(users.c.name == user.name).values(password_hash=password_hash))
    ended = await end_sessions(conn, user.name, by=by, reason="password_changed")
    await _void_links(conn, user.name)
    changed = ("user.changed", {"name": user.name, "by": by, "password": "changed", **_login(user.name, password_hash)})
    await events.append(conn, events.SYSTEM, [changed, *ended])


async def renew_hash(conn: Connection, name: str, *, old: str, new: str) -> None:
    """Store the same password's hash with today's parameters, unless it was changed meanwhile."""
    same = (users.c.name == name) & (users.c.password_hash == old)
    if (await conn.execute(update(users).where(same).values(password_hash=new))).rowcount:
        renewed = {"name": name, "by": name, "password": "renewed", **_login(name, new)}
        await events.append(conn, events.SYSTEM, [("user.changed", renewed)])


async def set_disabled(conn: Connection, name: str, *, disabled: bool, by: str) -> None:
    """Disable or enable a user. Disabling ends their sessions and links; their tokens stop working."""
    await lock_identities(conn)
    user = await existing(conn, name)
    if user.disabled == disabled:
        return
    at = as_text(now()) if disabled else None
    await conn.execute(update(users).where(users.c.name == user.name).values(disabled_at=at))
    ended = []
    if disabled:
        ended = [*await end_sessions(conn, user.name, by=by, reason="user_disabled")]
        await _void_links(conn, user.name)
    switched = ("user.disabled" if disabled else "user.enabled", {"name": user.name, "by": by})
    await events.append(conn, events.SYSTEM, [switched, *ended])


async def _insert(conn: Connection, user: User, *, by: str) -> User:
    user = replace(user, created_at=as_text(now()), nonce=token_hex(NONCE_BYTES))
    await conn.execute(insert(users).values(**vars(user)))
    ended = await end_sessions(conn, user.name, by=by, reason="user_added")
    await _void_links(conn, user.name)
    payload = {"name": user.name, "role": user.role, "via": "oidc" if user.oidc_issuer else "local", "by": by}
    await events.append(conn, events.SYSTEM, [("user.added", {**payload, **digests_of(user)}), *ended])
    return user


def digests_of(user: User) -> dict[str, Any]:
    """Return the digests of how a user logs in, and of who they are at their provider, for the log."""
    identity = {user.name: row_digest("identity", vars(user), user.nonce)}
    return events.digests(login={user.name: _login_digest(user.password_hash)}, identity=identity)


def _login(name: str, password_hash: str) -> dict[str, Any]:
    return events.digests(login={name: _login_digest(password_hash)})


def _login_digest(password_hash: str | None) -> str:
    """Return the digest of how a user logs in. It tells nothing: the hash of a password has a salt."""
    return row_digest("login", {"password_hash": password_hash})


async def _free_name(conn: Connection, name: str, issuer: str) -> str:
    longer = f"{name}@{urlsplit(issuer).hostname}"
    for candidate in (name, longer):
        try:
            checked = checked_name(candidate)
            await require_no_user(conn, checked)
            await require_no_token(conn, checked)
        except (ConflictError, InvalidInputError):
            continue
        return checked
    raise ConflictError(
        f"{name!r} and {longer!r} are names of others here already: an admin has to give them other names first, "
        "or the provider another preferred_username to you",
        code="name_taken",
    )


async def _void_links(conn: Connection, name: str) -> None:
    key = name_key(name)
    rows = (await conn.execute(select(login_links.c.token_hash, login_links.c.operator))).all()
    void = [row.token_hash for row in rows if name_key(row.operator) == key]
    if void:
        await conn.execute(delete(login_links).where(login_links.c.token_hash.in_(void)))


async def _changed(conn: Connection, name: str, *, by: str, role: Role, before: Role) -> None:
    payload = {"name": name, "by": by, "role": role, "role_before": before}
    await events.append(conn, events.SYSTEM, [("user.changed", payload)])


def _require_local(user: User, why: str) -> None:
    if user.oidc_issuer is not None:
        raise ConflictError(f"{user.name} comes in by {user.oidc_issuer}: {why}", code="oidc_user")


async def end_sessions(
    conn: Connection, name: str, *, by: str, reason: EndReason, but: str | None = None
) -> Sequence[NewEvent]:
    """End every session that bears this name, however it is spelled; returns the events for the caller to append."""
    name = await people.id_of(conn, name)
    key = name_key(name)
    rows = (await conn.execute(select(sessions.c.token_hash, sessions.c.id, sessions.c.operator))).all()
    ending = [row for row in rows if row.id != but and name_key(row.operator) == key]
    if ending:
        await conn.execute(delete(sessions).where(sessions.c.token_hash.in_([row.token_hash for row in ending])))
    return [session_ended(row.id, row.operator, by=by, reason=reason) for row in ending]


def session_ended(session_id: str, name: str, *, by: str, reason: EndReason) -> NewEvent:
    """Return the event of a session's end."""
    return "session.ended", {"session_id": session_id, "name": name, "by": by, "reason": reason}
