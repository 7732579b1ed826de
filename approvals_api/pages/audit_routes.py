"""The audit page: who did what as sentences, newest first, under filters in the URL, also as a file; and the check of a chain."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import JsonValue

from turngate.approvals_api.events import audit, export, story
from turngate.approvals_api.events.audit import MAX_TYPE_CHARS, TYPE_PATTERN
from turngate.approvals_api.http.dependencies import ReaderDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import InvalidInputError
from turngate.domain.text.instants import in_utc
from turngate.store.events.events import SYSTEM
from turngate.wire.events import AuditFilter, AuditItem

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
MAX_ID_CHARS: Final = 255
MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8; header=present", "jsonl": "application/jsonl"}

# An untouched control of the form sends an empty text, which is no condition.
Words = Annotated[str, Query(max_length=MAX_ID_CHARS, pattern=STORABLE)]


@dataclass(frozen=True, kw_only=True)
class TypedFilter:
    """The filter as it is typed on the page; an empty text is no condition."""

    run_id: str
    type: str
    actor: str
    tool: str
    since: str
    until: str

    @property
    def filter(self) -> AuditFilter:
        """The filter that the texts mean. Raises InvalidInputError: one is not a time."""
        return AuditFilter(
            run_id=self.run_id or None,
            type=self.type or None,
            actor=self.actor or None,
            tool=self.tool or None,
            since=_instant("since", self.since),
            until=_instant("until", self.until),
        )


async def typed_filter(
    run_id: Words = "",
    event_type: Annotated[
        str, Query(alias="type", max_length=MAX_TYPE_CHARS, pattern=TYPE_PATTERN.replace("+$", "*$"))
    ] = "",
    actor: Words = "",
    tool: Words = "",
    since: Annotated[str, Query(max_length=40)] = "",
    until: Annotated[str, Query(max_length=40)] = "",
) -> TypedFilter:
    """Return what the query says."""
    return TypedFilter(run_id=run_id, type=event_type, actor=actor, tool=tool, since=since, until=until)


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
        masks = await Masks.of(conn, story.runs_in(page.items))
        chapters = await story.chapters_of(conn, page.items, masks.text)
    return render(
        "audit.html",
        frame=frame,
        filter=words,
        narrowed=any(words.values()),
        address=lambda **changed: _address({**words, **changed}),
        chapters=chapters,
        facts=_facts,
        most_exported=export.MOST_EVENTS,
        file=lambda kind: _address({**words, "format": kind}, path="/audit/export"),
        next_cursor=page.next_cursor,
        cursor=cursor,
        checked=checked,
        system=SYSTEM,
    )


@router.get("/audit/export")
async def audit_file(
    services: ServicesDep,
    principal: ReaderDep,
    typed: Annotated[TypedFilter, Depends(typed_filter)],
    kind: Annotated[Literal["csv", "jsonl"], Query(alias="format")],
    cursor: Annotated[str | None, Query(max_length=20)] = None,
) -> StreamingResponse:
    """Send the events of a filter as a file, newest first, with the rights of the page."""
    # What is wrong with the order shows before the first byte: an error page, not half a file.
    lines = await export.lines(services.database, principal, typed.filter, kind, cursor=cursor)
    headers = {"Content-Disposition": f'attachment; filename="audit.{kind}"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(lines, media_type=MEDIA_TYPES[kind], headers=headers)


def _facts(item: AuditItem) -> list[tuple[str, str]]:
    return [(name, _as_text(value)) for name, value in item.payload.items() if value is not None]


def _as_text(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _STORED_INSTANT.sub(_in_utc, text)


_STORED_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00")


def _in_utc(stored: re.Match[str]) -> str:
    """Return an instant as pages put it into the reader's zone."""
    try:
        return in_utc(stored[0], "seconds")
    except ValueError:  # the digits of no instant
        return stored[0]


def _address(words: Mapping[str, str | None], path: str = "/audit") -> str:
    query = urlencode({name: word for name, word in words.items() if word})
    return f"{path}?{query}" if query else path


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
