"""Budgets: what a run may use besides time and patience, and the engine's own call that asks for more of one.

Pure. A budget that is used up ends the run or, where its agent says so, becomes a call to :data:`EXTEND_BUDGET` which the
engine makes and policy judges like any other: so rules say who may extend it, how long that waits, and what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from turngate.domain.conversation.messages import Usage

Budget = Literal["steps", "tool_calls", "tokens", "cost", "wall_time"]
WhenUsedUp = Literal["end", "ask"]
"""What happens to a run that has used up a budget: it ends, or a person is asked for more of it."""

EXTEND_BUDGET: Final = "extend_budget"
"""The engine's own tool. No model is offered it, and no agent may declare one of this name."""
AFTER_THE_STEP: Final = 1_000_000
"""Position of a call that the engine made after a step: after all those of the model's response."""
MILLION: Final = 1_000_000

ERROR_CLASSES: Final[dict[Budget, str]] = {
    "steps": "step_cap",
    "tool_calls": "tool_call_cap",
    "tokens": "token_cap",
    "cost": "cost_cap",
    "wall_time": "time_cap",
}
_UNITS: Final[dict[Budget, str]] = {
    "steps": "steps",
    "tool_calls": "tool calls",
    "tokens": "tokens",
    "cost": "",
    "wall_time": "seconds",
}


class Price(BaseModel):
    """What a model costs per million tokens, in whatever currency ``Limits.cost`` is meant in.

    ``cache_read``, ``cache_write``: of input tokens that the provider read from its cache, or wrote to it; None: as ``input``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Decimal = Field(ge=0, allow_inf_nan=False)
    output: Decimal = Field(ge=0, allow_inf_nan=False)
    cache_read: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)
    cache_write: Decimal | None = Field(default=None, ge=0, allow_inf_nan=False)

    def micros(self, usage: Usage) -> int:
        """Return what a model call cost, in millionths of the currency.

        A provider that counts more cached tokens than tokens is believed about neither: all of them cost what ``input`` says.
        """
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        if read + written > usage.input_tokens:
            read = written = 0
        cost = self.input * (usage.input_tokens - read - written) + self.output * usage.output_tokens
        cost += (self.input if self.cache_read is None else self.cache_read) * read
        cost += (self.input if self.cache_write is None else self.cache_write) * written
        return int(cost.to_integral_value())


SCRIPTED: Final = "scripted:"
FREE: Final = Price(input=Decimal(), output=Decimal())


def is_free(spec: str) -> bool:
    """Tell whether a model costs nothing, whatever prices say: a script plays it."""
    return spec.startswith(SCRIPTED)


class ExtendBudget(BaseModel):
    """How far a budget of this run is used up, and by how much to extend it. ``wall_time`` is in seconds, from now on."""

    model_config = ConfigDict(extra="forbid")

    budget: Budget
    used: str = Field(description="What the run has used of it, for the person who decides.")
    limit: str = Field(description="What it may use so far, for the person who decides.")
    extend_by: Decimal = Field(gt=0, le=10**12, allow_inf_nan=False, description="How much more it may use.")


class Extension(BaseModel):
    """One extension that was granted. ``call``: which asked for it. ``at``: when it was."""

    model_config = ConfigDict(frozen=True)

    call: str
    budget: Budget
    by: Decimal
    at: AwareDatetime


EXTENSIONS: Final = TypeAdapter(tuple[Extension, ...])


class UsedUp(BaseModel):
    """A budget of which nothing is left. ``reason``: a sentence for people."""

    model_config = ConfigDict(frozen=True)

    budget: Budget
    used: Decimal
    limit: Decimal
    usual: Decimal
    reason: str

    @property
    def error_class(self) -> str:
        """The typed class of a run that ends with it."""
        return ERROR_CLASSES[self.budget]

    def asked_for(self) -> ExtendBudget:
        """Return the call that asks for as much again as the agent's limits give."""
        return ExtendBudget(
            budget=self.budget,
            used=with_unit(self.budget, self.used),
            limit=with_unit(self.budget, self.limit),
            extend_by=self.usual,
        )


def extended(budget: Budget, limit: Decimal, extensions: Sequence[Extension]) -> Decimal:
    """Return a limit with what was granted beyond it."""
    return exact(limit + sum((each.by for each in extensions if each.budget == budget), Decimal()))


def exact(amount: float | Decimal) -> Decimal:
    """Return the amount as people write it: without a fraction where there is none."""
    as_written = Decimal(str(amount))
    return as_written.quantize(Decimal(1)) if as_written == as_written.to_integral_value() else as_written


def deadline(created_at: datetime, limit: timedelta, extensions: Sequence[Extension]) -> datetime:
    """Return when a run's deadline is: an extension counts from when it was granted, however long that took."""
    granted = [each.at + timedelta(seconds=float(each.by)) for each in extensions if each.budget == "wall_time"]
    return max([created_at + limit, *granted])


def with_unit(budget: Budget, amount: Decimal) -> str:
    """Return an amount with its unit, such as ``1,000 tokens``."""
    if budget == "wall_time":
        return str(timedelta(seconds=round(amount)))
    return f"{amount:,f} {_UNITS[budget]}".rstrip()
