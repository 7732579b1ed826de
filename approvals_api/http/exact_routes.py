"""Routes whose JSON bodies say one thing only: a body with a name twice is refused before anyone reads it.

Python's reader takes the last of two, others the first: a proxy or a log in front of this API would show another decision
than the one that is made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from approvals_api.validation.exact_json import parse_body
from turngate.domain.errors import InvalidInputError


class _ExactRequest(Request):
    async def json(self) -> Any:
        """Return the body's value; raises InvalidInputError when readers would disagree about it."""
        if not hasattr(self, "_json"):
            self._json = parse_body(await self.body())
        return self._json


class ExactRoute(APIRoute):
    """A route that refuses a JSON body which two readers would read differently: 422, and nothing is done."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, reading the body with :func:`parse_body`."""
        handle = super().get_route_handler()

        async def handle_exact(request: Request) -> Response:
            try:
                return await handle(_ExactRequest(request.scope, request.receive))
            except HTTPException as error:
                # FastAPI reports every failure of a body that is not a JSONDecodeError as its own 400.
                if isinstance(error.__cause__, InvalidInputError):
                    raise error.__cause__ from None
                raise

        return handle_exact


def api_router(tag: str, *, prefix: str = "/api/v1") -> APIRouter:
    """Return a router for a noun's endpoints, complete: an app takes its routes as they are.

    ``APIRouter.include_router`` would build every route a second time, when the app starts, and try every route twice in each
    router on the way to the one that a request is for.
    """
    return APIRouter(
        prefix=prefix, route_class=ExactRoute, tags=[tag], generate_unique_id_function=lambda route: route.name
    )
