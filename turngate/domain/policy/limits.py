"""Limits of a grant: which values an argument may have besides the one it was granted with. Pure.

A limit is a range, a list, or the beginning of a text. It covers a value only if that is certain: whatever a rule would find
unclear is outside. A beginning never judges a command (what follows may run anything), and what follows it may not climb out
of a folder.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, model_validator

from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.arguments import holds, value_problem
from turngate.domain.policy.measures import measured
from turngate.domain.policy.totals import Per, Total
from turngate.domain.text.json_pointers import escaped

LimitKind = Literal["range", "one_of", "prefix"]

MAX_VALUES: Final = 100
MAX_PREFIX_CHARS: Final = 1_000
COMMANDS: Final = frozenset({"command", "cmd"})
"""Arguments that are command lines, by their names."""
_ONLY_HOST: Final = re.compile(r"(?:[a-z][a-z0-9+.-]{0,30}+://|https?:/?)[^/]{0,1000}+", re.IGNORECASE)
_CLIMBS: Final = ("..", "%2e", "%25", "\\")
"""What may lead out of a folder, or be read as that after it was decoded once more."""
_OVERLAP: Final = 2
"""Characters of the beginning that can be a part of what climbs."""


class ValueLimit(BaseModel):
    """Which values one argument may have: ``{"op": "between", "value": [1, 500]}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    op: Literal["le", "ge", "between", "in", "starts_with"]
    value: JsonValue

    @model_validator(mode="after")
    def _can_hold(self) -> Self:
        problem = value_problem(self.op, self.value) or _prefix_problem(self)
        if problem is None and isinstance(self.value, list) and len(self.value) > MAX_VALUES:
            problem = f"a list has at most {MAX_VALUES} values"
        if problem is not None:
            raise ValueError(problem)
        return self

    def covers(self, value: Any) -> bool:
        """Tell whether a value is certainly within the limit."""
        if holds(self.op, self.value, value) != "yes":
            return False
        if self.op != "starts_with":
            return True
        return isinstance(value, str) and isinstance(self.value, str) and _stays_below(value, self.value)

    @property
    def words(self) -> str:
        """What it covers, for people, to follow the argument's name."""
        values = self.value if isinstance(self.value, list) else [self.value]
        texts = [json.dumps(each, ensure_ascii=False) for each in values]
        match self.op:
            case "le":
                return f"at most {texts[0]}"
            case "ge":
                return f"at least {texts[0]}"
            case "between":
                return f"from {texts[0]} to {texts[1]}"
            case "in":
                return f"one of {', '.join(texts)}"
            case "starts_with":
                return f"beginning with {texts[0]}"


def _prefix_problem(limit: ValueLimit) -> str | None:
    if limit.op != "starts_with" or not isinstance(limit.value, str):
        return None
    if len(limit.value) > MAX_PREFIX_CHARS:
        return f"a beginning has at most {MAX_PREFIX_CHARS:,} characters"
    if _ONLY_HOST.fullmatch(limit.value):
        return 'an address needs the slash after its host: "https://example.com/", or other hosts begin alike'
    return None


def _stays_below(value: str, prefix: str) -> bool:
    """Tell whether what follows a beginning is on the same line and climbs out of nothing, however it is decoded."""
    rest = unicodedata.normalize("NFKC", value[max(0, len(prefix) - _OVERLAP) :]).casefold()
    if any(sign in rest for sign in _CLIMBS):
        return False
    return not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in rest)


# Limits as people write them.


def written_limit(kind: LimitKind, example: JsonValue, texts: Sequence[str]) -> ValueLimit:
    """Return the limit that someone wrote. ``example``: the argument's value in the call, which says what the texts are.

    ``texts``: of a ``range`` the first and the last value, of which one may be empty; the values ``one_of`` which it is; or one
    beginning. Raises InvalidInputError.
    """
    match kind:
        case "range":
            low, high = (_bound(example, each.strip()) for each in texts)
            if low is None and high is None:
                raise _invalid("a range needs its first or its last value")
            if low is not None and high is not None:
                return _limit("between", [low, high])
            return _limit("ge", low) if high is None else _limit("le", high)
        case "one_of":
            is_text = isinstance(example, str)
            return _limit("in", [each if is_text else _bound(example, each) for each in texts if each])
        case "prefix":
            return _limit("starts_with", "".join(texts))


def parse_limit(kind: LimitKind, example: JsonValue, text: str) -> ValueLimit:
    """Return the limit that someone wrote in one line: ``1..500``, ``EUR,USD``, or a beginning. Raises InvalidInputError."""
    match kind:
        case "range":
            low, dots, high = text.partition("..")
            if not dots:
                raise _invalid(f"a range is written as FROM..TO, with one side empty or none: not {text!r}")
            return written_limit(kind, example, [low, high])
        case "one_of":
            return written_limit(kind, example, [each.strip() for each in text.split(",")])
        case "prefix":
            return written_limit(kind, example, [text])


def parse_total(text: str) -> Total:
    """Return the total that someone wrote as ``ARGUMENT=MOST/WINDOW``: ``cents=50000/day``. Raises InvalidInputError."""
    name, _equals, amount = text.rpartition("=")
    most, _slash, per = amount.partition("/")
    windows: dict[str, Per] = {"hour": "hour", "day": "day", "week": "week"}
    if not name or per not in windows:
        raise _invalid(f"a total is written as ARGUMENT=MOST/day (or hour, or week): not {text!r}")
    return written_total(name, most, windows[per])


def written_total(name: str, most: str, per: Per) -> Total:
    """Return the total over an argument that someone wrote. Raises InvalidInputError."""
    try:
        return Total(at=f"/{escaped(name)}", most=_number(most.strip()), per=per)
    except ValidationError as error:
        raise _invalid(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _limit(op: str, value: Any) -> ValueLimit:
    try:
        return ValueLimit.model_validate({"op": op, "value": value})
    except ValidationError as error:
        raise _invalid(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _bound(example: JsonValue, text: str) -> JsonValue:
    """Return one value of a limit, of the kind that the argument has; None for an empty text."""
    measure = measured(example)
    if measure is None:
        raise _invalid("only numbers, dates and times with a zone have ranges, and only texts and numbers have lists")
    if not text:
        return None
    return _number(text) if measure.kind == "number" else text


def _number(text: str) -> int | float:
    measure = measured(text)
    if measure is None or measure.kind != "number":
        raise _invalid(f"a plain number, such as 500 or 12.50: not {text[:50]!r}")
    if measure.value == measure.value.to_integral_value():
        return int(measure.value)
    number = float(measure.value)
    if Decimal(repr(number)) != measure.value:
        raise _invalid(f"the number {text!r} has too many digits")
    return number


def _invalid(message: str) -> InvalidInputError:
    return InvalidInputError(message, code="invalid_grant", errors=[{"pointer": "/grant", "message": message}])
