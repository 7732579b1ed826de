"""The badges of every page, read in one round trip: the newest event, what waits for people, how many grants are active."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from turngate.domain.runs.inbox import InboxFilter
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.policy.grants import is_active
from turngate.store.policy.policies import WAITING_FOR_ADMIN
from turngate.store.requests.requests import count_query
from turngate.store.sequences import NEWEST_EVENT
from turngate.store.tables import grants

# Built once: this runs with every page.
_ALL = select(
    NEWEST_EVENT.scalar_subquery().label("last_seq"),
    count_query(InboxFilter()).scalar_subquery().label("pending"),
    select(func.count()).select_from(grants).where(*is_active(bindparam("at"))).scalar_subquery().label("grants"),
    WAITING_FOR_ADMIN.scalar_subquery().label("rules_proposed_by"),
)


@dataclass(frozen=True, kw_only=True)
class Badges:
    """``last_seq``: of the newest event. ``pending``: how many requests wait. ``grants``: how many are active.

    ``rules_proposed_by``: of the stored rules that wait for a second admin; None: none do.
    """

    last_seq: int
    pending: int
    grants: int
    rules_proposed_by: str | None


async def read(conn: Connection) -> Badges:
    """Return the badges as of now."""
    row = (await conn.execute(_ALL, {"at": as_text(now())})).mappings().one()
    return Badges(**row)
