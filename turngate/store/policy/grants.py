"""Grants and every use of them. A use is taken in the transaction that lets the handler start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, insert, or_, select, tuple_, update

from turngate.domain.digest import derived_id
from turngate.domain.policy.grants import Grant, GrantPattern, GrantScope, WantedGrant
from turngate.domain.policy.terms import Role
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events.events import NewEvent
from turngate.store.tables import grant_uses, grants

MAX_USES_SHOWN: Final = 200


def is_active(at: str | ColumnElement[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions of a grant that is active at this instant."""
    return grants.c.revoked_at.is_(None), grants.c.expires_at > at, grants.c.uses < grants.c.max_uses


@dataclass(frozen=True, kw_only=True)
class StoredGrant:
    """One grant with its history. ``pattern``: JSON of GrantPattern. ``request_id``: whose decision created it, or None."""

    id: str
    tool_name: str
    pattern: str
    scope: GrantScope
    run_id: str | None
    agent: str | None
    expires_at: str
    max_uses: int
    uses: int
    note: str
    created_by: str
    created_by_role: Role
    created_at: str
    request_id: str | None
    revoked_at: str | None
    revoked_by: str | None

    @property
    def grant(self) -> Grant:
        """The grant as policy reads it."""
        return Grant(
            id=self.id,
            pattern=GrantPattern.model_validate_json(self.pattern),
            scope=self.scope,
            run_id=self.run_id,
            agent=self.agent,
            expires_at=from_text(self.expires_at),
            max_uses=self.max_uses,
            uses=self.uses,
            created_by=self.created_by,
            created_by_role=self.created_by_role,
        )


@dataclass(frozen=True, kw_only=True)
class GrantUse:
    """One call that a grant allowed."""

    grant_id: str
    run_id: str
    tool_call_id: str
    used_at: str


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a grant comes from. ``role``: of ``created_by``, as of now. ``request_id``: whose decision creates it, or None.

    ``run_id`` and ``agent`` are stored if the grant's scope needs them.
    """

    created_by: str
    role: Role = "operator"
    run_id: str | None = None
    agent: str | None = None
    request_id: str | None = None


async def create(conn: Connection, wanted: WantedGrant, origin: Origin, *, key: str) -> StoredGrant:
    """Store a new grant. ``key``: its id is derived from this, so a repeat returns the same grant and creates no second."""
    grant_id = derived_id("grant", key)
    existing = await get(conn, grant_id)
    if existing is not None:
        return existing
    at = now()
    stored = StoredGrant(
        id=grant_id,
        tool_name=wanted.pattern.tool,
        pattern=wanted.pattern.model_dump_json(),
        scope=wanted.scope,
        run_id=origin.run_id if wanted.scope == "run" else None,
        agent=origin.agent if wanted.scope == "agent" else None,
        expires_at=as_text(at + timedelta(seconds=wanted.expires_after_seconds)),
        max_uses=wanted.max_uses,
        uses=0,
        note=wanted.note,
        created_by=origin.created_by,
        created_by_role=origin.role,
        created_at=as_text(at),
        request_id=origin.request_id,
        revoked_at=None,
        revoked_by=None,
    )
    await conn.execute(insert(grants).values(**vars(stored)))
    return stored


async def get(conn: Connection, grant_id: str) -> StoredGrant | None:
    """Return one grant, or None."""
    row = (await conn.execute(select(grants).where(grants.c.id == grant_id))).mappings().one_or_none()
    return StoredGrant(**row) if row else None


async def of_decision(conn: Connection, decision_id: str) -> StoredGrant | None:
    """Return the grant that was made with a decision, or None."""
    return await get(conn, derived_id("grant", decision_id))


async def active(conn: Connection, *, run_id: str | None = None, agent: str | None = None) -> list[StoredGrant]:
    """Return the active grants, oldest first; with ``run_id`` and ``agent``, those that apply to such a run."""
    query = select(grants).where(*is_active(as_text(now()))).order_by(grants.c.created_at, grants.c.id)
    if run_id is not None:
        query = query.where(or_(grants.c.scope == "everyone", grants.c.run_id == run_id, grants.c.agent == agent))
    return [StoredGrant(**row) for row in (await conn.execute(query)).mappings()]


async def page(
    conn: Connection, *, limit: int, before: tuple[str, str] | None = None, active_only: bool = False
) -> list[StoredGrant]:
    """Return grants, newest first; ended ones too, unless ``active_only``. ``before``: (created_at, id) of the last seen."""
    query = select(grants).order_by(grants.c.created_at.desc(), grants.c.id.desc()).limit(limit)
    if active_only:
        query = query.where(*is_active(as_text(now())))
    if before is not None:
        query = query.where(tuple_(grants.c.created_at, grants.c.id) < tuple_(*before))
    return [StoredGrant(**row) for row in (await conn.execute(query)).mappings()]


async def uses_of(conn: Connection, grant_id: str, *, limit: int = MAX_USES_SHOWN) -> list[GrantUse]:
    """Return the newest calls that a grant allowed, newest first."""
    newest = (grant_uses.c.used_at.desc(), grant_uses.c.run_id.desc(), grant_uses.c.tool_call_id.desc())
    query = select(grant_uses).where(grant_uses.c.grant_id == grant_id).order_by(*newest).limit(limit)
    return [GrantUse(**row) for row in (await conn.execute(query)).mappings()]


async def take_use(conn: Connection, grant_id: str, *, run_id: str, tool_call_id: str) -> bool:
    """Allow one call by a grant; False if the grant was revoked, has expired or is used up."""
    at = as_text(now())
    taken = update(grants).where(grants.c.id == grant_id, *is_active(at)).values(uses=grants.c.uses + 1)
    if (await conn.execute(taken)).rowcount != 1:
        return False
    use = {"grant_id": grant_id, "run_id": run_id, "tool_call_id": tool_call_id, "used_at": at}
    await conn.execute(insert(grant_uses).values(**use))
    return True


async def has_allowed(conn: Connection, grant_id: str, *, run_id: str, tool_call_id: str) -> bool:
    """Tell whether a call has taken a use of this grant."""
    use = (grant_uses.c.grant_id == grant_id, grant_uses.c.run_id == run_id, grant_uses.c.tool_call_id == tool_call_id)
    return (await conn.execute(select(grant_uses.c.used_at).where(*use))).first() is not None


def revoked_event(grant: StoredGrant, *, by: str) -> NewEvent:
    """Return the event of a grant's end."""
    payload = {"grant_id": grant.id, "by": by, "tool": grant.tool_name, "scope": grant.scope}
    return "grant.revoked", {**payload, "uses": grant.uses, "max_uses": grant.max_uses}


async def revoke(conn: Connection, grant_id: str, *, by: str) -> bool:
    """End a grant at once: it allows no call that has not started yet. False if it is no longer active."""
    at = as_text(now())
    query = update(grants).where(grants.c.id == grant_id, *is_active(at))
    return (await conn.execute(query.values(revoked_at=at, revoked_by=by))).rowcount == 1
