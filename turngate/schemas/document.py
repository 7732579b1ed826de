"""A JSON Schema as a document: the schemas inside it, what its references lead to, which patterns can be used.

Must not open a connection: a reference leads to a place within the document, or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from jsonschema_rs import RegexOptions, validator_for

MAX_PATTERN_CHARS: Final = 1_000
PATTERN_BYTES: Final = 1 << 17
"""Of a compiled pattern."""
_PATTERN_CHECKS: Final = ((1 << 12, 32), (1 << 15, 256), (PATTERN_BYTES, 1_024))
"""Bytes of a compiled pattern, and its checks for eight characters: matching takes up to 0.5, 4 and 12 µs a character."""
_ANY_PATTERN_BYTES: Final = 1 << 23  # only to tell what is too large from what can't be read

SAME_PLACE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
"""Keywords whose schemas are for the value itself."""
MEMBERS: Final = frozenset(
    {
        "properties",
        "patternProperties",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "prefixItems",
        "items",
        "additionalItems",
        "unevaluatedItems",
        "contains",
    }
)
"""Keywords whose schemas are for its members or items."""
_NAMED: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")

Schema = dict[str, Any]
Place = tuple[str | int, ...]


class UnusableSchemaError(ValueError):
    """The schema is invalid, refers to what isn't in it, has a pattern that can't be used, or could take too long to check.

    The message continues a sentence that begins with "the schema".
    """


def subschemas(schema: Schema) -> Iterator[tuple[Place, Schema]]:
    """Return each schema directly inside this one that is an object, with its place."""
    for keyword in schema.keys() & (SAME_PLACE | MEMBERS | _NAMED):
        value = schema[keyword]
        inner: Mapping[Any, Any] = {}
        if isinstance(value, list):
            inner = dict(enumerate(value))
        elif isinstance(value, dict) and keyword in _NAMED:
            inner = value
        elif isinstance(value, dict):
            yield (keyword,), value
        yield from (((keyword, name), each) for name, each in inner.items() if isinstance(each, dict))


def references(schema: Schema) -> list[str]:
    """Return the references that are directly in the schema."""
    return [schema[keyword] for keyword in _REFERENCES if isinstance(schema.get(keyword), str)]


@lru_cache(maxsize=1024)
def pattern_checks(pattern: str) -> int:
    """Return how many checks a pattern is worth for each eight characters.

    Raises UnusableSchemaError for look-around and back references, which no engine matches in linear time, for what is
    no expression at all, and for one that is too large.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise _unusable(pattern, f"it has more than {MAX_PATTERN_CHARS:,} characters")
    if any("\ud800" <= char <= "\udfff" for char in pattern):
        raise _unusable(pattern, "it is not valid Unicode")
    for size, checks in _PATTERN_CHECKS:
        if _compiles(pattern, size):
            return checks
    if _compiles(pattern, _ANY_PATTERN_BYTES):
        raise _unusable(pattern, "it is too large. Use smaller repetitions")
    raise _unusable(pattern, "it is no regular expression, or one with look-around or back references")


def _compiles(pattern: str, size: int) -> bool:
    try:
        validator_for({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size), offline=True)
    except ValueError:
        return False
    return True


def _unusable(pattern: str, reason: str) -> UnusableSchemaError:
    short = pattern if len(pattern) <= 80 else f"{pattern[:80]}…"  # noqa: PLR2004 - room in a message
    return UnusableSchemaError(f"the pattern {short!r} can't be used: {reason}")


class Document:
    """A schema and all schemas inside it, the outer ones first.

    Raises UnusableSchemaError if an inner one has an ``$id`` of its own: references are read from the root.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self.schemas: list[tuple[Place, Schema]] = [((), root)]
        self._anchors: dict[str, Schema] = {}
        for place, schema in self.schemas:
            self.schemas += [((*place, *within), inner) for within, inner in subschemas(schema)]
            own_id = schema.get("$id") if place else None
            if isinstance(own_id, str) and not own_id.startswith("#"):
                raise UnusableSchemaError(
                    f"has a schema inside it with an $id, {own_id[:80]!r}. Refer to it by its place"
                )
            names = (schema.get("$anchor"), schema.get("$dynamicAnchor"), own_id)
            self._anchors |= {name.removeprefix("#"): schema for name in names if isinstance(name, str)}

    def target(self, reference: str) -> Any:
        """Return what a reference leads to. Raises UnusableSchemaError if that isn't in the document."""
        base, _hash, fragment = reference.partition("#")
        steps = unquote(fragment).split("/")
        try:
            if base and base != str(self._root.get("$id")).rstrip("#"):
                raise KeyError(base)
            target: Any = self._anchors[steps[0]] if steps[0] else self._root
            for step in steps[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                target = target[int(name)] if isinstance(target, list) else target[name]
        except (LookupError, TypeError, ValueError):
            raise UnusableSchemaError(
                f"refers to {reference[:200]!r}, which it does not hold. References are never fetched: put the "
                'definition under "$defs" and refer to "#/$defs/NAME"'
            ) from None
        return target
