"""What a tool's arguments look like and how they are decoded: from the model's raw JSON, exactly once (I7).

Arguments fit a tool's JSON Schema or they are refused: the model is shown that schema, and an operator's edit is checked
against it. So pydantic's conversions (``true`` or ``"1"`` for an integer) never apply (ADR 0045).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, runtime_checkable

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from turngate.domain.text.json_text import MAX_ARGUMENT_CHARS, MAX_DEPTH, arguments_text
from turngate.domain.tools.failures import InputProblem, InvalidToolInput, describe_issues, describe_validation
from turngate.domain.tools.results import is_deeper

if TYPE_CHECKING:
    from turngate.schemas.validator import SchemaValidator

REMEMBERED_TEXTS = 64
"""Arguments whose check is remembered: one call is decoded several times, to judge, to show and to run it."""
REMEMBERED_CHARS = 10_000
"""Of one of these texts; a longer one is checked each time."""
NO_PROPERTIES: dict[str, JsonValue] = {"type": "object", "properties": {}}


@runtime_checkable
class Parameters(Protocol):
    """A tool's parameters, whatever describes them. Pure: no network, not even to resolve a ``$ref``."""

    @property
    def python_type(self) -> type:
        """What a handler is given: a pydantic model, or ``dict``."""

    def json_schema(self) -> dict[str, JsonValue]:
        """Return the JSON Schema (draft 2020-12) of an object, as the model sees it."""

    def decode(self, raw_input: str) -> Any:
        """Return what the handler gets. Raises InvalidToolInput, with a complaint for each place that does not fit."""


@dataclass(frozen=True)
class ModelParameters:
    """Parameters described by a pydantic model."""

    model: type[BaseModel]

    @property
    def python_type(self) -> type:
        """The model itself."""
        return self.model

    @cached_property
    def calls_python(self) -> bool:
        """Whether decoding calls functions in Python, such as the author's validators."""
        return _calls_python(self.model.__pydantic_core_schema__)

    def json_schema(self) -> dict[str, JsonValue]:
        """Return pydantic's schema of the model."""
        return self.model.model_json_schema()

    def decode(self, raw_input: str) -> BaseModel:
        """Return the model, validated straight from the JSON text, which also fits the schema."""
        text = object_text(raw_input)
        try:
            decoded = self.model.model_validate_json(text)
        except ValidationError as error:
            # JSON by Python's reading only: half a surrogate pair, as an escape or as a character.
            unread = any(
                issue["type"] in {"json_invalid", "string_unicode"} for issue in error.errors(include_url=False)
            )
            problem: InputProblem = "malformed_json" if unread else "wrong_shape"
            raise InvalidToolInput(describe_validation(error), problem) from None
        complaint = self._complaint(text) if len(text) <= REMEMBERED_CHARS else self._checked(text)
        if complaint:
            raise InvalidToolInput(complaint)
        return decoded

    @cached_property
    def _complaint(self) -> Callable[[str], str]:
        """Return what :meth:`_checked` does, and remember it."""
        return lru_cache(REMEMBERED_TEXTS)(self._checked)

    def _checked(self, text: str) -> str:
        """Return where the JSON text does not fit the schema, in words that quote no value; empty: it fits.

        Empty also for a schema that can't be checked, such as one with a pattern that only Python reads: pydantic decides alone.
        """
        from turngate.schemas.document import UnusableSchemaError  # noqa: PLC0415 - slow to import

        try:
            return describe_issues(self._validator.mismatches(json.loads(text)))
        except (UnusableSchemaError, PydanticInvalidForJsonSchema):
            return ""

    @cached_property
    def _validator(self) -> SchemaValidator:
        from turngate.schemas.validator import SchemaValidator  # noqa: PLC0415 - the same

        return SchemaValidator(self.json_schema())


@dataclass(frozen=True)
class NoParameters:
    """A tool that takes nothing. Members the model makes up are ignored."""

    @property
    def python_type(self) -> type:
        """Nothing is handed to the handler."""
        return type(None)

    def json_schema(self) -> dict[str, JsonValue]:
        """Return an object without properties: providers want an object schema also where there is nothing to send."""
        return dict(NO_PROPERTIES)

    def decode(self, raw_input: str) -> None:
        """Check that it is an object."""
        object_text(raw_input)


def object_text(raw_input: str) -> str:
    """Return the text of a JSON object; an empty text and ``null`` count as ``{}``.

    Raises InvalidToolInput (``malformed_json``) for text that is too long or too deep, not JSON, or JSON and no object. ``NaN``
    is not JSON: pydantic reads it as a number, and one that no predicate compares (``p.cents > 5_000``) would gate.
    """
    if len(raw_input) > MAX_ARGUMENT_CHARS:
        raise InvalidToolInput(f"arguments have more than {MAX_ARGUMENT_CHARS:,} characters", "malformed_json")
    text = arguments_text(raw_input)
    try:
        loaded = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidToolInput("arguments are not valid JSON", "malformed_json") from None
    if not isinstance(loaded, dict):
        raise InvalidToolInput("arguments must be a JSON object", "malformed_json")
    may_be_deep = text.count("{") + text.count("[") > MAX_DEPTH
    if may_be_deep and is_deeper(loaded, MAX_DEPTH):  # no one could be shown such a call
        raise InvalidToolInput(f"arguments nest deeper than {MAX_DEPTH} levels", "malformed_json")
    return text


_CONSTANT: Final = (None, bool, dict, frozenset, int, list, set, str, tuple)
"""Factories that make the same value each time."""


def _calls_python(schema: object) -> bool:
    if isinstance(schema, dict):
        if schema.get("post_init") or schema.get("custom_init") or schema.get("default_factory") not in _CONSTANT:
            return True
        return any(_calls_python(each) for name, each in schema.items() if name != "metadata")
    if isinstance(schema, list | tuple):
        return any(map(_calls_python, schema))
    return callable(schema) and not isinstance(schema, type)


def _no_constant(name: str) -> NoReturn:
    raise InvalidToolInput(f"arguments are not valid JSON: {name} is no JSON number", "malformed_json")
