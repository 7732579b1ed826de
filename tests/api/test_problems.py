"""Errors and headers at the edge: problem documents everywhere, health, limits."""

from __future__ import annotations

import httpx
from fastapi import FastAPI, Response
from support.api.api_server import Api
from support.engine.stack import until

from turngate.approvals_api.http.problems import install_problems, problem_response
from turngate.domain.errors import DuplicateToolNameError, TurngateError, UnavailableError
from turngate.wire.problems import status_of


async def test_unknown_paths_and_methods_are_problems(api: Api) -> None:
    """404 and 405 are problem documents with the members RFC 9457 names; 405 says what is allowed."""
    missing = await api.operator.get("/api/v1/nothing")
    assert missing.headers["content-type"] == "application/problem+json"
    problem = missing.json()
    assert problem["type"] == "urn:turngate:problem:not_found"
    assert (problem["title"], problem["status"], problem["code"]) == ("Not Found", 404, "not_found")
    wrong = await api.operator.delete("/api/v1/runs")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["content-type"] == "application/problem+json"
    assert wrong.headers["allow"] == "GET, POST"
    narrower = await api.operator.delete("/api/v1/requests/decisions")  # of the paths that fit, not a request's id
    assert (narrower.status_code, narrower.headers["allow"]) == (405, "POST")
    slash = await api.operator.get("/api/v1/runs/")
    assert (slash.status_code, slash.json()["code"]) == (404, "not_found")


async def test_parameters_are_not_guessed_at(api: Api) -> None:
    """422 for what no store can hold, what is no key, cursor or instant, and what is unknown; each names its parameter."""
    for path, headers, name in (
        ("/api/v1/runs/a%00b", {}, "run_id"),
        ("/api/v1/requests?run_id=a%00b", {}, "run_id"),
        ("/api/v1/requests?limit=1.5", {}, "limit"),
        ("/api/v1/runs?cursor=%21", {}, "cursor"),
        ("/api/v1/audit?since=0.5", {}, "since"),
        ("/api/v1/requests?tol=pay", {}, "query parameter tol: there is no such parameter. Did you mean 'tool'?"),
        ("/api/v1/runs?run_id=x", {}, "run_id"),
        ("/api/v1/health?x=1", {}, "query parameter x: there is no such parameter."),
        ("/api/v1/events", {"Last-Event-ID": "1e3"}, "Last-Event-ID"),
    ):
        answer = await api.operator.get(path, headers=headers)
        assert answer.status_code == 422, path
        assert name in answer.json()["errors"][0]["message"], path
    for key in ("", "a\tb", "k" * 256):
        answer = await api.agent.post(
            "/api/v1/runs", json={"agent": "agent", "input": "x"}, headers={"Idempotency-Key": key}
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), key


async def test_every_answer_carries_the_security_headers(api: Api) -> None:
    """Good answers, refusals and host errors: CSP, nosniff, no referrer, no features of the browser, no store."""
    for answer in (
        await api.operator.get("/api/v1/runs"),
        await api.operator.get("/api/v1/nothing"),
        await api.operator.get("/livez", headers={"Host": "evil.example"}),
    ):
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "camera=()" in answer.headers["permissions-policy"]
        assert answer.headers["cache-control"] == "no-store"


async def test_a_body_that_is_too_large_is_refused_unread(api: Api) -> None:
    """413 by its length, also to a client that is still sending; 411 without a length. A result may be larger."""
    for size in (2 * 1024 * 1024 + 1, 40 * 1024 * 1024):
        big = await api.agent.post("/api/v1/runs", content=b"x" * size)
        assert (big.status_code, big.json()["code"]) == (413, "too_large")
    large = await api.agent.post("/api/v1/external-calls/run_x/result", content=b"x" * (2 * 1024 * 1024 + 1))
    assert large.status_code == 422

    async def chunks():
        yield b"{}"

    assert (await api.agent.post("/api/v1/runs", content=chunks())).status_code == 411


async def test_health(api: Api, cut_off: Api) -> None:
    """/livez only says that the process lives; /readyz is 503 and names Temporal if that is away."""
    assert (await api.stranger.get("/livez")).json() == {"status": "alive"}

    async def ready() -> dict[str, object] | None:
        answer = await api.stranger.get("/readyz")  # a busy machine may have held the loop of the tests just now
        return answer.json() if answer.status_code == httpx.codes.OK else None

    parts = {"store": True, "temporal": True, "loop": True}
    assert await until(ready, "the API ready") == {"status": "ready", **parts}
    assert (await cut_off.stranger.get("/livez")).status_code == 200
    away = await cut_off.stranger.get("/readyz")
    assert away.status_code == 503
    assert (away.json()["store"], away.json()["temporal"], away.json()["code"]) == (True, False, "unavailable")


async def test_a_bug_is_a_problem_without_our_insides() -> None:
    """500: no traceback, no message of the exception; security headers too."""
    app = FastAPI()
    install_problems(app, None)

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("the password is hunter2")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/boom")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "hunter2" not in answer.text
    assert "content-security-policy" in answer.headers


async def test_pages_get_pages() -> None:
    """A browser outside /api gets the rendered page, and a redirect to the log-in instead of 401; /api keeps its problems."""
    app = FastAPI()

    async def page(_request: object, status: int, title: str, detail: str, _details: object) -> Response:
        return problem_response(status, "page", title + detail, {})

    install_problems(app, page)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"Accept": "text/html"}
    ) as client:
        assert (await client.get("/nothing")).json()["code"] == "page"
        assert (await client.get("/api/v1/nothing")).json()["code"] == "not_found"


def test_an_errors_status_follows_the_tree() -> None:
    """A subclass has its parent's status unless it has its own; an error without a place is 500."""
    assert status_of(UnavailableError("x")) == 503
    assert status_of(DuplicateToolNameError("a", "b", "c")) == 500
    assert status_of(TurngateError("x")) == 500


def test_details_never_hide_the_problems_own_members() -> None:
    """A detail named ``status`` gets another name."""
    body = problem_response(410, "run_ended", "gone", {"status": "cancelled"}).body
    assert b'"status":410' in body
    assert b'"status_":"cancelled"' in body
