"""People: the one table with their names. Every other row, and the log, names them by id.

A person's id is random and never changes (docs/adr/0056).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, insert, select, update

from turngate.domain.identity import checked_name, looks_like_id, name_key
from turngate.domain.person_ids import ERASED_PREFIX, is_person_id
from turngate.domain.policy.policy import Policy
from turngate.domain.policy.terms import person_of
from turngate.store import sequences
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.sequences import Numbered
from turngate.store.tables import (
    api_tokens,
    people,
    people_version,
)
from turngate.wire import people as shown_people

ID_DIGITS: Final = 16
VERSION: Final = select(people_version.c.version).scalar_subquery()
"""How often the table of people changed, as a part of a query."""


@dataclass(frozen=True, kw_only=True)
class PersonRow:
    """One person. ``name`` None: erased."""

    id: str
    name: str | None
    created_at: str
    erased_at: str | None


async def find(conn: Connection, name: str) -> PersonRow | None:
    """Return the person of this name, however it is spelled, or of this id; None: no one has it, or they were erased.

    The same spelling wins: names that differ in case only could be those of two people before.
    """
    own = [each for each in (await conn.execute(select(people))).mappings() if each["name"] is not None]
    if is_person_id(name):
        matching = [each for each in own if each["id"] == name]
    else:
        key = name_key(name)
        matching = [each for each in own if name_key(each["name"]) == key]
        matching.sort(key=lambda each: each["name"] != name)
    return PersonRow(**matching[0]) if matching else None


async def every(conn: Connection) -> list[PersonRow]:
    """Return everyone, by name; the erased last."""
    rows = (await conn.execute(select(people))).mappings()
    return sorted((PersonRow(**each) for each in rows), key=lambda each: (each.name is None, each.name or each.id))


async def id_of(conn: Connection, name: str) -> str:
    """Return what rows call the person of this name; the name itself where the table doesn't know it."""
    person = await find(conn, name)
    return name if person is None else person.id


async def take_id(conn: Connection, name: str) -> str:
    """Return what rows are to call the person of this name; a new person is added. In a write transaction.

    ``name``: checked, or the operating system's. Raises InvalidInputError for a name that looks like an id.
    """
    if looks_like_id(name):
        checked_name(name)
    await sequences.take(conn, Numbered.EVENTS, 0)  # as lock_identities: no one else adds the same person now
    person = await find(conn, name)
    return (await _add(conn, f"p-{secrets.token_hex(ID_DIGITS // 2)}", name)) if person is None else person.id


async def erase(conn: Connection, person: str) -> bool:
    """Remove a person's name; False: they have none any more."""
    named = (people.c.id == person) & people.c.name.is_not(None)
    gone = update(people).where(named).values(name=None, erased_at=as_text(now()))
    if (await conn.execute(gone)).rowcount == 0:
        return False
    await _count_change(conn)
    shown_people.keep({person: None})
    return True


async def newer_than_erased(conn: Connection, names: Iterable[str]) -> frozenset[str]:
    """Return who got their id after one of these people was erased: each could be that human again. Empty mostly."""
    ids = {person_of(each) for each in names if is_person_id(person_of(each))}
    if not ids:
        return frozenset()
    first = (await conn.execute(select(func.min(people.c.erased_at)).where(people.c.id.in_(ids)))).scalar_one()
    if first is None:
        return frozenset()
    return frozenset((await conn.execute(select(people.c.id).where(people.c.created_at >= first))).scalars())


async def learn(conn: Connection) -> None:
    """Read the names that this process shows."""
    rows = await conn.execute(select(people.c.id, people.c.name).order_by(people.c.created_at.desc()))
    shown_people.keep({row.id: row.name for row in rows})


async def refresh(database: Database, version: int) -> None:
    """Read the names again if another process has changed them. ``version``: of the table, as a query just read it."""
    if shown_people.MEMORY.read_at.get(database) == version:
        return
    async with database.glance() as conn:
        await learn(conn)
    shown_people.MEMORY.read_at[database] = version


async def look_again(database: Database) -> None:
    """Read the names again if they have changed; for a process that answers no request just now."""
    async with database.glance() as conn:
        version = (await conn.execute(select(VERSION))).scalar_one()
    await refresh(database, version)


async def ids_for_policy(conn: Connection, policy: Policy) -> dict[str, str]:
    """Return name → id of the people whom rules name, without those who are named as rows name them. In a write transaction.

    People who never logged in are added, so the rule counts when they do. A program keeps its name. Raises InvalidInputError for
    a name that looks like an id and is none, or that is shown of erased people.
    """
    named = policy.people
    if not named:
        return {}
    tokens = select(api_tokens.c.name).where(api_tokens.c.owner.is_(None), api_tokens.c.revoked_at.is_(None))
    programs = {name_key(each) for each in (await conn.execute(tokens)).scalars()}
    ids = {}
    for name in sorted(named):
        person = person_of(name)
        if name_key(name) in programs or (is_person_id(person) and await _is_known(conn, person)):
            continue
        if name_key(person).startswith(ERASED_PREFIX):
            checked_name(person)
        ids[name] = name.replace(person, await take_id(conn, person))
    return ids


async def policy_by_ids(conn: Connection, policy: Policy) -> Policy:
    """Return a policy that names people as rows do. As :func:`ids_for_policy`."""
    ids = await ids_for_policy(conn, policy)
    return policy.with_people(ids) if ids else policy


async def _is_known(conn: Connection, person: str) -> bool:
    return (await conn.execute(select(people.c.id).where(people.c.id == person))).first() is not None


async def _add(conn: Connection, person: str, name: str) -> str:
    await conn.execute(insert(people).values(id=person, name=name, created_at=as_text(now()), erased_at=None))
    await _count_change(conn)
    shown_people.keep({person: name})
    return person


async def _count_change(conn: Connection) -> None:
    await conn.execute(update(people_version).values(version=people_version.c.version + 1))
