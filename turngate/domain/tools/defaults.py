"""In what a call's handler gets something else than the model wrote: defaults, values read otherwise, names not passed on (I6).

Pure. A model's arguments stay as it wrote them; this is kept beside them, shown, judged and part of the call's digest. Of a
pydantic model it is read off the decoded parameters, so that factories, validators and types that transform a value count. Any
other tool gets what was written, and its schema only says what its server will use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    JsonValue,
    RootModel,
    SecretBytes,
    SecretStr,
    TypeAdapter,
)
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from turngate.domain.text import json_text
from turngate.domain.text.json_pointers import ABSENT, AMBIGUOUS, decode_exact, pointer_of, tokens_of, value_at
from turngate.domain.tools.secrets import MASKED, Masked, mask_json, without_marks

Source = Literal["default", "server", "made", "later", "read", "opaque", "ignored"]
"""Of a place that the arguments leave empty: ``default``: the tool's, and the handler gets it. ``server``: the tool's server says
that it uses it. ``made``: a value that differs each time (an id, the time), made once for this call. ``later``: such a value that
can only be made when the call runs. Of a place where the model wrote something: ``read``: the handler gets this value instead.
``opaque``: it gets a value that can't be kept. ``ignored``: it doesn't get it under this name, if at all."""
CHANGES: Final[frozenset[Source]] = frozenset({"read", "opaque", "ignored"})
"""Sources of places where the model wrote something."""
UNKEPT: Final[frozenset[Source]] = frozenset({"later", "opaque"})
"""Sources of places whose value can't be kept."""
WITHOUT_VALUE: Final = UNKEPT | {"ignored"}
MAX_REFS: Final = 32
"""References and parts that lead to one schema."""
SHORT_CHARS: Final = 160
SHORT_VALUE_CHARS: Final = 40
MAX_SCHEMAS: Final = 50_000
"""Schemas that are looked at for one call."""
WORDS: Final[Mapping[Source, str]] = {
    "default": "left out by the agent: the default",
    "server": "left out by the agent: the default, as its server says",
    "made": "left out by the agent: made for this call",
    "later": "left out by the agent: made when the call runs",
    "read": "not as written: the tool reads it as",
    "opaque": "not as written: the tool makes something of it that can't be shown",
    "ignored": "not as written: the tool doesn't get it under this name",
}


class Default(BaseModel):
    """What a handler gets at one place and the model didn't write.

    ``at``: JSON pointer. ``value``: None, too, where there is none to be kept; a secret is a mark.
    """

    model_config = ConfigDict(frozen=True)

    at: str
    value: JsonValue = None
    source: Source = "default"

    @property
    def words(self) -> str:
        """Why the agent's arguments don't have it, in words for people."""
        return WORDS[self.source]

    @property
    def label(self) -> str:
        """Its argument, as people read it: ``options.force``."""
        return ".".join(tokens_of(self.at)) or "all arguments"

    @property
    def text(self) -> str:
        """Its value as JSON; empty: there is none to be shown."""
        return "" if self.source in WITHOUT_VALUE else json.dumps(self.value, ensure_ascii=False)

    @property
    def is_known(self) -> bool:
        """Whether what the handler gets is here."""
        return self.source not in UNKEPT and MASKED not in self.text

    @property
    def is_nothing(self) -> bool:
        """Whether the handler gets null."""
        return self.value is None and self.source not in WITHOUT_VALUE

    @property
    def is_constant(self) -> bool:
        """Whether its value is here, and is the same for each call like this one."""
        return self.is_known and self.source != "made"


@dataclasses.dataclass(frozen=True)
class DefaultRow:
    """How defaults are shown: one, or all of a call that are nothing. ``text``: JSON; empty: there is none to be shown."""

    label: str
    text: str
    words: str


def default_rows(defaults: Sequence[Default]) -> list[DefaultRow]:
    """Return what is to be shown after a call's arguments; what is nothing comes last, in one line."""
    rows = [DefaultRow(each.label, each.text, each.words) for each in defaults if not each.is_nothing]
    for source in dict.fromkeys(each.source for each in defaults if each.is_nothing):
        names = ", ".join(each.label for each in defaults if each.is_nothing and each.source == source)
        rows.append(DefaultRow(names, "null", WORDS[source]))
    return rows


def in_short(defaults: Sequence[Default]) -> dict[str, str]:
    """Return the same for a list, by label, without what is empty: ``left out: recursive true``, in at most 160 characters."""
    left_out = [
        f"{each.label} {_short(each)}" for each in defaults if each.source not in CHANGES and not _is_empty(each)
    ]
    changed = [f"{each.label} {_short(each)}" for each in defaults if each.source in CHANGES]
    return {label: _listed(parts) for label, parts in (("tool reads", changed), ("left out", left_out)) if parts}


def in_one_line(defaults: Sequence[Default]) -> str:
    """Return the same on one line: ``left out: recursive true``."""
    return "; ".join(f"{label}: {text}" for label, text in in_short(defaults).items())


def _short(default: Default) -> str:
    words = {
        "later": "made when it runs",
        "opaque": "as something that can't be shown",
        "ignored": "not under this name",
    }
    text = words.get(default.source) or default.text
    text = text if len(text) <= SHORT_VALUE_CHARS else f"{text[: SHORT_VALUE_CHARS - 1]}…"
    return f"as {text}" if default.source == "read" else text


def _is_empty(default: Default) -> bool:
    return default.source != "later" and default.value in (None, [], {}, "")


def _listed(parts: Sequence[str]) -> str:
    """Return the parts in one line, the first at least, and how many more there are."""
    count = len(parts)
    while count > 1 and len(", ".join(parts[:count])) > SHORT_CHARS - len(" and 999 more"):
        count -= 1
    more = f" and {len(parts) - count} more" if count < len(parts) else ""
    return f"{', '.join(parts[:count])[: SHORT_CHARS - len(more)]}{more}"


Defaults = tuple[Default, ...]
DEFAULTS: Final[TypeAdapter[Defaults]] = TypeAdapter(Defaults)


def stored(defaults: Sequence[Default]) -> str | None:
    """Return defaults as they are stored and digested; None: the call leaves nothing out."""
    return DEFAULTS.dump_json(tuple(defaults), exclude_defaults=True).decode() if defaults else None


def read_stored(text: str | None) -> Defaults:
    """Return the defaults that :func:`stored` wrote. ``text``: None or empty: there are none."""
    return DEFAULTS.validate_json(text) if text else ()


def completed(arguments: Any, defaults: Sequence[Default]) -> Any:
    """Return arguments as the handler gets them, with these values in their places; they are copied as far as they change.

    A default whose place isn't there (in a text that holds JSON, say), or isn't empty, is left out.
    """
    for each in defaults:
        arguments = _with(arguments, tokens_of(each.at), each)
    return arguments


def complete_text(text: str, defaults: Sequence[Default]) -> str:
    """Return arguments as JSON text as the handler gets them; text that can't be taken apart as it is."""
    parsed = json_text.parse(json_text.arguments_text(text)) if defaults else None
    if parsed is None or parsed.doubled:
        return text
    return json_text.dump(completed(parsed.tree, as_trees(defaults)))


def constant_text(text: str, defaults: Sequence[Default]) -> str:
    """Return arguments as JSON text with all that is the same for each call like this one: equal for calls that do the same."""
    return complete_text(text, [each for each in defaults if each.is_constant])


def as_read(defaults: Sequence[Default]) -> Defaults:
    """Return them as rules read arguments: fractions are exact, and what isn't known here is ambiguous."""
    return tuple(each.model_copy(update={"value": _as_read(each)}) for each in defaults)


def _as_read(default: Default) -> Any:
    if not default.is_known:
        return AMBIGUOUS
    return decode_exact(default.text) if default.text else None


def as_trees(defaults: Sequence[Default]) -> Defaults:
    """Return those whose value is kept, with it as a JSON tree, to be put into one."""
    with_values = [each for each in defaults if each.source not in UNKEPT]
    return tuple(each.model_copy(update={"value": json_text.tree_of(each.value)}) for each in with_values)


def _with(tree: Any, path: Sequence[str], default: Default) -> Any:
    if not path:
        return default.value
    name, rest = path[0], path[1:]
    if isinstance(tree, dict):
        if rest:
            return {**tree, name: _with(tree[name], rest, default)} if name in tree else tree
        if default.source == "ignored":
            return {key: value for key, value in tree.items() if key != name}
        return {**tree, name: default.value} if (name in tree) == (default.source in CHANGES) else tree
    if isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
        place = int(name)
        inner = _with(tree[place], rest, default) if rest else default.value
        return [*tree[:place], inner, *tree[place + 1 :]]
    return tree


def masked(mask: Callable[[str], Masked], arguments: JsonValue, defaults: Sequence[Default]) -> Defaults:
    """Return defaults without what their tool declares secret: that is never stored. ``mask``: for all arguments."""
    hidden = mask(json.dumps(completed(arguments, defaults), default=str))
    if not hidden.secrets:
        return tuple(defaults)
    tree = json.loads(hidden.text)
    values = [(each, value_at(tree, each.at)) for each in defaults]
    return tuple(
        each if value is ABSENT else each.model_copy(update={"value": without_marks(value)}) for each, value in values
    )


def for_readers(defaults: Sequence[Default]) -> Defaults:
    """Return stored defaults as those see them who don't decide the call: also without what looks like a credential."""
    if not any(isinstance(each.value, str | list | dict) and each.value for each in defaults):
        return tuple(defaults)
    hidden = json.loads(mask_json(json.dumps([{each.label: each.value} for each in defaults])).text)
    values = (value for each in hidden for value in each.values())  # a name may be masked, too
    return tuple(each.model_copy(update={"value": value}) for each, value in zip(defaults, values, strict=True))


def agree(known: Sequence[Default], now: Sequence[Default]) -> bool:
    """Tell whether a call's tool makes of its arguments now what was on record, but for values that can't be kept."""
    unkept = {each.at for each in known if each.source in UNKEPT}
    before, after = ({each.at: each.text for each in some if each.at not in unkept} for some in (known, now))
    return before == after and unkept <= {each.at for each in now}


# Of decoded parameters.


def of_model(arguments: JsonValue, params: BaseModel) -> Defaults:
    """Return in what decoded parameters differ from the arguments, which were read as JSON with each fraction as a Decimal."""
    return tuple(
        Default(at=pointer_of(path), value=None if source == "ignored" else _as_json(value), source=source)
        for path, value, source in _inside(params, arguments, ())
    )


def of_nothing(arguments: JsonValue) -> Defaults:
    """Return the arguments of a tool that takes none: it gets none of them."""
    names = arguments if isinstance(arguments, dict) else ()
    return tuple(Default(at=pointer_of([name]), source="ignored") for name in names)


_Path = tuple[str | int, ...]
_Values = Iterator[tuple[_Path, Any, Source]]


def _inside(value: Any, raw: Any, path: _Path) -> _Values:
    """Yield where a decoded value isn't what was written."""
    if isinstance(value, RootModel):
        value = value.root
    if isinstance(raw, dict) and (members := _members_of(value)) is not None:
        yield from _object(*members, raw, path)
    elif isinstance(raw, dict) and isinstance(value, Mapping) and raw.keys() == value.keys():
        for key, each in value.items():
            yield from _inside(each, raw[key], (*path, key))
    elif isinstance(raw, list) and isinstance(value, list | tuple) and len(raw) == len(value):
        for place, (each, written) in enumerate(zip(value, raw, strict=True)):
            yield from _inside(each, written, (*path, place))
    elif not _is_as_written(value, raw):
        yield path, value, "read"


def _members_of(value: Any) -> tuple[dict[str, Any], dict[str, list[_Path]]] | None:
    """Return the members of an object with fields, and under which paths they are read; None: it is no such object."""
    kind = type(value)
    if isinstance(value, BaseModel):
        members = {name: getattr(value, name) for name in kind.model_fields} | (value.model_extra or {})
        return members, _fields(kind.model_fields, value.model_config)
    if dataclasses.is_dataclass(kind):
        members = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(kind) if each.init}
        return members, _fields(getattr(kind, "__pydantic_fields__", {}), getattr(kind, "__pydantic_config__", None))
    return (value._asdict(), {}) if hasattr(value, "_asdict") else None


def _is_as_written(value: Any, raw: Any) -> bool:
    if isinstance(value, SecretStr | SecretBytes):
        value = value.get_secret_value()
    try:
        match value:
            case str():
                return bool(value == raw)
            case bool() | None:
                return value is raw
            case int() | float() | Decimal():
                return _is_same_number(value, raw)
            case datetime() | date() | time():
                return bool(type(value).fromisoformat(raw) == value)
            case set() | frozenset():
                value = sorted(map(_as_json, value), key=json.dumps)
                raw = sorted(raw, key=partial(json.dumps, default=float))
    except (TypeError, ValueError, ArithmeticError):
        return False
    return bool(_as_json(value) == json.loads(json.dumps(raw, default=float)))


def _is_same_number(value: float | Decimal, raw: Any) -> bool:
    if isinstance(raw, bool) or (isinstance(raw, str) and not isinstance(value, Decimal)):
        return False
    return Decimal(str(raw)) == (Decimal(repr(value)) if isinstance(value, float) else Decimal(value))


def _fields(fields: Mapping[str, FieldInfo], config: Mapping[str, Any] | None) -> dict[str, list[_Path]]:
    """Return, by field, the paths under which it is read from an object, the preferred one first."""
    settings = config or {}
    by_name = bool(settings.get("populate_by_name") or settings.get("validate_by_name"))
    return {name: [*_aliases(name, field), *([(name,)] if by_name else ())] for name, field in fields.items()}


def _aliases(name: str, field: FieldInfo) -> list[_Path]:
    match field.alias if field.validation_alias is None else field.validation_alias:
        case None:
            return [(name,)]
        case AliasChoices(choices=choices):
            return [tuple(each.path) if isinstance(each, AliasPath) else (each,) for each in choices]
        case AliasPath(path=path):
            return [tuple(path)]
        case alias:
            return [(alias,)]


def _object(
    values: Mapping[str, Any], paths: Mapping[str, list[_Path]], raw: Mapping[str, Any], path: _Path
) -> _Values:
    """Yield what the members of an object differ in, under the names that they would have there."""
    unread = dict.fromkeys(raw)
    for name, value in values.items():
        keys = paths.get(name, [(name,)])
        written = next((each for each in keys if _written(raw, each) is not ABSENT), None)
        if written is None:
            yield (*path, next((each[0] for each in keys if len(each) == 1), name)), value, "default"
        else:
            unread.pop(str(written[0]), None)
            yield from _inside(value, _written(raw, written), (*path, *written))
    for name in unread:
        yield (*path, name), None, "ignored"


def _written(raw: Any, path: _Path) -> Any:
    for part in path:
        try:
            raw = raw[part] if type(raw) in {dict, list} else ABSENT
        except (LookupError, TypeError):
            return ABSENT
    return raw


def _as_json(value: Any) -> JsonValue:
    """Return a value as JSON says it; what JSON has no word for as text."""
    if isinstance(value, Decimal) and value.is_finite():
        number = float(value)
        return number if Decimal(repr(number)) == value else str(value)
    try:
        encoded: JsonValue = to_jsonable_python(value, by_alias=True, inf_nan_mode="strings", fallback=str)
        text = json.dumps(encoded, ensure_ascii=False, allow_nan=False)
    except Exception:  # noqa: BLE001 - the author's own types: whatever they raise, the call is shown
        text = json.dumps(repr(value), ensure_ascii=False)
    whole: JsonValue = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return whole


# Of a schema, where nothing else is known.


def of_schema(arguments: JsonValue, schema: Mapping[str, Any], source: Source = "server") -> Defaults:
    """Return the defaults that a JSON Schema names for places that the arguments leave empty, as far as it is looked through."""
    values = _Schema(schema).inside(arguments, schema, ())
    return tuple(Default(at=pointer_of(path), value=_as_json(value), source=source) for path, value in values)


_OfSchema = Iterator[tuple[_Path, Any]]


class _Schema:
    """One whole schema. Anyone may have written it, so it is looked through within a bound (I14)."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def inside(self, raw: JsonValue, schema: Any, path: _Path) -> _OfSchema:
        """Yield what one value leaves out."""
        for each in self._applying(raw, schema):
            if isinstance(raw, dict):
                yield from self._members(raw, each, path)
            elif isinstance(raw, list) and isinstance(each.get("items"), dict):
                for place, item in enumerate(raw):
                    yield from self.inside(item, each["items"], (*path, place))

    def _members(self, raw: dict[str, JsonValue], schema: Mapping[str, Any], path: _Path) -> _OfSchema:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        known = properties if isinstance(properties, dict) else {}
        for name, inner in known.items():
            if name in raw:
                yield from self.inside(raw[name], inner, (*path, name))
            elif (default := self._default(inner)) is not ABSENT:
                yield (*path, name), default
        for name in raw if isinstance(others, dict) else ():
            if name not in known:
                yield from self.inside(raw[name], others, (*path, name))

    def _default(self, schema: Any) -> Any:
        while isinstance(schema, dict) and self._left > 0:
            self._left -= 1
            if "default" in schema:
                return schema["default"]
            schema = self._referred(schema)
        return ABSENT

    def _referred(self, schema: Mapping[str, Any]) -> Any:
        ref = schema.get("$ref")
        if not (isinstance(ref, str) and ref.startswith("#/")):
            return None
        return value_at(dict(self._root), ref.removeprefix("#"))

    def _applying(self, raw: JsonValue, schema: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that a value has to fit, with one branch of each union: the first that it doesn't contradict."""
        if not isinstance(schema, dict) or self._left <= 0 or depth > MAX_REFS:
            return
        self._left -= 1
        yield schema
        for each in (self._referred(schema), *_list(schema, "allOf")):
            yield from self._applying(raw, each, depth + 1)
        for union in (_list(schema, "anyOf"), _list(schema, "oneOf")):
            for each in union:
                branch = list(self._applying(raw, each, depth + 1))
                if branch and not any(_contradicts(raw, part) for part in branch):
                    yield from branch
                    break


def _list(schema: Mapping[str, Any], word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _contradicts(raw: JsonValue, schema: Mapping[str, Any]) -> bool:
    wanted = schema.get("type")
    if isinstance(wanted, str) and (wanted == "object", wanted == "array") != (
        isinstance(raw, dict),
        isinstance(raw, list),
    ):
        return True
    if not isinstance(raw, dict):
        return False
    properties = schema.get("properties")
    inner = properties if isinstance(properties, dict) else {}
    constants = {name: each["const"] for name, each in inner.items() if isinstance(each, dict) and "const" in each}
    is_other = any(name in raw and raw[name] != constant for name, constant in constants.items())
    return is_other or not raw.keys() >= {*map(str, _list(schema, "required"))}


# Of an edit, which no worker has read yet.


def of_edit(
    arguments: JsonValue, schema: Mapping[str, Any], was: JsonValue, known: Sequence[Default], *, is_claimed: bool
) -> Defaults:
    """Return in what an edited call differs from its arguments, as far as that is known without its tool's code.

    ``was``: the arguments before the edit; ``known``: what was known of them. A value that the edit leaves out, or writes, as
    before stays; of other places the schema tells. ``is_claimed``: as the tool's server says.
    """
    by_schema = {each.at: each for each in of_schema(arguments, schema, "server" if is_claimed else "default")}

    def stays(default: Default) -> bool:
        if default.source in CHANGES:
            return bool(value_at(arguments, default.at) == value_at(was, default.at))
        return default.at in by_schema or _is_free(arguments, default.at)

    before = {each.at: each for each in known if stays(each)}
    return tuple({**by_schema, **before}.values())


def leave_out(edited: str, defaults: Sequence[Default]) -> str:
    """Return edited arguments without the values that the call left out and the edit sends as they are shown.

    A form sends them back. The person didn't set them, so a handler that looks at what was set must not see them.
    """
    parsed = json_text.parse(edited) if defaults else None
    if parsed is None or parsed.doubled:
        return edited
    tree, left_out = parsed.tree, as_trees([each for each in defaults if each.source not in CHANGES])
    unset = [Default(at=each.at, source="ignored") for each in left_out if value_at(tree, each.at) == each.value]
    return json_text.dump(completed(tree, unset)) if unset else edited


def _is_free(arguments: JsonValue, at: str) -> bool:
    *parents, _name = tokens_of(at)
    above = value_at(arguments, pointer_of(parents))
    return value_at(arguments, at) is ABSENT and isinstance(above, dict | list)
