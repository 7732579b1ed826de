"""Which requests a list shows: one value that drives the list, its count and the badge, and the words for it in a URL. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.policy import Risk
from turngate.domain.requests import RequestKind, RequestStatus
from turngate.domain.runs.groups import Grouping
from turngate.domain.tools.failures import describe_validation

InboxStatus = Literal[RequestStatus, "decided", "all"]
"""One status; ``decided``: every one that is no longer pending, however it ended; ``all``."""

ME: Final = "me"
UNCLAIMED: Final = "nobody"
STORABLE: Final = r"^[^\u0000]*$"
"""The one character that PostgreSQL does not keep: a name with it names nothing, and asking for it would be an error."""

InboxOrder = Literal["urgency", "age"]
PATIENCE: Final = timedelta(days=30)
"""How long a request without a deadline waits before it counts as urgent as one that expires now."""
SHARE: Final[Mapping[Risk, float]] = {"low": 1.0, "medium": 0.5, "high": 0.25}
"""How much of its time a request may wait before it counts as urgent as one that expires now."""
MAX_WORDS: Final = 8
"""Of one search."""

MOST_OFFERED: Final = 1_000
"""Of how many requests or runs, the first of a list, the choices of its filter are."""
MOST_COUNTED: Final = 10_000
"""A count goes no further than one beyond: counting millions takes minutes, and no one works through that many."""

MAX_STEP: Final = 2**31 - 1
"""The greatest integer that the databases compare with."""

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]


class InboxFilter(BaseModel):
    """Which requests, all conditions together, in which order; None: whatever it is.

    ``search``: words that all occur in the request or its run's task (see :attr:`words`). ``rule``: the rule that asked.
    ``step``: of its run.
    ``claimed``: the person who has claimed it, :data:`ME` (see :meth:`of`) or :data:`UNCLAIMED`; a claim that has run out is
    no one's. ``parked``: it ran out of time and waits on. ``order``: of pending requests (:func:`urgent_at`). ``group``: how
    a page puts them in groups.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: InboxStatus = "pending"
    search: Name | None = None
    kind: RequestKind | None = None
    agent: Name | None = None
    tool: Name | None = None
    risk: Literal["low", "medium", "high"] | None = None
    rule: Name | None = None
    run_id: Name | None = None
    step: Annotated[int, Field(ge=0, le=MAX_STEP)] | None = None
    claimed: Name | None = None
    parked: bool | None = None
    order: InboxOrder = "urgency"
    group: Grouping | None = None

    @property
    def words(self) -> list[str]:
        """What a search looks for, in order; further words than :data:`MAX_WORDS` are left out."""
        return [] if self.search is None else self.search.split()[:MAX_WORDS]

    @property
    def narrows(self) -> bool:
        """Tell whether it has a condition beyond the status."""
        return self != self.without_conditions

    @property
    def looks_through_newest(self) -> bool:
        """Tell whether it looks through the newest requests alone: one of conditions on requests that have ended."""
        if self.status == "pending" or self.run_id is not None:
            return False
        return self.narrows or self.status not in {"decided", "all"}

    @property
    def without_conditions(self) -> InboxFilter:
        """All requests in this status, in the same order and groups."""
        return InboxFilter(status=self.status, order=self.order, group=self.group)

    def in_groups(self, group: Grouping | None) -> InboxFilter:
        """Return the filter with other groups; None: none."""
        return self.model_copy(update={"group": group})

    def of(self, person: str) -> InboxFilter:
        """Return the filter as this person means it: :data:`ME` is their name."""
        return self.model_copy(update={"claimed": person}) if self.claimed == ME else self

    def with_status(self, status: InboxStatus) -> InboxFilter:
        """Return the filter for requests in this status, with its other conditions."""
        return InboxFilter.model_validate({**dict(self), "status": status})

    @property
    def query(self) -> str:
        """The filter as the query of a URL, conditions in a fixed order and none that is the default."""
        return urlencode({name: _word(value) for name, value in self if value != _DEFAULTS[name]})

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> InboxFilter:
        """Return the filter of these names and values; an empty value (a form's untouched control) is no condition."""
        try:
            return cls.model_validate({name: value for name, value in words.items() if value})
        except ValidationError as error:
            message = describe_validation(error)
            raise _not_a_filter(message) from None


_DEFAULTS: Final = {name: field.default for name, field in InboxFilter.model_fields.items()}


def urgent_at(created_at: datetime, expires_at: datetime | None, risk: Risk) -> datetime:
    """Return the instant by which pending requests are ordered: the earlier, the more urgent.

    It lies between a request's opening and its deadline, the nearer to the opening the higher the risk. So a near deadline, a
    high risk and a long wait each move a request up, and its place doesn't depend on when someone looks.
    """
    time_left = PATIENCE if expires_at is None else expires_at - created_at
    return created_at + time_left * SHARE[risk]


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _not_a_filter(message: str) -> InvalidInputError:
    known = ", ".join(InboxFilter.model_fields)
    return InvalidInputError(
        f"the inbox can't be filtered like this: {message}. It can be filtered by {known}",
        code="bad_filter",
        errors=[{"pointer": "/query", "message": message}],
    )


def count_words(count: int) -> str:
    """Return a count as people read it. One beyond :data:`MOST_COUNTED` means "more than that"."""
    return f"{count:,}" if count <= MOST_COUNTED else f"{MOST_COUNTED:,}+"
