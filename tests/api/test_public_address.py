"""Where browsers reach the app: below a path of a proxy, by https that no header mentions, beside another on the same host."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi import Response
from pydantic import ValidationError
from starlette.requests import Request
from support.api.login_app import PASSWORD, door_on, log_in
from support.servers.nginx import below

from turngate.approvals_api.app import create_app
from turngate.approvals_api.http import authentication
from turngate.approvals_api.http.public_address import PublicAddress
from turngate.approvals_api.pages import STATIC_DIR
from turngate.approvals_api.pages.routes import routers
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.errors import ConfigurationError
from turngate.runtime.embedded_temporal import choose_port
from turngate.runtime.settings import Settings
from turngate.store.database import Database

LINK = re.compile(r' (?:href|src|action|formaction)="([^"]*)"')
NO_PAGES = {
    "/policy/rule/means",
    "/audit/export",
    "/requests/waiting",
    "/retention/erase",
    "/login/oidc",
    "/login/oidc/callback",
}
"""They answer with something else, or need more than their path."""
PAGES = sorted(
    {route.path for router in routers for route in router.routes if "GET" in route.methods and "{" not in route.path}
    - NO_PAGES
)


@pytest.mark.parametrize("strips", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
async def test_everything_is_served_below_a_path(sqlite: Database, strips: bool) -> None:
    """Through nginx, which takes the path off or leaves it: log-in, pages, assets, cookies, redirects, events, manifest."""
    port, path = choose_port(), "/tools/turngate"
    url = f"http://127.0.0.1:{port}{path}"
    async with door_on(sqlite, public_url=url) as door:
        await door.add("ann", role="admin", password=PASSWORD)
        async with door.browser() as direct:
            assert "strict-transport-security" not in (await direct.get("/livez")).headers
        with below(port, path, door.url, strips=strips):
            options = {"base_url": f"http://127.0.0.1:{port}", "trust_env": False, "timeout": 30}
            headers = {"Accept": "text/html", "Origin": f"http://127.0.0.1:{port}"}
            async with httpx.AsyncClient(**options, headers=headers) as browser:
                wanted = await browser.get(f"{path}/runs?status=all")
                assert (wanted.status_code, wanted.headers["location"]) == (303, f"{path}/login")
                login = await browser.post(f"{path}/login", data={"name": "ann", "password": PASSWORD})
                assert login.headers["location"] == f"{path}/runs?status=all"
                cookies = [value for name, value in login.headers.multi_items() if name == "set-cookie"]
                assert f"turngate_session_{port}_tools_turngate=" in cookies[0]
                assert all(f"Path={path};" in each for each in cookies)
                links = {link for page in PAGES for link in await _links(browser, f"{path}{page}")}
                assert all(link.startswith((f"{path}/", "#", "?", "https://")) or not link for link in links), links
                for asset in {link for link in links if link.startswith(f"{path}/static/")}:
                    answer = await browser.get(asset)
                    assert answer.status_code == 200
                    if "manifest" in asset:
                        manifest = json.loads(answer.text)
                        assert urlsplit(urljoin(str(answer.url), manifest["start_url"])).path == f"{path}/"
                        icon = urljoin(str(answer.url), manifest["icons"][0]["src"])
                        assert (await browser.get(icon)).status_code == 200
                document = (await browser.get(f"{path}/api/v1/openapi.json")).json()
                assert document["servers"] == [{"url": url}]
                assert f"{document['components']['securitySchemes']['sessionCookie']['name']}=" in cookies[0]
                missing = await browser.get(f"{path}/nothing")
                assert missing.status_code == 404
                assert f'href="{path}/"' in missing.text
                async with browser.stream("GET", f"{path}/api/v1/events") as events:
                    assert events.headers["content-type"].startswith("text/event-stream")
                out = await browser.post(f"{path}/account/sessions/end-others", data={"csrf_token": "x"})
                assert out.status_code == 403  # past the check of the origin


async def _links(browser: httpx.AsyncClient, page: str) -> set[str]:
    answer = await browser.get(f"{page}?utm_source=x")
    assert answer.status_code == 200, page
    return set(LINK.findall(answer.text))


async def test_pages_take_parameters_that_they_do_not_know(sqlite: Database) -> None:
    """A link that someone passed on may have any: the page opens. A condition that is no condition is still an error."""
    async with door_on(sqlite) as door:
        await door.add("ann", role="admin")
        async with door.browser() as browser:
            await log_in(browser, "ann")
            for page in ("/", "/requests/bulk", "/runs", "/audit"):
                assert (await browser.get(f"{page}?utm_source=x&fbclid=1")).status_code == 200
            assert (await browser.get("/?risk=huge")).status_code == 422


def test_scripts_know_no_path_from_the_root() -> None:
    """Below a path they would leave the app: their addresses begin where the script was loaded."""
    for script in sorted(Path(STATIC_DIR).glob("*.js")):
        assert not re.findall(r"""["'`]/[a-z][^"'`]*""", script.read_text()), script.name


def came(host: str, *, scheme: str = "http") -> Request:
    headers = [(b"host", host.encode("latin-1"))]
    return Request(
        {"type": "http", "method": "POST", "path": "/", "headers": headers, "scheme": scheme, "query_string": b""}
    )


@pytest.mark.parametrize(
    ("host", "url", "cookie"),
    [
        ("h", None, "turngate_session=s; HttpOnly; Max-Age=43200; Path=/; SameSite=lax"),
        ("h:8321", None, "turngate_session_8321=s; HttpOnly; Max-Age=43200; Path=/; SameSite=lax"),
        ("h:8322", None, "turngate_session_8322=s; HttpOnly; Max-Age=43200; Path=/; SameSite=lax"),
        ("h:x", None, "turngate_session=s; HttpOnly; Max-Age=43200; Path=/; SameSite=lax"),
        (
            "h:8321",
            "https://t.example",
            "__Host-turngate_session=s; HttpOnly; Max-Age=43200; Path=/; SameSite=lax; Secure",
        ),
        (
            "h:8321",
            "https://t.example:8443/tg",
            "__Secure-turngate_session_8443_tg=s; HttpOnly; Max-Age=43200; Path=/tg; SameSite=lax; Secure",
        ),
    ],
)
async def test_a_cookie_is_of_one_address(host: str, url: str | None, cookie: str) -> None:
    """Two ports or paths of a host have cookies of their own; a public https address means Secure, whatever a proxy forwards."""
    sent: list[str] = []

    async def answer(_scope: object, _receive: object, _send: object) -> None:
        response = Response()
        authentication.set_session_cookie(came(host), response, "s")
        sent.append(response.headers["set-cookie"])

    await PublicAddress(answer, url or "")({"type": "http", "path": "/"}, None, None)  # type: ignore[arg-type]
    assert sent == [cookie]


@pytest.mark.parametrize(
    "url",
    [
        "https://h/?a=1", "https://h/tg?", "https://h/#x", "https://u:p@h/", "https://h/a//b", "https://h/../x", "https://h/é",
        "https://h/a%2fb", "https://h:99999/", "https://:80/", "https://h/a b", 'https://h/"x', "ftp://h/", "h",
    ],
)  # fmt: skip
def test_an_address_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="public_url"):
        Settings(public_url=url)


def test_a_path_that_pages_have_is_refused(sqlite: Database) -> None:
    """``/runs/…`` could be the address of a page, or the path that the proxy left there."""
    with pytest.raises(ConfigurationError, match="can't have the path /runs, where Turngate has pages"):
        create_app(database=sqlite, gateway=None, settings=ApiSettings(public_url="https://h/runs/x"))  # type: ignore[arg-type]
    assert Settings(public_url="https://h/turngate/").public_url == "https://h/turngate"


async def test_an_https_address_keeps_browsers_on_https(sqlite: Database) -> None:
    """HSTS, on every answer, so that no one on the way reads a session from a first request by http."""
    async with door_on(sqlite, public_url="https://turngate.example") as door, door.browser() as browser:
        for path in ("/login", "/livez", "/nothing"):
            assert (await browser.get(path)).headers["strict-transport-security"] == "max-age=31536000"
