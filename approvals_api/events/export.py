"""The audit log as a file for people's own tools: CSV or JSON lines with the sentence of each event, newest first.

Not the export that proves anything: that is ``turngate audit export``, which has all that the hashes are made over.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal

from turngate.approvals_api.events import audit
from turngate.approvals_api.events.story import Sentence, sentences_of
from turngate.approvals_api.principal import Principal
from turngate.domain.text.hidden_text import marked_text
from turngate.store.database import Database
from turngate.wire.events import AuditFilter, AuditItem
from turngate.wire.people import display_name, with_names
from turngate.wire.view import Page

Kind = Literal["csv", "jsonl"]
MOST_EVENTS: Final = 100_000
"""Of one file. Its last line then says where the next one begins."""
READ_AT_ONCE: Final = 500
COLUMNS: Final = ("seq", "time", "run", "type", "actor", "tool", "request", "what", "payload")
TRUNCATED: Final = "export.truncated"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""With one of these first, spreadsheets take a cell for a formula, the wide ones of East Asia too (OWASP, "CSV Injection")."""


async def lines(
    database: Database, principal: Principal, wanted: AuditFilter, kind: Kind, *, cursor: str | None = None
) -> AsyncIterator[str]:
    """Return the lines of the file, its first events read already. The rights are those of the page.

    At most :data:`MOST_EVENTS` events; where there are more, the last line is of type ``export.truncated``, and its ``seq`` is
    the cursor of the next file. Raises as :func:`audit.page`, before the first line.
    """
    first = await audit.page(database, principal, wanted, limit=READ_AT_ONCE, cursor=cursor)
    return _lines(database, principal, wanted, kind, first)


async def _lines(
    database: Database, principal: Principal, wanted: AuditFilter, kind: Kind, page: Page[AuditItem]
) -> AsyncIterator[str]:
    if kind == "csv":
        yield csv_header()
    count = 0
    while True:
        async with database.read() as conn:
            sentences = await sentences_of(conn, page.items)
        yield csv_lines(sentences) if kind == "csv" else "".join(_json(_members(each)) for each in sentences)
        count += len(sentences)
        if page.next_cursor is None:
            return
        if count >= MOST_EVENTS:
            cut = {"seq": int(page.next_cursor), "type": TRUNCATED, "what": f"the file ends after {count:,} events"}
            yield _csv([str(cut.get(each, "")) for each in COLUMNS]) if kind == "csv" else _json(cut)
            return
        page = await audit.page(database, principal, wanted, limit=READ_AT_ONCE, cursor=page.next_cursor)


def csv_header() -> str:
    """Return the first line of a file in CSV."""
    return _csv(COLUMNS)


def csv_lines(sentences: Sequence[Sentence]) -> str:
    """Return events as lines of CSV."""
    return "".join(_csv(_cells(each)) for each in sentences)


def _members(sentence: Sentence) -> dict[str, object]:
    item = sentence.item
    return {
        "seq": item.seq,
        "time": item.created_at,
        "run": item.run_id,
        "type": item.type,
        "actor": display_name(item.actor) if item.actor else item.actor,
        "tool": sentence.tool or None,
        "request": sentence.request_id,
        "what": sentence.text,
        "payload": with_names(item.payload, item.people),
        "hash": item.hash,
    }


def _cells(sentence: Sentence) -> list[str]:
    """Return the cells of a line of CSV: nothing in them is hidden, and none of them is a formula."""
    members = _members(sentence)
    members["payload"] = json.dumps(members["payload"], ensure_ascii=False)
    return [_cell("" if members[name] is None else str(members[name])) for name in COLUMNS]


def _cell(text: str) -> str:
    return f"'{marked_text(text)}" if text.lstrip(" ").startswith(_FORMULA) else marked_text(text)


def _csv(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL).writerow(cells)
    return line.getvalue()


def _json(members: dict[str, object]) -> str:
    return f"{json.dumps(members, ensure_ascii=True)}\n"
