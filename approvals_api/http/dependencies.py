"""FastAPI dependencies, declared once, so that an endpoint reads as its signature.

``ReaderDep`` sees requests, ``RunReaderDep`` sees runs, ``OperatorDep`` reads and decides, ``StarterDep`` starts and stops
runs, ``AdminDep`` administers people and tokens, ``AnyoneDep`` is every authenticated principal. Each resolves to the
:class:`Principal`, or refuses: 401 without a valid credential, 403 without the scope, 429 for too many requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request

from approvals_api.http.authentication import authenticate
from approvals_api.http.rate_limits import RateLimits
from approvals_api.principal import Principal
from approvals_api.services import Services
from turngate.store.access.access import Scope

__all__ = [
    "AdminDep",
    "AnyoneDep",
    "OperatorDep",
    "ReaderDep",
    "RunReaderDep",
    "Services",
    "ServicesDep",
    "StarterDep",
    "limits_of",
    "services_of",
]


def services_of(request: Request) -> Services:
    """Return the process's services."""
    services: Services = request.app.state.services
    return services


def limits_of(request: Request) -> RateLimits:
    """Return the process's rate limits."""
    limits: RateLimits = request.app.state.limits
    return limits


ServicesDep = Annotated[Services, Depends(services_of)]


SCOPES_OF: dict[Callable[..., Any], tuple[Scope, ...]] = {}
"""Each dependency below → the scopes any of which suffices; for the OpenAPI document."""


def _holder_of(*scopes: Scope) -> Callable[[Request, Services], Awaitable[Principal]]:
    async def principal_with_scope(request: Request, services: ServicesDep) -> Principal:
        principal = await authenticate(services, request)
        limits_of(request).count_request(principal.name)
        if scopes:
            principal.require(*scopes)
        return principal

    SCOPES_OF[principal_with_scope] = scopes
    return principal_with_scope


ReaderDep = Annotated[Principal, Depends(_holder_of("requests:read", "requests:decide"))]
RunReaderDep = Annotated[Principal, Depends(_holder_of("requests:read", "requests:decide", "runs:write"))]
OperatorDep = Annotated[Principal, Depends(_holder_of("requests:decide"))]
StarterDep = Annotated[Principal, Depends(_holder_of("runs:write"))]
AdminDep = Annotated[Principal, Depends(_holder_of("admin"))]
AnyoneDep = Annotated[Principal, Depends(_holder_of())]
