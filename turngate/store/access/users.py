"""Stored users: people with a role, and with a password or an identity at an OpenID provider.

Each function writes its audit events itself, so call it last in the transaction. A change of role, password or standing
works at once: sessions and tokens look their user up with every request, and a changed password ends the sessions.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from sqlalchemy import delete, insert, select, update

from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError
from turngate.domain.identity import checked_name, name_key
from turngate.domain.policy.terms import Role
from turngate.store.access import names, sessions
from turngate.store.access.names import User, all_users, existing, user_called
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.tables import login_links, users

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


async def add(conn: Connection, *, name: str, role: Role, password_hash: str | None, email: str = "", by: str) -> User:
    """Add a local user; returns them under their name as it is stored.

    Sessions and links that somebody else was given under this name end: a name means one person.

    Raises:
        InvalidInputError: the name is none.
        ConflictError: ``name_taken`` by a user or an API token, in any spelling.
    """
    name = checked_name(name)
    await names.one_at_a_time(conn)
    await names.require_no_user(conn, name)
    await names.require_no_token(conn, name)
    return await _insert(
        conn,
        User(
            name=name,
            role=role,
            email=email,
            password_hash=password_hash,
            oidc_issuer=None,
            oidc_subject=None,
            created_at=as_text(now()),
            disabled_at=None,
        ),
        by=by,
    )


async def from_oidc(conn: Connection, *, issuer: str, subject: str, wanted_name: str, email: str, role: Role) -> User:
    """Return the user of this issuer and subject, added or brought up to date.

    Nothing else says who somebody is: e-mail addresses and names are given away again, and providers let people choose
    them. A name that is taken becomes ``name@host-of-the-issuer``.

    Raises:
        ForbiddenError: ``user_disabled`` here.
        ConflictError: ``name_taken``, both ways to spell it.
        InvalidInputError: the name is none of ours.
    """
    await names.one_at_a_time(conn)
    known = (users.c.oidc_issuer == issuer) & (users.c.oidc_subject == subject)
    row = (await conn.execute(select(users).where(known))).mappings().one_or_none()
    if row is None:
        user = User(
            name=await _free_name(conn, checked_name(wanted_name), issuer),
            role=role,
            email=email,
            password_hash=None,
            oidc_issuer=issuer,
            oidc_subject=subject,
            created_at=as_text(now()),
            disabled_at=None,
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
    await names.one_at_a_time(conn)
    user = await existing(conn, name)
    _require_local(user, "their role comes from the provider's claim with every login")
    if user.role == role:
        return
    await conn.execute(update(users).where(users.c.name == user.name).values(role=role))
    await _changed(conn, user.name, by=by, role=role, before=user.role)


async def set_password(conn: Connection, name: str, password_hash: str, *, by: str) -> None:
    """Give a local user another password; all their sessions end. Raises NotFoundError or ConflictError."""
    await names.one_at_a_time(conn)
    user = await existing(conn, name)
    _require_local(user, "they have no password here")
    await conn.execute(update(users).where(users.c.name == user.name).values(password_hash=password_hash))
    ended = await sessions.end_all(conn, user.name, by=by, reason="password_changed")
    await _void_links(conn, user.name)
    changed = ("user.changed", {"name": user.name, "by": by, "password": "changed"})
    await events.append(conn, events.SYSTEM, [changed, *ended])


async def renew_hash(conn: Connection, name: str, *, old: str, new: str) -> None:
    """Store the same password's hash with today's parameters, unless it was changed meanwhile. No event: it is the same."""
    same = (users.c.name == name) & (users.c.password_hash == old)
    await conn.execute(update(users).where(same).values(password_hash=new))


async def set_disabled(conn: Connection, name: str, *, disabled: bool, by: str) -> None:
    """Keep a user out, or let them in again. Keeping out ends their sessions and links; their tokens stop working."""
    await names.one_at_a_time(conn)
    user = await existing(conn, name)
    if user.disabled == disabled:
        return
    at = as_text(now()) if disabled else None
    await conn.execute(update(users).where(users.c.name == user.name).values(disabled_at=at))
    ended = []
    if disabled:
        ended = [*await sessions.end_all(conn, user.name, by=by, reason="user_disabled")]
        await _void_links(conn, user.name)
    told = ("user.disabled" if disabled else "user.enabled", {"name": user.name, "by": by})
    await events.append(conn, events.SYSTEM, [told, *ended])


async def _insert(conn: Connection, user: User, *, by: str) -> User:
    await conn.execute(insert(users).values(**vars(user)))
    ended = await sessions.end_all(conn, user.name, by=by, reason="user_added")
    await _void_links(conn, user.name)
    added = (
        "user.added",
        {"name": user.name, "role": user.role, "via": "oidc" if user.oidc_issuer else "local", "by": by},
    )
    await events.append(conn, events.SYSTEM, [added, *ended])
    return user


async def _free_name(conn: Connection, name: str, issuer: str) -> str:
    longer = f"{name}@{urlsplit(issuer).hostname}"
    for candidate in (name, longer):
        try:
            checked = checked_name(candidate)
            await names.require_no_user(conn, checked)
            await names.require_no_token(conn, checked)
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
