"""Approvals of a request that several people have to approve. The one that completes the quorum becomes its decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, insert, select, update

from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.tables import approvals, requests


@dataclass(frozen=True, kw_only=True)
class Approval:
    """One person's approval."""

    request_id: str
    decided_by: str
    decision_id: str
    message: str
    created_at: str


async def of_request(conn: Connection, request_id: str) -> list[Approval]:
    """Return the approvals so far, oldest first."""
    query = select(approvals).where(approvals.c.request_id == request_id).order_by(approvals.c.created_at)
    return [Approval(**row) for row in (await conn.execute(query)).mappings()]


async def by_decision(conn: Connection, decision_id: str) -> Approval | None:
    """Return the approval that this decision gave, or None."""
    row = (await conn.execute(select(approvals).where(approvals.c.decision_id == decision_id))).mappings()
    found = row.one_or_none()
    return Approval(**found) if found else None


async def add(
    conn: Connection, *, request_id: str, decided_by: str, decision_id: str, message: str, at: datetime
) -> int:
    """Count one more approval; returns how many there are now.

    Raises sqlalchemy's IntegrityError when this person has approved it, or the decision id was used.
    """
    row = Approval(
        request_id=request_id, decided_by=decided_by, decision_id=decision_id, message=message, created_at=as_text(at)
    )
    await conn.execute(insert(approvals).values(**vars(row)))
    query = select(func.count()).select_from(approvals).where(approvals.c.request_id == request_id)
    count = int((await conn.execute(query)).scalar_one())
    await conn.execute(update(requests).where(requests.c.id == request_id).values(approvals=count))
    return count
