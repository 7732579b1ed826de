"""Saved views: filters of the inbox under a name, each person's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, delete, func, insert, select, update

from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import saved_views

MAX_PER_PERSON: Final = 100

# Built once: the inbox reads them each time.
_OF_PERSON = select(saved_views).where(saved_views.c.owner == bindparam("person")).order_by(saved_views.c.name)


@dataclass(frozen=True, kw_only=True)
class SavedView:
    """One saved view. ``query``: as in the URL of the inbox."""

    owner: str
    name: str
    query: str
    created_at: str


async def of_person(conn: Connection, owner: str) -> list[SavedView]:
    """Return a person's views by name."""
    rows = await conn.execute(_OF_PERSON, {"person": owner})
    return [SavedView(**row) for row in rows.mappings()]


async def get(conn: Connection, owner: str, name: str) -> SavedView | None:
    """Return one view, or None."""
    query = select(saved_views).where(saved_views.c.owner == owner, saved_views.c.name == name)
    row = (await conn.execute(query)).mappings().one_or_none()
    return SavedView(**row) if row else None


async def put(conn: Connection, *, owner: str, name: str, query: str) -> SavedView | None:
    """Save a view under its name, in place of what was there; None when the person has :data:`MAX_PER_PERSON` others.

    Raises IntegrityError when the same person saves a new view of this name at the same moment.
    """
    own = (saved_views.c.owner == owner, saved_views.c.name == name)
    changed = await conn.execute(update(saved_views).where(*own).values(query=query))
    if changed.rowcount == 0:
        held = select(func.count()).select_from(saved_views).where(saved_views.c.owner == owner)
        if int((await conn.execute(held)).scalar_one()) >= MAX_PER_PERSON:
            return None
        row = SavedView(owner=owner, name=name, query=query, created_at=as_text(now()))
        await conn.execute(insert(saved_views).values(**vars(row)))
    return await get(conn, owner, name)


async def remove(conn: Connection, owner: str, name: str) -> None:
    """Remove a view; one that is not there is fine."""
    await conn.execute(delete(saved_views).where(saved_views.c.owner == owner, saved_views.c.name == name))
