"""What is older than a retention rule keeps: found in batches, oldest first, and never what a legal hold keeps."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select

from turngate.domain.retention import RetentionRule
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.tables import calls, deliveries, delivery_attempts, erasures, errors, holds, runs

BATCH = 200


async def conversations(conn: Connection, rule: RetentionRule, at: datetime, *, but: Collection[str]) -> list[str]:
    """Return the next conversations whose content a rule no longer keeps, at most :data:`BATCH`, without ``but``."""
    query = _conversations(rule, at).where(runs.c.conversation_id.not_in(but))
    return list((await conn.execute(query.limit(BATCH))).scalars())


async def count(conn: Connection, rule: RetentionRule, at: datetime) -> int:
    """Return how much a rule no longer keeps: conversations, or rows."""
    query = _conversations(rule, at) if rule.kind in {"conversations", "results"} else _rows(rule, at)
    return int((await conn.execute(select(func.count()).select_from(query.subquery()))).scalar_one())


async def remove(conn: Connection, rule: RetentionRule, at: datetime) -> int:
    """Remove a batch of errors or notifications, and say so in the log; returns how many. Last in the transaction."""
    ids = list((await conn.execute(_rows(rule, at).limit(BATCH))).scalars())
    if not ids:
        return 0
    if rule.kind == "notifications":
        await conn.execute(delete(delivery_attempts).where(delivery_attempts.c.delivery_id.in_(ids)))
        await conn.execute(delete(deliveries).where(deliveries.c.id.in_(ids)))
    else:
        await conn.execute(delete(errors).where(errors.c.id.in_(ids)))
    applied = {"rule": rule.name, "kind": rule.kind, "rows": len(ids), "before": as_text(at - rule.keep)}
    await events.append(conn, events.SYSTEM, [("retention.applied", applied)])
    return len(ids)


def _rows(rule: RetentionRule, at: datetime) -> Select[tuple[str]]:
    before = as_text(at - rule.keep)
    if rule.kind == "notifications":
        ended = deliveries.c.ended_at.is_not(None), deliveries.c.created_at < before
        return select(deliveries.c.id).where(*ended).order_by(deliveries.c.created_at, deliveries.c.id)
    query = select(errors.c.id).join(runs, runs.c.id == errors.c.run_id, isouter=True)
    free = or_(runs.c.id.is_(None), ~_held())
    if rule.agent is not None:
        query = query.where(runs.c.agent == rule.agent)
    return query.where(errors.c.created_at < before, free).order_by(errors.c.created_at, errors.c.id)


def _conversations(rule: RetentionRule, at: datetime) -> Select[tuple[str]]:
    """Build the query: all runs of the conversation ended before, none is held, and nothing of it was erased by the rule."""
    ended = func.max(runs.c.ended_at)
    gone = select(erasures.c.conversation_id).where(or_(erasures.c.what == "all", erasures.c.rule == rule.name))
    query = (
        select(runs.c.conversation_id)
        .where(runs.c.parent_run_id.is_(None), runs.c.conversation_id.not_in(gone))
        .group_by(runs.c.conversation_id)
        .having(func.count() == func.count(runs.c.ended_at), ended < as_text(at - rule.keep))
        .order_by(ended, runs.c.conversation_id)
    )
    under_hold = select(runs.c.conversation_id).where(_held())
    query = query.where(runs.c.conversation_id.not_in(under_hold))
    if rule.kind == "results":
        with_result = select(runs.c.conversation_id).join(calls, calls.c.run_id == runs.c.id)
        with_result = with_result.where(calls.c.result.is_not(None))
        if rule.tools is not None:
            with_result = with_result.where(calls.c.tool_name.in_(rule.tools))
        query = query.where(runs.c.conversation_id.in_(with_result))
    if rule.agent is not None:
        of_agent = runs.alias("of_agent")
        others = select(of_agent.c.conversation_id).where(of_agent.c.agent == rule.agent)
        query = query.where(runs.c.conversation_id.in_(others))
    return query


def _held() -> ColumnElement[bool]:
    """Return whether a legal hold keeps a run's conversation, or everything of its agent."""
    on_run = or_(
        and_(holds.c.kind == "conversation", holds.c.target == runs.c.conversation_id),
        and_(holds.c.kind == "agent", holds.c.target == runs.c.agent),
    )
    return select(holds.c.id).where(on_run, holds.c.removed_at.is_(None)).correlate(runs).exists()
