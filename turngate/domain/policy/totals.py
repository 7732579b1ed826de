"""Totals per window: how much the calls that a rule or grant lets run may come to in an hour, a day or a week. Pure.

The store counts, in the transaction that starts the call (:mod:`turngate.store.policy.totals`, ADR 0040): millionths, so that
sums are exact. No amount is rounded; one with more than six decimals, a sign or another form than a plain number isn't
counted, so its call asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from turngate.domain.policy.measures import exact_number, measured
from turngate.domain.text.json_pointers import checked_pointer, value_at

Per = Literal["hour", "day", "week"]

UNITS: Final = 1_000_000
"""Of one: the smallest amount that is counted is a millionth."""
MAX_MOST: Final = 10**12
"""So that a sum of units fits into 64 bits, whatever is added to it."""
_LENGTHS: Final[dict[Per, timedelta]] = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_EXACT: Final = Context(prec=40, traps=[Inexact, InvalidOperation])


def _countable(most: float) -> float:
    number = exact_number(most)
    if number is None or not units_of(number):
        raise ValueError(f"a total is more than 0, at most {MAX_MOST:,}, and has at most six decimals")
    return most


class Total(BaseModel):
    """At most ``most`` for the sum of the amounts at ``at`` (JSON pointer), in each UTC hour, day, or week from Monday."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: Annotated[str, AfterValidator(checked_pointer)] = Field(min_length=1, max_length=100)
    most: Annotated[int | float, AfterValidator(_countable)]
    per: Per

    @property
    def units(self) -> int:
        """The most that the sum may be, in units."""
        return units_of(exact_number(self.most)) or 0

    @property
    def words(self) -> str:
        """What it allows, for people."""
        return f"a total of {text_of_units(self.units)} at {self.at} per {self.per} (UTC)"

    def window(self, at: datetime) -> tuple[datetime, datetime]:
        """Return when the window that holds an instant begins and ends."""
        begins = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if self.per != "hour":
            begins = begins.replace(hour=0)
        if self.per == "week":
            begins -= timedelta(days=begins.weekday())
        return begins, begins + _LENGTHS[self.per]

    def share_of(self, owner: str, arguments: JsonValue, decoded: JsonValue) -> Share | None:
        """Return what a call adds; None where its arguments don't say, or say two things.

        ``owner``: whose total it is. ``decoded``: as the tool reads the arguments; None: not otherwise.
        """
        amounts = {_amount(view, self.at) for view in (arguments, arguments if decoded is None else decoded)}
        units = amounts.pop()
        if amounts or units is None:
            return None
        return Share(meter=self.meter(owner), total=self, units=units)

    def meter(self, owner: str) -> str:
        """Return the name under which the sum of an owner's calls is kept. Another window or amount is another sum."""
        return f"{owner} {self.per} {self.at}"


@dataclass(frozen=True)
class Share:
    """What one call adds to a total, in units."""

    meter: str
    total: Total
    units: int

    @property
    def fits(self) -> bool:
        """Whether it would fit into an empty window."""
        return self.units <= self.total.units


def rule_owner(name: str) -> str:
    """Return whose total that of a rule is. Rules of one name share one, wherever they come from."""
    return f"rule:{name}"


def grant_owner(grant_id: str) -> str:
    """Return whose total that of a grant is."""
    return f"grant:{grant_id}"


def units_of(number: Decimal | None) -> int | None:
    """Return an amount in units; None if it is below 0, too large, or has more decimals than are counted."""
    if number is None or not 0 <= number <= MAX_MOST:
        return None
    try:
        units = _EXACT.multiply(number, Decimal(UNITS))
    except DecimalException:
        return None
    return int(units) if units == units.to_integral_value() else None


def text_of_units(units: int) -> str:
    """Return units as a plain decimal: ``12.5``."""
    whole, rest = divmod(units, UNITS)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def _amount(arguments: JsonValue, pointer: str) -> int | None:
    measure = measured(value_at(arguments, pointer))
    return None if measure is None or measure.kind != "number" else units_of(measure.value)
