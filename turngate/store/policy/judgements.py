"""Judgements of calls, and what people then decided. The first judgement of a call stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, and_, bindparam, or_, select, text, tuple_

from turngate.domain.policy.judge import Judgement
from turngate.domain.policy.terms import PLAIN_TERMS
from turngate.domain.requests import RequestStatus, Verb
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.requests.requests import Request
from turngate.store.tables import calls, judgements, requests, runs

PAGE: Final = 200

# Both databases know this form, and SQLAlchemy has it only per dialect.
_PUT = text(
    "INSERT INTO judgements (run_id, tool_call_id, judgement, created_at) VALUES (:run_id, :tool_call_id, :judgement, :at) "
    "ON CONFLICT (run_id, tool_call_id) DO NOTHING"
).bindparams(bindparam("judgement", type_=judgements.c.judgement.type))


async def of_calls(conn: Connection, run_id: str, tool_call_ids: Sequence[str]) -> dict[str, Judgement]:
    """Return tool call id → its judgement, for the calls that have one."""
    query = select(judgements.c.tool_call_id, judgements.c.judgement).where(
        judgements.c.run_id == run_id, judgements.c.tool_call_id.in_(tool_call_ids)
    )
    return {row.tool_call_id: Judgement.model_validate_json(row.judgement) for row in await conn.execute(query)}


async def record(conn: Connection, run_id: str, new: Mapping[str, Judgement]) -> dict[str, Judgement]:
    """Store judgements by tool call id; returns those of calls that had none before."""
    stored = {}
    for tool_call_id, judgement in new.items():
        row = {
            "run_id": run_id,
            "tool_call_id": tool_call_id,
            "judgement": judgement.model_dump_json(),
            "at": as_text(now()),
        }
        if (await conn.execute(_PUT, row)).rowcount == 1:
            stored[tool_call_id] = judgement
    return stored


@dataclass(frozen=True, kw_only=True)
class JudgedCall:
    """A call with its judgement. ``request_id``, ``status``, ``verb``: of its first approval request, if it had one."""

    run_id: str
    tool_call_id: str
    tool: str
    judgement: Judgement
    request_id: str | None
    status: RequestStatus | None
    verb: Verb | None
    place: tuple[Any, ...]


async def newest(database: Database, *, limit: int, since: str | None = None) -> AsyncIterator[JudgedCall]:
    """Yield at most ``limit`` judged calls, newest first, holding one page and no transaction in between.

    Not those of dry runs. ``since``: only judgements from then or later.
    """
    place = (judgements.c.created_at, judgements.c.run_id, judgements.c.tool_call_id)
    of_call = and_(
        requests.c.run_id == judgements.c.run_id,
        requests.c.tool_call_id == judgements.c.tool_call_id,
        requests.c.kind == "approval",
    )
    query: Select[Any] = (
        select(
            *place,
            judgements.c.judgement,
            calls.c.tool_name,
            requests.c.id.label("request_id"),
            requests.c.status,
            requests.c.verb,
            requests.c.created_at.label("asked_at"),
        )
        .join(
            calls,
            and_(calls.c.run_id == judgements.c.run_id, calls.c.tool_call_id == judgements.c.tool_call_id),
        )
        .outerjoin(requests, of_call)
        .order_by(*(column.desc() for column in place), requests.c.created_at, requests.c.id)
    )
    if since is not None:
        query = query.where(judgements.c.created_at >= since)
    after: tuple[Any, ...] | None = None
    left = limit
    while left > 0:
        next_page = query if after is None else query.where(tuple_(*place) < tuple_(*after))
        async with database.read() as conn:
            rows = list(await conn.execute(next_page.limit(PAGE)))
        # A call that was asked about again has several requests: the first is the one from when it was judged.
        first: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            first.setdefault((row.created_at, row.run_id, row.tool_call_id), row)
        for at, row in list(first.items())[:left]:
            yield _judged(row, at)
        if len(rows) < PAGE:
            return
        after, left = next(reversed(first)), left - len(first)


def _judged(row: Any, place: tuple[Any, ...]) -> JudgedCall:
    return JudgedCall(
        run_id=row.run_id,
        tool_call_id=row.tool_call_id,
        tool=row.tool_name,
        judgement=Judgement.model_validate_json(row.judgement),
        request_id=row.request_id,
        status=row.status,
        verb=row.verb,
        place=place,
    )


async def decided_by_people(database: Database, *, limit: int, since: str | None = None) -> list[Request]:
    """Return at most ``limit`` approval requests that people approved or rejected, newest first.

    Only of calls that the judge would have been asked about, and not of runs with overrides.
    """
    query = (
        select(requests)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(
            requests.c.kind == "approval",
            requests.c.status.in_(("approved", "rejected")),
            or_(requests.c.rule.in_(("default", "tool:ask")), requests.c.terms.contains('"judge":"may_allow"')),
            runs.c.world.is_(None),
        )
        .order_by(requests.c.created_at.desc(), requests.c.id.desc())
        .limit(limit)
    )
    if since is not None:
        query = query.where(requests.c.created_at >= since)
    async with database.read() as conn:
        rows = [Request(**row) for row in (await conn.execute(query)).mappings()]
    # Rows come newest first, so of a call that was asked about again the oldest request remains.
    by_call = {(row.run_id, row.tool_call_id): row for row in rows if _may_be_judged(row)}
    return sorted(by_call.values(), key=lambda row: (row.created_at, row.id), reverse=True)


def _may_be_judged(request: Request) -> bool:
    """Tell whether no rule insisted on a person. A rule may be called ``default``: its terms or its risk tell it apart."""
    plain = request.ask_terms == PLAIN_TERMS and request.risk != "high"
    return plain or request.ask_terms.judge == "may_allow"
