"""Browsers that people have notified: where a message to one goes, and which requests it announces."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import RowMapping, bindparam, delete, func, insert, literal, select, update

from turngate.domain.identity import name_key
from turngate.domain.policy.terms import Role
from turngate.store import sequences
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import deliveries, events
from turngate.store.sequences import Numbered
from turngate.store.tables import notification_cursors, push_subscriptions, users

MAX_PER_PERSON: Final = 10
MAX_USER_AGENT_CHARS: Final = 300

EndReason = Literal["removed", "logged_out", "sessions_ended", "gone"]

_ALL = select(push_subscriptions, users.c.role.label("user_role"), users.c.disabled_at).select_from(
    push_subscriptions.outerjoin(users, users.c.name == push_subscriptions.c.person)
)
_BY_ID = _ALL.where(push_subscriptions.c.id == bindparam("of_id"))
_ANY = select(literal(1)).select_from(push_subscriptions).limit(1)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a browser's messages go, as its push service says. ``p256dh``, ``auth``: its keys in base64url (RFC 8291)."""

    endpoint: str
    p256dh: str
    auth: str


@dataclass(frozen=True, kw_only=True)
class NewSubscription:
    """A browser to notify. ``role``: of a person who is no stored user. ``wanted``: JSON of what it announces."""

    person: str
    role: Role
    address: Address
    wanted: str
    user_agent: str = ""


@dataclass(frozen=True, kw_only=True)
class PushSubscription:
    """A browser that is notified. ``role``: its person's as it is now; None: they are disabled."""

    id: str
    person: str
    role: Role | None
    address: Address
    wanted: str
    user_agent: str
    created_at: str


async def any_there(conn: Connection) -> bool:
    """Tell whether any browser is to be notified at all."""
    return (await conn.execute(_ANY)).one_or_none() is not None


async def every(conn: Connection, person: str | None = None) -> list[PushSubscription]:
    """Return the browsers, oldest first; of one person, or of everyone."""
    query = _ALL if person is None else _ALL.where(push_subscriptions.c.person == person)
    rows = await conn.execute(query.order_by(push_subscriptions.c.created_at, push_subscriptions.c.id))
    return [_subscription(row) for row in rows.mappings()]


async def get(conn: Connection, subscription_id: str) -> PushSubscription | None:
    """Return one browser, or None."""
    row = (await conn.execute(_BY_ID, {"of_id": subscription_id})).mappings().one_or_none()
    return None if row is None else _subscription(row)


async def put(conn: Connection, new: NewSubscription, *, channel: str) -> PushSubscription | None:
    """Store a browser, in place of what it had wanted before; None when the person has :data:`MAX_PER_PERSON` others.

    A browser that another person used is this person's from now on. The first one of all lets ``channel`` begin with the
    events from now on.

    Raises IntegrityError when the same browser is stored at the same moment.
    """
    await _lock(conn)
    row = {
        "person": new.person,
        "role": new.role,
        "p256dh": new.address.p256dh,
        "auth": new.address.auth,
        "wanted": new.wanted,
        "user_agent": new.user_agent[:MAX_USER_AGENT_CHARS],
    }
    here = push_subscriptions.c.endpoint == new.address.endpoint
    held = select(func.count()).where(push_subscriptions.c.person == new.person, ~here)
    if int((await conn.execute(held)).scalar_one()) >= MAX_PER_PERSON:
        return None
    if not await any_there(conn):
        await conn.execute(delete(notification_cursors).where(notification_cursors.c.channel == channel))
        await deliveries.begin(conn, channel, await events.last_seq(conn))
    subscription_id = (
        await conn.execute(update(push_subscriptions).where(here).values(**row).returning(push_subscriptions.c.id))
    ).scalar_one_or_none()
    if subscription_id is None:
        subscription_id = f"psh_{secrets.token_hex(12)}"
        await conn.execute(
            insert(push_subscriptions).values(
                id=subscription_id, endpoint=new.address.endpoint, created_at=as_text(now()), **row
            )
        )
    return await get(conn, subscription_id)


async def remove(conn: Connection, subscription_id: str, *, reason: EndReason, of: str | None = None) -> bool:
    """Remove a browser; returns whether there was one. ``of``: only if it is this person's. Call it last."""
    await _lock(conn)
    which = push_subscriptions.c.id == subscription_id
    if of is not None:
        which &= push_subscriptions.c.person == of
    gone = delete(push_subscriptions).where(which).returning(push_subscriptions.c.person)
    person = (await conn.execute(gone)).scalar_one_or_none()
    if person is not None:
        await events.append(conn, events.SYSTEM, [_ended(subscription_id, by=person, reason=reason)])
    return person is not None


async def remove_all(conn: Connection, person: str, *, by: str, but: str | None = None) -> Sequence[events.NewEvent]:
    """Remove a person's browsers, however the name is spelled, ``but`` one; returns the events for the caller to append."""
    key = name_key(person)
    rows = (await conn.execute(select(push_subscriptions.c.id, push_subscriptions.c.person))).all()
    ending = [row.id for row in rows if row.id != but and name_key(row.person) == key]
    if ending:
        await conn.execute(delete(push_subscriptions).where(push_subscriptions.c.id.in_(ending)))
    return [_ended(each, by=by, reason="sessions_ended") for each in ending]


async def _lock(conn: Connection) -> None:
    """Take the lock that every appended event takes, before any other, as logins do: else two of them may deadlock."""
    await sequences.take(conn, Numbered.EVENTS, 0)


def _ended(subscription_id: str, *, by: str, reason: EndReason) -> events.NewEvent:
    return "notification.unsubscribed", {"subscription_id": subscription_id, "by": by, "reason": reason}


def _subscription(row: RowMapping) -> PushSubscription:
    role = row["role"] if row["user_role"] is None else row["user_role"]
    return PushSubscription(
        id=row["id"],
        person=row["person"],
        role=role if row["disabled_at"] is None else None,
        address=Address(endpoint=row["endpoint"], p256dh=row["p256dh"], auth=row["auth"]),
        wanted=row["wanted"],
        user_agent=row["user_agent"],
        created_at=row["created_at"],
    )
