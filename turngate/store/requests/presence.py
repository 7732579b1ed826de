"""Who has looked at a request: the first time, for the log; the last time, for presence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import bindparam, literal, select, text, update

from turngate.domain.policy.terms import person_of
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.tables import views

PRESENT_FOR: Final = timedelta(seconds=60)
"""How long someone counts as present after their last sign."""

_OWN = (views.c.request_id == bindparam("request"), views.c.viewer == bindparam("who"))
_SEEN = select(literal(1)).where(*_OWN)
# Two tabs of one person may be first at the same moment: the second is no error.
_FIRST = text(
    "INSERT INTO views (request_id, viewer, first_at, last_at) VALUES (:request, :who, :at, :at) ON CONFLICT DO NOTHING"
)
_AGAIN = update(views).where(*_OWN, views.c.last_at < bindparam("at")).values(last_at=bindparam("at"))


@dataclass(frozen=True, kw_only=True)
class ActiveViewer:
    """Someone who looks at a request. ``last_at``: their last sign."""

    name: str
    last_at: str


async def was_seen(conn: Connection, request_id: str, viewer: str) -> bool:
    """Tell whether this person's first look is on record: one look-up by key."""
    return (await conn.execute(_SEEN, {"request": request_id, "who": viewer})).one_or_none() is not None


async def note_first(conn: Connection, *, run_id: str, request_id: str, viewer: str) -> bool:
    """Record a first look, with its event in the run's chain; False when it was on record already."""
    return await _first(conn, run_id, {"request": request_id, "who": viewer, "at": as_text(now())})


async def note_presence(conn: Connection, *, run_id: str, request_id: str, viewer: str) -> None:
    """Record that someone looks now; their first look is that, too."""
    sign = {"request": request_id, "who": viewer, "at": as_text(now())}
    if not await _first(conn, run_id, sign):
        await conn.execute(_AGAIN, sign)


async def viewers(conn: Connection, request_id: str, *, except_for: str) -> list[ActiveViewer]:
    """Return by name who gave a sign within :data:`PRESENT_FOR`, ``except_for`` this person.

    A person counts once, whether they look in a browser, in a terminal or in both.
    """
    query = select(views.c.viewer, views.c.last_at).where(
        views.c.request_id == request_id, views.c.last_at > as_text(now() - PRESENT_FOR)
    )
    signs: dict[str, str] = {}
    for row in await conn.execute(query):
        person = person_of(row.viewer)
        signs[person] = max(signs.get(person, ""), row.last_at)
    signs.pop(person_of(except_for), None)
    return [ActiveViewer(name=person, last_at=last_at) for person, last_at in sorted(signs.items())]


async def _first(conn: Connection, run_id: str, sign: dict[str, str]) -> bool:
    if (await conn.execute(_FIRST, sign)).rowcount != 1:
        return False
    await events.append(conn, run_id, [("request.viewed", {"request_id": sign["request"], "by": sign["who"]})])
    return True
