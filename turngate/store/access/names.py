"""Whose name is whose: a name means one person or one machine, however it is spelled.

Names are compared in Python, because no database folds Unicode as Python does; there are hundreds, not millions.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.identity import name_key
from turngate.domain.policy.terms import Role
from turngate.store import sequences
from turngate.store.database import Connection
from turngate.store.sequences import Numbered
from turngate.store.tables import api_tokens, users


@dataclass(frozen=True, kw_only=True)
class User:
    """Somebody Turngate knows. ``oidc_issuer`` None: a local user, who has a password or comes in by links only."""

    name: str
    role: Role
    email: str
    password_hash: str | None
    oidc_issuer: str | None
    oidc_subject: str | None
    created_at: str
    disabled_at: str | None

    @property
    def disabled(self) -> bool:
        """Whether they are kept out."""
        return self.disabled_at is not None


async def all_users(conn: Connection) -> list[User]:
    """Return every stored user, by name."""
    rows = (await conn.execute(select(users).order_by(users.c.name))).mappings()
    return [User(**row) for row in rows]


async def user_called(conn: Connection, name: str) -> User | None:
    """Return the stored user of this name, however it is spelled."""
    key = name_key(name)
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


async def one_at_a_time(conn: Connection) -> None:
    """Wait until no other transaction changes names, links or sessions; what is looked up after it stays so.

    Every function that changes those begins with it. It takes the lock that every appended event takes, and such a
    transaction ends with one anyway. Taken first, it also keeps two of them on PostgreSQL from each holding a row that
    the other wants.
    """
    await sequences.take(conn, Numbered.EVENTS, 0)


async def require_no_user(conn: Connection, name: str) -> None:
    """Raise ConflictError (code ``name_taken``) when a stored user has this name."""
    user = await user_called(conn, name)
    if user is not None:
        raise ConflictError(
            f"{user.name!r} is a user's name: decisions must show who made them, so choose another", code="name_taken"
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
