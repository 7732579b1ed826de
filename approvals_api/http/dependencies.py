"""FastAPI dependencies, declared once, so that an endpoint reads as its signature.

``ReaderDep`` sees requests, ``RunReaderDep`` sees runs, ``OperatorDep`` reads and decides, ``StarterDep`` starts and stops
runs, ``AdminDep`` administers people and tokens, ``AnyoneDep`` is every authenticated principal. Each resolves to the
:class:`Principal`, or refuses: 401 without a valid credential, 403 without the scope, 429 for too many requests. ``SightDep``
is whose runs it may see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from turngate.approvals_api.http.authentication import authenticate
from turngate.approvals_api.http.rate_limits import RateLimits, hold_connection
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import ownership
from turngate.approvals_api.runs.ownership import Sight
from turngate.approvals_api.services import Services
from turngate.domain.errors import ForbiddenError, UnavailableError
from turngate.store.access.access import Scope
from turngate.store.runs import runs
from turngate.wire.playground import Playground

__all__ = [
    "NAMES_NO_RUN",
    "AdminDep",
    "AnyoneDep",
    "OperatorDep",
    "ReaderDep",
    "ReaderUnlessAwayDep",
    "RunReaderDep",
    "Services",
    "ServicesDep",
    "SightDep",
    "StarterDep",
    "limits_of",
    "playground_of",
    "services_of",
]


async def services_of(request: Request) -> Services:
    """Return the process's services."""
    services: Services = request.app.state.services
    return services


def limits_of(request: Request) -> RateLimits:
    """Return the process's rate limits."""
    limits: RateLimits = request.app.state.limits
    return limits


def playground_of(request: Request) -> Playground:
    """Return the playground of ``turngate dev``. Only an app that has one has the pages that ask for it."""
    playground: Playground = request.app.state.playground
    return playground


API_PATH: Final = "/api/"

ServicesDep = Annotated[Services, Depends(services_of)]


SCOPES_OF: dict[Callable[..., Any], tuple[Scope, ...]] = {}
"""Each dependency below → the scopes any of which suffices; for the OpenAPI document."""


def _holder_of(*scopes: Scope) -> Callable[[Request, Services], Awaitable[Principal]]:
    async def principal_with_scope(request: Request, services: ServicesDep) -> Principal:
        principal = await authenticate(services, request)
        limits_of(request).count_request(principal.name)
        hold_connection(request.scope, (id(services), principal.name), principal.name)
        if scopes:
            principal.require(*scopes)
        request.state.sight = ownership.sight_of(principal)
        if request.state.sight.started_by is not None:
            await _require_own_names(services, principal, request)
        return principal

    SCOPES_OF[principal_with_scope] = scopes
    return principal_with_scope


async def _require_own_names(services: Services, principal: Principal, request: Request) -> None:
    """Refuse what may show or change something of a run that the principal did not start.

    Here, so that an endpoint can't forget it. A run, conversation, request, external call or schedule in the path has to be the
    principal's own. Without one, the endpoint has to say that it looks only at what the principal may see (``SightDep``) or
    at nothing of anyone's runs (``NAMES_NO_RUN``): a query or body that the check can't know proves nothing.
    The pages show what everyone does, so they are not for these tokens at all.
    """
    if not request.url.path.startswith(API_PATH):
        raise ForbiddenError("the pages are for people: use the API with this token", code="not_own_run")
    named = request.path_params
    async with services.database.glance() as conn:
        for parameter in ("run_id", "other_id", "call_id"):
            run = await runs.get(conn, named[parameter]) if parameter in named else None
            if run is not None:
                ownership.require_own(principal, run)
        if "conversation_id" in named:
            await ownership.require_own_conversation(conn, principal, named["conversation_id"])
        if "request_id" in named:
            await ownership.require_own_request(conn, principal, named["request_id"])
        if "schedule_id" in named:
            await ownership.require_own_schedule(conn, principal, named["schedule_id"])
    if named.keys().isdisjoint(_OWNED) and not _keeps_to_own(request.scope["route"].dependant):
        raise ownership.shows_others(principal.name)


_OWNED: Final = frozenset({"run_id", "call_id", "conversation_id", "request_id", "schedule_id"})
"""What a path names and is checked above."""


def _keeps_to_own(dependant: Dependant) -> bool:
    """Tell whether an endpoint, or one of its dependencies, takes the principal's sight or needs none."""
    return any(below.call in {_sight, _no_run} or _keeps_to_own(below) for below in dependant.dependencies)


async def _no_run() -> None:
    """Mark an endpoint that shows and changes nothing of other principals' runs, whatever it is asked for."""


NAMES_NO_RUN: Final = Depends(_no_run)


async def _sight(request: Request) -> Sight:
    sight: Sight = request.state.sight  # as the principal's dependency left it, which comes before this one
    return sight


SightDep = Annotated[Sight, Depends(_sight)]
"""Whose runs the principal may see: what every list, stream and count of runs narrows its query by. After the principal."""


_reader = _holder_of("requests:read", "requests:decide")


async def _reader_unless_away(request: Request, services: ServicesDep) -> Principal | None:
    """Return the reader; None while the store, which knows them, is away."""
    try:
        return await _reader(request, services)
    except UnavailableError:
        return None


ReaderDep = Annotated[Principal, Depends(_reader)]
ReaderUnlessAwayDep = Annotated[Principal | None, Depends(_reader_unless_away)]
RunReaderDep = Annotated[Principal, Depends(_holder_of("requests:read", "requests:decide", "runs:write", "runs:all"))]
OperatorDep = Annotated[Principal, Depends(_holder_of("requests:decide"))]
StarterDep = Annotated[Principal, Depends(_holder_of("runs:write"))]
AdminDep = Annotated[Principal, Depends(_holder_of("admin"))]
AnyoneDep = Annotated[Principal, Depends(_holder_of())]
