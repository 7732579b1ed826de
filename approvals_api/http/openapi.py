"""The OpenAPI 3.1 document: FastAPI's own, plus what applies to every endpoint, written once.

An endpoint's docstring is its summary (first line) and description; its function's name is its operation id; statuses of
its own are in its ``responses=problems({…})``. Credentials, scopes and the statuses that every endpoint shares are added
here. ``docs/openapi.json`` is this document (``make openapi`` writes it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from starlette.types import ASGIApp

from turngate import __version__
from turngate.approvals_api.http.authentication import SESSION_COOKIE, cookie_name_at
from turngate.approvals_api.http.dependencies import SCOPES_OF
from turngate.approvals_api.http.problems import InvalidInputProblem, Problem, problem_described
from turngate.approvals_api.http.public_address import PublicAddress
from turngate.store.access.access import Scope
from turngate.wire.events import DeltaView, EventView, ProgressView

OPENAPI_PATH: Final = "/api/v1/openapi.json"
PREFIX: Final = "/api/v1/"

DESCRIPTION: Final = """
Approvals for AI agents: start runs, follow them, and decide what their gated tool calls may do.

Errors are problem documents (RFC 9457, `application/problem+json`) with a stable `code` for programs. Lists come in pages:
for the next page, set `cursor` to this page's `next_cursor`. A `POST` with an `Idempotency-Key` can be repeated safely.
`503` means that nothing was changed: repeat the same request after `Retry-After` seconds.
""".strip()

TAGS: Final = (
    ("runs", "Runs, and the results of their tool calls."),
    ("schedules", "Runs that the clock starts."),
    ("conversations", "The messages of a conversation."),
    ("errors", "What crashed or failed in runs, with its text and traceback."),
    ("external calls", "Calls that another program runs itself once they are allowed: ask, start, report."),
    ("events", "Live events: server-sent events, resumed by `Last-Event-ID`."),
    ("requests", "The operators' inbox, and decisions."),
    ("agents", "The published agents, and the models."),
    ("policy", "The rules that judge each call: read them, change them, explain them."),
    ("grants", "Approvals of all calls like one: bounded, counted, revocable at once."),
    ("notifications", "Notifications that were sent, and whether they arrived."),
    ("audit", "Who did what, hash-chained per run."),
    ("people", "Who is logged in, and the tokens of programs."),
    ("retention", "What is kept how long, legal holds, erasures. For admins."),
    ("health", "Is the process alive, and is it ready? Without a credential."),
)

LOGGED_IN: Final = "A person who is logged in. Requests with side effects must come from Turngate's own pages."
SECURITY_SCHEMES: Final = {
    "bearerToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API token with scopes, from `turngate token NAME --scope SCOPE`.",
    },
    "sessionCookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": f"{LOGGED_IN} This is its name at an http address without a port. A port and the path of "
        "`TURNGATE_PUBLIC_URL` follow it (`turngate_session_8321`), and on https it begins with `__Host-`, or with `__Secure-` "
        "below a path.",
    },
}

SHARED: Final[Mapping[int, str]] = {
    400: "`malformed_json`: the body is not JSON",
    401: "`unauthenticated`: no credential, or one that is not valid (any more)",
    403: "`missing_scope`, or the credential may not do this",
    404: "`not_found`: it does not exist",
    411: "`length_required`: send a Content-Length",
    413: "`too_large`: the body is too large",
    421: "`unknown_host`: this server does not answer to that name",
    422: "`invalid_input`: the input does not fit; `errors` says where; nothing was saved",
    429: "`rate_limited`, or `too_many_open`: you have too many requests and event streams in progress. Repeat the request after "
    "`Retry-After` seconds",
    503: "`unavailable`: Temporal or the store can't be reached; nothing was changed",
}
"""What a status means unless the endpoint says otherwise."""
ALWAYS: Final = (421,)
IN_API: Final = (401, 403, 422, 429, 503)
"""With a credential; an unknown query parameter is refused."""
WITH_PATH_PARAMETER: Final = (404,)
WITH_BODY: Final = (400, 411, 413)


class ApiApp(FastAPI):
    """FastAPI that serves this document, with problems that name no other media type, at its public address."""

    public_url: str | None = None

    def build_middleware_stack(self) -> ASGIApp:
        """Return what answers requests; Starlette's own answer to a bug is within the public address, too."""
        stack = super().build_middleware_stack()
        return stack if self.public_url is None else PublicAddress(stack, self.public_url)

    def openapi(self) -> dict[str, Any]:
        """Return the document; built once."""
        if self.openapi_schema is None:
            document = super().openapi()
            for route in _routes(self):
                for method in sorted(route.methods or ()):
                    _complete(document["paths"][route.path_format][method.lower()], route)
            components = document.setdefault("components", {})
            components["securitySchemes"] = SECURITY_SCHEMES
            if self.public_url is not None:
                document["servers"] = [{"url": self.public_url}]
                components["securitySchemes"] = _schemes_at(urlsplit(self.public_url))
            components["schemas"] = _with_unnamed(components["schemas"])
            components["responses"] = {
                _shared_name(each): problem_described(each, meaning) for each, meaning in SHARED.items()
            }
            self.openapi_schema = document
        return self.openapi_schema


def _schemes_at(address: SplitResult) -> dict[str, Any]:
    """Return the ways to authenticate, with the name that the session's cookie has at this address."""
    name = cookie_name_at(address.netloc, address.path, https=address.scheme == "https")
    cookie = {**SECURITY_SCHEMES["sessionCookie"], "name": name, "description": LOGGED_IN}
    return {**SECURITY_SCHEMES, "sessionCookie": cookie}


def new_app(*, routers: Iterable[APIRouter], **options: Any) -> ApiApp:
    """Return an app with these routes and their document; ``options`` are FastAPI's."""
    # FastAPI's own documentation pages load scripts from a CDN, which our policy forbids.
    return ApiApp(
        title="Turngate",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=[{"name": name, "description": description} for name, description in TAGS],
        openapi_url=OPENAPI_PATH,
        docs_url=None,
        redoc_url=None,
        # A trailing slash is another path, and 404: a redirect would send the credential and the body again.
        redirect_slashes=False,
        routes=[route for router in routers for route in router.routes],
        **options,
    )


def exported(document: Mapping[str, Any]) -> str:
    """Return the document as ``docs/openapi.json`` holds it: paths and schemas by name, whatever the routers' order."""
    components = {name: dict(sorted(members.items())) for name, members in sorted(document["components"].items())}
    ordered = {**document, "paths": dict(sorted(document["paths"].items())), "components": components}
    return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def _routes(app: FastAPI) -> Iterator[APIRoute]:
    for context in iter_route_contexts(app.routes):
        route: Any = context
        if getattr(route, "include_in_schema", False) and hasattr(route, "dependant"):
            yield route


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    """Add what every endpoint has: summary, credentials, and the statuses that they and its input bring."""
    summary, _blank, description = (route.description or route.name).replace("``", "`").partition("\n\n")
    operation["summary"] = " ".join(summary.split()).removesuffix(".")
    operation["description"] = description.strip()
    if route.path_format.startswith(PREFIX):
        operation["security"] = [{name: []} for name in SECURITY_SCHEMES]
        needed = " or ".join(f"`{scope}`" for scope in _scopes(route.dependant))
        operation["description"] += f"\n\nNeeds the scope {needed}." if needed else ""
    operation["description"] = operation["description"].strip()
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _parameter_schema(parameter["schema"])
    statuses = _statuses(operation, route)
    responses = {str(status): {"$ref": f"#/components/responses/{_shared_name(status)}"} for status in statuses}
    # FastAPI's own 422 has FastAPI's own shape, which install_problems replaces.
    own = {status: response for status, response in operation["responses"].items() if not _is_fastapis(response)}
    for response in own.values():
        if response["description"] == "Successful Response":
            response["description"] = operation["summary"]
    operation["responses"] = dict(sorted({**responses, **own}.items()))


def _statuses(operation: Mapping[str, Any], route: APIRoute) -> list[int]:
    """Return the statuses of problems that an endpoint has by what it takes, in the document's order."""
    statuses = [*ALWAYS]
    if route.path_format.startswith(PREFIX):
        statuses += IN_API
    if "{" in route.path_format:
        statuses += WITH_PATH_PARAMETER
    if "requestBody" in operation:
        statuses += WITH_BODY
    return statuses


def _is_fastapis(response: Mapping[str, Any]) -> bool:
    return "HTTPValidationError" in json.dumps(response)


def _parameter_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema without duplicates, and without ``null``: a parameter is omitted, never null."""
    slim = {name: value for name, value in schema.items() if name not in {"title", "description"}}
    choices = [each for each in slim.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        slim = {**choices[0], **{name: value for name, value in slim.items() if name != "anyOf"}}
    elif choices:
        slim["anyOf"] = choices
    return slim


def _shared_name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "")


def _scopes(dependant: Dependant) -> tuple[Scope, ...]:
    """Return the scopes any of which suffices; empty: every credential does."""
    for each in dependant.dependencies:
        if each.call in SCOPES_OF:
            return SCOPES_OF[each.call]
    return ()


def _with_unnamed(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas and those that no endpoint has as its body: problems, and what streams carry."""
    named = {name: schema for name, schema in schemas.items() if name not in {"HTTPValidationError", "ValidationError"}}
    unnamed: tuple[type[BaseModel], ...] = (Problem, InvalidInputProblem, EventView, ProgressView, DeltaView)
    for model in unnamed:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        named |= schema.pop("$defs", {})
        named[model.__name__] = schema
    return named
