"""What someone may have meant by a name that is not known, and what is wrong with a value, key by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

Location = tuple[int | str, ...]
LEAST: Final = 4
"""Characters of a word that a longer name may begin with: ``expires`` is ``expires_after_seconds``."""
ALIKE: Final = 0.65
"""Of 1. ``tools`` and ``toolkit`` are just alike; ``payments`` and ``agent`` are just not."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?``, with the blank before it, for the known name that resembles the word most; else nothing."""
    names = list(known)
    lower = {name.lower(): name for name in names}
    longer = [name for name in names if len(word) >= LEAST and name.startswith(f"{word}_")]
    similar = longer or get_close_matches(word, names, 1, ALIKE)
    similar = similar or [lower[name] for name in get_close_matches(word.lower(), lower, 1, ALIKE)]
    return f" Did you mean {similar[0]!r}?" if similar else ""


def refuse_unknown(options: Iterable[str], known: Iterable[str], function: str) -> None:
    """Raise TypeError, as Python itself would, for a keyword that a function with ``**options`` does not take."""
    names = sorted(known)
    for option in options:
        if option not in names:
            meant = did_you_mean(option, names) or f" It takes: {', '.join(names)}."
            raise TypeError(f"{function}() got an unexpected keyword argument {option!r}.{meant}")


def problems(error: ValidationError, model: type[BaseModel]) -> list[tuple[Location, str]]:
    """Return each place of a value that does not fit its model, with what is wrong there.

    An unknown key gets the known one that resembles it, which is then not reported as missing. Values are not repeated.
    """
    issues = error.errors(include_url=False, include_context=False, include_input=False)
    listed: list[tuple[Location, str]] = []
    for issue in issues:
        place, message = issue["loc"], issue["msg"].removeprefix("Value error, ")
        if issue["type"] == "extra_forbidden":
            known = keys_at(model, place[:-1])
            message = f"there is no such key.{did_you_mean(str(place[-1]), known)}"
        listed.append((place, message))
    meant = {(*place[:-1], name) for place, message in listed for name in _named(message)}
    return [
        each for each, issue in zip(listed, issues, strict=True) if issue["type"] != "missing" or each[0] not in meant
    ]


def _named(message: str) -> Iterator[str]:
    _before, matched, name = message.partition("Did you mean '")
    if matched:
        yield name.removesuffix("'?")


def keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the keys that a model takes at a path into its value, such as ``("rule", 0)``."""
    models = [model]
    for step in path:
        if isinstance(step, str):
            fields = [field for each in models for key, field in _fields(each) if key == step]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return [key for each in models for key, _field in _fields(each)]


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The keys that a person writes, which may be aliases."""
    return ((field.alias or name, field) for name, field in model.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def first_sentence(message: str) -> str:
    """Return the first sentence of a library's error, without its full stop; what follows is advice about the library."""
    return message.split(". ", maxsplit=1)[0].removesuffix(".").splitlines()[0]
