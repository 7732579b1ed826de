"""Erasing the content of conversations: ids, instants, verdicts, digests and the chain of events stay.

Which columns hold content is in :mod:`turngate.store.tables.content`, so a column that is added there is erased here. A text
becomes :data:`~turngate.store.events.events.ERASED`, so that pages and exports say it where the text was; a document becomes
an empty one that still can be read. What is for watchers only, and what finds content again (precedents), is deleted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, String, Table, and_, case, delete, func, literal, or_, select, update

from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events.deliveries import OPEN
from turngate.store.events.events import ERASED
from turngate.store.tables import (
    calls,
    conversations,
    deliveries,
    delivery_attempts,
    events,
    idempotent_answers,
    messages,
    metadata,
    precedents,
    requests,
    runs,
    schedule_fires,
    whole_results,
    worlds,
)
from turngate.store.tables.content import TEXT_COLUMNS, rows_of

DELETED: Final = frozenset({"progress", "deltas", "judgements"})
"""Tables whose rows are only content."""
SHARED: Final = {"whole_results": (calls, "whole_result"), "worlds": (runs, "world")}
"""Tables whose rows may belong to several conversations → what names them by digest."""
KEPT_FIELDS: Final = (
    "refused_by",
    "operator",
    "rule",
    "problem",
    "started",
    "repeat",
    "run_id",
    "error_class",
    "interrupted_by",
)
"""Of a failure's fields: who refused, and how; none of it is content."""
_MESSAGE: Final = json.dumps([{"type": "text", "text": ERASED}], separators=(",", ":"))
EMPTY: Final[Mapping[tuple[str, str], str]] = {
    ("messages", "parts"): _MESSAGE,
    ("messages", "provider_options"): "{}",
    ("calls", "input"): "{}",
    ("calls", "edited_input"): "{}",
    ("requests", "input"): "{}",
    ("external_calls", "input"): "{}",
    ("decisions", "args"): "{}",
    ("executions", "partial_output"): "",
    ("errors", "traceback"): "",
    ("runs", "nonce"): "",
    ("calls", "nonce"): "",
    ("requests", "nonce"): "",
    ("runs", "request_fingerprint"): "",
    ("runs", "world"): "",
    ("queued_messages", "fingerprint"): "",
    ("calls", "repeat_key"): "",
    ("executions", "repeat_key"): "",
    ("external_calls", "repeat_key"): "",
}
"""What erased documents become; by default NULL, or :data:`ERASED` where a column needs a value."""
HASHES: Final = frozenset(
    {
        ("steps", "trail"),
        ("calls", "whole_result"),
        ("calls", "repeat_key"),
        ("requests", "repeat_key"),
        ("executions", "repeat_key"),
        ("external_calls", "repeat_key"),
        ("runs", "request_fingerprint"),
        ("runs", "world"),
        ("queued_messages", "fingerprint"),
    }
)
"""Columns that hold hashes of content. Nothing needs them when it is gone, and from them it could be guessed."""
IDS_AT_ONCE: Final = 200

KINDS: Final = {
    "messages": "messages",
    "runs": "runs",
    "queued_messages": "messages sent to a live run",
    "calls": "calls",
    "executions": "executions",
    "whole_results": "large results",
    "worlds": "runs' own instructions and policies",
    "progress": "lines of progress",
    "deltas": "parts of answers being written",
    "external_calls": "calls from outside",
    "summaries": "summaries",
    "judgements": "judgements",
    "errors": "errors",
    "events": "sentences in events",
    "requests": "requests",
    "decisions": "decisions",
    "approvals": "approvals",
    "comments": "comments",
    "grants": "grants",
    "precedents": "precedents",
    "deliveries": "notifications",
    "idempotent_answers": "stored answers of the API",
}
"""Table → what its rows are, for people."""


async def count(conn: Connection, conversation_ids: Collection[str]) -> dict[str, int]:
    """Return how many rows with content these conversations have, by table; tables without any are left out."""
    counts: dict[str, int] = {}
    for conversation_id in conversation_ids:
        for table, rows in _with_content(conversation_id):
            await asyncio.sleep(0)  # SQLite works on the event loop: others have their turn between two tables
            query = select(func.count()).select_from(table).where(rows)
            number = int((await conn.execute(query)).scalar_one())
            if number:
                counts[table.name] = counts.get(table.name, 0) + number
        for table, keys in await _of_several(conn, conversation_id):
            if keys:
                counts[table.name] = counts.get(table.name, 0) + len(keys)
    return counts


async def erase(conn: Connection, conversation_id: str) -> dict[str, int]:
    """Erase everything that was said in a conversation, and return what was erased, by table.

    The caller has made sure that no run of it is live. Safe to repeat.
    """
    counts = await count(conn, [conversation_id])
    for table, keys in await _of_several(conn, conversation_id):
        await _forget_rows(conn, table, keys)
    for table in (worlds, whole_results):
        await conn.execute(delete(table).where(_only_of(table, conversation_id)))
    rows = rows_of("precedents", conversation_id)
    if rows is not None:
        await conn.execute(delete(precedents).where(rows))  # their features go with them
    await _scrub_calls(conn, _rows("calls", conversation_id))
    for table, rows in _with_content(conversation_id):
        await asyncio.sleep(0)
        if table.name not in counts:
            continue
        if table.name in DELETED:
            await conn.execute(delete(table).where(rows))
        elif table.name not in SHARED and table.name != "precedents":
            values = _values(table)
            if values:
                await conn.execute(update(table).where(rows).values(values))
    own_runs = select(runs.c.id).where(runs.c.conversation_id == conversation_id)
    of_runs = schedule_fires.c.run_id.in_(own_runs) & (schedule_fires.c.reason != "")
    await conn.execute(update(schedule_fires).where(of_runs).values(reason=_plain(ERASED)))
    return counts


async def erase_previews(conn: Connection, conversation_id: str) -> dict[str, int]:
    """Erase what people saw of calls besides the arguments: previews, and what they were checked against.

    Returns how many requests and calls were emptied, by table.
    """
    of_requests, of_calls = _rows("requests", conversation_id), _rows("calls", conversation_id)
    filled = and_(of_requests, or_(requests.c.preview.is_not(None), requests.c.precondition.is_not(None)))
    emptied = update(requests).where(filled).values(preview=None, preview_kind=None, precondition=None)
    of_tables = {"requests": (await conn.execute(emptied)).rowcount}
    drawn = update(calls).where(of_calls, calls.c.presentation.is_not(None)).values(presentation=None)
    of_tables["calls"] = (await conn.execute(drawn)).rowcount
    return {table: number for table, number in of_tables.items() if number}


async def erase_results(conn: Connection, conversation_id: str, tools: Collection[str] | None) -> dict[str, int]:
    """Erase the results of tools wherever they are: with their calls, whole, and in messages. ``tools`` None: of all.

    Returns how many were erased, by table.
    """
    own = _rows("calls", conversation_id)
    if tools is not None:
        own = and_(own, calls.c.tool_name.in_(sorted(tools)))
    with_result = and_(own, calls.c.result.is_not(None))
    with_results = (await conn.execute(select(calls.c.run_id, calls.c.tool_call_id).where(with_result))).all()
    erased = {(each.run_id, each.tool_call_id) for each in with_results}
    if not erased:
        return {}
    wholes = list(
        (await conn.execute(select(calls.c.whole_result).where(own, calls.c.whole_result.is_not(None)))).scalars()
    )
    await _scrub_calls(conn, own, only_results=True)
    await conn.execute(update(calls).where(own).values(presentation=None, whole_result=None))
    named = select(calls.c.whole_result).where(calls.c.whole_result.is_not(None))
    await conn.execute(
        delete(whole_results).where(whole_results.c.digest.in_(wholes), whole_results.c.digest.not_in(named))
    )
    changed = await _scrub_messages(conn, conversation_id, erased)
    return {"calls": len(erased), "messages": changed}


def _rows(table: str, conversation_id: str) -> ColumnElement[bool]:
    rows = rows_of(table, conversation_id)
    if rows is None:
        raise LookupError(f"no row of {table!r} belongs to a conversation")
    return rows


def _only_of(table: Table, conversation_id: str) -> ColumnElement[bool]:
    """Return the condition for rows of a shared table that no other conversation names."""
    naming, column = SHARED[table.name]
    others = select(naming.c[column]).where(naming.c[column].is_not(None))
    own_runs = select(runs.c.id).where(runs.c.conversation_id == conversation_id)
    others = others.where((runs.c.id if naming is runs else calls.c.run_id).not_in(own_runs))
    return and_(_rows(table.name, conversation_id), table.c.digest.not_in(others))


def _with_content(conversation_id: str) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return each table with content of a conversation, and the condition for its rows."""
    tables: list[tuple[Table, ColumnElement[bool]]] = []
    for name, columns in TEXT_COLUMNS.items():
        table = metadata.tables[name]
        if name in SHARED:
            tables.append((table, _only_of(table, conversation_id)))
            continue
        rows = rows_of(name, conversation_id)
        if rows is None or not (columns.content or name == "precedents"):
            continue
        if name == "events":
            rows = and_(rows, events.c.words.is_not(None), events.c.type != "conversation.erased")
        elif name == "executions":
            rows = and_(rows, or_(table.c.partial_output != "", table.c.repeat_key != ""))
        tables.append((table, rows))
    return tables


def _values(table: Table) -> dict[str, Any]:
    """Return what the content columns of a table become."""
    by_hand = {"verdict", "result"} if table is calls else set()
    content = [name for name in TEXT_COLUMNS[table.name].content if name not in by_hand]
    hashes = [column for name, column in HASHES if name == table.name]
    values = {name: _emptied(table, table.c[name]) for name in (*content, *hashes)}
    if table is requests:
        values["preview_kind"] = None
    if table.name == "grants":
        values["pattern"] = literal('{"tool":"', String) + table.c.tool_name + literal('"}', String)
    return values


def _emptied(table: Table, column: Column[Any]) -> Any:
    empty = EMPTY.get((table.name, column.name))
    if empty is not None:
        return _plain(empty) if not column.nullable else case((column.is_(None), None), else_=_plain(empty))
    if column.nullable:
        return None
    return case((column == "", _plain("")), else_=_plain(ERASED))


def _plain(text: str) -> ColumnElement[str]:
    """Return a text that is stored as it is, whatever the type of its column does to others."""
    return literal(text, String)


async def _scrub_calls(conn: Connection, rows: ColumnElement[bool], *, only_results: bool = False) -> None:
    """Leave of verdicts what was answered by which rule, and of results whether a call succeeded or how it failed."""
    query = select(calls.c.run_id, calls.c.tool_call_id, calls.c.verdict, calls.c.result).where(rows)
    for row in (await conn.execute(query)).all():
        values: dict[str, Any] = {}
        if row.result is not None:
            values["result"] = _plain(_changed(row.result, _scrubbed_result))
        if row.verdict and not only_results:
            values["verdict"] = _plain(_changed(row.verdict, _scrubbed_verdict))
        if values:
            of_call = calls.c.run_id == row.run_id, calls.c.tool_call_id == row.tool_call_id
            await conn.execute(update(calls).where(*of_call).values(values))


def _changed(text: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return json.dumps(change(value if isinstance(value, dict) else {}), separators=(",", ":"))


def _scrubbed_verdict(verdict: dict[str, Any]) -> dict[str, Any]:
    names: tuple[str, ...] = ("answer", "rule", "risk", "terms", "grant_id", "overruled")
    left = {name: verdict[name] for name in names if name in verdict}
    return {**left, "reason": ERASED}


def _scrubbed_result(result: dict[str, Any]) -> dict[str, Any]:
    if result.get("tag") == "failure":
        fields = result.get("fields")
        left = {name: fields[name] for name in KEPT_FIELDS if name in fields} if isinstance(fields, dict) else {}
        return {"tag": "failure", "kind": str(result.get("kind", "")), "reason": ERASED, "fields": left}
    return {"tag": "ok", "value": {"erased": True}}


async def _scrub_messages(conn: Connection, conversation_id: str, erased: Collection[tuple[str, str]]) -> int:
    """Empty the results of these calls in the conversation's messages; returns how many messages changed."""
    of_tools = messages.c.conversation_id == conversation_id, messages.c.role == "tool"
    changed = 0
    for row in (await conn.execute(select(messages.c.id, messages.c.run_id, messages.c.parts).where(*of_tools))).all():
        parts = json.loads(row.parts)
        named = [each for each in parts if (row.run_id, each.get("tool_call_id")) in erased and "result" in each]
        for part in named:
            part |= {"result": _scrubbed_result(part["result"]), "whole_result": None, "provider_options": {}}
        if named:
            text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
            # As the row was written, so that a type that changes texts does so here, too.
            await conn.execute(update(messages).where(messages.c.id == row.id).values(parts=text))
            changed += 1
    return changed


# What belongs to several conversations, or names none: found by the runs that it is about.


async def _of_several(conn: Connection, conversation_id: str) -> list[tuple[Table, Sequence[Any]]]:
    """Return the notifications and stored answers of the API that are about a conversation, by their keys."""
    ids = await _ids(conn, conversation_id)
    return [
        (deliveries, await _deliveries_about(conn, conversation_id)),
        (idempotent_answers, await _answers_about(conn, conversation_id, ids)),
    ]


async def _ids(conn: Connection, conversation_id: str) -> list[str]:
    own = list((await conn.execute(select(runs.c.id).where(runs.c.conversation_id == conversation_id))).scalars())
    opened = select(requests.c.id).where(_rows("requests", conversation_id))
    return [conversation_id, *own, *(await conn.execute(opened)).scalars()]


async def _deliveries_about(conn: Connection, conversation_id: str) -> list[str]:
    own_runs = select(runs.c.id).where(runs.c.conversation_id == conversation_id)
    about = (
        select(literal(1))
        .select_from(events)
        .where(events.c.run_id.in_(own_runs), events.c.seq.between(deliveries.c.first_seq, deliveries.c.last_seq))
    )
    query = select(deliveries.c.id).where(deliveries.c.payload != "{}", about.exists())
    return list((await conn.execute(query)).scalars())


async def _answers_about(conn: Connection, conversation_id: str, ids: Sequence[str]) -> list[tuple[str, str]]:
    since = (
        await conn.execute(select(conversations.c.created_at).where(conversations.c.id == conversation_id))
    ).scalar_one_or_none()
    query = select(idempotent_answers).where(idempotent_answers.c.created_at >= (since or ""))
    rows = (await conn.execute(query)).mappings()
    return [(row["principal"], row["key"]) for row in rows if any(each in row["answer"] for each in ids)]


async def _forget_rows(conn: Connection, table: Table, keys: Sequence[Any]) -> None:
    for at in range(0, len(keys), IDS_AT_ONCE):
        some = keys[at : at + IDS_AT_ONCE]
        if table is deliveries:
            await conn.execute(update(deliveries).where(deliveries.c.id.in_(some)).values(payload=_plain("{}")))
            unsent = deliveries.c.id.in_(some) & deliveries.c.status.in_(OPEN)
            await conn.execute(update(deliveries).where(unsent).values(status="failed", ended_at=as_text(now())))
            attempts = delivery_attempts.c.delivery_id.in_(some) & (delivery_attempts.c.answer != "")
            await conn.execute(update(delivery_attempts).where(attempts).values(answer=_plain(ERASED)))
            continue
        own = or_(*(and_(table.c.principal == principal, table.c.key == key) for principal, key in some))
        await conn.execute(delete(table).where(own))
