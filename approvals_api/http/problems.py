"""Errors on the wire: RFC 9457 ``application/problem+json`` everywhere; pages get the same text as HTML.

One table maps the error tree to HTTP status (:mod:`turngate.wire.problems`). Nothing else in this package chooses a status
for an error.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from turngate.approvals_api.http.authentication import keep_wanted_page
from turngate.approvals_api.http.security_headers import SECURITY_HEADERS
from turngate.approvals_api.validation.errors import member_of
from turngate.domain.errors import InvalidInputError, TooManyRequestsError, TurngateError
from turngate.domain.text.hidden_text import escape_hidden
from turngate.domain.text.json_pointers import pointer_of
from turngate.wire.people import named, with_all_names
from turngate.wire.problems import problem_document, status_of

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
API_PREFIX = "/api/"

_EXTRA_HEADERS: Mapping[HTTPStatus, Mapping[str, str]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"},
}

RenderPage = Callable[[Request, int, str, str, Mapping[str, Any]], Awaitable[Response]]
"""``(request, status, title, detail, details)`` → an HTML error page."""


class Problem(BaseModel):
    """An error as RFC 9457 wants it, plus ``code`` for programs and whatever details the error has."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str


class FieldProblem(BaseModel):
    """What does not fit, and where. ``pointer``: a JSON pointer into the body; empty for parameters and the whole."""

    pointer: str
    message: str


class InvalidInputProblem(Problem):
    """A problem with what was sent, in all its places."""

    errors: list[FieldProblem] = []


def problems(meanings: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return a route's ``responses`` for the OpenAPI document: these statuses, and what each means, as problems.

    Only those that the endpoint itself brings: ``turngate.approvals_api.http.openapi`` adds what every endpoint has.
    """
    return {status: problem_described(status, meaning) for status, meaning in meanings.items()}


def problem_described(status: int, meaning: str) -> dict[str, Any]:
    """Return one response of the OpenAPI document."""
    kind = InvalidInputProblem if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY} else Problem
    reference = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"description": meaning, "content": {MEDIA_TYPE: {"schema": reference}}}


def install_problems(app: FastAPI, render_page: RenderPage | None) -> None:
    """Handle every error of the app. ``render_page`` None: pages get problem documents too."""
    answers = _ErrorAnswers(render_page)
    app.add_exception_handler(TurngateError, answers.on_turngate_error)
    app.add_exception_handler(RequestValidationError, answers.on_invalid_request)
    app.add_exception_handler(HTTPException, answers.on_http_error)
    app.add_exception_handler(Exception, answers.on_bug)


class _ErrorAnswers:
    """One method per kind of error that can reach the edge. Starlette types every handler's error as Exception."""

    def __init__(self, render_page: RenderPage | None) -> None:
        self._render_page = render_page

    async def on_turngate_error(self, request: Request, error: Exception) -> Response:
        """Answer an error that Turngate raises on purpose."""
        if not isinstance(error, TurngateError):
            raise error
        status = status_of(error)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("%s %s: %s", request.method, request.url.path, error)
        headers = _EXTRA_HEADERS.get(status)
        if isinstance(error, TooManyRequestsError):
            headers = {"Retry-After": str(error.retry_after_seconds)}
        return await self._answer(request, status, error.error_code, error.message, error.details, headers)

    async def on_invalid_request(self, request: Request, error: Exception) -> Response:
        """Answer a request that does not fit its endpoint: 400 when it is not JSON, else 422."""
        if not isinstance(error, RequestValidationError):
            raise error
        issues = error.errors()
        malformed = any(issue["type"] == "json_invalid" for issue in issues)
        problems = [_field_problem(issue, malformed=malformed) for issue in issues]
        detail = "; ".join(
            f"{member_of(problem['pointer'])}: {problem['message']}" if problem["pointer"] else problem["message"]
            for problem in problems
        )
        status = HTTPStatus.BAD_REQUEST if malformed else HTTPStatus.UNPROCESSABLE_ENTITY
        code = "malformed_json" if malformed else InvalidInputError.code
        return await self._answer(request, status, code, detail, {"errors": problems})

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        """Answer what the framework refuses: no such path, wrong method."""
        if not isinstance(error, HTTPException):
            raise error
        status = HTTPStatus(error.status_code)
        detail = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        headers = dict(error.headers or {})
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            # Starlette names the methods of the first route with this path; FastAPI has a route for each method.
            headers["Allow"] = ", ".join(_allowed_methods(request))
        return await self._answer(request, status, status.name.lower(), detail, {}, headers)

    async def on_bug(self, request: Request, _error: Exception) -> Response:
        """Answer anything else. The server's log has the traceback; the caller sees nothing of it."""
        detail = "Turngate failed: this is a bug. The server's log says what happened."
        # Starlette answers these outside our middleware, which would have set the headers.
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return await self._answer(request, status, "internal_error", detail, {}, SECURITY_HEADERS)

    async def _answer(
        self,
        request: Request,
        status: HTTPStatus,
        code: str,
        detail: str,
        details: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        detail, details = named(detail), with_all_names(details)
        if self._render_page is None or not wants_page(request):
            return problem_response(status, code, detail, details, headers)
        if status == HTTPStatus.UNAUTHORIZED and request.method == "GET":
            to_login = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
            keep_wanted_page(request, to_login)
            return to_login
        page = await self._render_page(request, status, status.phrase, detail, details)
        page.headers.update(headers or {})
        return page


class _ProblemDocument(JSONResponse):
    """A problem may quote what an agent wrote, and people read it raw in terminals: what cannot be seen is an escape."""

    def render(self, content: Any) -> bytes:
        return escape_hidden(json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode()


def problem_response(
    status: int, code: str, detail: str, details: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Return the answer that is a problem document."""
    return _ProblemDocument(
        problem_document(status, code, detail, details), status, headers=headers, media_type=MEDIA_TYPE
    )


def wants_page(request: Request) -> bool:
    """Tell whether a person's browser asks for a page, so that an error should be one too."""
    return not request.url.path.startswith(API_PREFIX) and "text/html" in request.headers.get("accept", "")


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods that this path has (RFC 9110 §10.2.1).

    Of the paths that match, the one with the fewest parameters counts: ``/grants/preview`` is no grant's id.
    """
    path, methods = request.scope["path"], defaultdict[str, set[str]](set)
    for context in iter_route_contexts(request.app.routes):
        route: Any = context
        regex = getattr(route, "path_regex", None)
        if regex is not None and regex.match(path):
            methods[route.path_format] |= route.methods or set()
    return sorted(methods[min(methods, key=lambda template: template.count("{"))]) if methods else []


def _field_problem(issue: Mapping[str, Any], *, malformed: bool) -> dict[str, str]:
    """Return ``{pointer, message}``; the pointer leads into the body, and parameters are named in the message."""
    where: Sequence[Any] = issue["loc"]
    message = _plain_message(issue)
    if malformed:
        reason = issue.get("ctx", {}).get("error", message)
        return {"pointer": "", "message": f"not JSON at character {where[-1]}: {reason}"}
    if where[0] == "body":
        return {"pointer": pointer_of(where[1:]), "message": message}
    return {"pointer": "", "message": f"{where[0]} parameter {'.'.join(map(str, where[1:]))}: {message}"}


def _plain_message(issue: Mapping[str, Any]) -> str:
    """Return what is wrong in plain words; pydantic's own for what is rare."""
    match issue["type"]:
        case "string_too_long":
            return f"it has {len(issue['input']):,} characters, and at most {issue['ctx']['max_length']:,} are allowed"
        case "string_too_short" if not issue["input"]:
            return "it is empty"
        case "missing":
            return "it is missing"
        case "extra_forbidden" if issue["loc"][0] == "body":
            return "no such member; check its spelling"
        case _:
            return str(issue["msg"])
