"""What a call leaves out and its handler gets all the same: the defaults of its tool (I6). Pure.

A model's arguments stay as it wrote them; these values are kept beside them, shown, judged and part of the call's digest. Of a
pydantic model they are read off the decoded parameters, so that factories and validators that fill in values count. Any other
tool gets what was written, and its schema only says what its server will use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, JsonValue, RootModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from turngate.domain.text import json_text
from turngate.domain.text.json_pointers import ABSENT, AMBIGUOUS, decode_arguments, pointer_of, tokens_of, value_at
from turngate.domain.tools.secrets import MASKED, Masked, mask_json, without_marks

Source = Literal["default", "server", "made", "later"]
"""``default``: of the tool, and the handler gets it. ``server``: the tool's server says that it uses it. ``made``: a value that
differs each time (an id, the time), made once for this call. ``later``: such a value that can only be made when the call runs."""
MAX_REFS: Final = 32
"""References and parts that lead to one schema."""
SHORT_CHARS: Final = 160
MAX_SCHEMAS: Final = 50_000
"""Schemas that are looked at for one call."""
WORDS: Final[Mapping[Source, str]] = {
    "default": "left out by the agent: the default",
    "server": "left out by the agent: the default, as its server says",
    "made": "left out by the agent: made for this call",
    "later": "left out by the agent: made when the call runs",
}


class Default(BaseModel):
    """A value that the model left out. ``at``: JSON pointer. ``value``: None, too, where it is made later; a secret is a mark."""

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
        return ".".join(tokens_of(self.at))

    @property
    def text(self) -> str:
        """Its value as JSON; empty: it is made later."""
        return "" if self.source == "later" else json.dumps(self.value, ensure_ascii=False)

    @property
    def is_known(self) -> bool:
        """Whether its value is here."""
        return self.source != "later" and MASKED not in json.dumps(self.value, ensure_ascii=False)

    @property
    def is_nothing(self) -> bool:
        """Whether the handler gets null."""
        return self.value is None and self.source != "later"

    @property
    def is_constant(self) -> bool:
        """Whether its value is here, and is the same for each call like this one."""
        return self.is_known and self.source != "made"


@dataclasses.dataclass(frozen=True)
class DefaultRow:
    """How defaults are shown: one, or all of a call that are nothing. ``text``: JSON; empty: it is made later."""

    label: str
    text: str
    words: str


def default_rows(defaults: Sequence[Default]) -> list[DefaultRow]:
    """Return what a call leaves out, to be shown after its arguments; what is nothing comes last, in one line."""
    rows = [DefaultRow(each.label, each.text, each.words) for each in defaults if not each.is_nothing]
    for source in dict.fromkeys(each.source for each in defaults if each.is_nothing):
        names = ", ".join(each.label for each in defaults if each.is_nothing and each.source == source)
        rows.append(DefaultRow(names, "null", WORDS[source]))
    return rows


def in_short(defaults: Sequence[Default]) -> str:
    """Return what a call leaves out in at most 160 characters, for a list: ``recursive true``. Without what is nothing."""
    text = ", ".join(
        f"{each.label} {each.text or each.words}" for each in defaults if each.value not in (None, [], {}, "")
    )
    return text if len(text) <= SHORT_CHARS else f"{text[: SHORT_CHARS - 1]}…"


Defaults = tuple[Default, ...]
DEFAULTS: Final[TypeAdapter[Defaults]] = TypeAdapter(Defaults)


def stored(defaults: Sequence[Default]) -> str | None:
    """Return defaults as they are stored and digested; None: the call leaves nothing out."""
    return DEFAULTS.dump_json(tuple(defaults), exclude_defaults=True).decode() if defaults else None


def read_stored(text: str | None) -> Defaults:
    """Return the defaults that :func:`stored` wrote; none for a call of an earlier release, which has none on record."""
    return DEFAULTS.validate_json(text) if text else ()


def completed(arguments: Any, defaults: Sequence[Default]) -> Any:
    """Return arguments with these values in their places; they are copied as far as they change.

    A value whose place isn't there (in a text that holds JSON, say), or isn't empty, is left out.
    """
    for each in defaults:
        arguments = _with_value(arguments, tokens_of(each.at), each.value)
    return arguments


def complete_text(text: str, defaults: Sequence[Default]) -> str:
    """Return arguments as JSON text with what they leave out; text that can't be taken apart as it is."""
    parsed = json_text.parse(text.strip() or "{}") if defaults else None
    if parsed is None or parsed.doubled:
        return text
    return json_text.dump(completed(parsed.tree, as_trees(defaults)))


def as_read(defaults: Sequence[Default]) -> Defaults:
    """Return them as rules read arguments: fractions are exact, and what isn't known here is ambiguous."""
    return tuple(
        each.model_copy(update={"value": decode_arguments(each.text) if each.is_known else AMBIGUOUS})
        for each in defaults
    )


def as_trees(defaults: Sequence[Default]) -> Defaults:
    """Return those that have a value, with it as a JSON tree, to be put into one."""
    with_values = [each for each in defaults if each.source != "later"]
    return tuple(each.model_copy(update={"value": json_text.tree_of(each.value)}) for each in with_values)


def _with_value(tree: Any, path: Sequence[str], value: JsonValue) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(tree, dict):
        if not rest:
            return tree if name in tree else {**tree, name: value}
        return {**tree, name: _with_value(tree[name], rest, value)} if name in tree else tree
    if isinstance(tree, list) and name.isdecimal():
        place = int(name)
        if place < len(tree) and rest:
            return [*tree[:place], _with_value(tree[place], rest, value), *tree[place + 1 :]]
        if place == len(tree) and not rest:
            return [*tree, value]
    return tree


def masked(mask: Callable[[str], Masked], arguments: JsonValue, defaults: Sequence[Default]) -> Defaults:
    """Return defaults without what their tool declares secret: that is never stored. ``mask``: for all arguments."""
    hidden = mask(json.dumps(completed(arguments, defaults)))
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
    hidden = mask_json(json.dumps({each.label: each.value for each in defaults}))
    tree = json.loads(hidden.text)
    return tuple(each.model_copy(update={"value": tree[each.label]}) for each in defaults)


def agree(known: Sequence[Default], now: Sequence[Default]) -> bool:
    """Tell whether a call's tool fills in now what was on record, but for values that are made later."""
    later = {each.at for each in known if each.source == "later"}
    before, after = ({each.at: each.text for each in some if each.at not in later} for some in (known, now))
    return before == after and later <= {each.at for each in now}


# Of decoded parameters.


def of_model(arguments: JsonValue, params: BaseModel) -> Defaults:
    """Return what decoded parameters hold and the arguments, as JSON, don't."""
    return tuple(Default(at=pointer_of(path), value=_as_json(value)) for path, value in _inside(params, arguments, ()))


_Path = tuple[str | int, ...]
_Values = Iterator[tuple[_Path, Any]]


def _inside(value: Any, raw: Any, path: _Path) -> _Values:
    if isinstance(value, RootModel):
        value = value.root
    if isinstance(value, BaseModel):
        by_name = {name: getattr(value, name) for name in type(value).model_fields}
        yield from _members(by_name, _fields(type(value).model_fields, value.model_config), raw, path)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        by_name = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value) if each.init}
        known = getattr(type(value), "__pydantic_fields__", {})
        yield from _members(by_name, _fields(known, getattr(type(value), "__pydantic_config__", None)), raw, path)
    elif isinstance(value, Mapping):
        yield from _in_mapping(value, raw, path)
    elif isinstance(value, list | tuple) and isinstance(raw, list):
        yield from _items(value, raw, path)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from _members(value._asdict(), {}, raw, path)


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


def _members(values: Mapping[str, Any], paths: Mapping[str, list[_Path]], raw: Any, path: _Path) -> _Values:
    """Yield the members that the arguments don't have, under the names that they would have there."""
    if not isinstance(raw, dict):
        return  # a validator made the value of something else, which is shown
    for name, value in values.items():
        keys = paths.get(name, [(name,)])
        written = next((text for each in keys if (text := _written(raw, each)) is not ABSENT), ABSENT)
        key = next((each[0] for each in keys if len(each) == 1), name)
        if written is ABSENT:
            yield (*path, key), value
        else:
            yield from _inside(value, written, (*path, key))


def _written(raw: Any, path: _Path) -> Any:
    for part in path:
        is_there = part in raw if isinstance(raw, dict) else isinstance(part, int) and part < _length(raw)
        if not is_there:
            return ABSENT
        raw = raw[part]
    return raw


def _length(raw: Any) -> int:
    return len(raw) if isinstance(raw, list) else 0


def _items(value: Sequence[Any], raw: list[Any], path: _Path) -> _Values:
    for place, each in enumerate(value):
        if place < len(raw):
            yield from _inside(each, raw[place], (*path, place))
        else:
            yield (*path, place), each


def _in_mapping(value: Mapping[Any, Any], raw: Any, path: _Path) -> _Values:
    if not isinstance(raw, dict):
        return
    by_key = {str(key): each for key, each in value.items()}
    if (
        len(by_key) == len(raw) and by_key.keys() != raw.keys()
    ):  # the type reads its keys otherwise than they are written
        by_key = dict(zip(raw, value.values(), strict=True))
    for key, each in by_key.items():
        if key in raw:
            yield from _inside(each, raw[key], (*path, key))
        else:
            yield (*path, key), each


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


class _Schema:
    """One whole schema. Anyone may have written it, so it is looked through within a bound (I14)."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def inside(self, raw: JsonValue, schema: Any, path: _Path) -> _Values:
        """Yield what one value leaves out."""
        for each in self._applying(raw, schema):
            if isinstance(raw, dict):
                yield from self._members(raw, each, path)
            elif isinstance(raw, list) and isinstance(each.get("items"), dict):
                for place, item in enumerate(raw):
                    yield from self.inside(item, each["items"], (*path, place))

    def _members(self, raw: dict[str, JsonValue], schema: Mapping[str, Any], path: _Path) -> _Values:
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
        return (
            value_at(dict(self._root), ref.removeprefix("#")) if isinstance(ref, str) and ref.startswith("#/") else None
        )

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
    if isinstance(required := schema.get("required"), list) and not raw.keys() >= {*map(str, required)}:
        return True
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        if name in raw and isinstance(inner, dict) and "const" in inner and inner["const"] != raw[name]:
            return True
    return False


# Of an edit, which no worker has read yet.


def of_edit(arguments: JsonValue, schema: Mapping[str, Any], known: Sequence[Default], *, is_claimed: bool) -> Defaults:
    """Return what an edited call leaves out, as far as it is known without its tool's code.

    ``known``: of the call that was edited. A value that it leaves out as before stays; of other places the schema tells.
    ``is_claimed``: as the tool's server says.
    """
    by_schema = {each.at: each for each in of_schema(arguments, schema, "server" if is_claimed else "default")}
    before = {each.at: each for each in known if each.at in by_schema or _is_free(arguments, each.at)}
    return tuple({**by_schema, **before}.values())


def leave_out(edited: str, defaults: Sequence[Default]) -> str:
    """Return edited arguments without the values that the call left out and the edit sends as they are shown.

    A form sends them back. The person didn't set them, so a handler that looks at what was set must not see them.
    """
    parsed = json_text.parse(edited) if defaults else None
    if parsed is None or parsed.doubled:
        return edited
    tree, by_place = parsed.tree, {each.at: each for each in as_trees(defaults)}
    unset = [at for at, each in by_place.items() if value_at(tree, at) == each.value and not _is_item(tree, at)]
    for at in unset:
        tree = _without(tree, tokens_of(at))
    return json_text.dump(tree) if unset else edited


def _is_item(tree: Any, at: str) -> bool:
    return isinstance(value_at(tree, pointer_of(tokens_of(at)[:-1])), list)


def _without(tree: Any, path: Sequence[str]) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(tree, list):
        place = int(name)
        return [*tree[:place], _without(tree[place], rest), *tree[place + 1 :]]
    if rest:
        return {**tree, name: _without(tree[name], rest)}
    return {key: value for key, value in tree.items() if key != name}


def _is_free(arguments: JsonValue, at: str) -> bool:
    *parents, _name = tokens_of(at)
    above = value_at(arguments, pointer_of(parents))
    return value_at(arguments, at) is ABSENT and isinstance(above, dict | list)
