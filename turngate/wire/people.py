"""People as others see them: rows, events and principals have ids, and everything that leaves the process has names.

The names of all people with an id are kept in memory, so that a page or an answer costs no statement for them
(:mod:`turngate.store.access.people` reads them). Anything that isn't an id is already a name: of a
program, or from an answer that a client read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Annotated, Any, Final
from weakref import WeakKeyDictionary

from pydantic import AfterValidator, JsonValue, PlainSerializer, SerializationInfo

from turngate.domain.identity import name_key
from turngate.domain.person_ids import ERASED_PREFIX, is_person_id
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import OWNERS_PREFIX, AskTerms, renamed

MAX_NAMES: Final = 50_000
"""Names that a process keeps; beyond them, it shows ids."""
AS_STORED: Final = {"people": "ids"}
"""The serialization context that keeps ids, for what is stored and shown later."""


class Memory:
    """Names of people. ``names``: by id. ``ids``: by the key of the name. ``read_at``: store → the version of its table."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.read_at: WeakKeyDictionary[object, int] = WeakKeyDictionary()


MEMORY: Final = Memory()
"""Of this process."""
_IN_RULES: Final = re.compile(r"\"(?:cli:)?p-[0-9a-f]{16}\"|'(?:cli:)?p-[0-9a-f]{16}'")
_IN_TEXT: Final = re.compile(r"(?<![0-9A-Za-z_-])p-[0-9a-f]{16}(?![0-9A-Za-z_-])")


def keep(names: Mapping[str, str | None]) -> None:
    """Keep the names of people: id → name, None for an erased one. Ids that are names need no keeping."""
    known, ids = MEMORY.names, MEMORY.ids
    for person, name in names.items():
        if not is_person_id(person) or (person not in known and len(known) >= MAX_NAMES):
            continue
        before = known.get(person)
        if before is not None and ids.get(name_key(before)) == person:
            del ids[name_key(before)]
        known[person] = erased(person) if name is None else name
        if name is not None:
            ids[name_key(name)] = person


def erased(person: str) -> str:
    """Return what is shown of an erased person: enough of the id to tell two of them apart."""
    return f"{ERASED_PREFIX}{person[2:8]}"


def display_name(person: str) -> str:
    """Return the name of a person, a person's terminal or a program, by what a row or event calls it."""
    if person.startswith(OWNERS_PREFIX):
        return OWNERS_PREFIX + display_name(person.removeprefix(OWNERS_PREFIX))
    return MEMORY.names.get(person, person[:])


def id_of(name: str) -> str:
    """Return what rows call the person whose name someone typed; the text itself where no person with an id has it."""
    if name.startswith(OWNERS_PREFIX):
        return OWNERS_PREFIX + id_of(name.removeprefix(OWNERS_PREFIX))
    ids = MEMORY.ids
    return ids.get(name_key(name), name) if ids else name


def named(text: str) -> str:
    """Return one of Turngate's sentences with names for the ids in it. Never for what a model, a tool or a person wrote."""
    return _IN_TEXT.sub(lambda match: display_name(match[0]), text) if MEMORY.names else text


def named_rules(source: str) -> str:
    """Return the text of rules (TOML) with names for the ids in it, written so that no name can end its text."""
    return _IN_RULES.sub(_quoted_name, source) if MEMORY.names else source


def _quoted_name(quoted: re.Match[str]) -> str:
    return json.dumps(display_name(quoted[0][1:-1]), ensure_ascii=False)


def with_all_names(value: Any) -> Any:
    """Return one of Turngate's values with :func:`named` for each text in it."""
    if not MEMORY.names:
        return value
    if isinstance(value, str):
        return named(value)
    if isinstance(value, Mapping):
        return {with_all_names(key): with_all_names(each) for key, each in value.items()}
    return [with_all_names(each) for each in value] if isinstance(value, list | tuple) else value


def names_in(value: JsonValue) -> dict[str, str]:
    """Return id → name of the people whom a value names by id; for what goes out beside it."""
    return {person: display_name(person) for person in sorted(ids_in(value))} if MEMORY.names else {}


def names_in_text(text: str) -> dict[str, str]:
    """Return id → name of the people whose ids are in a text; for a file that is read without the table."""
    return {person: display_name(person) for person in sorted(set(_IN_TEXT.findall(text)))} if MEMORY.names else {}


def is_unknown_in(value: JsonValue) -> bool:
    """Tell whether a value names a person whose name this process has not read."""
    known = MEMORY.names
    return bool(known) and not ids_in(value) <= known.keys()


def ids_in(value: JsonValue) -> set[str]:
    """Return the ids of people that are whole texts or keys of a value, such as an event's payload."""
    if isinstance(value, str):
        person = value.removeprefix(OWNERS_PREFIX)
        return {person} if is_person_id(person) else set()
    parts: Sequence[JsonValue] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list):
        parts = value
    return set().union(*(ids_in(each) for each in parts))


def with_names(value: JsonValue, people: Mapping[str, str]) -> JsonValue:
    """Return a value with names in place of ids. ``people``: id → name, as an event brings them."""
    if isinstance(value, str):
        person = value.removeprefix(OWNERS_PREFIX)
        return value.replace(person, people[person]) if person in people else value
    if isinstance(value, Mapping):
        return {str(with_names(key, people)): with_names(each, people) for key, each in value.items()}
    return [with_names(each, people) for each in value] if isinstance(value, list) else value


class PersonRef(str):
    """What a row calls a person. It is compared and stored as the id, and written, formatted and drawn as the name only."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the name."""
        return display_name(str.__str__(self))

    def __format__(self, spec: str) -> str:
        """Return the name, formatted."""
        return format(str(self), spec)

    def __html__(self) -> str:
        """Return the name for a page."""
        return escape(str(self))


def _named_terms(terms: AskTerms) -> AskTerms:
    people = {*terms.people, *(person for rung in terms.ladder for person in rung.people)}
    return terms.model_copy(update=renamed(terms, {each: display_name(each) for each in people})) if people else terms


def _named_verdict(verdict: Verdict) -> Verdict:
    return verdict.model_copy(update={"reason": named(verdict.reason), "terms": _named_terms(verdict.terms)})


def _sent(named_value: Callable[[Any], Any], kind: Any) -> PlainSerializer:
    """Return how a value is written: as it is for what is stored, else with names. ``kind``: what it is then."""

    def write(value: Any, info: SerializationInfo) -> Any:
        keeps_ids = info.context is not None and info.context.get("people") == "ids"
        return value if keeps_ids or value is None else named_value(value)

    return PlainSerializer(write, return_type=kind, when_used="json-unless-none")


Person = Annotated[str, AfterValidator(PersonRef), _sent(display_name, str)]
"""A person or program in an answer: an id in Python, a name in JSON."""
Says = Annotated[str, _sent(named, str)]
"""One of Turngate's sentences in an answer, which may name people: ids in Python, names in JSON."""
Rules = Annotated[str, _sent(named_rules, str)]
"""The text of rules in an answer: ids in Python, names in JSON."""
Terms = Annotated[AskTerms, _sent(_named_terms, AskTerms)]
"""Terms in an answer: they name people by ids in Python, by names in JSON."""
PolicyVerdict = Annotated[Verdict, _sent(_named_verdict, Verdict)]
"""Policy's verdict in an answer, whose reason and terms may name people: ids in Python, names in JSON."""
NamedMembers = Annotated[dict[str, JsonValue], _sent(with_all_names, dict[str, JsonValue])]
"""Members in an answer, such as a rule's: ids in Python, names in JSON."""
