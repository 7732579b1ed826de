"""JSON Schema validation that always ends: schemas and values both come from outside (DESIGN §4, I14).

Owns :class:`BoundedValidator`. Three things could stop a process, and each has a limit here:

* ``pattern`` and ``patternProperties``. ``^(a+)+$`` keeps a backtracking engine busy for years on thirty characters. They are
  matched by RE2, whose time is linear in the text. What RE2 cannot read (look-around, back references) is refused.
* References. Twenty definitions that each refer twice to the next one are a million checks. Every keyword costs steps, and
  a check has a budget of them.
* Long values. What jsonschema does in quadratic time costs the square, and an error message quotes the whole value, so
  a check has a deadline too.

Must not open a connection: a ``$ref`` is resolved within the schema only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final

import re2
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import FormatError, ValidationError
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY as META_SCHEMAS
from referencing import Registry
from referencing.exceptions import Unresolvable

FORMATS: Final = frozenset({"date", "email", "idn-email", "idn-hostname", "ipv4", "ipv6", "regex", "uuid"})
"""Those that are checked. jsonschema checks more where it finds packages for them: a call would fit here and not there."""
MAX_STEPS: Final = 100_000
"""A keyword on a value is a step of some 5 µs: half a second. A list of 30,000 objects with two fields each passes."""
MAX_SECONDS: Final = 2.0
MAX_SCHEMA_STEPS: Final = 300_000
MAX_SCHEMA_SECONDS: Final = 5.0
"""For the check of a schema itself, once for each declaration: 100,000 characters of an ordinary schema pass."""
MAX_PATTERN_CHARS: Final = 1_000
MAX_PATTERN_SIZE: Final = 2_000
"""Instructions of the compiled pattern. ``[a-z]{1,200}`` has 400."""
MAX_FORMAT_CHARS: Final = 2_000
MAX_MISMATCHES: Final = 10
MAX_WANTED_CHARS: Final = 100
"""Of the part of a schema that a value does not fit, as it is quoted."""
_CHARS_TIMES_SIZE_PER_STEP: Final = 2_000  # RE2 takes 3.5 ns at worst for an instruction on a character
_SQUARE_PER_STEP: Final = 100  # a comparison of two members takes 50 ns
_REFERENCE_CHARS_PER_STEP: Final = 50

_PATTERN_MEMORY: Final = 1 << 20


class UnreadableSchemaError(ValueError):
    """The schema has a pattern that RE2 cannot read or that is too large, or patterns where they cannot be matched."""


class TooCostlyError(ValueError):
    """Checking the value takes more steps or more time than a check may."""

    def __init__(self) -> None:
        super().__init__(
            "checking this value against its schema takes too long: send a smaller value or use a simpler schema"
        )


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Any:
    r"""Return an RE2 expression for a pattern of JSON Schema (a dialect of JavaScript's). ``\uXXXX`` is understood.

    Raises UnreadableSchemaError for look-around and back references, which no engine matches in linear time, for what is
    no expression at all, and for one that is too large.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise _unreadable(pattern, f"it has more than {MAX_PATTERN_CHARS:,} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        compiled = re2.compile(_with_re2_escapes(pattern), options)
        size = compiled.programsize
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args and isinstance(error, re2.error) else "it is not valid Unicode"
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise _unreadable(
            pattern, f"{words}. Patterns are RE2 expressions, without look-around and back references"
        ) from None
    if size > MAX_PATTERN_SIZE:
        raise _unreadable(pattern, "it is too large: use smaller repetitions")
    return compiled


def _unreadable(pattern: str, reason: str) -> UnreadableSchemaError:
    short = pattern if len(pattern) <= 80 else f"{pattern[:80]}…"  # noqa: PLR2004 - room in a message
    return UnreadableSchemaError(f"the pattern {short!r} cannot be used: {reason}")


def _with_re2_escapes(pattern: str) -> str:
    r"""Return the pattern with ``\u4e00`` as ``\x{4e00}``: JavaScript's spelling, which RE2 does not have."""
    pieces: list[str] = []
    index = 0
    while index < len(pattern):
        if pattern[index] != "\\":
            pieces.append(pattern[index])
            index += 1
            continue
        code = pattern[index + 2 : index + 6]
        is_code_point = pattern[index + 1 : index + 2] == "u" and len(code) == 4  # noqa: PLR2004 - four hex digits
        if is_code_point and all(digit in "0123456789abcdefABCDEF" for digit in code):
            pieces.append(f"\\x{{{code}}}")
            index += 6
        else:
            pieces.append(pattern[index : index + 2])
            index += 2
    return "".join(pieces)


def has_match(pattern: str, text: str) -> bool:
    """Tell whether the pattern fits anywhere in the text, and charge the running check for it."""
    compiled = compile_pattern(pattern)
    _spend(1 + len(text) * compiled.programsize // _CHARS_TIMES_SIZE_PER_STEP)
    # Half a surrogate pair is in no pattern that RE2 reads.
    return compiled.search(text.encode(errors="replace").decode()) is not None


@dataclass
class _Budget:
    """What a check may still spend. ``rate``: how many times each step counts at the moment."""

    steps: int
    deadline: float
    rate: int = 1


_budget: ContextVar[_Budget] = ContextVar("budget")


def _spend(steps: int) -> None:
    budget = _budget.get()
    budget.steps -= steps * budget.rate
    if budget.steps < 0 or time.monotonic() > budget.deadline:
        raise TooCostlyError


class BoundedValidator:
    """A JSON Schema, draft 2020-12 unless its ``$schema`` names another. A check of a value always ends soon.

    ``checks_formats``: whether :data:`FORMATS` are checked.

    Raises UnreadableSchemaError for the one combination that jsonschema would match by itself, by backtracking.
    """

    def __init__(self, schema: Mapping[str, Any], *, checks_formats: bool = True) -> None:
        # A schema from elsewhere may say that it is of an older draft, where `items` and others mean something else.
        self._draft: Any = validator_for(schema, default=Draft202012Validator)
        self._schema = schema
        if _mentions(schema, "unevaluatedProperties") and _mentions(schema, "patternProperties"):
            raise UnreadableSchemaError("patternProperties and unevaluatedProperties cannot be in one schema")
        formats = _formats_of(self._draft) if checks_formats else None
        self._validator = _bounded(self._draft)(schema, registry=Registry(), format_checker=formats)

    def errors_of_schema(self, limit: int) -> list[ValidationError]:
        """Return what makes the schema itself invalid, at most ``limit``. Raises TooCostlyError, RecursionError."""
        meta = _bounded(validator_for(self._draft.META_SCHEMA, default=self._draft))
        validator = meta(self._draft.META_SCHEMA, registry=META_SCHEMAS, format_checker=FormatChecker(["regex"]))
        budget = _Budget(MAX_SCHEMA_STEPS, time.monotonic() + MAX_SCHEMA_SECONDS)
        return _within_budget(budget, lambda: list(islice(validator.iter_errors(self._schema), limit)))

    def errors(self, value: Any, limit: int) -> list[ValidationError]:
        """Return the first mismatches of a value, at most ``limit``; empty: it fits.

        Raises:
            TooCostlyError: the check was stopped.
            UnreadableSchemaError: the schema has a pattern that RE2 cannot read.
            RecursionError, referencing.exceptions.Unresolvable: as jsonschema does.
        """
        budget = _Budget(MAX_STEPS, time.monotonic() + MAX_SECONDS)
        return _within_budget(budget, lambda: list(islice(self._validator.iter_errors(value), limit)))

    def mismatches(self, value: Any) -> list[tuple[list[int | str], str]]:
        """Return ``(path, words)`` for each place where the value does not fit, at most ten; the words quote no value.

        A check that was stopped is a mismatch too. Raises UnreadableSchemaError, also for a reference to nothing.
        """
        try:
            errors = self.errors(value, MAX_MISMATCHES)
        except TooCostlyError as error:
            return [([], str(error))]
        except RecursionError:
            return [([], "nested too deep to be checked")]
        except Unresolvable as error:
            raise UnreadableSchemaError(str(error)) from None
        return [(list(error.absolute_path), _words(error)) for error in errors]


def _words(error: ValidationError) -> str:
    """Return what is wrong in words from the schema alone: the value may be a secret."""
    if (
        error.validator in ("anyOf", "oneOf")
        and error.context
        and all(each.validator == "type" for each in error.context)
    ):
        return f"Input should be of JSON type {' or '.join(_types(each) for each in error.context)}"
    if error.validator == "type":
        return f"Input should be of JSON type {_types(error)}"
    wanted = json.dumps(error.validator_value, ensure_ascii=False)
    return f"Input does not fit the schema's {error.validator}: {wanted[:MAX_WANTED_CHARS]}"


def _types(error: ValidationError) -> str:
    wanted: Any = error.validator_value
    return wanted if isinstance(wanted, str) else " or ".join(str(each) for each in wanted)


def _within_budget(budget: _Budget, check: Callable[[], list[ValidationError]]) -> list[ValidationError]:
    token = _budget.set(budget)
    try:
        return check()
    finally:
        _budget.reset(token)


def _mentions(schema: Any, keyword: str) -> bool:
    """Tell whether an object anywhere in the schema has this member, even where it is no keyword."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            if keyword in node:
                return True
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return False


Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


@cache
def _bounded(draft: Any) -> Any:
    """Return the draft's validator class with keywords that pay for what they do."""
    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "format": _format,
    }
    keywords = {name: _paying(name, own.get(name, keyword)) for name, keyword in draft.VALIDATORS.items()}
    bounded: Any = extend(draft, keywords)  # type: ignore[no-untyped-call]
    evolve_as_jsonschema = bounded.evolve

    def evolve(self: Any, **changes: Any) -> Any:
        """Return the validator of a subschema: it pays, and stays bounded when the subschema names a draft of its own."""
        _spend(1)
        evolved: Any = evolve_as_jsonschema(self, **changes)
        if isinstance(evolved, bounded):
            return evolved
        plain: Any = type(evolved)
        return _bounded(plain)(
            evolved.schema,
            format_checker=evolved.format_checker,
            registry=evolved._registry,  # noqa: SLF001 - attrs gives its fields by these names only
            _resolver=evolved._resolver,  # noqa: SLF001
        )

    bounded.evolve = evolve
    return bounded


def _paying(name: str, keyword: Keyword) -> Keyword:
    def check(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(_cost(name, wanted, value))
        yield from keyword(validator, wanted, value, schema) or ()

    def check_unevaluated(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        # Each subschema that jsonschema looks into lists what it evaluated, in a list that may be as long as the value.
        budget = _budget.get()
        rate = budget.rate
        budget.rate = rate + _size(value) // 10
        try:
            errors = list(check(validator, wanted, value, schema))
        finally:
            budget.rate = rate
        yield from errors

    return check_unevaluated if name.startswith("unevaluated") else check


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _cost(name: str, wanted: Any, value: Any) -> int:
    """Return the steps of one keyword on one value, without those of the keywords inside it."""
    match name:
        case "enum":
            return 1 + _size(wanted) // 10 * (1 + _size(value))
        case "required" | "dependentRequired" | "dependentSchemas" | "dependencies" | "properties":
            return 1 + _size(wanted) // 10
        case "additionalProperties" | "propertyNames" | "items" | "contains":
            return 1 + _size(value) // 10
        case "$ref" | "$dynamicRef" | "$recursiveRef":
            return 1 + len(str(wanted)) // _REFERENCE_CHARS_PER_STEP
        case "uniqueItems" if wanted and isinstance(value, list) and not _is_sortable(value):
            return 1 + len(value) ** 2 // _SQUARE_PER_STEP
        case "unevaluatedItems" | "unevaluatedProperties":
            return 1 + _size(value) ** 2 // _SQUARE_PER_STEP
        case _:
            return 1


def _is_sortable(items: list[Any]) -> bool:
    """Tell whether jsonschema finds repeated items by sorting them: all texts, or all numbers."""
    return all(isinstance(item, str) for item in items) or all(isinstance(item, int | float) for item in items)


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not has_match(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, member in value.items():
            if has_match(pattern, name):
                yield from validator.descend(member, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    patterns, properties = schema.get("patternProperties", {}), schema.get("properties", {})
    extras = [
        name for name in value if name not in properties and not any(has_match(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(allowed, "object"):
        for name in extras:
            yield from validator.descend(value[name], allowed, path=name)
    elif not allowed and extras:
        names = ", ".join(repr(name) for name in sorted(extras))
        if patterns:
            verb = "does" if len(extras) == 1 else "do"
            listed = ", ".join(repr(pattern) for pattern in sorted(patterns))
            yield ValidationError(f"{names} {verb} not match any of the regexes: {listed}")
        else:
            verb = "was" if len(extras) == 1 else "were"
            yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


@cache
def _formats_of(draft: Any) -> FormatChecker:
    """Return the checks of a draft's formats that don't depend on which optional packages a machine has."""
    return FormatChecker(sorted(FORMATS & draft.FORMAT_CHECKER.checkers.keys()))


def _format(validator: Any, name: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.format_checker is None or not validator.is_type(value, "string"):
        return
    if name == "regex":
        try:
            compile_pattern(value)
        except UnreadableSchemaError as error:
            yield ValidationError(str(error))
    elif len(value) > MAX_FORMAT_CHARS:
        if name in validator.format_checker.checkers:
            yield ValidationError(f"{value!r} is too long for a {name!r}")
    else:
        try:
            validator.format_checker.check(value, name)
        except FormatError as error:
            yield ValidationError(error.message, cause=error.cause)
