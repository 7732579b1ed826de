"""Applying the retention rules: what would go, and its going, by command and in a loop of the API.

It works in small batches, each whole, and rests between them: so the inbox does not wait for it. One
process at a time does it (:mod:`turngate.store.retention.retention_runs`); if it is killed, another one continues there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from turngate.approvals_api.retention.erase import ErasureOrder, erase
from turngate.approvals_api.settings import RetentionSettings
from turngate.domain.errors import ConfigurationError, ConflictError, UnavailableError
from turngate.domain.retention import OF_CONVERSATIONS, RetentionRule, read_retention
from turngate.store.clock import from_text, now
from turngate.store.database import Connection, Database
from turngate.store.live import deltas, progress
from turngate.store.retention import erasures, expire, retention_runs
from turngate.store.retention.erasures import What, Wish
from turngate.store.retention.retention_runs import HOLD_FOR, RetentionRun
from turngate.text_files import NotTextError, read_text, why_unreadable

logger = logging.getLogger(__name__)

BY_ITSELF: Final = "retention"
"""Who erases, in the log, when no one gave a command."""
LOOK_AGAIN: Final = timedelta(seconds=60)
"""How often a process looks whether it is time, or whether the one that was working is dead."""
NOTE_EVERY: Final = 5.0
"""Seconds of work without an erasure, after which the place is noted."""
REST: Final = 2.0
"""In the loop of the API, a rest after each batch is so many times as long as the batch took."""
MOST_REST: Final = 0.25
"""Seconds."""
MOST_COUNTED: Final = 10_000
"""A preview counts no further."""
RELEASE_WITHIN: Final = 1.0


def read_rules(file: Path) -> list[RetentionRule]:
    """Return the rules of a retention file. Raises ConfigurationError."""
    try:
        text = read_text(file)
    except (OSError, NotTextError) as error:
        raise ConfigurationError(
            f"the retention file {file} cannot be read ({why_unreadable(error)}): name one, or set TURNGATE_RETENTION"
        ) from None
    return read_retention(text, file=str(file))


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a rule would erase: so many conversations or rows. ``is_all`` False: there may be more."""

    rule: RetentionRule
    count: int
    is_all: bool


async def preview(database: Database, rules: Sequence[RetentionRule], at: datetime) -> dict[str, int]:
    """Return rule → how much it no longer keeps, at most :data:`MOST_COUNTED`: conversations, or rows. Changes nothing."""
    return {rule.name: (await forecast(database, rule, at)).count for rule in rules}


async def forecast(database: Database, rule: RetentionRule, at: datetime, *, within: float | None = None) -> Forecast:
    """Return what a rule would erase now. ``within``: look for so many seconds at most."""
    if rule.kind not in OF_CONVERSATIONS:
        async with database.read() as conn:
            many = await expire.count(conn, rule, at, limit=MOST_COUNTED)
        return Forecast(rule=rule, count=many, is_all=many < MOST_COUNTED)
    began, total, place = time.monotonic(), 0, ""
    while True:
        async with database.read() as conn:
            expired, following = await expire.conversations(conn, rule, at, after=place)
        total += len(expired)
        if following is None:
            return Forecast(rule=rule, count=total, is_all=True)
        if total >= MOST_COUNTED or (within is not None and time.monotonic() - began > within):
            return Forecast(rule=rule, count=total, is_all=False)
        place = following
        await asyncio.sleep(0)


async def run(database: Database, rules: Sequence[RetentionRule], at: datetime, *, by: str) -> dict[str, int]:
    """Erase what the rules no longer keep, and return rule → how much went. Safe to repeat, and to kill at any instant.

    A conversation whose forks are younger stays until they go, too. The database's files are rewritten at the end if
    anything went. Raises ConflictError ``retention_running`` while another process does it.
    """
    begun = await retention_runs.begin(database, secrets.token_hex(8), by=by)
    if begun is None:
        raise _elsewhere()
    done = await _Application(database=database, rules=rules, at=at, by=by, run=begun).apply()
    if any(done.values()):
        await database.scrub()
    return done


async def keep_retention(
    database: Database, settings: RetentionSettings | None, *, hold_for: timedelta = HOLD_FOR
) -> None:
    """Apply the rules in a loop, when it is time. Runs until it is cancelled; returns at once where nothing is to be done.

    The file is read each time, so that a change needs no restart.
    """
    if settings is None or settings.every is None:
        return
    own_id = secrets.token_hex(8)
    try:
        while True:
            pause = await _next_pause(database, settings, own_id, hold_for)
            await asyncio.sleep(min(pause, LOOK_AGAIN, hold_for).total_seconds())
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(RELEASE_WITHIN), database.write() as conn:
                await retention_runs.release(conn, own_id)


async def _next_pause(database: Database, settings: RetentionSettings, own_id: str, hold_for: timedelta) -> timedelta:
    try:
        due = await next_at(database, settings)
        if due is not None and due > now():
            return due - now()
        rules = await asyncio.to_thread(read_rules, settings.file)
        begun = await retention_runs.begin(database, own_id, by=BY_ITSELF, hold_for=hold_for)
        if begun is None:
            return LOOK_AGAIN
        work = _Application(
            database=database, rules=rules, at=now(), by=BY_ITSELF, run=begun, hold_for=hold_for, rest=REST
        )
        done = await work.apply()
        await _sweep(database)
        gone = ", ".join(f"{name}: {many}" for name, many in done.items() if many)
        logger.info("retention was applied: %s", gone or "nothing was old enough")
    except (UnavailableError, ConflictError) as error:
        logger.warning("retention is applied later: %s", error.message)
    except ConfigurationError as error:
        logger.warning("retention is not applied: %s", error.message)
    except Exception:
        logger.exception("retention broke off, and is continued later")
    return LOOK_AGAIN


async def next_at(database: Database, settings: RetentionSettings) -> datetime | None:
    """Return when the rules are applied next by themselves; an instant in the past: now. None: never."""
    if settings.every is None:
        return None
    async with database.glance() as conn:
        newest = await retention_runs.newest(conn, limit=1)
    if not newest:
        return now()
    (last,) = newest
    if last.ended_at is None:
        return from_text(last.held_until) if last.is_held(now()) else now()
    return from_text(last.started_at) + settings.every


async def _sweep(database: Database) -> None:
    """Delete what watchers had to read, where no worker has done so."""
    for live_rows in (deltas, progress):
        async with database.write() as conn:
            await live_rows.sweep(conn)


def _elsewhere() -> ConflictError:
    return ConflictError(
        "Another process is applying the retention rules now. `turngate retention` shows how far it is.",
        code="retention_running",
    )


@dataclass(kw_only=True)
class _Application:
    """The rules as this process applies them. ``rest``: how long to rest after a batch, in times of what it took."""

    database: Database
    rules: Sequence[RetentionRule]
    at: datetime
    by: str
    run: RetentionRun
    hold_for: timedelta = HOLD_FOR
    rest: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    noted: float = field(default_factory=time.monotonic)

    async def apply(self) -> dict[str, int]:
        """Apply every rule, from where the run is, and end the run. Returns rule → how much went."""
        self.done = {rule.name: 0 for rule in self.rules} | self.run.counted
        names = [rule.name for rule in self.rules]
        first = names.index(self.run.rule) if self.run.rule in names else 0
        for rule in self.rules[first:]:
            if rule.kind in OF_CONVERSATIONS:
                await self._walk(rule, self.run.place if rule.name == self.run.rule else "")
            else:
                await self._remove(rule)
        problem = f"{len(self.failed)} conversation(s) could not be erased: {self.failed[0]}" if self.failed else ""
        async with self.database.write() as conn:
            await self._keep(conn, "", "")
            await retention_runs.end(conn, self.run, problem=problem)
        return self.done

    async def _remove(self, rule: RetentionRule) -> None:
        while True:
            began = time.monotonic()
            async with self.database.write() as conn:
                await self._keep(conn, rule.name, "")
                removed = await expire.remove(conn, rule, self.at)
                self.done[rule.name] += removed
                await self._keep(conn, rule.name, "")
            if not removed:
                return
            await self._pause(began)

    async def _walk(self, rule: RetentionRule, place: str | None) -> None:
        while place is not None:
            began = time.monotonic()
            async with self.database.read() as conn:
                expired, following = await expire.conversations(conn, rule, self.at, after=place)
            await self._pause(began)
            for conversation_id in expired:
                began = time.monotonic()
                erased = await self._erased(rule, conversation_id)
                self.done[rule.name] += erased
                if erased or time.monotonic() - self.noted > NOTE_EVERY:
                    await self._note(rule, place)
                await self._pause(began)
            place = following
            if place is not None and time.monotonic() - self.noted > NOTE_EVERY:
                await self._note(rule, place)

    async def _erased(self, rule: RetentionRule, conversation_id: str) -> int:
        """Erase one conversation; returns 1 if anything went. One that can't be erased keeps no other one."""
        try:
            return await _erase_one(self.database, rule, conversation_id, self.by)
        except UnavailableError:
            raise
        except Exception:
            logger.exception("%s could not be erased by the retention rule %r", conversation_id, rule.name)
            self.failed.append(conversation_id)
            return 0

    async def _note(self, rule: RetentionRule, place: str) -> None:
        async with self.database.write() as conn:
            await self._keep(conn, rule.name, place)

    async def _keep(self, conn: Connection, rule: str, place: str) -> None:
        """Hold the run further, with how far it is. Raises ConflictError if another process has taken it."""
        moved = await retention_runs.keep(
            conn, self.run, counts=self.done, rule=rule, place=place, hold_for=self.hold_for
        )
        if moved is None:
            raise _elsewhere()
        self.run, self.noted = moved, time.monotonic()

    async def _pause(self, began: float) -> None:
        await asyncio.sleep(min((time.monotonic() - began) * self.rest, MOST_REST))


async def _erase_one(database: Database, rule: RetentionRule, conversation_id: str, by: str) -> int:
    reason = f"kept for {rule.keep.days or rule.keep} day(s) by retention.toml"
    if rule.kind == "conversations":
        order = ErasureOrder(target=conversation_id, by=by, reason=reason, scrub=False, rule=rule.name)
        try:
            return len((await erase(database, order)).erasures) and 1
        except ConflictError:  # a fork, a hold or a run that began meanwhile: it is tried again next time
            return 0
    what: What = "results" if rule.kind == "results" else "previews"
    wish = Wish(by=by, reason=reason, what=what, rule=rule.name, tools=rule.tools)
    async with database.read() as conn:
        reached = await erasures.reach(conn, conversation_id)
        changed = await erasures.evidence_of(conn, reached.runs)
    async with database.write() as conn:
        if (await erasures.reach(conn, conversation_id)).live or await erasures.holds_on(conn, reached):
            return 0
        return int(await erasures.erase(conn, conversation_id, wish, changed=changed) is not None)
