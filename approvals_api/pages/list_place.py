"""Where in the inbox a person came from: its filter and page, carried along in the URL of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from fastapi import Request

from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.requests.views import request_page
from turngate.domain.errors import InvalidInputError
from turngate.domain.runs.groups import Grouping, groups_of
from turngate.domain.runs.inbox import InboxFilter
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import PENDING
from turngate.wire.requests import RequestItem

PARAMETER: Final = "list"
MAX_QUERY_CHARS: Final = 2_000
MAX_CURSOR_CHARS: Final = 500
GROUPED: Final = 100
"""Requests on a page that is in groups: as many as can be decided together."""


@dataclass(frozen=True, kw_only=True)
class ListPlace:
    """A page of the inbox. ``cursor``: where it begins; None: it is the first."""

    filters: InboxFilter = PENDING
    cursor: str | None = None

    @property
    def query(self) -> str:
        """The query of its URL; empty: the inbox as it is by default."""
        cursor = "" if self.cursor is None else urlencode({"cursor": self.cursor})
        return "&".join(part for part in (self.filters.query, cursor) if part)

    @property
    def inbox(self) -> str:
        """Its URL."""
        return f"/?{self.query}" if self.query else "/"

    @property
    def suffix(self) -> str:
        """What the URL of a request ends with, so that the way back leads here."""
        return f"?{urlencode({PARAMETER: self.query})}" if self.query else ""

    def request_at(self, request_id: str, **more: str) -> str:
        """Return the URL of a request's page, with more parameters."""
        words = {**({PARAMETER: self.query} if self.query else {}), **more}
        return f"/requests/{request_id}?{urlencode(words)}"

    async def next_pending(self, conn: Connection, after: RequestItem, person: str) -> str | None:
        """Return the id of the next pending request of this list, or of the first one when none follows; None: no other."""
        wanted = self.filters.with_status("pending").of(person)
        if wanted.group is not None:
            following_in_groups = await self._next_in_groups(conn, wanted, after, wanted.group)
            if following_in_groups is not None:
                return following_in_groups
        key = requests.key_of(wanted, after)
        following = await requests.page(conn, wanted, limit=1, after=key) or await requests.page(conn, wanted, limit=2)
        return next((each.id for each in following if each.id != after.id), None)

    async def _next_in_groups(
        self, conn: Connection, wanted: InboxFilter, after: RequestItem, by: Grouping
    ) -> str | None:
        page = await request_page(conn, wanted, limit=GROUPED, after=decode_cursor(self.cursor))
        items = [each for each in page.items if each.id != after.id]
        # One that was decided has left the list, but not its place.
        items = sorted([*items, after], key=lambda each: requests.key_of(wanted, each))
        groups = await asyncio.to_thread(groups_of, items, by)
        ids = [each.id for group in groups for each in group.items]
        place = ids.index(after.id)
        return next(iter([*ids[place + 1 :], *ids[:place]]), None)


FIRST_PAGE: Final = ListPlace()


def place_of(request: Request) -> ListPlace:
    """Return where the person came from, as the request's URL says. Raises InvalidInputError."""
    words = dict(parse_qsl(request.query_params.get(PARAMETER, "")[:MAX_QUERY_CHARS]))
    return place_in(words)


def place_in(words: Mapping[str, str]) -> ListPlace:
    """Return the page of the inbox that these names and values mean. Raises InvalidInputError."""
    cursor = words.get("cursor")
    if cursor is not None and len(cursor) > MAX_CURSOR_CHARS:
        raise InvalidInputError("this is no cursor of this list: go back to the first page", code="bad_cursor")
    decode_cursor(cursor)
    return ListPlace(filters=filter_in(words), cursor=cursor)


def filter_in(words: Mapping[str, str]) -> InboxFilter:
    """Return the filter among these names and values; a link to a page may have others (``utm_source``).

    Raises InvalidInputError.
    """
    return InboxFilter.from_words({name: word for name, word in words.items() if name in InboxFilter.model_fields})
