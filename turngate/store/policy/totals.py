"""Totals per window, counted in the transaction that lets the handler start.

A meter has one row: the sum of its newest window. The row is also the lock: of two calls at once, the second one sees what the
first one has taken, on either database. A call whose transaction is rolled back has taken nothing; one that has started is
never counted again, because a call is let through once (ADR 0040).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, text

from turngate.domain.policy.totals import Share, Total
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.storable import storable
from turngate.store.tables import totals

# Both databases know this form, and SQLAlchemy has it only per dialect. Nothing is written where the sum would be too large.
# A worker whose clock is late counts into the window that others have begun: a window is never counted twice.
_TAKE: Final = text(
    "INSERT INTO totals (meter, since, used) VALUES (:meter, :since, :units) ON CONFLICT (meter) DO UPDATE SET "
    "used = CASE WHEN totals.since < excluded.since THEN excluded.used ELSE totals.used + excluded.used END, "
    "since = CASE WHEN totals.since < excluded.since THEN excluded.since ELSE totals.since END "
    "WHERE totals.since < excluded.since OR totals.used + excluded.used <= :most"
)
_GIVE_BACK: Final = text("UPDATE totals SET used = used - :units WHERE meter = :meter")


@dataclass(frozen=True, kw_only=True)
class Sum:
    """What a meter's newest window has come to. ``since``: when that began. ``used``: in units."""

    since: str
    used: int

    def within(self, total: Total) -> int:
        """Return what of it counts now: nothing of an earlier window."""
        begins, _ends = total.window(now())
        return 0 if self.since < as_text(begins) else self.used


async def take(conn: Connection, share: Share) -> bool:
    """Count a call's share; False, and nothing is counted, if the total would exceed its most."""
    if not share.fits:
        return False
    begins, _ends = share.total.window(now())
    taken = {"meter": storable(share.meter), "since": as_text(begins), "units": share.units, "most": share.total.units}
    return (await conn.execute(_TAKE, taken)).rowcount == 1


async def give_back(conn: Connection, share: Share) -> None:
    """Undo :func:`take`, in the same transaction."""
    await conn.execute(_GIVE_BACK, {"meter": storable(share.meter), "units": share.units})


async def sums(conn: Connection, meters: Iterable[str]) -> Mapping[str, Sum]:
    """Return meter → its sum, for those that have counted a call. One statement."""
    names = {storable(each): each for each in meters}
    if not names:
        return {}
    rows = await conn.execute(select(totals).where(totals.c.meter.in_(list(names))))
    return {names[row.meter]: Sum(since=row.since, used=row.used) for row in rows}


async def used_now(conn: Connection, meters: Mapping[str, Total]) -> dict[str, int]:
    """Return meter → units: what totals come to in their present windows. One statement, if there are any."""
    return {meter: each.within(meters[meter]) for meter, each in (await sums(conn, meters)).items()}
