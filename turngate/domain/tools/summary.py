"""One sentence of what a call does, made by the tool's author or from its declaration. Never a model's words, never a result's.

An author writes it as a text with arguments in braces or as a function; else :func:`describe` renders it from the tool's name,
description and schema, so that an amount reads as money and an instant as a date. Values are shortened, and what is left out is
counted. A text of several words is in quotation marks: nothing in it can pass for a word of Turngate.

Pure. Hidden characters are marked where the sentence is shown, not here.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, product
from string import Formatter
from typing import Any, Final, get_args

from pydantic import BaseModel, TypeAdapter

from turngate.domain.errors import ConfigurationError
from turngate.domain.text import json_text
from turngate.domain.text.argument_names import AMOUNTS, MINOR_UNITS, REASONS, name_words
from turngate.domain.text.json_text import JsonTree, NumberToken
from turngate.domain.text.sentences import counted
from turngate.domain.tools.defaults import Default, as_trees, completed
from turngate.domain.tools.tool import ToolManifest

MAX_SUMMARY_CHARS: Final = 300
MAX_CHECK_CHARS: Final = 2_000
IDEMPOTENCY_KEY: Final = "idempotency_key"
MAX_ARGUMENTS: Final = 8
"""Of a rendered sentence; further ones are counted."""
_LOOKED_THROUGH: Final = 64
"""Arguments among which the currency of an amount may be."""
MAX_ITEMS: Final = 3
"""Of a list; further ones are counted."""
_LEAD_CHARS: Final = 100
_VALUE_CHARS: Final = 80
_COMMAND_CHARS: Final = 160
_NAME_CHARS: Final = 40
_CLEANED_CHARS: Final = 4 * MAX_SUMMARY_CHARS

_PLAIN: Final = re.compile(r"[\w.@/:+#~%-]{1,80}")
_AMOUNT: Final = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")
_CURRENCY: Final = re.compile(r"[A-Za-z]{3}")
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d\d:?\d\d)?")
_FIELD: Final = re.compile(r"[A-Za-z_]\w{0,63}(?:\.[A-Za-z_]\w{0,63}){0,4}")
_CURRENCY_WORDS: Final = frozenset({"eur", "usd", "gbp", "chf"})
_OTHER_MINOR_UNITS: Final = frozenset(
    {"BHD", "CLP", "ISK", "JOD", "JPY", "KRW", "KWD", "OMR", "TND", "UGX", "VND", "XAF", "XOF"}
)
"""Currencies whose minor unit isn't a hundredth (ISO 4217): what "cents" of them are is not for us to say."""
_BOUNDS: Final = frozenset({"enum", "const", "pattern", "format", "maxLength"})
_REMARKS: Final = frozenset({"note", "notes", "comment", "comments", "remark", "remarks", "memo"})
_SAYS_WHY: Final = re.compile(r"(?i)\b(?:why\b|reasons? (?:for|of|to)\b|justif|rationale\b|convinc|persuad)")
_COMMANDS: Final = frozenset({"argv", "command", "cmd"})
_FIRST: Final = ("to", "recipient", "recipients", "cc", "bcc", "from", "subject")
"""Arguments of a mail, in the order in which people read them."""
_MASK: Final = "•••"


def describe(
    manifest: ToolManifest, raw_input: str, template: str | None = None, defaults: Sequence[Default] = ()
) -> str:
    """Return what a call does, in one sentence of at most 300 characters. Never raises.

    ``template``: the author's text, checked by :func:`check_template`. Linear in the arguments, which are parsed once.
    ``defaults``: what the arguments leave out, for a text that names it.
    """
    parsed = json_text.parse(json_text.arguments_text(raw_input))
    arguments = parsed.tree if parsed is not None and isinstance(parsed.tree, dict) else None
    definitions = manifest.parameters.get("$defs")
    properties = _properties(manifest.parameters, definitions)
    if arguments is None:
        return clean(f"{_lead(manifest)}: {len(raw_input):,} characters that can't be read as arguments")
    if template is not None:
        whole = completed(arguments, as_trees(defaults))
        return clean("".join(_filled(template, whole, properties, definitions)))
    return clean(_rendered(_lead(manifest), arguments, properties))


def clean(text: str) -> str:
    """Return a sentence on one line, of at most 300 characters."""
    line = " ".join(text[:_CLEANED_CHARS].split())
    return _clip(line, MAX_SUMMARY_CHARS)


def check_text(manifest: ToolManifest, raw_input: str, template: str, idempotency_key: str) -> str:
    """Return how to check whether a lost call took effect, by its author's text. Never raises; at most 2,000 characters."""
    parsed = json_text.parse(json_text.arguments_text(raw_input))
    arguments = parsed.tree if parsed is not None and isinstance(parsed.tree, dict) else {}
    definitions = manifest.parameters.get("$defs")
    known = {IDEMPOTENCY_KEY: idempotency_key, **arguments}
    return clean_check("".join(_filled(template, known, _properties(manifest.parameters, definitions), definitions)))


def clean_check(text: str) -> str:
    """Return a text about how to check a call, with its lines, of at most 2,000 characters."""
    return _clip(text.strip(), MAX_CHECK_CHARS)


def free_texts(summary: str | Callable[..., str], schema: Mapping[str, Any], kind: type) -> list[str] | None:
    """Return the arguments by which a model can write a tool's summary as it likes, to persuade the people who read it.

    They are free texts that say why the call is right, by their name or description, also inside an argument; and of a summary
    without words of its own, every free text. ``summary``: of the tool: a text, or a function, which is tried on arguments that
    are made up for its parameters (``kind``). None: it fails on all of them, so no one can tell.
    """
    values = dict(islice(_values(schema, schema.get("$defs")), _LOOKED_THROUGH**2))
    if isinstance(summary, str):
        return _written_in(summary, values)
    marks = {at: f"zq{place}qz" for place, (at, facts) in enumerate(values.items()) if _persuades(at, facts)}
    if not marks:
        return []
    probes = [_Probe(schema.get("$defs"), marks, *options) for options in product((True, False), repeat=2)]
    texts = [text for each in probes if (text := _tried(summary, kind, each.value(schema))) is not None]
    return [at for at, mark in marks.items() if any(mark in text for text in texts)] if texts else None


def _tried(summary: Callable[..., str], kind: type, arguments: Any) -> str | None:
    """Return what a function makes of arguments, in small letters; None: it fails."""
    try:
        with warnings.catch_warnings(action="ignore"):  # pydantic warns of values that no check has seen
            return str(summary(_as_model(kind, arguments))).casefold()
    except Exception:  # noqa: BLE001 - the author's code, on arguments that no model sent
        return None


@dataclass(frozen=True)
class _Probe:
    """Arguments that are made up from a schema. ``marks``: path → the text there, which is looked for.

    ``is_high``: with what is true, last and largest, not the opposite. ``is_whole``: also with what may be left out.
    """

    definitions: Any
    marks: Mapping[str, str]
    is_high: bool
    is_whole: bool

    def value(self, schema: Any, at: str = "", level: int = 0) -> Any:
        """Return a value that fits a schema, as far as the schema says what does."""
        facts = _facts(schema, self.definitions)
        listed = [facts["const"]] if "const" in facts else facts.get("enum")
        if listed:
            return listed[-1 if self.is_high else 0]
        if level > _MOST_LEVELS:
            return None
        if choices := _choices(facts):
            return self.value(choices[-1 if self.is_high else 0], at, level + 1)
        if "properties" in facts:
            needed = self.marks.keys() | {f"{at}.{name}".lstrip(".") for name in facts.get("required", ())}
            members = {f"{at}.{name}".lstrip("."): name for name in facts["properties"]}
            inner = {path: name for path, name in members.items() if self.is_whole or path in needed}
            return {name: self.value(facts["properties"][name], path, level + 1) for path, name in inner.items()}
        if "items" in facts:
            return [self.value(facts["items"], at, level + 1)] * max(1, facts.get("minItems", 1))
        return self._plain(facts, at)

    def _plain(self, facts: Mapping[str, Any], at: str) -> Any:
        match facts.get("type"):
            case "boolean":
                return self.is_high
            case "integer" | "number":
                least = facts.get("minimum", facts.get("exclusiveMinimum", 0))
                return facts.get("maximum", least + 1_000_000) if self.is_high else least + 1
            case "object":
                return {}
            case "array":
                return []
            case "null":
                return None
        text = self.marks.get(at) or _SAMPLES.get(str(facts.get("format")), "sample")
        return text * (facts.get("minLength", 0) // len(text) + 1)


_SAMPLES: Final = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "P1D",
    "email": "ann@example.com",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""Texts of a format; of any other, pydantic may refuse what is made up."""


def _as_model(kind: Any, arguments: Any) -> Any:
    """Return made-up arguments as parameters; what a check refuses, such as a pattern, is as it was made up."""
    try:
        return TypeAdapter(kind).validate_python(arguments)
    except Exception:  # noqa: BLE001, S110 - as above; a model is then made without its checks
        pass
    if isinstance(arguments, list):
        return [_as_model(kind, each) for each in arguments]
    models = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, BaseModel)]
    if not models or not isinstance(arguments, dict):
        return arguments
    fields = {field.alias or name: (name, field.annotation) for name, field in models[0].model_fields.items()}
    known = {fields[key][0]: _as_model(fields[key][1], each) for key, each in arguments.items() if key in fields}
    return models[0].model_construct(**known)


def _written_in(template: str, values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    parts = list(Formatter().parse(template))
    fields = tuple(f"{field}." for _text, field, *_ in parts if field)
    is_written = _persuades if any(each.isalpha() for text, *_ in parts for each in text) else _is_free
    return [at for at, facts in values.items() if f"{at}.".startswith(fields) and is_written(at, facts)]


_MOST_LEVELS: Final = 5


def _values(schema: Any, definitions: Any, at: str = "", level: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what a schema says of each value, by its path: ``order.note``; of an item of a list by that of the list."""
    facts = _facts(schema, definitions)
    inner: list[tuple[Any, str]] = [({"description": facts.get("description"), **each}, at) for each in _choices(facts)]
    inner += [(facts.get("items"), at)] if "items" in facts else []
    inner += [(each, f"{at}.{name}".lstrip(".")) for name, each in _properties(facts, definitions).items()]
    if not inner:
        yield at, facts
    for each, place in inner if level < _MOST_LEVELS else ():
        yield from _values(each, definitions, place, level + 1)


def _choices(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = facts.get("anyOf") or facts.get("oneOf")
    choices = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [each for each in choices if each.get("type") != "null"]


def _last(at: str) -> str:
    return at.rpartition(".")[2]


def _persuades(at: str, facts: Mapping[str, Any]) -> bool:
    says_so = name_words(_last(at)) & (REASONS | _REMARKS) or _SAYS_WHY.search(
        str(facts.get("description", ""))[:_CLEANED_CHARS]
    )
    return bool(says_so) and _is_free(at, facts)


def _is_free(_at: str, facts: Mapping[str, Any]) -> bool:
    """Tell whether a value is any text of any length."""
    kinds = facts.get("type")
    is_text = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    return is_text and not facts.keys() & _BOUNDS


def check_template(template: str, schema: Mapping[str, Any], tool: str, option: str = "summary") -> None:
    """Raise ConfigurationError unless the braces of an author's text hold names of arguments, and nothing else.

    ``option``: of the tool, whose text it is. ``check_with`` may also hold ``{idempotency_key}``.
    """
    try:
        fields = [(name, spec, conversion) for _text, name, spec, conversion in Formatter().parse(template)]
    except ValueError as error:
        raise ConfigurationError(f"tool {tool!r}: its {option} is not a format string: {error}") from None
    properties = _properties(schema, None)
    for name, spec, conversion in fields:
        if name is None:
            continue
        if spec or conversion or not _FIELD.fullmatch(name):
            raise ConfigurationError(
                f"tool {tool!r}: its {option} may hold names of arguments in braces, such as {{order_id}} or "
                f"{{address.city}}, without a format; use a function for anything else"
            )
        if option == "check_with" and name == IDEMPOTENCY_KEY:
            continue
        if properties and name.partition(".")[0] not in properties:
            raise ConfigurationError(f"tool {tool!r}: its {option} names {name!r}, which is no argument")


def _lead(manifest: ToolManifest) -> str:
    """Return what the tool does whatever its arguments are: the beginning of its description, or its name.

    What a server or program from outside says of its tool is not ours to repeat as a fact: of that one, the name.
    """
    words = " ".join(manifest.name.replace("_", " ").replace("-", " ").split())
    name = words[:1].upper() + words[1:]
    if manifest.origin or manifest.kind == "external":
        return name
    first = manifest.description.strip()[: _LEAD_CHARS + 2].partition("\n")[0].partition(". ")[0].strip().rstrip(".:")
    return first if first and len(first) <= _LEAD_CHARS else name


def _rendered(lead: str, arguments: Mapping[str, JsonTree], properties: Mapping[str, Any]) -> str:
    order = {name: place for place, name in enumerate((*_FIRST, *properties))}
    names = sorted(arguments, key=lambda name: order.get(name, len(order)))
    names = [name for name in names if arguments[name] is not None and not _persuades(name, properties.get(name, {}))]
    commands = [name for name in names if name in _COMMANDS and _command(arguments[name]) is not None]
    if len(commands) == 1:
        lead = f"Run `{_clip(_command(arguments[commands[0]]) or '', _COMMAND_CHARS)}`"
        names.remove(commands[0])
    for currency in _currencies_of(names[:MAX_ARGUMENTS], arguments, properties):
        names.remove(currency)
    parts = [
        f"{_label(name)} {_value(name, arguments[name], properties.get(name, {}), arguments)}"
        for name in names[:MAX_ARGUMENTS]
    ]
    if len(names) > MAX_ARGUMENTS:
        parts.append(f"and {len(names) - MAX_ARGUMENTS} more")
    return f"{lead}: {', '.join(parts)}" if parts else lead


def _currencies_of(names: Sequence[str], arguments: Mapping[str, JsonTree], properties: Mapping[str, Any]) -> set[str]:
    """Return the arguments that say no more than which currency another of these has."""
    amounts = [name for name in names if _is_amount(name, properties.get(name, {}))]
    return {each for name in amounts if (each := _currency_argument(name, arguments)) is not None}


def _filled(
    template: str, arguments: Mapping[str, JsonTree], properties: Mapping[str, Any], definitions: Any
) -> list[str]:
    pieces: list[str] = []
    for text, name, _spec, _conversion in Formatter().parse(template):
        pieces.append(text)
        if name is not None:
            pieces.append(_placed(name.split("."), arguments, properties, definitions))
    return pieces


def _placed(
    path: Sequence[str], arguments: Mapping[str, JsonTree], properties: Mapping[str, Any], definitions: Any
) -> str:
    """Return the value of one pair of braces; what the model left out has its default."""
    name, *rest = path
    facts = properties.get(name, {})
    if name not in arguments:
        default = json_text.tree_of(facts.get("default"))
        return "nothing" if default is None or rest else _value(name, default, facts, arguments)
    if not rest:
        return _value(name, arguments[name], facts, arguments)
    inner = arguments[name]
    return _placed(rest, inner, _properties(facts, definitions), definitions) if isinstance(inner, dict) else "nothing"


def _value(name: str, value: JsonTree, facts: Mapping[str, Any], beside: Mapping[str, JsonTree]) -> str:
    """Return a value as people write it. ``facts``: of its schema. ``beside``: the arguments it is one of, with its currency."""
    if facts.get("writeOnly") is True or facts.get("format") == "password":
        return _MASK
    match value:
        case None:
            return "nothing"
        case bool():
            return "yes" if value else "no"
        case NumberToken(text):
            return _money(name, text, facts, beside) or _clip(text, _VALUE_CHARS)
        case str():
            return _money(name, value, facts, beside) or _instant(value) or _text(value)
        case list():
            return _several(value)
        case _:
            return f"{counted(len(value), 'field')} ({_names(value)})" if value else "nothing"


def _several(items: Sequence[JsonTree]) -> str:
    if not items:
        return "nothing"
    if all(isinstance(each, dict) for each in items):
        return f"{counted(len(items), 'row')} ({_names(items[0])})"
    if any(isinstance(each, dict | list) for each in items):
        return counted(len(items), "item")
    first = [_value("", each, {}, {}) for each in items[:MAX_ITEMS]]
    last = f"{len(items) - MAX_ITEMS:,} more" if len(items) > MAX_ITEMS else first.pop()
    return f"{', '.join(first)} and {last}" if first else last


def _names(members: Mapping[str, JsonTree]) -> str:
    names = [_label(name) for name in list(members)[:MAX_ITEMS]]
    return ", ".join([*names, "…"] if len(members) > MAX_ITEMS else names)


def _label(name: str) -> str:
    words = " ".join(name[:_NAME_CHARS].replace("_", " ").split())
    return words if _PLAIN.fullmatch(words.replace(" ", "")) else _quoted(_clip(name, _NAME_CHARS))


def _text(text: str) -> str:
    if not text:
        return "“”"
    if _PLAIN.fullmatch(text):
        return text
    lines = text.count("\n") + (not text.endswith("\n"))
    first = " ".join(text[: 2 * _VALUE_CHARS].split())
    if lines > 1:
        return f"{_quoted(_clip(first, _VALUE_CHARS))} ({lines:,} lines)"
    if len(text) > _VALUE_CHARS:
        return f"{_quoted(_clip(first, _VALUE_CHARS))} ({len(text):,} characters)"
    return _quoted(first)


def _quoted(text: str) -> str:
    return "“" + text.replace("“", '"').replace("”", '"') + "”"


def _command(value: JsonTree) -> str | None:
    """Return the command that a value is, as a shell would take it, cut after 1,000 words; None: it is none."""
    if isinstance(value, str):
        return value[:_CLEANED_CHARS].replace("`", "'")
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return shlex.join(each[:_CLEANED_CHARS] for each in value[:1_000]).replace("`", "'")
    return None


def _is_amount(name: str, facts: Mapping[str, Any]) -> bool:
    return bool(name_words(name) & AMOUNTS) or isinstance(facts.get("currency"), str)


def _currency_argument(name: str, beside: Mapping[str, JsonTree]) -> str | None:
    """Return the argument that says which currency an amount has; None: none does, or more than one."""
    if not isinstance(beside.get(name), NumberToken | str):
        return None
    named = [
        each
        for each, value in islice(beside.items(), _LOOKED_THROUGH)
        if _is_currency(value) and "currency" in name_words(each)
    ]
    return named[0] if len(named) == 1 else None


def _is_currency(value: JsonTree) -> bool:
    return isinstance(value, str) and _CURRENCY.fullmatch(value) is not None


def _money(name: str, written: str, facts: Mapping[str, Any], beside: Mapping[str, JsonTree]) -> str | None:
    """Return an amount of money with its currency; None: it is none, or not in figures."""
    words = name_words(name)
    if not _is_amount(name, facts) or not _AMOUNT.fullmatch(written):
        return None
    argument = _currency_argument(name, beside)
    named = (facts.get("currency"), beside.get(argument or ""), *(words & _CURRENCY_WORDS))
    code = next((str(each).upper() for each in named if _is_currency(each)), "")
    number = Decimal(written)
    if not words & MINOR_UNITS:
        return f"{number:,} {code}" if code else None
    if code in _OTHER_MINOR_UNITS or number != number.to_integral_value():
        return f"{written} cents {code}".strip()
    return f"{number / 100:,.2f} {code}" if code else f"{number / 100:,.2f} ({written} cents)"


def _instant(text: str) -> str | None:
    """Return an instant in UTC, or one without a zone as such; None: the text is none."""
    if not _INSTANT.fullmatch(text):
        return None
    try:
        at = datetime.fromisoformat(text.upper())
        zoned = None if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    instant = at if zoned is None else zoned
    clock = f"{instant:%Y-%m-%d %H:%M:%S}" if instant.second else f"{instant:%Y-%m-%d %H:%M}"
    return f"{clock} (no time zone)" if zoned is None else f"{clock} UTC"


def _properties(schema: Any, definitions: Any) -> dict[str, Mapping[str, Any]]:
    """Return what an object's schema says of each member. ``definitions``: the ``$defs`` of the whole schema."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _facts(each, definitions) for name, each in properties.items()}


def _facts(schema: Any, definitions: Any) -> Mapping[str, Any]:
    """Return what a schema says of a value, and what the definition says that it names; of one that may be null, too."""
    facts: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
    choices = facts.get("anyOf")
    if isinstance(choices, list):
        first = next((each for each in choices if isinstance(each, dict) and each.get("type") != "null"), {})
        facts = {**first, **facts}
    name = str(facts.get("$ref", "")).removeprefix("#/$defs/")
    defined = definitions.get(name) if isinstance(definitions, dict) else None
    return {**defined, **facts} if isinstance(defined, dict) else facts


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
