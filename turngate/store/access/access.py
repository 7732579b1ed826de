"""One-time login links, and who can log in with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import insert, update

from turngate.domain.errors import ConflictError, ForbiddenError
from turngate.domain.identity import Scope, checked_name
from turngate.domain.policy.terms import Role
from turngate.store.access import people, users
from turngate.store.access.bearer_secrets import hashed, new_secret
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import login_links

__all__ = ["LINK_LIFETIME", "Scope", "Visitor", "checked_visitor", "issue_link", "use_link"]

LINK_LIFETIME = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """The person that a login link is for. ``name``: what rows call them.

    ``role``: the link's; a stored user has their own instead.
    """

    name: str
    role: Role


async def checked_visitor(conn: Connection, name: str, role: Role | None) -> Visitor:
    """Return who could log in with a link for this name; a stored user keeps their role, anyone else is an operator.

    In a write transaction: a new person is added to the table of people.

    Raises:
        InvalidInputError: the name is not allowed.
        ConflictError: ``name_taken`` by a token, or ``role_differs`` from the stored user's.
        ForbiddenError: ``user_disabled``.
    """
    name = checked_name(name)
    user = await users.user_called(conn, name)
    if user is None:
        await users.require_no_token(conn, name)
        return Visitor(name=await people.take_id(conn, name), role=role or "operator")
    if user.disabled:
        raise ForbiddenError(f"{name} is disabled: `turngate user enable {name}` first", code="user_disabled")
    if role not in {None, user.role}:
        raise ConflictError(
            f"{name} is a user with the role {user.role}: leave --role out, or change it with `turngate user role`",
            code="role_differs",
        )
    return Visitor(name=user.name, role=user.role)


async def issue_link(conn: Connection, operator: str, *, role: Role = "operator") -> str:
    """Return the secret of a new one-time login link, good for 24 hours. ``operator``: what rows call the person."""
    secret = new_secret()
    expires_at = as_text(now() + LINK_LIFETIME)
    await conn.execute(
        insert(login_links).values(token_hash=hashed(secret), operator=operator, role=role, expires_at=expires_at)
    )
    return secret


async def use_link(conn: Connection, secret: str) -> Visitor | None:
    """Use up a login link; returns who logs in with it.

    None if the link is unknown, used or expired, or its user is disabled. If its person has become a stored user since, they
    log in with that user's role.
    """
    await users.lock_identities(conn)
    at = as_text(now())
    used = (
        update(login_links)
        .where(
            login_links.c.token_hash == hashed(secret), login_links.c.used_at.is_(None), login_links.c.expires_at > at
        )
        .values(used_at=at)
    )
    row = (await conn.execute(used.returning(login_links.c.operator, login_links.c.role))).one_or_none()
    if row is None:
        return None
    user = await users.user_called(conn, row.operator)
    if user is None:
        return Visitor(name=row.operator, role=row.role)
    return None if user.disabled else Visitor(name=user.name, role=user.role)
