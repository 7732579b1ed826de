"""People: the one table with their names. Every other row, and the log, names them by id.

A person's id never changes. Of a person from before ids it is their name, so no row and no digest had to change, and a comparison
never meets a name and an id of one person (docs/adr/0056). New people get random ids in a store that began so
(:func:`begin_with_ids`), and elsewhere once :func:`turn_on` was called.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, insert, select, union, update

from turngate.domain.errors import ConfigurationError, ConflictError
from turngate.domain.identity import checked_name, looks_like_id, name_key
from turngate.domain.person_ids import ERASED_PREFIX, is_person_id
from turngate.domain.policy.policy import Policy, parse_policy
from turngate.domain.policy.terms import OWNERS_PREFIX, person_of
from turngate.store import sequences
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.sequences import Numbered
from turngate.store.tables import (
    api_tokens,
    metadata,
    people,
    people_switch,
    policy_proposals,
    policy_versions,
    published_policies,
    requests,
)
from turngate.store.tables import events as events_table
from turngate.store.tables.content import TEXT_COLUMNS
from turngate.wire import people as shown_people

ID_DIGITS: Final = 16
VERSION: Final = select(people_switch.c.version).scalar_subquery()
"""How often the table of people changed, as a part of a query; NULL: new people get no ids."""


@dataclass(frozen=True, kw_only=True)
class PersonRow:
    """One person. ``name`` None: erased. ``has_id``: the log doesn't have their name."""

    id: str
    name: str | None
    created_at: str
    erased_at: str | None

    @property
    def has_id(self) -> bool:
        """Whether the id says nothing about them."""
        return is_person_id(self.id)


async def is_on(conn: Connection) -> bool:
    """Tell whether new people get ids."""
    return (await conn.execute(select(VERSION))).scalar_one() is not None


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

    Until ids are given out, that is the name. ``name``: checked, or the operating system's.
    Raises InvalidInputError for a name that looks like an id.
    """
    if looks_like_id(name):
        checked_name(name)
    if not await is_on(conn):
        return name
    await sequences.take(conn, Numbered.EVENTS, 0)  # as lock_identities: no one else adds the same person now
    person = await find(conn, name)
    return (await _add(conn, f"p-{secrets.token_hex(ID_DIGITS // 2)}", name)) if person is None else person.id


async def erase(conn: Connection, person: str) -> bool:
    """Remove a person's name; False: their id is the name, or they have none any more."""
    if not is_person_id(person):
        return False
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
    """Read the names that this process shows; cheap where nothing is to be read."""
    if await is_on(conn):
        rows = await conn.execute(select(people.c.id, people.c.name).order_by(people.c.created_at.desc()))
        shown_people.keep({row.id: row.name for row in rows})


async def refresh(database: Database, version: int | None) -> None:
    """Read the names again if another process has changed them. ``version``: of the table, as a query just read it."""
    if version is None or shown_people.MEMORY.read_at.get(database) == version:
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
    if not named or not await is_on(conn):
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


async def is_unused(conn: Connection) -> bool:
    """Tell whether a store has recorded nothing yet, so that no row and no event can have a name."""
    return (await conn.execute(select(events_table.c.seq).limit(1))).first() is None


async def begin_with_ids(conn: Connection) -> None:
    """Give ids to people from the first one on, if the store is unused. In a write transaction. Safe to repeat.

    No event says so: the log of such a store has never had a name.
    """
    await sequences.take(conn, Numbered.EVENTS, 0)  # as lock_identities: no one writes the first event now
    if await is_unused(conn) and not await is_on(conn):
        await _switch_on(conn)


async def turn_on(conn: Connection, *, local_user: str) -> int:
    """Give ids to new people from now on; return how many people keep their names as ids. Safe to repeat.

    Everyone whom a row names keeps the name as id. ``local_user``: whose command does it.

    Raises:
        ConflictError: a row already has a name that looks like an id (``name_looks_like_id``); rules in force can't be read, and
            they could name someone whose name isn't known here (``rules_unreadable``).
    """
    await sequences.take(conn, Numbered.EVENTS, 0)
    if await is_on(conn):
        return 0
    names = await _stored_names(conn)
    alike = sorted(each for each in names if looks_like_id(each))
    if alike:
        raise ConflictError(
            f"{alike[0]!r} is used as a name here, and looks like a person's id: someone could pass for another",
            code="name_looks_like_id",
        )
    at = as_text(now())
    if names:
        rows = [{"id": each, "name": each, "created_at": at, "erased_at": None} for each in sorted(names)]
        await conn.execute(insert(people), rows)
    await _switch_on(conn)
    by = f"{OWNERS_PREFIX}{await take_id(conn, local_user)}"
    await events.append(conn, events.SYSTEM, [("people.ids_turned_on", {"by": by, "kept": len(names)})])
    return len(names)


async def _switch_on(conn: Connection) -> None:
    await conn.execute(insert(people_switch).values(id=1, version=1, since=as_text(now())))


async def _add(conn: Connection, person: str, name: str) -> str:
    await conn.execute(insert(people).values(id=person, name=name, created_at=as_text(now()), erased_at=None))
    await _count_change(conn)
    shown_people.keep({person: name})
    return person


async def _count_change(conn: Connection) -> None:
    await conn.execute(update(people_switch).values(version=people_switch.c.version + 1))


async def _stored_names(conn: Connection) -> set[str]:
    """Return every name by which a row names a person or a token."""
    columns = [
        metadata.tables[table].c[column]
        for table, listed in TEXT_COLUMNS.items()
        for column in listed.people
        if (table, column) not in _OTHER_TEXTS
    ]
    query = union(*(select(each.label("person")).where(each.is_not(None)) for each in [*columns, api_tokens.c.name]))
    names = {person_of(each) for each in (await conn.execute(query)).scalars()}
    names |= await _names_in_policies(conn)
    return names - {""}


_OTHER_TEXTS: Final = {
    ("requests", "terms"),
    ("decisions", "credential"),
    ("idempotent_answers", "principal"),
    ("users", "email"),
    ("users", "oidc_subject"),
    ("people", "name"),
}
"""Columns about people that hold no name alone."""


async def _names_in_policies(conn: Connection) -> set[str]:
    names: set[str] = set()
    newest = select(func.max(policy_versions.c.version)).scalar_subquery()
    versions = select(policy_versions.c.source, (policy_versions.c.version == newest).label("counts"))
    proposals = select(policy_proposals.c.source, policy_proposals.c.outcome.is_(None).label("counts"))
    for stored in [*(await conn.execute(versions)), *(await conn.execute(proposals))]:
        try:
            names |= parse_policy(stored.source, source="stored").people
        except ConfigurationError as error:
            if stored.counts:
                raise _unreadable("the stored rules, or those that wait for a second admin,", error) from None
    for published in await conn.execute(select(published_policies.c.task_queue, published_policies.c.rules)):
        try:
            names |= Policy.model_validate_json(published.rules).people
        except ValueError as error:
            raise _unreadable(f"the rules that a worker on {published.task_queue!r} published", error) from None
    for terms in (await conn.execute(select(requests.c.terms).where(requests.c.status == "pending"))).scalars():
        names |= set(_people_of(json.loads(terms)))
    return names


def _unreadable(what: str, error: Exception) -> ConflictError:
    return ConflictError(
        f"{what} can't be read by this release, so the people named in them aren't known: bring every worker and API to this "
        f"release and store the rules again first ({type(error).__name__})",
        code="rules_unreadable",
    )


def _people_of(terms: Any) -> Iterable[str]:
    for each in [terms, *terms.get("ladder", [])]:
        yield from each.get("people", [])
