"""What a restore would bring back: rights that were taken away after the backup. A log from then says which; it is applied again.

Sessions and log-in links of the backup end in any case, and notifications that waited then are not sent: they may have been.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqlalchemy import delete, select

from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.policy.terms import Role
from turngate.domain.runs.event_chain import ChainedEvent
from turngate.store.access import people, sessions, tokens, users
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import deliveries, events
from turngate.store.events.counts import payload_of
from turngate.store.policy import grants
from turngate.store.schedules import schedules
from turngate.store.tables import api_tokens, login_links
from turngate.wire.people import display_name

ERASURES: Final = ("conversation.erased", "person.erased")


@dataclass
class SinceBackup:
    """What happened to rights after a backup, by a log that continues after it. Give it those events, in order.

    ``roles``, ``disabled``: by user. ``tokens``, ``grants``: those that were revoked. ``schedules``: those that were paused or
    deleted, by id. ``erasures``: events that say so, which have to be repeated by a person.
    """

    roles: dict[str, Role] = field(default_factory=dict)
    disabled: dict[str, bool] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    grants: list[str] = field(default_factory=list)
    schedules: dict[str, str] = field(default_factory=dict)
    erasures: int = 0

    @property
    def gone_users(self) -> list[str]:
        """Users who are disabled at the end of the log."""
        return [name for name, disabled in self.disabled.items() if disabled]

    @property
    def stopped(self) -> dict[str, str]:
        """Schedules that are paused or deleted at its end."""
        return {schedule_id: what for schedule_id, what in self.schedules.items() if what != "resumed"}

    def add(self, event: ChainedEvent) -> None:
        """Take the next event."""
        payload = payload_of(event)
        match event.type:
            case "user.changed" if "role" in payload:
                self.roles[payload["name"]] = payload["role"]
            case "user.disabled" | "user.enabled":
                self.disabled[payload["name"]] = event.type == "user.disabled"
            case "token.revoked":
                self.tokens[payload["token_id"]] = payload["name"]
            case "grant.revoked":
                self.grants.append(payload["grant_id"])
            case "schedule.paused" | "schedule.resumed" | "schedule.deleted":
                self.schedules[payload["schedule_id"]] = event.type.removeprefix("schedule.")
            case _:
                self.erasures += event.type in ERASURES


async def take_away_again(database: Database, since: SinceBackup, *, by: str) -> list[str]:
    """Take away again what the log says, and return what was, in words. Safe to repeat."""
    async with database.read() as conn:
        await people.learn(conn)
    changes: list[tuple[str, Callable[[Connection], Awaitable[object]]]] = [
        *(
            (f"user {display_name(each)} is {role}", partial(users.set_role, name=each, role=role, by=by))
            for each, role in since.roles.items()
        ),
        *(
            (f"user {display_name(each)} is disabled", partial(users.set_disabled, name=each, disabled=True, by=by))
            for each in since.gone_users
        ),
        *(
            (f"token {display_name(name)} ({each}) is revoked", partial(_revoke_token, token_id=each, by=by))
            for each, name in since.tokens.items()
        ),
        *((f"grant {each} is revoked", partial(revoke_grant, grant_id=each, by=by)) for each in since.grants),
        *(
            (f"schedule {each} is {what}", partial(_stop, schedule_id=each, what=what, by=by))
            for each, what in since.stopped.items()
        ),
    ]
    done = []
    for says, change in changes:
        with suppress(NotFoundError, ConflictError):  # it is newer than the backup, or its provider decides about it
            async with database.write() as conn:
                if await change(conn) is not False:
                    done.append(says)
    return done


async def end_log_ins(database: Database, *, by: str) -> int:
    """End every session, with its event, and delete every log-in link. Returns how many sessions there were."""
    async with database.write() as conn:
        await conn.execute(delete(login_links))
        return await sessions.end_all(conn, by=by)


async def take_away_all(database: Database, *, tokens_too: bool, grants_too: bool, by: str) -> Counter[str]:
    """Revoke every token and every active grant of the store, and return how many of each."""
    done: Counter[str] = Counter()
    async with database.read() as conn:
        ids = (await conn.execute(select(api_tokens.c.token_hash).where(api_tokens.c.revoked_at.is_(None)))).scalars()
        token_ids = [each[: tokens.ID_CHARS] for each in ids] if tokens_too else []
        active = [each.id for each in await grants.active(conn)] if grants_too else []
    for each in token_ids:
        async with database.write() as conn:
            done["tokens"] += len(await tokens.revoke(conn, by=by, token_id=each))
    for each in active:
        async with database.write() as conn:
            done["grants"] += await revoke_grant(conn, each, by=by)
    return done


async def forget_past(database: Database) -> int:
    """Let nothing happen once more: notifications that waited in the backup are given up, and no earlier fire counts.

    Returns how many notifications.
    """
    async with database.write() as conn:
        await schedules.skip_past(conn)
        return await deliveries.end_open(conn, last_seq=await events.last_seq(conn), at=now())


async def _revoke_token(conn: Connection, token_id: str, *, by: str) -> bool:
    return bool(await tokens.revoke(conn, by=by, token_id=token_id))


async def revoke_grant(conn: Connection, grant_id: str, *, by: str) -> bool:
    """End a grant, with its event; False: it is not active."""
    if not await grants.revoke(conn, grant_id, by=by):
        return False
    stored = await grants.get(conn, grant_id)
    if stored is not None:
        await events.append(conn, events.SYSTEM, [grants.revoked_event(stored, by=by)])
    return True


async def _stop(conn: Connection, schedule_id: str, what: str, *, by: str) -> bool:
    """Pause or delete a schedule, with its event; False: it is gone already."""
    schedule = await schedules.get(conn, schedule_id, hold=True)
    if schedule is None or schedule.deleted_at is not None or (what == "paused" and schedule.paused_at is not None):
        return False
    ended = {f"{what}_at": as_text(now()), f"{what}_by": by}
    await schedules.change(conn, schedule, **ended)
    payload = {"schedule_id": schedule.id, "name": schedule.name, "by": by}
    await events.append(conn, events.SYSTEM, [(f"schedule.{what}", payload)])
    return True
