"""The audit log for people and programs. JSON API and page both call it; both need ``requests:read``."""

from __future__ import annotations

from typing import Final

from turngate.approvals_api.principal import Principal
from turngate.domain.errors import InvalidInputError, NotFoundError
from turngate.store import evidence
from turngate.store.database import Database
from turngate.store.events import audit, events
from turngate.store.events.events import Event
from turngate.store.sequences import MAX_NUMBER
from turngate.wire.events import AuditFilter, AuditItem, ChainState
from turngate.wire.people import names_in
from turngate.wire.view import Page

TYPE_PATTERN: Final = r"^[a-z_.*]+$"
MAX_TYPE_CHARS: Final = 64


async def page(
    database: Database, principal: Principal, wanted: AuditFilter, *, limit: int, cursor: str | None = None
) -> Page[AuditItem]:
    """Return one page of events, newest first. A page may be short, or empty, and still not be the last.

    Who logged in, from where and how is shown to admins only.

    Raises:
        ForbiddenError: ``missing_scope``.
        InvalidInputError: ``bad_cursor``.
    """
    principal.require("requests:read")
    before = _seq_of(cursor)
    async with database.read() as conn:
        people = principal.may("admin")
        page_of_events = await audit.page(conn, wanted, limit=limit, before=before, people=people)
    items = [item_of(event) for event in page_of_events.events]
    return Page(
        items=items, next_cursor=None if page_of_events.next_before is None else str(page_of_events.next_before)
    )


def item_of(event: Event) -> AuditItem:
    """Return an event as the log shows it."""
    return AuditItem(
        seq=event.seq,
        run_id=event.run_id,
        run_seq=event.run_seq,
        type=event.type,
        actor=audit.actor_of(event),
        payload=event.payload,
        created_at=event.created_at,
        hash=event.hash,
        people=names_in(event.payload),
    )


async def chain_state(database: Database, principal: Principal, run_id: str) -> ChainState:
    """Compute a chain again, and compare what is stored of the run with it.

    Raises NotFoundError when there is no such chain, ForbiddenError without the scope.
    """
    principal.require("requests:read")
    async with database.read() as conn:
        head = await events.chain_head(conn, run_id)
        broken = await events.chain_break(conn, run_id)
        if broken is None and run_id != events.SYSTEM:
            broken = await evidence.first_difference(conn, run_id)
    if head is None and broken is None:
        raise NotFoundError(f"there is no run {run_id!r}")
    return ChainState(
        run_id=run_id,
        length=head.length if head else 0,
        head=head.hash if head else "",
        broken_at=None if broken is None else broken.run_seq,
        problem=None if broken is None else broken.problem,
    )


def _seq_of(cursor: str | None) -> int | None:
    """Return the number to read before. The cursor is opaque so that it can change: it is the last event's number."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and 0 < int(cursor) <= MAX_NUMBER):
        message = "this is no cursor of this list: use next_cursor of the page before, or omit it for the first page"
        raise InvalidInputError(message, code="bad_cursor", errors=[{"pointer": "", "message": f"cursor: {message}"}])
    return int(cursor)
