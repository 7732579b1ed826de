"""Calls as they were judged, newest first, a page at a time: what backtests, shadow reports and previews read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, literal_column, select, tuple_

from turngate.domain.requests import Verb
from turngate.domain.runs.recorded_calls import RecordedCall
from turngate.store.database import Connection, Database
from turngate.store.tables import calls, requests, runs
from turngate.store.texts import at_most

PAGE: Final = 200

_COLUMNS = (
    calls.c.run_id,
    calls.c.tool_call_id,
    calls.c.tool_name,
    calls.c.input,
    calls.c.defaults,
    calls.c.verdict,
    calls.c.effect,
    calls.c.step,
    calls.c.position,
    runs.c.agent,
    runs.c.workspace,
    runs.c.started_by,
    runs.c.attended,
    runs.c.unattended_asks,
    runs.c.created_at,
)
# Of the request about the model's own arguments: those after an edit or a lost call are newer.
_ORIGINS = (
    select(requests.c.origins)
    .where(requests.c.run_id == calls.c.run_id, requests.c.tool_call_id == calls.c.tool_call_id)
    .order_by(requests.c.created_at)
    .limit(1)
    .scalar_subquery()
    .label("origins")
)
_PLACE = (runs.c.created_at, runs.c.id, calls.c.step, calls.c.position)


async def page(
    conn: Connection,
    *,
    limit: int,
    after: tuple[Any, ...] | None = None,
    since: str | None = None,
    tool: str | None = None,
    max_chars: int | None = None,
    with_origins: bool = False,
) -> list[RecordedCall]:
    """Return calls that reached policy: of the newest run first, its last call first.

    Without those of dry runs, which repeat others, and of runs with overrides, which may have other rules.
    ``after``: ``place`` of the last one seen. ``since``: only of runs that began then or later. ``tool``: its exact name.
    ``max_chars``: leave out calls with longer arguments.
    ``with_origins``: read where the arguments came from, too.
    """
    query: Select[Any] = (
        select(*_COLUMNS, *([_ORIGINS] if with_origins else []))
        .join(runs, runs.c.id == calls.c.run_id)
        .where(calls.c.verdict != "", runs.c.replay_of_run_id.is_(None), runs.c.world.is_(None))
        .order_by(*(column.desc() for column in _PLACE))
        .limit(limit)
    )
    if after is not None:
        # The first condition follows from the second; it is the one that an index answers.
        query = query.where(runs.c.created_at <= after[0], tuple_(*_PLACE) < tuple_(*after))
    if since is not None:
        query = query.where(runs.c.created_at >= since)
    if tool is not None:
        query = query.where(calls.c.tool_name == tool)
    if max_chars is not None:
        query = query.where(at_most(calls.c.input, max_chars))
    return [_read(row) for row in await conn.execute(query)]


async def newest(
    database: Database,
    *,
    limit: int,
    since: str | None = None,
    tool: str | None = None,
    max_chars: int | None = None,
    with_origins: bool = False,
    page_size: int = PAGE,
) -> AsyncIterator[RecordedCall]:
    """Yield at most ``limit`` calls, holding one page of them and no transaction in between."""
    after: tuple[Any, ...] | None = None
    left = limit
    while left > 0:
        wanted = min(page_size, left)
        async with database.read() as conn:
            recorded = await page(
                conn,
                limit=wanted,
                after=after,
                since=since,
                tool=tool,
                max_chars=max_chars,
                with_origins=with_origins,
            )
        for call in recorded:
            if (
                max_chars is None or len(call.input) <= max_chars
            ):  # of an encrypted one the database knows it only roughly
                left -= 1
                yield call
        if len(recorded) < wanted:
            return
        after = recorded[-1].place
        await asyncio.sleep(0)  # SQLite runs on the loop, and others want it too


@dataclass(frozen=True, kw_only=True)
class WaitingCall:
    """A call that waits for a person. ``call``: with the arguments that its request asks about."""

    request_id: str
    digest: str
    call: RecordedCall


async def waiting(conn: Connection, *, limit: int, max_chars: int, tool: str | None = None) -> list[WaitingCall]:
    """Return the calls of pending approval requests, the oldest request first.

    Not those of runs with overrides, which may have other rules. ``max_chars``: leave out calls with longer arguments.
    ``tool``: only its calls.
    """
    of_request = (requests.c.input, requests.c.defaults, requests.c.origins, requests.c.digest)
    columns = [each for each in _COLUMNS if each is not calls.c.input and each is not calls.c.defaults]
    query = (
        select(*columns, *of_request, requests.c.id.label("request_id"))
        .join(runs, runs.c.id == requests.c.run_id)
        .join(calls, (calls.c.run_id == requests.c.run_id) & (calls.c.tool_call_id == requests.c.tool_call_id))
        .where(
            requests.c.status == literal_column("'pending'"),  # written out, so that the planners see the partial index
            requests.c.kind == "approval",
            calls.c.verdict != "",
            runs.c.world.is_(None),
            at_most(requests.c.input, max_chars),
        )
        .order_by(requests.c.created_at, requests.c.id)
        .limit(limit)
    )
    if tool is not None:
        query = query.where(requests.c.tool_name == tool)
    return [
        WaitingCall(request_id=row.request_id, digest=row.digest, call=_read(row))
        for row in await conn.execute(query)
        if len(row.input) <= max_chars  # of an encrypted one the database knows it only roughly
    ]


def _read(row: Any) -> RecordedCall:
    return RecordedCall(
        run_id=row.run_id,
        tool_call_id=row.tool_call_id,
        tool=row.tool_name,
        agent=row.agent,
        input=row.input,
        verdict_json=row.verdict,
        effect=row.effect,
        workspace=row.workspace,
        starter=row.started_by,
        unattended=None if row.attended else row.unattended_asks,
        place=(row.created_at, row.run_id, row.step, row.position),
        origins_json=getattr(row, "origins", None),
        defaults_json=row.defaults,
    )


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The newest request about a call. ``verb`` None: no one has decided it."""

    request_id: str
    verb: Verb | None
    decided_by: str | None


async def answers_to(conn: Connection, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Answered]:
    """Return (run, call) → the newest approval request about it, for those of these calls that have one."""
    columns = (requests.c.run_id, requests.c.tool_call_id, requests.c.id, requests.c.verb, requests.c.decided_by)
    answered: dict[tuple[str, str], Answered] = {}
    for start in range(0, len(wanted), PAGE):
        query = (
            select(*columns)
            .where(
                requests.c.kind == "approval",
                tuple_(requests.c.run_id, requests.c.tool_call_id).in_(wanted[start : start + PAGE]),
            )
            .order_by(requests.c.created_at, requests.c.id)
        )
        for row in await conn.execute(query):
            answered[row.run_id, row.tool_call_id] = Answered(
                request_id=row.id, verb=row.verb, decided_by=row.decided_by
            )
    return answered
