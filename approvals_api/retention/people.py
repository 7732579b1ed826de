"""Erasing a person: their name, their account, ways to log in, and what they had set for themselves.

Rows and the log name a person by an id, which stays; the name goes from the one table that has it (docs/adr/0056). The row of
an account stays, too, empty and disabled: no one else may take the id, and with it what the person has decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, delete, func, or_, select, update

from turngate.approvals_api.retention.erase import checked_reason
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError
from turngate.domain.identity import name_key
from turngate.domain.policy.terms import OWNERS_PREFIX, names_of
from turngate.store.access import people, users
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.tables import (
    api_tokens,
    approvals,
    login_links,
    policy_proposals,
    queued_messages,
    requests,
    runs,
    schedules,
    sessions,
)
from turngate.store.tables import people as people_table
from turngate.store.tables import users as users_table


@dataclass(frozen=True, kw_only=True)
class PersonErasure:
    """What goes of a person. ``counts``: how many rows, by kind. ``says``: what happens to the name, in a sentence."""

    counts: Mapping[str, int]
    says: str = "Decisions and the audit log have an id instead of the name, so it is gone with this."


async def preview_person(database: Database, name: str) -> PersonErasure:
    """Return what would be removed. Raises NotFoundError when nothing is stored under the name."""
    async with database.read() as conn:
        person = await _id_of(conn, name)
        counts = await _counts(conn, person)
    if not counts:
        raise NotFoundError(f"nothing is stored under the name {name!r}: `turngate user list` lists users")
    return PersonErasure(counts=counts)


async def erase_person(database: Database, name: str, *, by: str, reason: str, scrub: bool = True) -> PersonErasure:
    """Remove what is stored of a person, and return what was removed. Safe to repeat.

    ``name``: in any spelling, or the id.

    Raises:
        NotFoundError: nothing is stored under the name.
        InvalidInputError: the reason is empty or too long, or has the name: the log would keep it.
        ConflictError: ``person_involved``: something waits that the person may not decide alone. Under a new account no one could
            tell that it is the same human.
    """
    checked_reason(reason)
    await preview_person(database, name)
    async with database.write() as conn:
        await users.lock_identities(conn)
        person = await _id_of(conn, name)
        row = await people.find(conn, person)
        if row is not None and row.name is not None:
            _require_unnamed(reason, row.name)
            await _require_uninvolved(conn, person)
        counts, digests = await _counts(conn, person), dict[str, Any]()
        if (await users.user_called(conn, person)) is not None:
            await users.set_disabled(conn, person, disabled=True, by=by)
            emptied = {"password_hash": None, "email": "", "oidc_issuer": None, "oidc_subject": None, "nonce": ""}
            await conn.execute(update(users_table).where(users_table.c.name == person).values(**emptied))
            digests = users.digests_of(users.User(name=person, role="viewer"))
        for table, own in _rows(person).values():
            await conn.execute(delete(table).where(own))
        await people.erase(conn, person)
        payload = {"name": person, "by": by, "why": reason, "counts": counts, **digests}
        await events.append(conn, events.SYSTEM, [("person.erased", payload)])
    if scrub:
        await database.scrub()
    return PersonErasure(counts=counts)


def _require_unnamed(reason: str, name: str) -> None:
    if name_key(name) in name_key(reason):
        message = "the reason has the person's name, and the audit log would keep it: say it without"
        raise InvalidInputError(message, errors=[{"pointer": "/reason", "message": message}])


async def _require_uninvolved(conn: Connection, person: str) -> None:
    """Raise ConflictError while a new account of the same human could be the other pair of eyes that a rule wants."""
    waiting = []
    for what, query in _involved(names_of(person)).items():
        number = int((await conn.execute(select(func.count()).select_from(query.subquery()))).scalar_one())
        if number:
            waiting.append(f"{number:,} {what}")
    if waiting:
        raise ConflictError(
            f"this person has {', '.join(waiting)}. With a new account they could decide about it as someone else: "
            "end or delete that first, then erase them",
            code="person_involved",
        )


def _involved(names: tuple[str, str]) -> dict[str, Select[tuple[str]] | Select[tuple[int]]]:
    """Return what waits, in words → its query. Ordered for a live run counts like started."""
    started = runs.alias()
    own = select(started.c.id).where(started.c.started_by.in_(names))
    around = select(started.c.conversation_id).where(
        or_(
            started.c.started_by.in_(names),
            started.c.id.in_(select(queued_messages.c.run_id).where(queued_messages.c.sent_by.in_(names))),
        )
    )
    ordered = or_(
        runs.c.conversation_id.in_(around),
        runs.c.model_chosen_by.in_(names),
        runs.c.forked_from_run_id.in_(own),
        runs.c.parent_run_id.in_(own),
    )
    pending = select(requests.c.id).where(requests.c.status == "pending")
    return {
        "live run(s)": select(runs.c.id).where(runs.c.status == "running", ordered),
        "schedule(s)": select(schedules.c.id).where(
            schedules.c.created_by.in_(names), schedules.c.deleted_at.is_(None)
        ),
        "approval(s) of requests that wait for another": select(approvals.c.request_id).where(
            approvals.c.decided_by.in_(names), approvals.c.request_id.in_(pending)
        ),
        "proposed change(s) of rules": select(policy_proposals.c.number).where(
            policy_proposals.c.proposed_by.in_(names), policy_proposals.c.outcome.is_(None)
        ),
    }


async def _id_of(conn: Connection, name: str) -> str:
    user = await users.user_called(conn, name)
    return await people.id_of(conn, name) if user is None else user.name


def _rows(name: str) -> dict[str, tuple[Table, ColumnElement[bool]]]:
    return {
        "sessions": (sessions, sessions.c.operator == name),
        "login links": (login_links, login_links.c.operator == name),
        # Their terminal's token, too: it would continue to act under the id that they no longer have.
        "API tokens": (
            api_tokens,
            (api_tokens.c.owner == name) | (api_tokens.c.name == f"{OWNERS_PREFIX}{name}"),
        ),
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
    named = select(func.count()).select_from(people_table)
    named = named.where(people_table.c.id == name, people_table.c.name.is_not(None))
    if (await conn.execute(named)).scalar_one():
        counts["names"] = 1
    for kind, (table, own) in _rows(name).items():
        number = int((await conn.execute(select(func.count()).select_from(table).where(own))).scalar_one())
        if number:
            counts[kind] = number
    return counts
