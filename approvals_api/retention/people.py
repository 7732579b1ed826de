"""Erasing what is stored of a person beside the log: account, ways to log in, and what they had set for themselves.

Their name stays in decisions and in the audit log, whose chain can't change (docs/adr/0056-names-of-people.md). So does the row
of their account, empty and disabled, or someone else could take the name and with it what the name has decided.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Table, delete, func, select, update

from approvals_api.retention.erase import checked_reason
from turngate.domain.errors import NotFoundError
from turngate.store.access import users
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.tables import api_tokens, login_links, push_subscriptions, saved_views, sessions
from turngate.store.tables import users as users_table


async def preview_person(database: Database, name: str) -> dict[str, int]:
    """Return what would be removed, by kind. Raises NotFoundError when nothing is stored under the name."""
    async with database.read() as conn:
        counts = await _counts(conn, await _stored_name(conn, name))
    if not counts:
        raise NotFoundError(f"nothing is stored under the name {name!r}: `turngate user list` lists users")
    return counts


async def erase_person(database: Database, name: str, *, by: str, reason: str, scrub: bool = True) -> dict[str, int]:
    """Remove what is stored of a person, and return what was removed, by kind. Safe to repeat.

    Raises NotFoundError when nothing is stored under the name, ConflictError for the last admin, InvalidInputError for a reason
    that is empty or too long.
    """
    checked_reason(reason)
    await preview_person(database, name)
    async with database.write() as conn:
        user = await users.user_called(conn, name)
        stored = name if user is None else user.name
        counts = await _counts(conn, stored)
        if user is not None:
            await users.set_disabled(conn, stored, disabled=True, by=by)
            emptied = {"password_hash": None, "email": "", "oidc_issuer": None, "oidc_subject": None}
            await conn.execute(update(users_table).where(users_table.c.name == stored).values(**emptied))
        for table, own in _rows(stored).values():
            await conn.execute(delete(table).where(own))
        payload = {"name": stored, "by": by, "why": reason, "counts": counts}
        await events.append(conn, events.SYSTEM, [("person.erased", payload)])
    if scrub:
        await database.scrub()
    return counts


async def _stored_name(conn: Connection, name: str) -> str:
    user = await users.user_called(conn, name)
    return name if user is None else user.name


def _rows(name: str) -> dict[str, tuple[Table, ColumnElement[bool]]]:
    return {
        "sessions": (sessions, sessions.c.operator == name),
        "login links": (login_links, login_links.c.operator == name),
        "API tokens": (api_tokens, api_tokens.c.owner == name),
        "browsers to notify": (push_subscriptions, push_subscriptions.c.person == name),
        "saved views": (saved_views, saved_views.c.owner == name),
    }


async def _counts(conn: Connection, name: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    account = select(func.count()).select_from(users_table)
    is_there = (
        (users_table.c.email != "") | users_table.c.password_hash.is_not(None) | users_table.c.disabled_at.is_(None)
    )
    accounts = int((await conn.execute(account.where(users_table.c.name == name, is_there))).scalar_one())
    if accounts:
        counts["accounts"] = accounts
    for kind, (table, own) in _rows(name).items():
        number = int((await conn.execute(select(func.count()).select_from(table).where(own))).scalar_one())
        if number:
            counts[kind] = number
    return counts
