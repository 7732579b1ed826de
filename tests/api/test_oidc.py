"""Logging in by an OpenID provider: the whole way with a real one, and everything that must not get in."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from support.api.login_app import Door, door_on, session_of
from support.servers.nginx import below
from support.servers.oidc_provider import SCOPES, SECRET, Provider, running_provider
from support.stores.users import added, audit_events

from turngate.approvals_api.access.login import role_of, wanted_name
from turngate.approvals_api.access.oidc import OidcProvider, _Metadata, _require_safe_url
from turngate.approvals_api.settings import OidcSettings, claim_at
from turngate.domain.errors import ForbiddenError, UnavailableError
from turngate.runtime.embedded_temporal import choose_port
from turngate.store.access import sessions, users
from turngate.store.clock import from_text
from turngate.store.database import Database

CALLBACK = "/login/oidc/callback"


@pytest.fixture(scope="session")
def port() -> int:
    """The port that Turngate serves on: the provider redirects browsers to registered addresses only."""
    return choose_port()


@pytest.fixture(scope="session")
def provider(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """One provider for the session."""
    log = tmp_path_factory.mktemp("provider") / "log"
    with running_provider(f"http://127.0.0.1:{port}{CALLBACK}", log) as provider:
        yield provider


@pytest.fixture
def settings(provider: Provider) -> OidcSettings:
    return OidcSettings(
        issuer=provider.issuer,
        client_id="turngate",
        client_secret=SECRET,
        scopes=SCOPES,
        operator_values=frozenset({"ops"}),
        viewer_values=frozenset({"staff"}),
    )


def _cookie(door: Door) -> str:
    return f"turngate_oidc_{httpx.URL(door.url).port}"


@pytest.fixture
async def door(sqlite: Database, port: int, settings: OidcSettings) -> AsyncIterator[Door]:
    async with door_on(sqlite, port, oidc=settings) as door:
        yield door


@asynccontextmanager
async def at_the_provider(door: Door, provider: Provider, name: str) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A browser that logged in at the provider as ``name``, and the address that it was redirected to."""
    async with door.browser() as browser:
        assert "/login/oidc" in (await browser.get("/login")).text
        sent = await browser.get("/login/oidc")
        assert sent.status_code == 303
        yield browser, await provider.log_in(sent.headers["location"], name)


async def refusal(browser: httpx.AsyncClient, url: str) -> tuple[int, str]:
    answer = await browser.get(url)
    assert session_of(browser) is None
    return answer.status_code, answer.text


@pytest.mark.exhaustive
async def test_a_person_logs_in_by_the_provider(door: Door, provider: Provider) -> None:
    """From the log-in page over the provider's own pages to a session, with the role of the groups; and again."""
    async with door.browser() as browser:
        query = parse_qs(urlsplit((await browser.get("/login/oidc")).headers["location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= set(query)
    for _ in range(2):
        async with at_the_provider(door, provider, "ida") as (browser, back):
            answer = await browser.get(back)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            me = (await browser.get("/api/v1/me")).json()
            assert (me["name"], me["role"]) == ("Ida", "operator")
            assert _cookie(door) not in browser.cookies
    async with door.database.read() as conn:
        (user,) = await users.all_users(conn)
        lives = [from_text(each.expires_at) - from_text(each.created_at) for each in await sessions.listed(conn)]
    assert lives == [timedelta(hours=1)] * 2, "then the provider is asked for the role again"
    assert (user.oidc_issuer, user.oidc_subject, user.email) == (provider.issuer, "ida", "ida@example.com")
    kinds = [kind for kind, _payload in await audit_events(door.database)]
    assert kinds == ["user.added", "session.opened", "session.opened"]


@pytest.mark.parametrize("strips", [pytest.param(True, marks=pytest.mark.exhaustive), False])
async def test_a_person_logs_in_and_out_below_a_path(
    sqlite: Database, settings: OidcSettings, tmp_path: Path, strips: bool
) -> None:
    """Through nginx, whether or not it takes the path off: the way back, the cookies and the page at the end are below it.

    A log-in in a window of its own ends on a page that closes it.
    """
    proxy, path = choose_port(), "/tools/turngate"
    origin = f"http://127.0.0.1:{proxy}"
    with running_provider(f"{origin}{path}{CALLBACK}", tmp_path / "log") as provider:
        oidc = replace(settings, issuer=provider.issuer)
        async with door_on(sqlite, public_url=f"{origin}{path}", oidc=oidc) as door:
            with below(proxy, path, door.url, strips=strips):
                headers = {"Accept": "text/html", "Origin": origin}
                async with httpx.AsyncClient(base_url=origin, trust_env=False, headers=headers) as browser:
                    sent = await browser.get(f"{path}/login/oidc?window=true")
                    back = await provider.log_in(sent.headers["location"], "ida")
                    assert back.startswith(f"{origin}{path}{CALLBACK}?")
                    answer = await browser.get(back)
                    assert (answer.status_code, answer.headers["location"]) == (303, f"{path}/login/done")
                    inbox = await browser.get(f"{path}/")
                    assert inbox.status_code == 200
                    [cookie] = browser.cookies.jar
                    assert (cookie.name, cookie.path) == (f"turngate_session_{proxy}_tools_turngate", path)
                    token = re.search(r'name="csrf_token" value="([^"]+)"', inbox.text)
                    assert token is not None
                    out = await browser.post(f"{path}/logout", data={"csrf_token": token[1]})
                    assert (out.status_code, out.headers["location"]) == (303, f"{path}/login")
                    assert not list(browser.cookies.jar)


async def test_a_local_user_keeps_their_name(door: Door, provider: Provider) -> None:
    """A person of the same name gets another one, and not the local user's account."""
    await added(door.database, "ida", "admin")
    async with at_the_provider(door, provider, "ida") as (browser, back):
        await browser.get(back)
        me = (await browser.get("/api/v1/me")).json()
    assert (me["name"], me["role"]) == ("Ida@127.0.0.1", "operator")


@pytest.mark.exhaustive
async def test_a_person_without_a_role_learns_why(door: Door, provider: Provider) -> None:
    """Without the claim, or with none of its values: refused, no user is created, and the page says what to do."""
    for name, has in (("nora", "nothing"), ("gus", "guests")):
        async with at_the_provider(door, provider, name) as (browser, back):
            code, page = await refusal(browser, back)
        assert code == 403
        assert f"({has}) gives you no role here" in page
        assert "TURNGATE_OIDC_OPERATOR_VALUES" in page
    async with door.database.read() as conn:
        assert await users.all_users(conn) == []
    assert [payload["name"] for _kind, payload in await audit_events(door.database, "login.failed")] == ["Nora", "Gus"]


@pytest.mark.exhaustive
async def test_a_disabled_person_stays_out(door: Door, provider: Provider) -> None:
    """The provider still knows them, but Turngate does not let them in."""
    async with at_the_provider(door, provider, "ida") as (browser, back):
        await browser.get(back)
    async with door.database.write() as conn:
        await users.set_disabled(conn, "ida", disabled=True, by="boss")
    async with at_the_provider(door, provider, "ida") as (browser, back):
        code, page = await refusal(browser, back)
    assert code == 403
    assert "disabled" in page


async def test_another_browser_cannot_finish_a_log_in(door: Door, provider: Provider) -> None:
    """Without the cookie that started it, with another's, or with another state: refused, so no one is logged in as another."""
    async with at_the_provider(door, provider, "ida") as (browser, back), door.browser() as stranger:
        assert (await refusal(stranger, back))[0] == 403
        await stranger.get("/login/oidc")
        assert (await refusal(stranger, back))[0] == 403
        code, page = await refusal(browser, back.replace("state=", "state=x"))
        assert code == 403
        assert "start again" in page
        browser.cookies.set(_cookie(door), browser.cookies[_cookie(door)][:-2] + "xx", domain="127.0.0.1")
        assert (await refusal(browser, back))[0] == 403
    assert len(await audit_events(door.database, "login.failed")) == 4


@pytest.mark.exhaustive
async def test_a_code_is_good_once(door: Door, provider: Provider) -> None:
    """The same redirect a second time, with the same cookie, opens no second session."""
    async with at_the_provider(door, provider, "ida") as (browser, back):
        cookie = browser.cookies[_cookie(door)]
        assert (await browser.get(back)).status_code == 303
        browser.cookies.clear()
        browser.cookies.set(_cookie(door), cookie, domain="127.0.0.1")
        code, page = await refusal(browser, back)
    assert code == 403
    assert "did not take the code" in page


async def test_a_refusal_of_the_provider_or_anothers_answer_is_reported(door: Door, provider: Provider) -> None:
    """The person refused there, or the answer names another issuer (RFC 9207), or none although this provider names itself."""
    async with at_the_provider(door, provider, "ida") as (browser, back):
        state = parse_qs(urlsplit(back).query)["state"][0]
        answers = {
            f"?state={state}&iss={provider.issuer}&error=access_denied": "did not let you in (access_denied)",
            f"?state={state}&iss={provider.issuer}": "no code",
            f"?state={state}&code=x&iss=https://evil.example": "from another provider",
            f"?state={state}&code=x": "from another provider",
        }
        for query, message in answers.items():
            code, page = await refusal(browser, f"{CALLBACK}{query}")
            assert (code, message in page) == (403, True), page


async def test_a_token_for_another_client_is_refused(provider: Provider, port: int, settings: OidcSettings) -> None:
    """A real ID token of the same provider that is for another client, has another nonce or was changed is refused."""
    others = OidcProvider(replace(settings, client_id="other"))
    ours = OidcProvider(settings)
    url, cookie = await others.begin(f"http://127.0.0.1:{port}{CALLBACK}")
    back = dict(httpx.URL(await provider.log_in(url, "ida")).params)
    attempt = others._attempt(back, cookie)
    metadata = await others._read_metadata()
    tokens = await others._tokens(metadata, back["code"], attempt)
    id_token = tokens["id_token"]
    assert (await others._id_claims(metadata, id_token, attempt.nonce))["sub"] == "ida"
    header, payload, signature = id_token.split(".")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    touched = base64.urlsafe_b64encode(json.dumps({**claims_of(payload), "sub": "boss"}).encode()).rstrip(b"=").decode()
    for judge, token, nonce in (
        (ours, id_token, attempt.nonce),
        (others, id_token, "another"),
        (others, f"{header}.{touched}.{signature}", attempt.nonce),
        (others, f"{unsigned}.{payload}.", attempt.nonce),
        (others, None, attempt.nonce),
        (others, "no token", attempt.nonce),
    ):
        with pytest.raises(ForbiddenError) as refused:
            await judge._id_claims(metadata, token, nonce)
        assert refused.value.error_code == "oidc_refused"


def claims_of(payload: str) -> dict[str, Any]:
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


async def test_the_provider_must_be_who_the_settings_say(provider: Provider, settings: OidcSettings) -> None:
    """Another spelling of the issuer, no server or no provider there: reported as a setting to fix, and no one gets in."""
    for issuer in (f"{provider.issuer}/", provider.issuer.replace("127.0.0.1", "localhost"), "http://127.0.0.1:1"):
        with pytest.raises(UnavailableError):
            await OidcProvider(replace(settings, issuer=issuer)).begin("http://127.0.0.1/x")


async def test_a_token_endpoint_that_does_not_answer_is_unavailable(
    provider: Provider, port: int, settings: OidcSettings
) -> None:
    """The provider goes away between the log-in there and our request for the tokens: no crash, and no log-in."""
    oidc = OidcProvider(settings)
    url, cookie = await oidc.begin(f"http://127.0.0.1:{port}{CALLBACK}")
    state = parse_qs(urlsplit(url).query)["state"][0]
    metadata = await oidc._read_metadata()
    oidc._metadata = replace(metadata, document={**metadata.document, "token_endpoint": "http://127.0.0.1:1/token"})
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await oidc.finish({"state": state, "code": "x", "iss": provider.issuer}, cookie)


@pytest.mark.parametrize(
    "url",
    [
        None,
        "http://login.example",
        "http://127.0.0.1.evil.example",
        "https://[::1",
        "https://login:port",
        "https://a\nb",
    ],
)
def test_a_providers_address_is_one_that_no_one_can_read_along(url: str | None) -> None:
    """And one that can be asked at all, whatever the provider's document says."""
    with pytest.raises(UnavailableError, match="must be an https address"):
        _require_safe_url("token_endpoint", url)


async def test_without_a_provider_there_is_no_such_way_in(sqlite: Database) -> None:
    """No link on the page, 404 to start, 403 to finish."""
    async with door_on(sqlite) as door, door.browser() as browser:
        assert "/login/oidc" not in (await browser.get("/login")).text
        assert (await browser.get("/login/oidc")).status_code == 404
        assert (await browser.get(f"{CALLBACK}?code=x&state=y")).status_code == 403


KEY = RSAKey.generate_key(2048, parameters={"kid": "one"})
PLAIN = OidcSettings(issuer="https://login.example", client_id="turngate", client_secret="s3cret" * 8)


def signed(key: Any = KEY, alg: str = "RS256", **changes: Any) -> str:
    at = int(time.time())
    claims = {"iss": PLAIN.issuer, "aud": "turngate", "sub": "ida", "nonce": "n", "iat": at, "exp": at + 300, **changes}
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": alg, "kid": "one"}, present, key, algorithms=[alg])


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"exp": -50}, True),
        ({"exp": -70}, False),
        ({"iat": 50}, True),
        ({"iat": 70}, False),
        ({"nbf": 70}, False),
        ({"exp": None}, False),
        ({"iat": None}, False),
        ({"sub": None}, False),
        ({"nonce": None}, False),
        ({"nonce": ""}, False),
        ({"iss": "https://login.example/"}, False),
        ({"aud": ["turngate"]}, True),
        ({"aud": ["turngate", "other"]}, False),
        ({"aud": ["turngate", "other"], "azp": "turngate"}, True),
        ({"aud": ["turngate", "other"], "azp": "other"}, False),
        ({"azp": "other"}, False),
        ({"aud": "other"}, False),
    ],
)
async def test_an_id_token_is_for_this_log_in_and_now(changes: dict[str, Any], *, good: bool) -> None:
    """Issuer, audience, party, nonce and times, with a minute for clocks that differ (numbers are seconds from now)."""
    at = int(time.time())
    moved = {name: at + value if isinstance(value, int) else value for name, value in changes.items()}
    metadata = _Metadata(document={}, keys=KeySet([KEY]), read_at=0)
    provider = OidcProvider(PLAIN)
    if good:
        assert (await provider._id_claims(metadata, signed(**moved), "n"))["sub"] == "ida"
    else:
        with pytest.raises(ForbiddenError, match="start again"):
            await provider._id_claims(metadata, signed(**moved), "n")


async def test_an_id_token_is_signed_by_a_key_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by another key, and not by HMAC with the client's secret; a key that is new at the provider is fetched."""
    from joserfc.jwk import OctKey  # noqa: PLC0415 - only here

    stranger = RSAKey.generate_key(2048, parameters={"kid": "one"})
    known = _Metadata(document={}, keys=KeySet([KEY]), read_at=0)
    read: list[bool] = []

    async def read_metadata(*, refresh: bool = False) -> _Metadata:
        read.append(refresh)
        return known

    provider = OidcProvider(PLAIN)
    monkeypatch.setattr(provider, "_read_metadata", read_metadata)
    for token in (signed(stranger), signed(OctKey.import_key(PLAIN.client_secret), "HS256")):
        with pytest.raises(ForbiddenError, match="not signed as it must be"):
            await provider._id_claims(known, token, "n")
    before = _Metadata(document={}, keys=KeySet([stranger]), read_at=0)
    read.clear()
    assert (await provider._id_claims(before, signed(), "n"))["sub"] == "ida"
    assert read == [True]


def test_the_highest_role_of_a_claim_counts() -> None:
    """A text or a list, at the top or nested; anything else gives no role; the default is for people without one."""
    settings = replace(
        PLAIN,
        admin_values=frozenset({"root"}),
        operator_values=frozenset({"ops"}),
        viewer_values=frozenset({"staff"}),
    )
    for groups, role in (("ops", "operator"), (["staff", "root", 7], "admin"), (["x", "staff"], "viewer")):
        assert role_of({"groups": groups}, settings) == role
        nested = replace(settings, role_claim="realm.roles")
        assert role_of({"realm": {"roles": groups}}, nested) == role
    for claims in ({}, {"groups": None}, {"groups": {"ops": True}}, {"groups": [["ops"]]}, {"groups": 7}):
        with pytest.raises(ForbiddenError, match="no role here"):
            role_of(claims, settings)
        assert role_of(claims, replace(settings, default_role="viewer")) == "viewer"
    assert claim_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert claim_at({"a": 1}, "a.b.c") is None


def test_a_name_is_taken_from_the_first_claim_that_can_be_one() -> None:
    """Empty and hostile ones are skipped; the subject is the last resort."""
    assert wanted_name({"preferred_username": "a\u202eb", "email": "ida@example.com", "sub": "1"}) == "ida@example.com"
    assert wanted_name({"preferred_username": "", "sub": "1"}) == "1"
    with pytest.raises(ForbiddenError):
        wanted_name({"sub": "\u200b"})
