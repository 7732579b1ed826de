"""Secrets in a tool's arguments and results: where they are, and how a text is shown without them. Pure.

A place is secret if a schema that may apply to it says ``writeOnly: true`` or ``format: "password"`` (pydantic's ``SecretStr``
does), whatever the other branches of a union say. A mark with a number of its own is in its place, so that
neither the length of a secret nor whether two are equal can be seen. An edit sends the mark back in place of the secret.

What only looks like a credential (:mod:`turngate.domain.text.credentials`) is masked in any other text, with a mark without a
number, but never for the person who decides (:data:`Audience`): a model chooses what its calls look like (I6).

What can't be read for certain (no JSON, too deep, a schema without end) is masked whole if its tool declares a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import unquote

from pydantic import JsonValue

from turngate.domain.text.credentials import Span, credentials_in, replaced
from turngate.domain.text.json_pointers import pointer_of, tokens_of
from turngate.domain.text.json_text import MAX_DEPTH, quote

Schema = Mapping[str, Any]

Audience = Literal["decider", "reader"]
"""Who reads a call. ``decider``: may decide a pending request about it; only places that the tool declares secret are masked.
``reader``: anyone else; what looks like a credential is masked, too."""
MASKED: Final = "⟦secret⟧"
"""What replaces a secret in a text that no one edits."""
MARK: Final = "⟦secret {}⟧"
_BEGIN: Final = "⟦secret"
_MARK: Final = re.compile(r"⟦secret ([1-9][0-9]{0,6})⟧")
_JSON: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
MIN_CHARS: Final = 4
"""Of a secret that is also looked for in other texts: a shorter one is in every text."""
_MOST_TRIES: Final = 100
MAX_STEPS: Final = 200_000
"""Schemas that are looked at for one document."""
ANY: Final = "*"
"""In a pointer of ``secret=``: every member, every item."""


def has_secrets(schema: JsonValue) -> bool:
    """Tell whether a schema says anywhere that something is secret."""
    return any(isinstance(each, Mapping) and _is_secret(each) for each in _inside(schema))


def _is_secret(schema: Schema) -> bool:
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _inside(value: object) -> Iterator[object]:
    """Yield a JSON value and everything inside it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, Mapping):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


@dataclass(frozen=True, kw_only=True)
class Secret:
    """One secret of a document. ``pointer``: where it is; ``raw``: its exact JSON text. ``start``: where that begins."""

    pointer: str
    raw: str
    start: int = 0

    @property
    def texts(self) -> Iterator[str]:
        """The texts in it, and its numbers as they were written."""
        try:
            value = json.loads(self.raw, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            yield self.raw
            return
        yield from (each for each in _inside(value) if isinstance(each, str))


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A JSON text as people see it.

    ``declared``: the secrets that its numbered marks stand for, in their order, from 1. ``others``: what the other marks hide.
    """

    text: str
    declared: Sequence[Secret] = ()
    others: Sequence[Secret] = ()

    @property
    def secrets(self) -> Sequence[Secret]:
        """All that is masked, the declared ones first."""
        return (*self.declared, *self.others)

    @property
    def values(self) -> frozenset[str]:
        """The secret texts that are worth looking for in other texts."""
        return frozenset(text for each in self.secrets for text in each.texts if len(text) >= MIN_CHARS)

    @property
    def unshown(self) -> frozenset[str]:
        """Those that the rest of the document doesn't show: no secret may hide what else a call says."""
        return not_in(self.values, self.text)


def declared_places(raw: str, schema: Schema) -> tuple[Secret, ...]:
    """Return what is at the places that a schema declares secret, in order; what can't be read has none."""
    try:
        return tuple(secret for each in _read(raw, [schema]) if each.declared for secret in each.secrets(raw))
    except (ValueError, IndexError, RecursionError):
        return ()


def mask_json(
    raw: str, *schemas: Schema, audience: Audience = "reader", is_plain: Callable[[str], bool] | None = None
) -> Masked:
    """Return a JSON text with each secret replaced by a mark; everything else stays byte for byte.

    ``schemas``: all that apply to the whole document. For a ``reader``, a text that says what only a mark may say is masked, too,
    and a text that has a credential in it is written again around the mark. ``is_plain``: whether the JSON text of a secret
    place needs no mark.
    """
    is_declared = any(has_secrets(dict(each)) for each in schemas)
    if not is_declared and (audience == "decider" or not _may_hold_credentials(raw)):
        return Masked(text=raw)
    try:
        spots = _read(raw, schemas)
    except (ValueError, IndexError, RecursionError):
        if not is_declared:
            return _mask_unreadable(raw)
        spots = [_Spot("", 0, len(raw), declared=True)]
    pieces: list[str] = []
    declared: list[Secret] = []
    others: list[Secret] = []
    last = 0
    for each in spots:
        is_open = (
            is_plain is not None and is_plain(raw[each.start : each.end]) if each.declared else audience == "decider"
        )
        if is_open:
            continue
        (declared if each.declared else others).extend(each.secrets(raw))
        pieces += [raw[last : each.start], each.written(MARK.format(len(declared)) if each.declared else MASKED)]
        last = each.end
    return Masked(text="".join([*pieces, raw[last:]]), declared=tuple(declared), others=tuple(others))


def _mask_unreadable(raw: str) -> Masked:
    """Return a text that is no JSON without its credentials."""
    spans = credentials_in(raw)
    others = tuple(Secret(pointer="", raw=quote(raw[each.start : each.end])) for each in spans)
    return Masked(text=replaced(raw, spans, [MASKED] * len(spans)), others=others)


def _may_hold_credentials(raw: str) -> bool:
    """Tell whether a JSON text has to be read to know; an escape may hide anything."""
    return "\\" in raw or _BEGIN in raw or bool(credentials_in(raw))


def mask_value(value: JsonValue, *schemas: Schema, audience: Audience = "reader") -> tuple[JsonValue, frozenset[str]]:
    """Return a JSON value without its secrets, and their texts."""
    masked = mask_json(json.dumps(value), *schemas, audience=audience)
    return (json.loads(masked.text), masked.values) if masked.secrets else (value, frozenset())


def mask_text(
    text: str, values: Collection[str], *, name: str = "", mark: str = MASKED, audience: Audience = "reader"
) -> str:
    """Return a text without these values, as they are or as they are written in JSON or Python.

    For a ``reader``, it is also without credentials. The longest value goes first. ``name``: of the member that has the text,
    which may say what it is.
    """
    forms = {form for value in values for form in written_forms(value) if form in text}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, mark)
    for value in values:
        cut = cut_secret_at(text, value)
        text = text if cut is None else text[:cut] + mark
    spans = credentials_in(text, name=name) if audience == "reader" else []
    return replaced(text, spans, [mark] * len(spans)) if spans else text


def not_in(values: frozenset[str], text: str) -> frozenset[str]:
    """Return those of these values that a text doesn't have, in any of their forms."""
    return frozenset(each for each in values if not any(form in text for form in written_forms(each)))


def credentials_of(value: JsonValue, *, name: str = "") -> frozenset[str]:
    """Return the credentials in the texts of a JSON value."""
    match value:
        case str():
            return frozenset(value[each.start : each.end] for each in credentials_in(value, name=name))
        case dict():
            return frozenset[str]().union(*(credentials_of(each, name=key) for key, each in value.items()))
        case list():
            return frozenset[str]().union(*map(credentials_of, value))
        case _:
            return frozenset()


def cut_secret_at(text: str, value: str) -> int | None:
    """Return where the end of a text begins that is the beginning of a value: it was cut there, as a task in a list is."""
    at = text.find(value[:MIN_CHARS], max(0, len(text) - len(value)))
    for _try in range(_MOST_TRIES):
        if at < 0:
            return None
        if value.startswith(text[at:]):
            return at
        at = text.find(value[:MIN_CHARS], at + 1)
    return None


def written_forms(value: str) -> tuple[str, ...]:
    """Return a value as it is, and as it is written inside a JSON or Python string."""
    return value, quote(value)[1:-1], json.dumps(value)[1:-1], repr(value)[1:-1]


def masked_strings(value: JsonValue, values: frozenset[str], *, name: str = "") -> JsonValue:
    """Return a JSON value with these secret texts, and credentials, masked in all of its texts."""
    match value:
        case str():
            return mask_text(value, values, name=name)
        case dict():
            return {mask_text(key, values): masked_strings(each, values, name=key) for key, each in value.items()}
        case list():
            return [masked_strings(each, values) for each in value]
        case int() | float() if values and not isinstance(value, bool) and json.dumps(value) in values:
            return MASKED
        case _:
            return value


def without_examples(schema: JsonValue, root: Schema | None = None) -> JsonValue:
    """Return a schema without values for its secret places: defaults, examples, constants. ``root``: what it is a part of."""
    if isinstance(schema, list):
        return [without_examples(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    whole = schema if root is None else root
    inner = {name: without_examples(each, whole) for name, each in schema.items()}
    for name in _VALUES & schema.keys():
        value = schema[name]
        values = value if name in {"examples", "enum"} and isinstance(value, list) else [value]
        if any(_read(json.dumps(each), [schema], [whole]) for each in values):
            del inner[name]
    return inner


_VALUES: Final = frozenset({"default", "examples", "example", "enum", "const"})


def without_marks(value: JsonValue) -> JsonValue:
    """Return a masked JSON value whose marks have no numbers: they stand for nothing that an edit could send back."""
    plain: JsonValue = json.loads(_MARK.sub(MASKED, json.dumps(value, ensure_ascii=False)))
    return plain


def has_marks(raw: str) -> bool:
    """Tell whether a JSON text may have marks, plain or escaped."""
    return _BEGIN in raw or "\\u27e6" in raw.lower()


def unmask_json(edited: str, raw: str, *schemas: Schema, is_plain: Callable[[str], bool] | None = None) -> str:
    """Return an edited JSON text with the declared secrets of the original in place of their marks.

    ``raw``: the original. ``is_plain``: as for :func:`mask_json`. Raises ValueError, which says the fix: a mark is where no
    secret is declared, so that it would run as it is written, or its secret would be shown from there on; it is only part of a
    text; or the original has no secret of that number.
    """
    if not has_marks(edited):
        return edited
    original = mask_json(raw, *schemas, audience="decider", is_plain=is_plain)
    try:
        spots = _read(edited, schemas)
        before = {(each.pointer, each.text) for each in (_read(raw, schemas) if has_marks(raw) else ())}
    except (IndexError, RecursionError):
        raise ValueError("the arguments can't be read: send a JSON object") from None
    pieces: list[str] = []
    last = 0
    for each in spots:
        if each.declared:
            pieces += [edited[last : each.start], _real(each, edited[each.start : each.end], original)]
            last = each.end
        elif _BEGIN in each.text and (each.pointer, each.text) not in before:
            raise ValueError(f"{each.pointer}: a masked value may only be where it was: type what should run here")
    return "".join([*pieces, edited[last:]])


def _real(spot: _Spot, raw: str, original: Masked) -> str:
    """Return the JSON text that belongs to a secret place of an edited document. Raises ValueError."""
    if not has_marks(raw):
        return raw
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    mark = _MARK.fullmatch(value) if isinstance(value, str) else None
    if mark is None:
        raise ValueError(f"{spot.pointer}: leave the masked value as it is, or type a whole new one")
    number = int(mark[1])
    if number > len(original.declared):
        raise ValueError(f"{spot.pointer}: this mark stands for no value of the call: type a new one")
    return original.declared[number - 1].raw


@dataclass(frozen=True)
class _Spot:
    """A place to mask. ``declared``: the schema says so; else its text says what only a mark may say, or has credentials.

    ``parts``: where in ``text``, which is the place's, the credentials are; empty: the place is masked whole.
    """

    pointer: str
    start: int
    end: int
    declared: bool
    text: str = ""
    parts: tuple[Span, ...] = ()

    def secrets(self, raw: str) -> list[Secret]:
        """Return the secrets of the place, in a document."""
        if not self.parts:
            return [Secret(pointer=self.pointer, raw=raw[self.start : self.end], start=self.start)]
        return [Secret(pointer=self.pointer, raw=quote(self.text[each.start : each.end])) for each in self.parts]

    def written(self, mark: str) -> str:
        """Return the JSON text of the place with a mark for each of its secrets."""
        return quote(replaced(self.text, self.parts, [mark] * len(self.parts)) if self.parts else mark)


def _read(raw: str, schemas: Sequence[Schema], roots: Sequence[Schema] = ()) -> list[_Spot]:
    """Return what to mask, in order. Raises ValueError, IndexError or RecursionError where the text can't be read.

    ``roots``: what references lead into; empty: the schemas themselves.
    """
    return _Reader(raw, _Places(schemas, roots or schemas)).read()


@dataclass(frozen=True, eq=False)
class _State:
    """The schemas that apply to one place. ``names``, ``first``: members, and so many first items, that they say something of."""

    schemas: tuple[Schema, ...]
    secret: bool
    names: frozenset[str]
    first: int

    @classmethod
    def of(cls, schemas: Iterable[Schema]) -> _State:
        """Return the state of a place with exactly these schemas."""
        every = tuple(schemas)
        names = (properties for each in every if isinstance(properties := each.get("properties"), Mapping))
        lists = (each.get(name) for each in every for name in ("prefixItems", "items"))
        return cls(
            schemas=every,
            secret=any(map(_is_secret, every)),
            names=frozenset[str]().union(*names),
            first=max((len(each) for each in lists if isinstance(each, list)), default=0),
        )

    def says_of(self, name: str | int) -> bool:
        """Tell whether a schema says something of this very member or item."""
        return name < self.first if isinstance(name, int) else name in self.names


class _Places:
    """Which places of a document are secret, by all schemas that may apply to them."""

    def __init__(self, schemas: Sequence[Schema], roots: Sequence[Schema]) -> None:
        self._roots = roots
        self._steps = 0
        self._named: dict[str, Schema] = {
            name: each for each in _inside(list(roots)) if isinstance(each, Mapping) for name in _names(each)
        }
        self._inside: dict[tuple[_State, str | int | type], _State] = {}
        self._states: dict[tuple[int, ...], _State] = {}
        self.top = self._closed(schemas)

    def inside(self, state: _State, name: str | int) -> _State:
        """Return the schemas of a member or item.

        Those of which no schema says anything are alike: their number can't use up the steps, and so have all be masked.
        """
        key = name if state.says_of(name) else type(name)
        known = self._inside.get((state, key))
        if known is None:
            part = _of_item if isinstance(name, int) else _of_member
            known = self._closed([each for schema in state.schemas for each in part(schema, name)])
            self._inside[state, key] = known
        return known

    def _closed(self, schemas: Iterable[object]) -> _State:
        """Return the state of a place with these schemas and all that they refer to or are made of."""
        waiting, seen = list(schemas), dict[int, Schema]()
        while waiting:
            each = waiting.pop()
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise ValueError("the schema takes too long to follow")
            if isinstance(each, Mapping) and id(each) not in seen:
                seen[id(each)] = each
                waiting.extend(self._parts(each))
        key = tuple(sorted(seen))
        if key not in self._states:
            self._states[key] = _State.of(seen.values())
        return self._states[key]

    def _parts(self, schema: Schema) -> Iterator[object]:
        for name in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(name)
            yield from parts if isinstance(parts, list) else ()
        for name in ("if", "then", "else"):
            yield schema.get(name)
        for name in ("dependentSchemas", "dependencies"):
            parts = schema.get(name)
            yield from parts.values() if isinstance(parts, Mapping) else ()
        for name in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(name), str):
                yield self.referred(schema[name])

    def referred(self, reference: str) -> Schema:
        """Return the schema that a reference names. What can't be found might say anything: its place is secret."""
        if reference in self._named:
            return self._named[reference]
        if reference == "#" or reference.startswith("#/"):
            for root in self._roots:
                place: object = root
                for token in tokens_of(unquote(reference[1:])):
                    place = _at(place, token)
                if isinstance(place, Mapping):
                    return place
        return _UNKNOWN


_UNKNOWN: Final[Schema] = {"writeOnly": True}


def _at(place: object, token: str) -> object:
    if isinstance(place, Mapping):
        return place.get(token)
    if isinstance(place, list) and token.isdecimal() and len(token) < 7 and int(token) < len(place):  # noqa: PLR2004
        return place[int(token)]
    return None


def _names(schema: Schema) -> Iterator[str]:
    for key, prefix in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
        if isinstance(schema.get(key), str):
            yield prefix + schema[key]


def _of_member(schema: Schema, name: str | int) -> Iterator[object]:
    """Yield the schemas of a member. Patterns are not run: they come from servers, and each might fit."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    else:
        yield schema.get("additionalProperties")
        yield schema.get("unevaluatedProperties")
    patterns = schema.get("patternProperties")
    yield from patterns.values() if isinstance(patterns, Mapping) else ()


def _of_item(schema: Schema, place: str | int) -> Iterator[object]:
    """Yield the schemas of an item."""
    first = schema.get("prefixItems", schema.get("items"))
    if isinstance(first, list) and isinstance(place, int) and place < len(first):
        yield first[place]
    elif isinstance(first, list):
        yield schema.get("additionalItems")
    items = schema.get("items")
    if not isinstance(items, list) and not (isinstance(first, list) and isinstance(place, int) and place < len(first)):
        yield items
    yield schema.get("unevaluatedItems")
    yield schema.get("contains")


class _Reader:
    """Reads one JSON text, and notes what to mask. Keeps to the text: two members of one name are two places."""

    def __init__(self, text: str, places: _Places) -> None:
        self._text = text
        self._places = places
        self._spots: list[_Spot] = []
        self._path: list[str | int] = []

    def read(self) -> list[_Spot]:
        """Return what to mask, in order. Raises ValueError or IndexError for what is no JSON."""
        start = self._after_space(0)
        end = self._value(start, self._places.top, hidden=False)
        if self._after_space(end) != len(self._text):
            raise ValueError("there is more than one JSON value")
        return self._spots

    def _after_space(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()

    def _value(self, start: int, state: _State, *, hidden: bool) -> int:
        """Read the value that begins here, and return where it ends. ``hidden``: it is inside a secret one."""
        if len(self._path) > MAX_DEPTH:
            raise ValueError("it nests too deep")
        secret = state.secret and not hidden
        match self._text[start]:
            case "{":
                end = self._members(start, state, hidden=hidden or secret)
            case "[":
                end = self._items(start, state, hidden=hidden or secret)
            case '"':
                text, end = _JSON.raw_decode(self._text, start)
                if not secret and not hidden:
                    name = self._path[-1] if self._path else ""
                    self._note(text, start, end, name=name if isinstance(name, str) else "")
            case _:
                _scalar, end = _JSON.raw_decode(self._text, start)
        if secret and self._text[start:end] != "null":
            self._spots.append(_Spot(pointer_of(self._path), start, end, declared=True))
        return end

    def _note(self, text: str, start: int, end: int, *, name: str = "") -> None:
        """Note what to mask in a text that no schema declares secret."""
        parts = () if _BEGIN in text else tuple(credentials_in(text, name=name))
        if parts or _BEGIN in text:
            self._spots.append(_Spot(pointer_of(self._path), start, end, declared=False, text=text, parts=parts))

    def _members(self, start: int, state: _State, *, hidden: bool) -> int:
        at = self._after_space(start + 1)
        while self._text[at] != "}":
            if self._text[at] != '"':
                raise ValueError("a name is missing")
            name_at = at
            name, at = _JSON.raw_decode(self._text, at)
            if not hidden:
                self._note(name, name_at, at)
            at = self._after_space(at)
            if self._text[at] != ":":
                raise ValueError("a colon is missing")
            at = self._inner(name, self._after_space(at + 1), state, hidden=hidden)
            if self._text[at] == ",":
                at = self._after_space(at + 1)
            elif self._text[at] != "}":
                raise ValueError("a comma is missing")
        return at + 1

    def _items(self, start: int, state: _State, *, hidden: bool) -> int:
        at, place = self._after_space(start + 1), 0
        while self._text[at] != "]":
            at = self._inner(place, at, state, hidden=hidden)
            place += 1
            if self._text[at] == ",":
                at = self._after_space(at + 1)
            elif self._text[at] != "]":
                raise ValueError("a comma is missing")
        return at + 1

    def _inner(self, name: str | int, at: int, state: _State, *, hidden: bool) -> int:
        self._path.append(name)
        inner = state if hidden else self._places.inside(state, name)
        end = self._value(at, inner, hidden=hidden)
        self._path.pop()
        return self._after_space(end)


# Pointers of ``secret=``: written into the schema, so that everyone who reads it knows.


def with_secrets(schema: dict[str, JsonValue], pointer: str) -> dict[str, JsonValue] | None:
    """Return the schema with the place at a pointer declared secret; None: the schema has no such place.

    ``*`` in the pointer is every member or item. What the schema refers to on the way is copied to the place, so that other
    places that refer to it stay as they are.
    """
    marked = _marked(schema, tokens_of(pointer), schema, MAX_DEPTH)
    return marked if isinstance(marked, dict) else None


def _marked(schema: object, tokens: Sequence[str], root: Schema, depth: int) -> dict[str, Any] | None:
    if not isinstance(schema, Mapping) or depth == 0:
        return {"writeOnly": True} if schema is True and not tokens else None
    if not tokens:
        return {**schema, "writeOnly": True}
    if isinstance(schema.get("$ref"), str):
        referred = _Places([root], [root]).referred(schema["$ref"])
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        return None if referred is _UNKNOWN else _marked({**referred, **rest}, tokens, root, depth - 1)
    changed = _marked_branches(schema, tokens, root, depth) | _marked_inside(schema, tokens, root, depth)
    return {**schema, **changed} if changed else None


def _marked_branches(schema: Schema, tokens: Sequence[str], root: Schema, depth: int) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(name)
        marked = [_marked(each, tokens, root, depth - 1) for each in parts] if isinstance(parts, list) else []
        if any(each is not None for each in marked) and isinstance(parts, list):
            changed[name] = [each or part for each, part in zip(marked, parts, strict=True)]
    return changed


def _marked_inside(schema: Schema, tokens: Sequence[str], root: Schema, depth: int) -> dict[str, Any]:
    first, rest = tokens[0], tokens[1:]
    changed: dict[str, Any] = {}
    items = schema.get("items")
    if (first == ANY or first.isdecimal()) and items is not None:
        marked = _marked(items, rest, root, depth - 1)
        changed |= {} if marked is None else {"items": marked}
    known = schema.get("properties")
    properties = known if isinstance(known, Mapping) else {}
    names = list(properties) if first == ANY else [first]
    others = schema.get("additionalProperties", not properties)
    members = {name: _marked(properties.get(name, others), rest, root, depth - 1) for name in names}
    if any(marked is not None for marked in members.values()):
        changed["properties"] = {**properties, **{name: each for name, each in members.items() if each is not None}}
    if first == ANY and (marked := _marked(others, rest, root, depth - 1)) is not None:
        changed["additionalProperties"] = marked
    return changed
