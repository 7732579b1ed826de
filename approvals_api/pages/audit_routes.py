"""The audit page: who did what, newest first, under filters in the URL; and whether a run's chain is intact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import JsonValue

from approvals_api.events import audit
from approvals_api.events.audit import MAX_TYPE_CHARS, TYPE_PATTERN
from approvals_api.http.dependencies import ReaderDep, ServicesDep
from approvals_api.pages.frames import frame_of
from approvals_api.pages.templating import render
from approvals_api.validation.text import STORABLE
from turngate.domain.errors import InvalidInputError
from turngate.store.events.events import SYSTEM
from turngate.wire.events import AuditFilter, AuditItem

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
MAX_ID_CHARS: Final = 255
LINKED: Final = frozenset({"by", "request_id"})
"""Members of a payload that the row shows in another place."""

# An untouched control of the form sends an empty text, which is no condition.
Words = Annotated[str, Query(max_length=MAX_ID_CHARS, pattern=STORABLE)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One event as the page shows it. ``run_id`` None: it belongs to no run. ``facts``: the rest of its payload."""

    item: AuditItem
    run_id: str | None
    request_id: str | None
    facts: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class TypedFilter:
    """The filter as it is typed on the page; an empty text is no condition."""

    run_id: str
    type: str
    actor: str
    since: str
    until: str

    @property
    def filter(self) -> AuditFilter:
        """The filter that the texts mean. Raises InvalidInputError: one is not a time."""
        return AuditFilter(
            run_id=self.run_id or None,
            type=self.type or None,
            actor=self.actor or None,
            since=_instant("since", self.since),
            until=_instant("until", self.until),
        )


async def typed_filter(
    run_id: Words = "",
    event_type: Annotated[
        str, Query(alias="type", max_length=MAX_TYPE_CHARS, pattern=TYPE_PATTERN.replace("+$", "*$"))
    ] = "",
    actor: Words = "",
    since: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
) -> TypedFilter:
    """Return what the query says."""
    return TypedFilter(run_id=run_id, type=event_type, actor=actor, since=since, until=until)


@router.get("/audit")
async def audit_page(
    request: Request,
    services: ServicesDep,
    principal: ReaderDep,
    typed: Annotated[TypedFilter, Depends(typed_filter)],
    verify: Words = "",
    cursor: Annotated[str | None, Query(max_length=20)] = None,
) -> HTMLResponse:
    """Show events; with ``verify``, also whether that run's chain is intact."""
    words = vars(typed)
    page = await audit.page(services.database, principal, typed.filter, limit=PAGE_SIZE, cursor=cursor)
    checked = await audit.chain_state(services.database, principal, verify) if verify else None
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    return render(
        "audit.html",
        frame=frame,
        filter=words,
        narrowed=any(words.values()),
        address=lambda **changed: _address({**words, **changed}),
        rows=[_row(item) for item in page.items],
        next_cursor=page.next_cursor,
        cursor=cursor,
        checked=checked,
        system=SYSTEM,
    )


def _row(item: AuditItem) -> Row:
    request_id = item.payload.get("request_id")
    return Row(
        item=item,
        run_id=None if item.run_id == SYSTEM else item.run_id,
        request_id=request_id if isinstance(request_id, str) else None,
        facts=[
            (name, _as_text(value)) for name, value in item.payload.items() if name not in LINKED and value is not None
        ],
    )


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _address(words: Mapping[str, str | None]) -> str:
    query = urlencode({name: word for name, word in words.items() if word})
    return f"/audit?{query}" if query else "/audit"


def _instant(name: str, text: str) -> datetime | None:
    """Return the instant of a form's control: in UTC, unless it has another offset."""
    if not text:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        message = f"{name}: {text!r} is not a time such as 2026-11-01T08:00"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}]) from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
