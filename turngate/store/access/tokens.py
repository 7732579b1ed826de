"""API tokens: for machines with their own names, or owned by a stored user, as whom they act."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import JsonValue
from sqlalchemy import RowMapping, bindparam, func, insert, or_, select, update

from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.domain.identity import (
    ROLE_SCOPES,
    UNBOUND,
    Scope,
    TokenBounds,
    check_token_scopes,
    checked_name,
    held_scopes,
    name_key,
    role_of_scopes,
)
from turngate.domain.policy.terms import OWNERS_PREFIX, Role
from turngate.store.access import people
from turngate.store.access import users as user_rows
from turngate.store.access.bearer_secrets import hashed, new_secret
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.tables import api_tokens, users

PREFIX: Final = "tg_"
"""Lets scanners find a token that was left in a file by mistake."""
USED_EVERY: Final = timedelta(minutes=1)
"""A token's last use is written down at most this often."""
ID_CHARS: Final = 16

_JOINED = select(
    api_tokens,
    users.c.name.label("user_name"),
    users.c.role.label("user_role"),
    users.c.disabled_at,
    people.VERSION.label("people_version"),
).select_from(api_tokens.outerjoin(users, users.c.name == api_tokens.c.owner))
_LIVE = api_tokens.c.revoked_at.is_(None) & or_(
    api_tokens.c.expires_at.is_(None), api_tokens.c.expires_at > bindparam("at")
)
# Built once: this runs with every request of a program.
_BY_SECRET = _JOINED.where(api_tokens.c.token_hash == bindparam("token_hash"), _LIVE)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A valid token.

    ``id``: identifies it where its secret must not appear. ``scopes``: what it may do now; a user's role narrows them.
    ``role``: its user's, or the one that its scopes amount to. ``owner``: the user it acts for; None: no one. ``bounds``: what
    narrows its scopes. ``people_version``: as :func:`turngate.store.access.people.refresh` takes it.
    """

    id: str
    name: str
    scopes: frozenset[str]
    role: Role
    owner: str | None
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    bounds: TokenBounds = UNBOUND
    people_version: int = 0

    @property
    def acts_as(self) -> str:
        """The name that decisions and runs carry."""
        return self.owner or self.name

    @property
    def machine(self) -> bool:
        """Whether it belongs to no one. The one that a stack leaves its owner's own commands is the owner's."""
        return self.owner is None and not self.name.startswith(OWNERS_PREFIX)

    @property
    def use_is_due(self) -> bool:
        """Whether its last use is to be written down again."""
        return self.last_used_at is None or now() - from_text(self.last_used_at) >= USED_EVERY


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A token to issue. ``name``: who or what uses it; several tokens may share one, so that the next can replace the last.

    ``scopes``: what it may do. ``owner``: a stored user, as whom it acts and whose role bounds it; None: it acts under its
    own name. ``expires_at``: in the future; None: never. ``bounds``: what narrows its scopes.
    """

    name: str
    scopes: Iterable[Scope]
    owner: str | None = None
    expires_at: datetime | None = None
    bounds: TokenBounds = UNBOUND


async def issue(conn: Connection, new: NewToken, *, by: str = "") -> str:
    """Return the secret of a new API token; it is shown once and stored hashed. Call it last in the transaction.

    ``by``: who issued it, for the audit log.

    Raises:
        InvalidInputError: the name is not allowed, ``expires_at`` is past, or the scopes would let an agent decide (I10).
        ConflictError: ``name_taken`` by a user.
        ForbiddenError: ``beyond_role`` or ``user_disabled``, of the owner.
        NotFoundError: there is no such user.
    """
    name = checked_name(new.name)
    scopes = frozenset(new.scopes)
    check_token_scopes(scopes, owned=new.owner is not None)
    if new.expires_at is not None and new.expires_at <= now():
        raise InvalidInputError("the token would be out of date at once", errors=[])
    await user_rows.lock_identities(conn)
    await user_rows.require_no_user(conn, name)
    owner = None if new.owner is None else await _owner(conn, new.owner, scopes)
    return await _insert(conn, replace(new, name=name, scopes=scopes, owner=owner), by=by)


async def issue_owner_token(conn: Connection, local_user: str) -> str:
    """Return the secret of a new token for the commands of a stack's owner, who may do anything.

    A user who can read it in the data directory can also write the store there.
    """
    name = f"{OWNERS_PREFIX}{await people.take_id(conn, local_user)}"
    return await _insert(conn, NewToken(name=name, scopes=("admin",)), by=name)


async def find(conn: Connection, secret: str) -> Token | None:
    """Return the token of a secret; None when it is unknown, revoked, out of date, or its user is disabled."""
    row = (
        (await conn.execute(_BY_SECRET, {"token_hash": hashed(secret), "at": as_text(now())})).mappings().one_or_none()
    )
    if row is None or not _usable(row):
        return None
    return _token(row)


async def listed(conn: Connection) -> list[Token]:
    """Return the tokens that hold, the newest first, including those of disabled users."""
    query = _JOINED.where(_LIVE).order_by(api_tokens.c.created_at.desc(), api_tokens.c.token_hash)
    return [_token(row) for row in (await conn.execute(query, {"at": as_text(now())})).mappings()]


async def note_used(conn: Connection, token_id: str) -> None:
    """Write down that the token is in use."""
    mine = func.substr(api_tokens.c.token_hash, 1, ID_CHARS) == token_id
    await conn.execute(update(api_tokens).where(mine).values(last_used_at=as_text(now())))


async def revoke(conn: Connection, *, by: str, name: str | None = None, token_id: str | None = None) -> Sequence[str]:
    """Revoke every token of this name, or the one of this id; returns their ids. They stop working at once."""
    await user_rows.lock_identities(conn)
    live = api_tokens.c.revoked_at.is_(None)
    rows = (await conn.execute(select(api_tokens.c.token_hash, api_tokens.c.name).where(live))).all()
    key = None if name is None else name_key(name)
    ending = [row for row in rows if name_key(row.name) == key or row.token_hash[:ID_CHARS] == token_id]
    if ending:
        which = api_tokens.c.token_hash.in_([row.token_hash for row in ending])
        await conn.execute(update(api_tokens).where(which).values(revoked_at=as_text(now())))
    revoked = [("token.revoked", {"token_id": row.token_hash[:ID_CHARS], "name": row.name, "by": by}) for row in ending]
    await events.append(conn, events.SYSTEM, revoked)
    return [row.token_hash[:ID_CHARS] for row in ending]


async def _owner(conn: Connection, owner: str, granted: frozenset[Scope]) -> str:
    user = await user_rows.existing(conn, owner)
    if user.disabled:
        raise ForbiddenError(f"{owner} is disabled: enable them first", code="user_disabled")
    beyond = sorted(granted - ROLE_SCOPES[user.role])
    if beyond:
        raise ForbiddenError(
            f"{owner} is {user.role}, so their token cannot have {beyond[0]}: "
            f"leave it out, or change the role with `turngate user role {owner} ROLE`",
            code="beyond_role",
        )
    return user.name


async def _insert(conn: Connection, new: NewToken, *, by: str) -> str:
    secret = new_secret(PREFIX)
    scopes = sorted(new.scopes)
    until = None if new.expires_at is None else as_text(new.expires_at)
    bounds = new.bounds.model_dump(exclude_defaults=True)
    row = {
        "token_hash": hashed(secret),
        "name": new.name,
        "scopes": " ".join(scopes),
        "created_at": as_text(now()),
        "owner": new.owner,
        "expires_at": until,
        "bounds": json.dumps(bounds) if bounds else None,
    }
    await conn.execute(insert(api_tokens).values(row))
    payload: dict[str, JsonValue] = {
        "token_id": hashed(secret)[:ID_CHARS],
        "name": new.name,
        "scopes": list[JsonValue](scopes),
        "owner": new.owner,
        "expires_at": until,
        "by": by,
    }
    if bounds:
        payload["bounds"] = bounds
    payload |= events.digests(token={hashed(secret)[:ID_CHARS]: row_digest("token", row)})
    await events.append(conn, events.SYSTEM, [("token.issued", payload)])
    return secret


def _usable(row: RowMapping) -> bool:
    if row["owner"] is None:
        return True
    return row["user_name"] is not None and row["disabled_at"] is None


def _token(row: RowMapping | dict[str, Any]) -> Token:
    owner, stored = row["owner"], frozenset(row["scopes"].split())
    role: Role | None = None if owner is None else row["user_role"] or "viewer"
    scopes = held_scopes(stored, role)
    return Token(
        id=row["token_hash"][:ID_CHARS],
        name=row["name"],
        scopes=scopes,
        role=role or role_of_scopes(scopes),
        owner=owner,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
        bounds=UNBOUND if row["bounds"] is None else TokenBounds.model_validate_json(row["bounds"]),
        people_version=row["people_version"],
    )
