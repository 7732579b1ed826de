"""Claims: who works on a request, and until when. They are leases, so that an absent operator blocks nothing.

A claim keeps others from deciding by mistake; it never keeps a request from expiring or ending with its run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from sqlalchemy import bindparam, select, update

from turngate.domain.policy.terms import same_person
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests.requests import Request
from turngate.store.tables import requests

SHORTEST_SECONDS: Final = 30
LONGEST_SECONDS: Final = 3_600
DEFAULT_SECONDS: Final = 600

# The row is locked before it is read: PostgreSQL's other writers wait here, and those of SQLite when the transaction
# begins. So no decision comes between reading the row and setting it.
_LOCKED = select(requests).where(requests.c.id == bindparam("request")).with_for_update()
_SET = (
    update(requests)
    .where(requests.c.id == bindparam("request"), requests.c.status == "pending")
    .values(claimed_by=bindparam("who"), claimed_until=bindparam("til"))
)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Whose claim counts, and until when."""

    claimed_by: str
    claimed_until: str

    def is_of(self, name: str) -> bool:
        """Tell whether a person holds it, in a terminal or elsewhere."""
        return same_person(self.claimed_by, name)


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The result of a claim. ``lease``: the one that counts now, mine or someone else's; None: the request ended.

    ``how`` None: nothing was changed.
    """

    lease: Lease | None
    how: Literal["claimed", "renewed", "taken_over"] | None


def live_lease(request: Request) -> Lease | None:
    """Return the claim that counts now: it has not run out, and its request has not ended."""
    by, until = request.claimed_by, request.claimed_until
    if request.status != "pending" or by is None or until is None or until <= as_text(now()):
        return None
    return Lease(claimed_by=by, claimed_until=until)


async def claim(conn: Connection, request_id: str, *, by: str, seconds: int, take_over: bool) -> Claimed:
    """Claim a pending request, or renew one's own claim, in the caller's write transaction; with its event.

    A renewal never shortens a lease, and stays under the name that claimed. ``take_over``: also when someone else's lease is
    live. Raises LookupError when there is no such request.
    """
    request = await _locked(conn, request_id)
    current = live_lease(request)
    if request.status != "pending":
        return Claimed(lease=None, how=None)
    if current is not None and not current.is_of(by) and not take_over:
        return Claimed(lease=current, how=None)
    own = current if current is not None and current.is_of(by) else None
    by = own.claimed_by if own else by
    until = max(as_text(now() + timedelta(seconds=seconds)), own.claimed_until if own else "")
    await conn.execute(_SET, {"request": request_id, "who": by, "til": until})
    payload = {"request_id": request_id, "by": by, "until": until}
    lease = Lease(claimed_by=by, claimed_until=until)
    if own is not None:
        # The log shows who had the claim, not each renewal by an open page.
        return Claimed(lease=lease, how="renewed")
    if current is not None:
        taken = ("request.claim_taken_over", {**payload, "from": current.claimed_by})
        await events.append(conn, request.run_id, [taken])
        return Claimed(lease=lease, how="taken_over")
    await events.append(conn, request.run_id, [("request.claimed", payload)])
    return Claimed(lease=lease, how="claimed")


async def release(conn: Connection, request_id: str, *, by: str, anyones: bool) -> Lease | None:
    """Give a claim back, with its event; nothing to give back is fine. Returns the lease of someone else that stays.

    ``anyones``: end the claim even if it is someone else's. Raises LookupError when there is no such request.
    """
    request = await _locked(conn, request_id)
    current = live_lease(request)
    if current is None:
        return None
    if not current.is_of(by) and not anyones:
        return current
    await conn.execute(_SET, {"request": request_id, "who": None, "til": None})
    payload = {"request_id": request_id, "by": by, "claimed_by": current.claimed_by}
    await events.append(conn, request.run_id, [("request.released", payload)])
    return None


async def _locked(conn: Connection, request_id: str) -> Request:
    row = (await conn.execute(_LOCKED, {"request": request_id})).mappings().one_or_none()
    if row is None:
        raise LookupError(f"no request {request_id!r}")
    return Request(**row)
