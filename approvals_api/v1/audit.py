"""The audit log: who did what, newest first, and whether a run's chain is intact."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from turngate.approvals_api.events import audit
from turngate.approvals_api.events.audit import MAX_TYPE_CHARS, TYPE_PATTERN
from turngate.approvals_api.http.dependencies import ReaderDep, ServicesDep, SightDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.v1.parameters import Instant, Limit, RunId
from turngate.approvals_api.validation.text import STORABLE
from turngate.wire.events import AuditFilter, AuditItem, ChainState
from turngate.wire.view import Page

router = api_router("audit")


async def audit_filter(
    services: ServicesDep,
    _principal: ReaderDep,
    sight: SightDep,
    run_id: Annotated[
        str | None, Query(description="Only this run's; `system`: events of no run.", max_length=255, pattern=STORABLE)
    ] = None,
    event_type: Annotated[
        str | None,
        Query(
            alias="type",
            description="Only this type; `*` matches anything, as in `request.*`.",
            max_length=MAX_TYPE_CHARS,
            pattern=TYPE_PATTERN,
        ),
    ] = None,
    actor: Annotated[
        str | None, Query(description="Only what this actor did.", max_length=255, pattern=STORABLE)
    ] = None,
    tool: Annotated[
        str | None,
        Query(description="Only calls of this tool, and requests for them.", max_length=255, pattern=STORABLE),
    ] = None,
    since: Annotated[Instant | None, Query(description="From this instant on.")] = None,
    until: Annotated[Instant | None, Query(description="Before this instant.")] = None,
) -> AuditFilter:
    """Return the filter that the query's conditions make."""
    run_id = await sight.run(services.database, run_id)
    return AuditFilter(run_id=run_id, type=event_type, actor=actor, tool=tool, since=since, until=until)


@router.get("/audit")
async def list_audit(
    services: ServicesDep,
    principal: ReaderDep,
    wanted: Annotated[AuditFilter, Depends(audit_filter)],
    cursor: Annotated[
        str | None, Query(description="Where the page begins: `next_cursor` of the page before.", max_length=20)
    ] = None,
    limit: Limit = 50,
) -> Page[AuditItem]:
    """List events, newest first.

    A page may have fewer items than `limit`, even none, and still a `next_cursor`: it covers a part of the log, and the next
    page continues there.
    """
    return await audit.page(services.database, principal, wanted, limit=limit, cursor=cursor)


@router.get("/audit/chains/{run_id}")
async def get_chain(run_id: RunId, services: ServicesDep, principal: ReaderDep) -> ChainState:
    """Compute a run's hash chain again, and say whether it is intact. `system`: the chain of events of no run."""
    return await audit.chain_state(services.database, principal, run_id)
