"""Applying the retention file: what would go, and its going, in batches that a killed process leaves whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from approvals_api.retention.erase import ErasureOrder, erase
from turngate.domain.errors import ConflictError
from turngate.domain.retention import RetentionRule
from turngate.store.database import Database
from turngate.store.retention import erasures, expire
from turngate.store.retention.erasures import Wish


async def preview(database: Database, rules: Sequence[RetentionRule], at: datetime) -> dict[str, int]:
    """Return rule → how much it no longer keeps: conversations, or rows. Changes nothing."""
    async with database.read() as conn:
        return {rule.name: await expire.count(conn, rule, at) for rule in rules}


async def run(database: Database, rules: Sequence[RetentionRule], at: datetime, *, by: str) -> dict[str, int]:
    """Erase what the rules no longer keep, and return rule → how much went. Safe to repeat, and to kill at any instant.

    A conversation whose forks are younger stays until they go, too. The database's files are rewritten at the end if
    anything went.
    """
    done: dict[str, int] = {}
    for rule in rules:
        by_rule = _remove if rule.kind in {"errors", "notifications"} else _erase
        done[rule.name] = await by_rule(database, rule, at, by)
    if any(done.values()):
        await database.scrub()
    return done


async def _remove(database: Database, rule: RetentionRule, at: datetime, _by: str) -> int:
    total = 0
    while True:
        async with database.write() as conn:
            removed = await expire.remove(conn, rule, at)
        total += removed
        if removed < expire.BATCH:
            return total


async def _erase(database: Database, rule: RetentionRule, at: datetime, by: str) -> int:
    total, tried = 0, set[str]()
    while True:
        async with database.read() as conn:
            expired_ids = await expire.conversations(conn, rule, at, but=tried)
        if not expired_ids:
            return total
        for conversation_id in expired_ids:
            tried.add(conversation_id)
            total += await _erase_one(database, rule, conversation_id, by)


async def _erase_one(database: Database, rule: RetentionRule, conversation_id: str, by: str) -> int:
    reason = f"kept for {rule.keep.days or rule.keep} day(s) by retention.toml"
    if rule.kind == "conversations":
        order = ErasureOrder(target=conversation_id, by=by, reason=reason, scrub=False, rule=rule.name)
        try:
            return len((await erase(database, order)).erasures) and 1
        except ConflictError:  # a fork, a hold or a run that began meanwhile: it is tried again next time
            return 0
    wish = Wish(by=by, reason=reason, what="results", rule=rule.name, tools=rule.tools)
    async with database.read() as conn:
        reached = await erasures.reach(conn, conversation_id)
        changed = await erasures.evidence_of(conn, reached.runs)
    async with database.write() as conn:
        if (await erasures.reach(conn, conversation_id)).live or await erasures.holds_on(conn, reached):
            return 0
        return int(await erasures.erase(conn, conversation_id, wish, changed=changed) is not None)
