"""The table of people: who gets an id, and what may not be confused."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import tomllib
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from markupsafe import escape
from pydantic import BaseModel, PlainSerializer

from turngate import wire
from turngate.approvals_api.pages.templating import visible_line
from turngate.domain.errors import InvalidInputError
from turngate.domain.person_ids import is_person_id
from turngate.domain.policy.terms import Rung
from turngate.domain.tools.results import interrupted, rejected, superseded
from turngate.policies.rule_text import with_people
from turngate.store.access import people, users
from turngate.store.database import Database
from turngate.text.plain_text import plain_line
from turngate.wire.people import AS_STORED, Person, display_name, named, named_rules
from turngate.wire.view import View


async def test_a_person_has_one_id(database: Database) -> None:
    """From the first row on; however the name is spelled, and by how many at the same time."""

    async def take(name: str) -> str:
        async with database.write() as conn:
            return await people.take_id(conn, name)

    ids = set(await asyncio.gather(*(take(each) for each in ("Bea", "BEA", "bea", "\uff22ea"))))
    assert len(ids) == 1
    assert is_person_id(next(iter(ids)))


async def test_an_erased_person_is_no_one_else(database: Database) -> None:
    """Their name is gone and free, their id stays theirs, and no one can take what is displayed of them as a name."""
    async with database.write() as conn:
        first = await people.take_id(conn, "Cleo")
        assert display_name(first) == "Cleo"
        assert await people.erase(conn, first)
        assert not await people.erase(conn, first)
        second = await people.take_id(conn, "Cleo")
    assert second != first
    assert display_name(first) == f"erased person {first[2:8]}"
    assert named(f"{first} asked {second}") == f"erased person {first[2:8]} asked Cleo"
    async with database.write() as conn:
        for taken in (first, first.upper(), "Erased Person 12"):
            with pytest.raises(InvalidInputError):
                await users.add(conn, users.User(name=taken, role="viewer", password_hash=None), by="boss")


async def test_no_name_ends_the_text_of_a_rule(sqlite: Database) -> None:
    """A name with quotes is one name in the rules that an admin reads and saves again."""
    name = 'Eve", "root'
    async with sqlite.write() as conn:
        person = await people.take_id(conn, name)
    before = f'[[rule]]\nname = "a"\nverdict = "ask"\ntools = ["pay"]\npeople = ["{person}"]  # who\'s in\n'
    after = named_rules(before)
    assert tomllib.loads(after)["rule"][0]["people"] == [name]
    assert with_people(after, {name: person}) == before


def test_models_get_no_ids() -> None:
    """A refusal says that a person did it; a program's name stays as it is."""
    person = "p-0123456789abcdef"
    for each in (rejected(person, "no"), superseded(f"cli:{person}"), interrupted(person, "", started=False)):
        assert person not in each.model_dump_json()
    assert "ci interrupted" in interrupted("ci", "", started=False).reason


async def test_a_stored_answer_keeps_ids(sqlite: Database) -> None:
    """What is stored to be sent again names no one; what is sent does."""

    class Answer(View):
        by: Person

    async with sqlite.write() as conn:
        person = await people.take_id(conn, "Dora")
    assert Answer(by=person).model_dump(mode="json") == {"by": "Dora"}
    assert Answer(by=person).model_dump(mode="json", context=AS_STORED) == {"by": person}


def names_people(kind: Any) -> bool:
    """Whether values of a domain type may name people who are to decide."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind is Rung or any(names_people(each.annotation) for each in kind.model_fields.values())
    return any(map(names_people, get_args(kind)))


def bare(kind: Any) -> list[type]:
    """Return the types in an answer that may name people and are written with their ids."""
    if get_origin(kind) is Annotated and any(isinstance(each, PlainSerializer) for each in kind.__metadata__):
        return []
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [] if kind.__module__.startswith("turngate.wire.") or not names_people(kind) else [kind]
    return [each for part in get_args(kind) for each in bare(part)]


def test_every_answer_with_terms_writes_names() -> None:
    """Terms and verdicts come from the store, with ids: a view has them by the types that write names."""
    fields = []
    for module in pkgutil.iter_modules(wire.__path__, "turngate.wire."):
        for view in vars(importlib.import_module(module.name)).values():
            if isinstance(view, type) and issubclass(view, View) and view.__module__ == module.name:
                hints = get_type_hints(view, include_extras=True)
                fields += [f"{view.__name__}.{name}" for name in view.model_fields if bare(hints[name])]
    assert fields == []


async def test_a_person_of_a_view_is_written_with_the_name_wherever_it_is_written(sqlite: Database) -> None:
    """Whatever draws it, with or without a filter for people; compared and used as a key, it is the id."""

    class Answer(View):
        by: Person

    async with sqlite.write() as conn:
        person = await people.take_id(conn, "Di <b>")
    by = Answer(by=person).by
    assert (f"{by}", f"{by:>8}", str(by), plain_line(by)) == ("Di <b>", "  Di <b>", "Di <b>", "Di <b>")
    assert (str(visible_line(by)), escape(by)) == (visible_line("Di <b>"), "Di &lt;b&gt;")
    assert (by == person, {by: 1}[person]) == (True, 1)
