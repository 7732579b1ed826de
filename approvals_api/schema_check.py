"""Does a value fit a tool's JSON Schema (draft 2020-12)? Each misfit with its JSON pointer (RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_PROBLEMS = 20

Problem = dict[str, str]


def problems_of(value: Any, schema: dict[str, Any], *, under: str) -> list[Problem]:
    """Return ``{pointer, message}`` for each misfit, at most 20; empty when the value fits. ``under``: pointer prefix.

    A ``$ref`` is resolved within the schema only: a schema can come from a remote tool server, and nothing is ever
    fetched on its word (the default registry of jsonschema would).
    """
    validator = Draft202012Validator(schema, registry=Registry())
    try:
        errors = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    except Unresolvable as error:
        return [{"pointer": under, "message": f"the tool's schema refers to something it does not hold: {error}"}]
    except RecursionError:
        return [{"pointer": under, "message": "nested too deeply to be checked"}]
    return [
        {"pointer": under + pointer_of(error.absolute_path), "message": _message(error)}
        for error in errors[:MAX_PROBLEMS]
    ]


def pointer_of(path: Iterable[Any]) -> str:
    """Return the JSON pointer of a path: ``["a/b", 0]`` is ``/a~1b/0``; the empty path is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _message(error: ValidationError) -> str:
    return error.message if len(error.message) <= 300 else f"{error.message[:300]}…"  # noqa: PLR2004 - room on a page
