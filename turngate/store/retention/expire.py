"""What is older than a retention rule keeps: found in batches, and never what a legal hold keeps.

Conversations are walked by id, a bounded number at once: no query grows with the store, because on SQLite a query holds up
everything else in its process, and a walk that was broken off continues at its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    Table,
    Update,
    and_,
    delete,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy import Delete as DeleteRows

from turngate.domain.retention import Kind, RetentionRule
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import ERASED
from turngate.store.tables import (
    calls,
    deliveries,
    delivery_attempts,
    deltas,
    erasures,
    errors,
    grants,
    holds,
    idempotent_answers,
    policy_proposals,
    policy_versions,
    progress,
    requests,
    runs,
    schedule_fires,
    schedules,
)
from turngate.store.tables import conversations as conversations_table

LOOKED_AT: Final = 200
"""Conversations that one step of the walk looks at."""
BATCH: Final = 200
"""Rows that one transaction removes or empties."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What goes of a table by the age of its rows. ``over``: the condition for rows that nothing needs any more.

    ``emptied``: column → what it becomes; empty: the row goes. ``first``: rows of another table, by (its column, our key).
    """

    table: Table
    since: ColumnElement[Any]
    over: tuple[ColumnElement[bool], ...] = ()
    emptied: Mapping[str, str] | None = None
    first: tuple[ColumnElement[Any], ColumnElement[Any]] | None = None

    @property
    def keys(self) -> tuple[ColumnElement[Any], ...]:
        """The columns of the table's primary key."""
        return tuple(self.table.primary_key.columns)


_IN_FORCE = select(func.coalesce(func.max(policy_versions.c.version), 0)).scalar_subquery()
_LAST_PROPOSAL = select(func.max(policy_proposals.c.number)).scalar_subquery()

ROWS: Final[Mapping[Kind, tuple[Rows, ...]]] = {
    "errors": (Rows(table=errors, since=errors.c.created_at),),
    "notifications": (
        Rows(
            table=deliveries,
            since=deliveries.c.created_at,
            over=(deliveries.c.ended_at.is_not(None),),
            first=(delivery_attempts.c.delivery_id, deliveries.c.id),
        ),
    ),
    "progress": (
        Rows(table=progress, since=progress.c.created_at),
        Rows(table=deltas, since=deltas.c.created_at),
    ),
    "answers": (Rows(table=idempotent_answers, since=idempotent_answers.c.created_at),),
    "schedules": (
        Rows(
            table=schedules,
            since=schedules.c.deleted_at,
            emptied={"input": ERASED, "notes": "", "pause_reason": ""},
        ),
        Rows(table=schedule_fires, since=schedule_fires.c.noted_at, emptied={"reason": ""}),
    ),
    "grants": (
        Rows(
            table=grants,
            since=func.coalesce(grants.c.revoked_at, grants.c.expires_at),
            over=(grants.c.run_id.is_(None), grants.c.request_id.is_(None)),
            emptied={"note": "", "pattern": '{"tool":"erased"}'},
        ),
    ),
    "policy": (
        Rows(
            table=policy_versions,
            since=policy_versions.c.created_at,
            over=(policy_versions.c.version < _IN_FORCE,),
            emptied={"source": ERASED, "comment": ""},
        ),
        Rows(
            table=policy_proposals,
            since=policy_proposals.c.created_at,
            over=(or_(policy_proposals.c.ended_at.is_not(None), policy_proposals.c.number < _LAST_PROPOSAL),),
            emptied={"source": ERASED, "comment": "", "why": ""},
        ),
    ),
}
"""Kind → what goes by the age of its rows. Content that belongs to a conversation goes with that (``erase_content``)."""


async def conversations(
    conn: Connection, rule: RetentionRule, at: datetime, *, after: str
) -> tuple[list[str], str | None]:
    """Look at the next conversations after this id, and return those that a rule no longer keeps, and the last one looked at.

    At most :data:`LOOKED_AT` are looked at; the last one is None when there are no more.
    """
    c = conversations_table.c
    chunk = list((await conn.execute(select(c.id).where(c.id > after).order_by(c.id).limit(LOOKED_AT))).scalars())
    if not chunk:
        return [], None
    expired = list((await conn.execute(_expired(rule, at, chunk))).scalars())
    return expired, chunk[-1] if len(chunk) == LOOKED_AT else None


async def count(conn: Connection, rule: RetentionRule, at: datetime, *, limit: int) -> int:
    """Return how many rows a rule no longer keeps, ``limit`` at most; of kinds whose rows go by their own age."""
    total = 0
    for rows in ROWS[rule.kind]:
        query = _old(rule, rows, at).limit(limit)
        total += int((await conn.execute(select(func.count()).select_from(query.subquery()))).scalar_one())
    return min(total, limit)


async def remove(conn: Connection, rule: RetentionRule, at: datetime) -> int:
    """Remove or empty a batch of rows, and say so in the log; returns how many. Last in the transaction."""
    for rows in ROWS[rule.kind]:
        keys = [tuple(row) for row in (await conn.execute(_old(rule, rows, at).limit(BATCH))).all()]
        if not keys:
            continue
        if rows.first is not None:
            await conn.execute(delete(rows.first[0].table).where(rows.first[0].in_([key[0] for key in keys])))
        await conn.execute(_gone(rows, keys))
        applied = {"rule": rule.name, "kind": rule.kind, "rows": len(keys), "before": as_text(at - rule.keep)}
        await events.append(conn, events.SYSTEM, [("retention.applied", applied)])
        return len(keys)
    return 0


def _gone(rows: Rows, keys: Sequence[tuple[Any, ...]]) -> Update | DeleteRows:
    own = or_(*(and_(*(column == value for column, value in zip(rows.keys, key, strict=True))) for key in keys))
    if rows.emptied is None:
        return delete(rows.table).where(own)
    return update(rows.table).where(own).values({name: _plain(text) for name, text in rows.emptied.items()})


def _plain(text: str) -> ColumnElement[str]:
    """Return a text that is stored and compared as it is, whatever the type of its column does to others."""
    return literal(text, String)


def _old(rule: RetentionRule, rows: Rows, at: datetime) -> Select[Any]:
    """Build the query for the keys of rows that a rule no longer keeps, oldest first."""
    query = select(*rows.keys).where(rows.since < as_text(at - rule.keep), *rows.over)
    if rows.emptied is not None:
        query = query.where(or_(*(rows.table.c[name] != _plain(text) for name, text in rows.emptied.items())))
    if "run_id" in rows.table.c and rows.emptied is None:
        query = query.join(runs, runs.c.id == rows.table.c.run_id, isouter=True)
        query = query.where(or_(runs.c.id.is_(None), ~_held()))
        if rule.agent is not None:
            query = query.where(runs.c.agent == rule.agent)
    return query.order_by(rows.since, *rows.keys)


def _expired(rule: RetentionRule, at: datetime, chunk: Sequence[str]) -> Select[tuple[str]]:
    """Build the query: all runs of the conversation ended before, none is held, and nothing was added since the rule erased."""
    ended = func.max(runs.c.ended_at)
    of_chunk = erasures.c.conversation_id.in_(chunk)
    gone = select(erasures.c.conversation_id).where(of_chunk, erasures.c.what == "all")
    by_rule = (
        select(func.coalesce(func.max(erasures.c.created_at), ""))
        .where(erasures.c.conversation_id == runs.c.conversation_id, erasures.c.rule == rule.name)
        .correlate(runs)
        .scalar_subquery()
    )
    own = runs.c.conversation_id.in_(chunk)
    under_hold = select(runs.c.conversation_id).where(own, _held())
    query = (
        select(runs.c.conversation_id)
        .where(own, runs.c.parent_run_id.is_(None), runs.c.conversation_id.not_in(gone))
        .where(runs.c.conversation_id.not_in(under_hold))
        .group_by(runs.c.conversation_id)
        .having(func.count() == func.count(runs.c.ended_at), ended < as_text(at - rule.keep), ended > by_rule)
        .order_by(runs.c.conversation_id)
    )
    if rule.kind != "conversations":
        query = query.where(runs.c.conversation_id.in_(_with_something(rule, own)))
    if rule.agent is not None:
        of_agent = runs.alias("of_agent")
        others = select(of_agent.c.conversation_id).where(
            of_agent.c.conversation_id.in_(chunk), of_agent.c.agent == rule.agent
        )
        query = query.where(runs.c.conversation_id.in_(others))
    return query


def _with_something(rule: RetentionRule, own: ColumnElement[bool]) -> Select[tuple[str]]:
    """Build the query for the conversations that have what the rule is about: results of tools, or previews."""
    if rule.kind == "previews":
        with_preview = select(runs.c.conversation_id).join(requests, requests.c.run_id == runs.c.id)
        return with_preview.where(own, or_(requests.c.preview.is_not(None), requests.c.precondition.is_not(None)))
    with_result = select(runs.c.conversation_id).join(calls, calls.c.run_id == runs.c.id)
    with_result = with_result.where(own, calls.c.result.is_not(None))
    return with_result if rule.tools is None else with_result.where(calls.c.tool_name.in_(rule.tools))


def _held() -> ColumnElement[bool]:
    """Return whether a legal hold keeps a run's conversation, or everything of its agent."""
    on_run = or_(
        and_(holds.c.kind == "conversation", holds.c.target == runs.c.conversation_id),
        and_(holds.c.kind == "agent", holds.c.target == runs.c.agent),
    )
    return select(holds.c.id).where(on_run, holds.c.removed_at.is_(None)).correlate(runs).exists()
