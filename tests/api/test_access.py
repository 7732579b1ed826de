"""Who gets in: sessions, tokens, origins, host names, login links, form tokens."""

from __future__ import annotations

import asyncio
import secrets
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import Request, Response
from support.api.api_server import Api, session_for, token_for
from support.stores.users import added

from turngate.approvals_api.access.login import Browser, Login, log_out
from turngate.approvals_api.http import authentication
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.http.guards import Guards, host_name
from turngate.approvals_api.http.rate_limits import RateLimits
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.errors import ForbiddenError
from turngate.domain.identity import ROLE_SCOPES
from turngate.store.access import access, tokens


async def test_without_a_good_credential_everything_is_401(api: Api) -> None:
    """401 with WWW-Authenticate: no credential, an unknown token, another scheme, an unknown session."""
    bad = [
        {},
        {"Authorization": "Bearer tg_wrong"},
        {"Authorization": "Basic YTpi"},
        {"Cookie": f"{SESSION_COOKIE}=wrong"},
    ]
    for headers in bad:
        for path in ("/api/v1/requests", "/api/v1/runs", "/api/v1/agents", "/api/v1/events", "/api/v1/requests/count"):
            answer = await api.stranger.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
    assert (await api.stranger.post("/api/v1/runs", json={"agent": "agent", "input": "x"})).status_code == 401


async def test_a_bad_token_is_not_saved_by_a_good_cookie(api: Api) -> None:
    """A wrong credential is refused, whatever else comes with it."""
    answer = await api.operator.get("/api/v1/runs", headers={"Authorization": "Bearer tg_wrong"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (("requests:read",), {"/requests": True, "/runs": True, "start": False}),
        (("runs:write",), {"/requests": False, "/runs": True, "start": True}),
        (("requests:decide",), {"/requests": True, "/runs": True, "start": False}),
        (("admin",), {"/requests": True, "/runs": True, "start": True}),
        ((), {"/requests": False, "/runs": False, "start": False}),
    ],
)
async def test_a_token_may_do_what_its_scopes_say(
    api: Api, scopes: tuple[access.Scope, ...], allowed: dict[str, bool]
) -> None:
    """403 missing_scope for anything else."""
    headers = await token_for(api.stack.database, "machine", *scopes)
    for what, good in allowed.items():
        if what == "start":
            body = {"agent": "agent", "input": "hello"}
            answer = await api.stranger.post("/api/v1/runs", json=body, headers=headers)
            assert answer.status_code == (201 if good else 403)
        else:
            answer = await api.stranger.get(f"/api/v1{what}", headers=headers)
            assert answer.status_code == (200 if good else 403)
        if not good:
            assert answer.json()["code"] == "missing_scope"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 201),
        ({"Sec-Fetch-Site": "none"}, 201),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "{url}"}, 201),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "{url}"}, 403),
        ({}, 403),
    ],
)
async def test_a_cross_origin_post_with_the_cookie_is_refused(api: Api, headers: dict[str, str], status: int) -> None:
    """403 cross_origin unless the browser, or at least Origin, says that it came from one of our pages; nothing starts."""
    cookies = await session_for(api.stack.database, "ada")
    sent = {name: value.format(url=api.url) for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=api.url, cookies=cookies, trust_env=False) as browser:
        answer = await browser.post("/api/v1/runs", json={"agent": "agent", "input": "hello"}, headers=sent)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["code"] == "cross_origin"


async def test_a_token_needs_no_origin(api: Api) -> None:
    """A program sends a token on purpose, a browser never does by itself: the origin does not matter."""
    answer = await api.agent.post(
        "/api/v1/runs", json={"agent": "agent", "input": "hello"}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert answer.status_code == 201


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "", "localhost.evil"])
async def test_a_rebound_host_name_is_refused(api: Api, host: str) -> None:
    """421 for a name that is not loopback's (DNS rebinding), before anything else, on /livez too."""
    for path in ("/api/v1/runs", "/livez"):
        answer = await api.operator.get(path, headers={"Host": host})
        assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")


@pytest.mark.parametrize(
    "name", ["Host", "Authorization", "Origin", "Content-Type", "Sec-Fetch-Site", "Idempotency-Key"]
)
async def test_a_header_that_must_be_one_is_refused_twice(api: Api, name: str) -> None:
    """400: of two, a proxy may have read the other one."""
    value = "127.0.0.1" if name == "Host" else "x"
    lines = [
        "GET /livez HTTP/1.1",
        "Host: 127.0.0.1",
        f"{name}: {value}",
        *([] if name == "Host" else [f"{name}: {value}"]),
    ]
    url = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"header_twice" in answer


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:80"])
async def test_loopback_names_are_answered(api: Api, host: str) -> None:
    """The port does not matter, because a proxy may change it."""
    assert (await api.stranger.get("/livez", headers={"Host": host})).status_code == 200


def test_only_a_server_on_loopback_checks_names() -> None:
    """Bound to the network, a server can't know its names; the settings can name them."""
    assert ApiSettings(host="0.0.0.0").host_names is None  # noqa: S104 - a value, not a socket
    assert ApiSettings(host="::1", more_host_names=frozenset({"box"})).host_names == {
        "127.0.0.1",
        "localhost",
        "[::1]",
        "box",
    }
    assert host_name("[::1]:80") == host_name("[::1]") == "[::1]"
    assert Guards.__doc__


async def test_a_login_link_works_once(api: Api) -> None:
    """A link opens one session; a second use, and an unknown link, open none; logging out ends the session."""
    database = api.stack.database
    login = Login(database=database, limits=RateLimits(), browser=Browser(address="test"))
    async with database.write() as conn:
        link = await access.issue_link(conn, "ada")
    session = await login.by_link(link)
    assert session is not None
    assert await login.by_link(link) is None
    assert await login.by_link("wrong") is None
    cookie = {"Cookie": f"{SESSION_COOKIE}={session}"}
    assert (await api.stranger.get("/api/v1/runs", headers=cookie)).status_code == 200
    await log_out(database, session)
    assert (await api.stranger.get("/api/v1/runs", headers=cookie)).status_code == 401


async def test_i10_who_started_by_a_token_cannot_decide_by_another_credential(api: Api) -> None:
    """I10: a rule that bars the starter bars the person, with whichever of their credentials they start and decide."""
    database, name = api.stack.database, f"ann-{api.name}"
    await added(database, name)
    async with database.write() as conn:
        both = await tokens.issue(
            conn, tokens.NewToken(name=f"{name}-cli", scopes=["runs:write", "requests:decide"], owner=name.upper())
        )
    by_token, by_session = {"Authorization": f"Bearer {both}"}, {"Origin": api.url}
    cookies = await session_for(database, name)
    started = await api.stranger.post(
        "/api/v1/runs", json={"agent": "agent", "input": "pay_shared 5"}, headers=by_token
    )
    assert started.json()["started_by"] == name
    request = await api.request(started.json())
    body = {"decision": "approve", "digest": request["digest"]}
    path = f"/api/v1/requests/{request['id']}/decisions"
    async with httpx.AsyncClient(base_url=api.url, cookies=cookies, headers=by_session, trust_env=False) as browser:
        answers = [await api.stranger.post(path, json=body, headers=by_token), await browser.post(path, json=body)]
    assert [(each.status_code, each.json()["code"]) for each in answers] == [(403, "not_eligible")] * 2
    assert (await api.decide(request)).status_code == 200


@pytest.mark.parametrize(
    ("role", "reads", "starts", "administers"),
    [("viewer", 200, 403, 403), ("operator", 200, 201, 403), ("admin", 200, 201, 200)],
)
async def test_a_person_may_do_what_their_role_says(
    api: Api, role: str, reads: int, starts: int, administers: int
) -> None:
    """Read, start runs, manage tokens; /me says the same."""
    name = f"{role}-{api.name}"
    await added(api.stack.database, name, role)
    cookies = await session_for(api.stack.database, name)
    headers = {"Origin": api.url}
    async with httpx.AsyncClient(base_url=api.url, cookies=cookies, headers=headers, trust_env=False) as browser:
        assert (await browser.get("/api/v1/requests")).status_code == reads
        assert (await browser.post("/api/v1/runs", json={"agent": "agent", "input": "hello"})).status_code == starts
        assert (await browser.get("/api/v1/tokens")).status_code == administers
        me = (await browser.get("/api/v1/me")).json()
    assert (me["name"], me["role"], me["via"], me["machine"]) == (name, role, "session", False)
    assert me["scopes"] == sorted(ROLE_SCOPES[role])
    assert me["session_id"].startswith("ses_")


def request_with(cookie: str | None, *, scheme: str = "https") -> Request:
    name = f"__Host-{SESSION_COOKIE}" if scheme == "https" else SESSION_COOKIE
    headers = [(b"cookie", f"{name}={cookie}".encode())] if cookie else []
    return Request(
        {"type": "http", "method": "POST", "path": "/", "headers": headers, "scheme": scheme, "server": ("h", 1)}
    )


def test_a_form_token_belongs_to_its_session() -> None:
    """The token of the same session passes; another's, none, or no session does not. It does not reveal the secret."""
    secret = secrets.token_urlsafe(32)
    token = authentication.form_token(secret)
    assert secret not in token
    authentication.check_form_token(request_with(secret), token)
    for cookie, wrong in ((secret, authentication.form_token("other")), (secret, None), (secret, "é"), (None, token)):
        with pytest.raises(ForbiddenError) as refused:
            authentication.check_form_token(request_with(cookie), wrong)
        assert refused.value.error_code == "form_token"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_session_cookie_is_out_of_reach_of_scripts(scheme: str) -> None:
    """HttpOnly, SameSite=Lax, the whole site; on https Secure, with a name that only this host can set; cleared alike."""
    response, cleared, came = Response(), Response(), request_with(None, scheme=scheme)
    authentication.set_session_cookie(came, response, "s3")
    authentication.clear_session_cookie(came, cleared)
    name, cookie = ("__Host-turngate_session", "; secure") if scheme == "https" else ("turngate_session", "")
    for answer, more in ((response, f"{name}=s3; httponly; max-age=43200"), (cleared, f'{name}=""')):
        sent = answer.headers["set-cookie"]
        assert sent.startswith(f"{name}=")
        for part in (*more.lower().split("; ")[1:], "httponly", "samesite=lax", "path=/"):
            assert part in sent.lower()
        assert ("secure" in sent.lower()) is bool(cookie)
        assert "domain" not in sent.lower()
    assert "max-age=0" in cleared.headers["set-cookie"].lower()


def test_on_https_a_cookie_that_another_host_could_plant_is_ignored() -> None:
    """Without the prefix a cookie may come from a neighbouring host or from plain http: it opens no session."""
    planted = Request({**request_with("x").scope, "headers": [(b"cookie", f"{SESSION_COOKIE}=planted".encode())]})
    assert authentication.session_secret(planted) is None
    assert authentication.session_secret(request_with("own")) == "own"
    assert authentication.session_secret(request_with("own", scheme="http")) == "own"
