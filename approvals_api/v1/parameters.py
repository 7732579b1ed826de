"""What clients send besides a body: ids in the path, pages, and the key of a request that may be repeated."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AwareDatetime, BeforeValidator, StringConstraints

from turngate.approvals_api.validation.text import STORABLE

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _only_rfc3339(value: object) -> object:
    if isinstance(value, str) and not _RFC3339.fullmatch(value):
        raise ValueError("an instant is written like 2026-04-01T12:00:00Z (RFC 3339)")
    return value


Id = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=STORABLE)]

RunId = Annotated[str, Path(description="The run's id, such as `run_4f1c…`.", max_length=255, pattern=STORABLE)]
RequestId = Annotated[str, Path(description="The request's id, such as `req_91ab…`.", max_length=255, pattern=STORABLE)]
ConversationId = Annotated[str, Path(description="The conversation's id.", max_length=255, pattern=STORABLE)]
ToolCallId = Annotated[
    str,
    Path(
        description="The tool call's id within its run: the provider's own, percent-encoded; it may hold a slash.",
        pattern=STORABLE,
    ),
]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]([ -~]{0,253}[!-~])?$",
        description="1 to 255 printable ASCII characters of your choice. The same key with the same content again, from the "
        "same token or session, changes nothing and gets the first answer; with other content the request is refused (409).",
    ),
]
Cursor = Annotated[
    str | None,
    Query(
        description="Where the page begins: `next_cursor` of the page before. Omitted: the first page.",
        pattern=r"^[A-Za-z0-9_-]+$",
    ),
]
Instant = Annotated[AwareDatetime, BeforeValidator(_only_rfc3339)]
"""An instant with its zone. On its own, pydantic would also take ``0.5`` as half a second after 1970."""
Limit = Annotated[int, Query(ge=1, le=200, description="The most items a page may have.")]
