"""Who may come in: one-time login links, browser sessions and API tokens. Secrets are stored only as SHA-256 hashes.

A plain hash is right here: each secret is 256 random bits, so there is nothing to guess (argon2 is for passwords).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sqlalchemy import delete, insert, select, update

from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import api_tokens, login_links, sessions

Scope = Literal["runs:write", "requests:read", "requests:decide", "admin"]
SESSION_LIFETIME = timedelta(hours=12)
LINK_LIFETIME = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Token:
    """An API token's holder: ``name`` is what ``decided_by`` shows."""

    name: str
    scopes: frozenset[str]


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


async def issue_link(conn: Connection, operator: str) -> str:
    """Return the secret of a new one-time login link, good for 24 hours."""
    secret = secrets.token_urlsafe(32)
    expires_at = as_text(now() + LINK_LIFETIME)
    await conn.execute(insert(login_links).values(token_hash=_hashed(secret), operator=operator, expires_at=expires_at))
    return secret


async def use_link(conn: Connection, secret: str) -> str | None:
    """Use up a login link; returns its operator, or None when it is unknown, used or out of date."""
    at = as_text(now())
    used = (
        update(login_links)
        .where(
            login_links.c.token_hash == _hashed(secret), login_links.c.used_at.is_(None), login_links.c.expires_at > at
        )
        .values(used_at=at)
    )
    row = (await conn.execute(used.returning(login_links.c.operator))).one_or_none()
    return str(row.operator) if row else None


async def open_session(conn: Connection, operator: str) -> str:
    """Return the secret of a new session, good for 12 hours."""
    secret = secrets.token_urlsafe(32)
    at = now()
    await conn.execute(
        insert(sessions).values(
            token_hash=_hashed(secret),
            operator=operator,
            created_at=as_text(at),
            expires_at=as_text(at + SESSION_LIFETIME),
        )
    )
    return secret


async def session_operator(conn: Connection, secret: str) -> str | None:
    """Return whose session this is, or None when it is unknown or over."""
    query = select(sessions.c.operator).where(
        sessions.c.token_hash == _hashed(secret), sessions.c.expires_at > as_text(now())
    )
    return (await conn.execute(query)).scalar_one_or_none()


async def close_session(conn: Connection, secret: str) -> None:
    """End a session at once."""
    await conn.execute(delete(sessions).where(sessions.c.token_hash == _hashed(secret)))


async def issue_token(conn: Connection, *, name: str, scopes: frozenset[Scope]) -> str:
    """Return the secret of a new API token; it is shown once and stored hashed."""
    secret = f"tg_{secrets.token_urlsafe(32)}"
    await conn.execute(
        insert(api_tokens).values(
            token_hash=_hashed(secret), name=name, scopes=" ".join(sorted(scopes)), created_at=as_text(now())
        )
    )
    return secret


async def find_token(conn: Connection, secret: str) -> Token | None:
    """Return the holder of an API token, or None when it is unknown or revoked."""
    query = select(api_tokens.c.name, api_tokens.c.scopes).where(
        api_tokens.c.token_hash == _hashed(secret), api_tokens.c.revoked_at.is_(None)
    )
    row = (await conn.execute(query)).one_or_none()
    return Token(name=row.name, scopes=frozenset(row.scopes.split())) if row else None
