"""Grants: "approve calls like this", with a pattern. Pure; the store keeps them, policy asks them.

A pattern names every argument. Each is either fixed to one value, within a limit, or open; a call with an argument the pattern
does not name never fits, so a parameter that is added to a tool later is not waved through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.limits import COMMANDS, ValueLimit
from turngate.domain.policy.terms import Role
from turngate.domain.policy.totals import Total
from turngate.domain.text.json_pointers import Ambiguous, decode_arguments, tokens_of
from turngate.domain.tools.defaults import CHANGES, Default, as_read, completed

GrantScope = Literal["run", "agent", "everyone"]

MAX_GRANT_SECONDS: Final = 90 * 24 * 3600
MAX_GRANT_USES: Final = 10_000
NOT_GRANTED: Final = (
    "no grant covers a call that runs scripts: what is in them can change, so each one needs its own decision"
)


class GrantPattern(BaseModel):
    """Which calls of a tool a grant covers.

    ``fixed``: argument → its one value; ``within``: argument → which values it may have; ``open``: arguments of any value.
    ``total``: how much these calls may come to; beyond it they are judged as if the grant did not exist.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str = Field(min_length=1)
    fixed: dict[str, JsonValue] = {}
    within: dict[str, ValueLimit] = {}
    open: list[str] = []
    total: Total | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> GrantPattern:
        """Refuse a pattern that would be kept otherwise than it was given, or that contradicts itself."""
        if len(set(self.open)) != len(self.open):
            raise ValueError("an argument is open twice: name it once")
        named = [*self.fixed, *self.within, *self.open]
        both = next((name for name in named if named.count(name) > 1), None)
        if both is not None:
            raise ValueError(f"the argument {both!r} is fixed to a value, within a limit, or open: one of them")
        for name, value in self.fixed.items():
            if not _is_finite(value):
                raise ValueError(f"the argument {name!r} holds a number that is infinite or NaN, which is no JSON")
        return self

    @model_validator(mode="after")
    def _limits_what_can_be_limited(self) -> GrantPattern:
        """Refuse a beginning of a command, which would let anything run after it, and a total over nothing."""
        for name, limit in self.within.items():
            if limit.op == "starts_with" and name.casefold() in COMMANDS:
                raise ValueError("a command isn't judged by its beginning: use a policy rule with command = [...]")
        if self.total is not None and tokens_of(self.total.at)[0] not in {*self.fixed, *self.within, *self.open}:
            raise ValueError(f"the total is over {self.total.at}, and the pattern has no such argument")
        return self

    @property
    def conditions(self) -> list[tuple[str, str]]:
        """What it says of each argument, for people: its name, and which values it may have; empty: any."""
        fixed = [(name, f"exactly {json.dumps(value, ensure_ascii=False)}") for name, value in self.fixed.items()]
        limited = [(name, limit.words) for name, limit in self.within.items()]
        return [*fixed, *limited, *((name, "") for name in self.open)]

    @property
    def is_exact(self) -> bool:
        """Whether every argument has one value."""
        return not self.within and not self.open

    @property
    def has_prefix(self) -> bool:
        """Whether an argument is judged by its beginning."""
        return any(limit.op == "starts_with" for limit in self.within.values())

    def fits(
        self, tool: str, arguments: JsonValue, decoded: JsonValue = None, defaults: Sequence[Default] = ()
    ) -> bool:
        """Tell whether a call is one of these.

        It has the same tool, each fixed argument the same JSON value, the others within their limits, nothing unnamed, and an
        amount that the total can count. ``decoded``: the arguments as the tool reads them, which have to be within the limits,
        too; None: not otherwise. ``defaults``: in what the tool gets something else than is written, which is what counts.
        """
        if tool != self.tool or not isinstance(arguments, dict):
            return False
        written = without_left_out(arguments, defaults)
        if not isinstance(written, dict) or not set(written) <= {*self.fixed, *self.within, *self.open}:
            return False
        whole = with_left_out(arguments, defaults)
        if not all(name in whole and same_json(whole[name], value) for name, value in self.fixed.items()):
            return False
        if self.total is not None and self.total.share_of("", whole, with_left_out(decoded, defaults)) is None:
            return False
        return self._is_within(whole) and (
            not isinstance(decoded, dict) or self._is_within(with_left_out(decoded, defaults))
        )

    def _is_within(self, arguments: Mapping[str, JsonValue]) -> bool:
        return all(name in arguments and limit.covers(arguments[name]) for name, limit in self.within.items())

    def fits_text(self, tool: str, raw_input: str, defaults: Sequence[Default] = ()) -> bool:
        """As :meth:`fits`, for arguments as exact text; text that is no strict JSON fits nothing."""
        try:
            return self.fits(tool, decode_arguments(raw_input), None, defaults)
        except ValueError:
            return False


class WantedGrant(BaseModel):
    """A grant as someone asks for it. ``expires_after_seconds``: at most 90 days; ``max_uses``: 1 to 10,000."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pattern: GrantPattern
    scope: GrantScope = "run"
    expires_after_seconds: int = Field(default=3600, ge=1, le=MAX_GRANT_SECONDS)
    max_uses: int = Field(default=1, ge=1, le=MAX_GRANT_USES)
    note: str = Field(default="", max_length=500)


class Grant(BaseModel):
    """A standing grant. ``uses``: how many calls it has let through. ``run_id``, ``agent``: set as ``scope`` says.

    ``created_by_role``: what its maker was when they made it: a grant lets nothing through that they could not approve.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    pattern: GrantPattern
    scope: GrantScope
    run_id: str | None
    agent: str | None
    expires_at: AwareDatetime
    max_uses: int
    uses: int
    created_by: str
    created_by_role: Role = "operator"

    def covers(self, *, run_id: str, agent: str) -> bool:
        """Tell whether the grant's scope reaches a run of this agent."""
        if self.scope == "everyone":
            return True
        return self.run_id == run_id if self.scope == "run" else self.agent == agent


def with_left_out(arguments: Any, defaults: Sequence[Default]) -> Any:
    """Return arguments as the tool gets them, as far as that is the same for each call like this one; else ambiguous."""
    return completed(arguments, as_read([each for each in defaults if each.is_constant or each.source in CHANGES]))


def without_left_out(arguments: Any, defaults: Sequence[Default]) -> Any:
    """Return what is written of the arguments, as the tool gets that."""
    return with_left_out(arguments, [each for each in defaults if each.source in CHANGES])


def exact_pattern(
    tool: str,
    arguments: JsonValue,
    *,
    open_arguments: list[str] | None = None,
    within: Mapping[str, ValueLimit] | None = None,
    total: Total | None = None,
) -> GrantPattern:
    """Return the pattern of calls with these arguments.

    ``open_arguments`` may have any value, those of ``within`` the values that their limits cover.

    Raises:
        InvalidInputError: the arguments are no JSON object, an open or limited one is not among them, or one that is to be
            fixed has no value that could be kept (a key given twice, a fraction with more digits than a number can hold).
    """
    if not isinstance(arguments, dict):
        raise InvalidInputError("a grant needs a call whose arguments are a JSON object", code="invalid_grant")
    limits = within or {}
    unknown = [name for name in (*(open_arguments or ()), *limits) if name not in arguments]
    if unknown:
        raise InvalidInputError(f"the call has no argument {unknown[0]!r} to leave open or limit", code="invalid_grant")
    free = {*(open_arguments or ())}
    try:
        return GrantPattern(
            tool=tool,
            fixed={
                name: _pattern_value(name, value) for name, value in arguments.items() if name not in {*free, *limits}
            },
            within={name: limits[name] for name in arguments if name in limits},
            open=[name for name in arguments if name in free],
            total=total,
        )
    except ValidationError as error:
        raise InvalidInputError(_first_problem(error), code="invalid_grant") from None


def _first_problem(error: ValidationError) -> str:
    return error.errors()[0]["msg"].removeprefix("Value error, ")


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Tell whether two JSON values are the same, by type too: ``1`` is neither ``True`` nor ``1.0``."""
    if isinstance(one, Decimal) or isinstance(other, Decimal):  # fractions of a call's arguments are read exactly
        return _exact(one) is not None and _exact(one) == _exact(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same_json(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def _exact(value: Any) -> Decimal | None:
    """Return a fraction exactly, as its shortest text says; None for anything else."""
    if isinstance(value, float):
        return Decimal(repr(value))
    return value if isinstance(value, Decimal) else None


def _pattern_value(name: str, value: Any) -> JsonValue:
    """Return an argument's exact value in the form in which a pattern stores it."""
    if isinstance(value, dict):
        return {key: _pattern_value(name, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_pattern_value(name, each) for each in value]
    if isinstance(value, Ambiguous):
        raise InvalidInputError(f"the argument {name!r} is given twice: leave it open", code="invalid_grant")
    if isinstance(value, Decimal):
        number = float(value)
        if not math.isfinite(number) or _exact(number) != value:
            raise InvalidInputError(
                f"the argument {name!r} holds a fraction that cannot be kept to its last digit: leave it open",
                code="invalid_grant",
            )
        return number
    plain: JsonValue = value
    return plain


def _is_finite(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(each) for each in value.values())
    if isinstance(value, list):
        return all(_is_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)
