"""The inbox's filter as query parameters, the same for the list and its count."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Depends, Query

from approvals_api.http.dependencies import ReaderDep
from approvals_api.v1.parameters import STORABLE
from turngate.domain.runs.inbox import InboxFilter, InboxStatus
from turngate.domain.runs.requests import RequestKind

MAX_CHARS: Final = 255


def _named(description: str) -> object:
    return Query(description=description, min_length=1, max_length=MAX_CHARS, pattern=STORABLE)


def inbox_filter(
    principal: ReaderDep,
    status: Annotated[
        InboxStatus,
        Query(description="One status; `decided`: every one but `pending`; `all`: whatever it is."),
    ] = "pending",
    kind: Annotated[RequestKind | None, Query(description="Only this kind.")] = None,
    agent: Annotated[str | None, _named("Only this agent's.")] = None,
    tool: Annotated[str | None, _named("Only calls of this tool.")] = None,
    risk: Annotated[Literal["low", "medium", "high"] | None, Query(description="Only of this risk.")] = None,
    rule: Annotated[str | None, _named("Only what this rule asked for.")] = None,
    run_id: Annotated[str | None, _named("Only this run's.")] = None,
    claimed: Annotated[
        str | None, _named("Whose claim stands: a person's name, `me` for one's own, `nobody` for none.")
    ] = None,
    parked: Annotated[
        bool | None, Query(description="Whether it ran out of time and waits on, because its rule says so.")
    ] = None,
) -> InboxFilter:
    """Return the filter as the one who asks means it."""
    return InboxFilter(
        status=status,
        kind=kind,
        agent=agent,
        tool=tool,
        risk=risk,
        rule=rule,
        run_id=run_id,
        claimed=claimed,
        parked=parked,
    ).of(principal.name)


InboxFilterDep = Annotated[InboxFilter, Depends(inbox_filter)]
