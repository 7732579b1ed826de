"""Routes that take nothing which they would leave out: a body with a name twice, or an unknown query parameter, is refused.

Python's reader takes the last of two names, others the first: a proxy or a log in front of this API would show another
decision than the one that is made. A condition that is misspelt would make a list longer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from turngate.approvals_api.http.problems import API_PREFIX
from turngate.approvals_api.validation.exact_json import parse_body
from turngate.domain.errors import InvalidInputError
from turngate.domain.text.suggestions import did_you_mean

UNKNOWN_NAMED: Final = 5
NAME_CHARS: Final = 100


class _ExactRequest(Request):
    async def json(self) -> Any:
        """Return the body's value; raises InvalidInputError when readers would disagree about it."""
        if not hasattr(self, "_json"):
            self._json = parse_body(await self.body())
        return self._json


class ExactRoute(APIRoute):
    """A route that refuses an ambiguous JSON body, and an unknown parameter in a query of the API: 422, and nothing is done."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, reading the body with :func:`parse_body`."""
        handle = super().get_route_handler()
        known = sorted(_query_names(self.dependant))
        is_exact = self.path.startswith(API_PREFIX)  # a probe may send what it likes

        async def handle_exact(request: Request) -> Response:
            if is_exact:
                _refuse_unknown(request, known)
            try:
                return await handle(_ExactRequest(request.scope, request.receive))
            except HTTPException as error:
                # FastAPI reports every failure of a body that is not a JSONDecodeError as its own 400.
                if isinstance(error.__cause__, InvalidInputError):
                    raise error.__cause__ from None
                raise

        return handle_exact


def _query_names(dependant: Dependant) -> set[str]:
    below = [name for each in dependant.dependencies for name in _query_names(each)]
    return {each.alias for each in dependant.query_params}.union(below)


def _refuse_unknown(request: Request, known: list[str]) -> None:
    unknown = [name for name in request.query_params if name not in known][:UNKNOWN_NAMED]
    if unknown:
        raise RequestValidationError(
            [
                {
                    "type": "extra_forbidden",
                    "loc": ("query", name[:NAME_CHARS]),
                    "msg": f"there is no such parameter.{did_you_mean(name[:NAME_CHARS], known)}",
                    "input": None,
                }
                for name in unknown
            ]
        )


def api_router(tag: str, *, prefix: str = "/api/v1") -> APIRouter:
    """Return a router for a noun's endpoints, complete: an app takes its routes as they are.

    ``APIRouter.include_router`` would build every route a second time, when the app starts, and try every route twice in each
    router on the way to the one that a request is for.
    """
    return APIRouter(
        prefix=prefix, route_class=ExactRoute, tags=[tag], generate_unique_id_function=lambda route: route.name
    )
