"""JSON bodies that two readers would read differently."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel

from turngate.approvals_api.app import documented_app
from turngate.approvals_api.http.exact_routes import ExactRoute
from turngate.approvals_api.http.openapi import new_app
from turngate.approvals_api.http.problems import install_problems
from turngate.approvals_api.pages.frames import typed_of
from turngate.approvals_api.pages.routes import routers as page_routers

router = APIRouter(route_class=ExactRoute)


class Choice(BaseModel):
    decision: str = ""
    args: Any = None


@router.post("/api/v1/choice")
async def choose(body: Choice) -> Choice:
    """Return what was read."""
    return body


@router.post("/form")
async def fill(request: Request) -> dict[str, str]:
    """Return what was typed."""
    return dict(await typed_of(request))


async def send(body: bytes, content_type: str = "application/json", *, path: str = "/api/v1/choice") -> httpx.Response:
    """Post a body to a route that returns what it read."""
    app = new_app(routers=(router,))
    install_problems(app, None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.post(path, content=body, headers={"Content-Type": content_type})


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "application/x+json"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"decision":"reject","decision":"approve"}', "'decision' is there twice"),
        (b'{"decision":"reject","\\u0064ecision":"approve"}', "'decision' is there twice"),
        (b'{"args":{"cents":5,"cents":5000}}', "'cents' is there twice"),
        (b'{"args":[[{"a":1,"a":1}]]}', "'a' is there twice"),
        (b'{"unknown":{"a":1,"a":2},"decision":"approve"}', "'a' is there twice"),
        (b'{"args":NaN}', "NaN is not JSON"),
        (b'{"args":-Infinity}', "-Infinity is not JSON"),
        (b'{"args":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
async def test_an_ambiguous_body_is_refused(body: bytes, reason: str, content_type: str) -> None:
    """A name twice, however deep and however it is escaped, is 422 and says which; the endpoint is not reached."""
    refused = await send(body, content_type)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert reason in refused.json()["errors"][0]["message"]


async def test_a_plain_body_is_read() -> None:
    """The same name in two objects is one meaning."""
    answer = await send(b'{"decision":"approve","args":[{"a":1},{"a":2,"b":{"a":3}}]}')
    assert answer.json() == {"decision": "approve", "args": [{"a": 1}, {"a": 2, "b": {"a": 3}}]}


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"decision":}'])
async def test_a_body_that_is_not_json_is_malformed(body: bytes) -> None:
    """What no reader takes for JSON stays 400."""
    assert (await send(body)).status_code == 400


def test_every_route_that_takes_a_body_reads_it_exactly() -> None:
    """No endpoint of the API reads a body any other way."""
    routes = [context.original_route for context in iter_route_contexts(documented_app().routes)]
    with_body = [each for each in routes if isinstance(each, APIRoute) and each.body_field is not None]
    assert len(with_body) > 20
    assert [each.path for each in with_body if not isinstance(each, ExactRoute)] == []


def test_no_endpoint_runs_in_a_thread() -> None:
    """An endpoint and what it depends on are coroutines: a plain function would cost each request a trip to a thread."""
    routes = [*documented_app().routes, *(route for router in page_routers for route in router.routes)]
    waiting = [each.dependant for each in routes if isinstance(each, APIRoute)]
    assert len(waiting) > 100
    plain = set()
    while waiting:
        each = waiting.pop()
        waiting += each.dependencies
        plain |= {each.call} if each.call and not iscoroutinefunction(each.call) else set()
    assert plain == set()


async def test_a_form_that_names_a_control_twice_is_refused() -> None:
    """A form is a body, too: of two decisions none is taken."""
    form = "application/x-www-form-urlencoded"
    taken = await send(b"action=reject&message=", form, path="/form")
    assert taken.json() == {"action": "reject", "message": ""}
    refused = await send(b"action=reject&action=approve", form, path="/form")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
