"""Browser sessions, stored here and not in the cookie: they end when someone ends them, when idle, and after 12 hours.

Each function that opens or ends one writes the audit event itself: call it last in the transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import RowMapping, bindparam, delete, insert, literal_column, or_, select, update

from turngate.domain.identity import Via
from turngate.domain.policy.terms import Role
from turngate.store.access import people
from turngate.store.access import users as user_rows
from turngate.store.access.bearer_secrets import hashed, new_secret
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.tables import sessions, users

SESSION_LIFETIME: Final = timedelta(hours=12)
IDLE_LIMIT: Final = timedelta(hours=2)
SEEN_EVERY: Final = timedelta(minutes=1)
"""A session's last use is written down at most this often."""
MAX_USER_AGENT_CHARS: Final = 300


_ALL = (
    select(
        sessions.c.id,
        sessions.c.operator,
        sessions.c.role,
        sessions.c.via,
        sessions.c.created_at,
        sessions.c.expires_at,
        sessions.c.last_seen_at,
        sessions.c.user_agent,
        users.c.name.label("user_name"),
        users.c.role.label("user_role"),
        users.c.disabled_at,
        people.VERSION.label("people_version"),
    )
    .select_from(sessions.outerjoin(users, users.c.name == sessions.c.operator))
    .where(sessions.c.expires_at > bindparam("at"), bindparam("idle_before") < sessions.c.last_seen_at)
    # A person who is not a stored user can only log in with a link.
    .where(users.c.disabled_at.is_(None), or_(users.c.name.is_not(None), sessions.c.via == literal_column("'link'")))
)
# Built once: this runs with every request of a browser.
_BY_SECRET = _ALL.where(sessions.c.token_hash == bindparam("token_hash"))


@dataclass(frozen=True, kw_only=True)
class Session:
    """A valid session. ``role``: of the stored user as it is now, or the link's.

    ``people_version``: as :func:`turngate.store.access.people.refresh` takes it.
    """

    id: str
    name: str
    role: Role
    via: Via
    created_at: str
    expires_at: str
    last_seen_at: str
    user_agent: str
    people_version: int = 0

    @property
    def seen_is_due(self) -> bool:
        """Whether its last use is to be written down again."""
        return now() - from_text(self.last_seen_at) >= SEEN_EVERY


async def begin(
    conn: Connection,
    name: str,
    *,
    role: Role = "operator",
    via: Via = "link",
    user_agent: str = "",
    lifetime: timedelta = SESSION_LIFETIME,
) -> str:
    """Return the secret of a new session. ``role``: for a person who is not a stored user.

    Expired sessions are deleted, so the table stays as small as the number of people who work.
    """
    await user_rows.lock_identities(conn)
    secret, session_id, at = new_secret(), f"ses_{secrets.token_hex(12)}", now()
    await conn.execute(delete(sessions).where(sessions.c.expires_at <= as_text(at)))
    row = {
        "token_hash": hashed(secret),
        "operator": name,
        "created_at": as_text(at),
        "expires_at": as_text(at + lifetime),
        "id": session_id,
        "role": role,
        "via": via,
        "last_seen_at": as_text(at),
        "user_agent": user_agent[:MAX_USER_AGENT_CHARS],
    }
    await conn.execute(insert(sessions).values(row))
    opened = {"session_id": session_id, "name": name, "by": name, "via": via}
    opened |= events.digests(session={session_id: row_digest("session", row)})
    await events.append(conn, events.SYSTEM, [("session.opened", opened)])
    return secret


async def find(conn: Connection, secret: str, *, idle: timedelta = IDLE_LIMIT) -> Session | None:
    """Return the session of a cookie; None when it is unknown, over, idle for too long, or its user is disabled."""
    row = (await conn.execute(_BY_SECRET, {"token_hash": hashed(secret), **_limits(idle)})).mappings().one_or_none()
    return None if row is None else _session(row)


async def listed(conn: Connection, name: str | None = None, *, idle: timedelta = IDLE_LIMIT) -> list[Session]:
    """Return the valid sessions, the last used first; of one person, or of everyone."""
    query = _ALL if name is None else _ALL.where(sessions.c.operator == name)
    rows = await conn.execute(query.order_by(sessions.c.last_seen_at.desc(), sessions.c.id), _limits(idle))
    return [_session(row) for row in rows.mappings()]


async def note_seen(conn: Connection, session_id: str) -> None:
    """Record that the session is in use; of many requests at once, the first one does."""
    at = now()
    stale = (sessions.c.id == session_id) & (as_text(at - SEEN_EVERY) >= sessions.c.last_seen_at)
    await conn.execute(update(sessions).where(stale).values(last_seen_at=as_text(at)))


async def end(conn: Connection, secret: str, *, reason: user_rows.EndReason = "logout") -> None:
    """End the session of a cookie at once. Safe to repeat."""
    await user_rows.lock_identities(conn)
    gone = delete(sessions).where(sessions.c.token_hash == hashed(secret)).returning(sessions.c.id, sessions.c.operator)
    rows = (await conn.execute(gone)).all()
    await _tell(conn, [(row.id, row.operator) for row in rows], by=rows[0].operator if rows else "", reason=reason)


async def revoke(conn: Connection, session_id: str, *, by: str, of: str | None = None) -> bool:
    """End one session by its id; returns whether there was one. ``of``: only if it is this person's."""
    await user_rows.lock_identities(conn)
    wanted = sessions.c.id == session_id
    if of is not None:
        wanted &= sessions.c.operator == of
    gone = delete(sessions).where(wanted).returning(sessions.c.id, sessions.c.operator)
    rows = (await conn.execute(gone)).all()
    await _tell(conn, [(row.id, row.operator) for row in rows], by=by, reason="revoked")
    return bool(rows)


async def revoke_all(conn: Connection, name: str, *, by: str, but: str | None = None) -> int:
    """End every session of a person; returns how many. ``but``: the id of one that stays."""
    await user_rows.lock_identities(conn)
    ended = await user_rows.end_sessions(conn, name, by=by, but=but, reason="revoked")
    await events.append(conn, events.SYSTEM, ended)
    return len(ended)


async def end_all(conn: Connection, *, by: str) -> int:
    """End every session, because the store was restored; returns how many there were."""
    await user_rows.lock_identities(conn)
    rows = (await conn.execute(delete(sessions).returning(sessions.c.id, sessions.c.operator))).all()
    await _tell(conn, [(row.id, row.operator) for row in rows], by=by, reason="restored")
    return len(rows)


async def _tell(conn: Connection, ended: Sequence[tuple[str, str]], *, by: str, reason: user_rows.EndReason) -> None:
    await events.append(
        conn, events.SYSTEM, [user_rows.session_ended(each, name, by=by, reason=reason) for each, name in ended]
    )


def _limits(idle: timedelta) -> dict[str, str]:
    at = now()
    return {"at": as_text(at), "idle_before": as_text(at - idle)}


def _session(row: RowMapping | dict[str, Any]) -> Session:
    return Session(
        id=row["id"],
        name=row["operator"],
        role=row["role"] if row["user_name"] is None else row["user_role"],
        via=row["via"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_seen_at=row["last_seen_at"],
        user_agent=row["user_agent"],
        people_version=row["people_version"],
    )
