"""Sessions and tokens: seeing and ending them, over the API and on the account page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import update
from support.api.api_server import token_for
from support.api.login_app import Door, door_on, log_in
from support.stores.users import added, audit_events

from turngate.approvals_api.http.authentication import SESSION_COOKIE, WANTED_PAGE_COOKIE, form_token
from turngate.cli.api_settings import login_link_command
from turngate.runtime.settings import Settings
from turngate.store.access import people, sessions, tokens
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.tables import sessions as session_rows


@pytest.fixture
async def door(sqlite: Database) -> AsyncIterator[Door]:
    async with door_on(sqlite, session_idle=timedelta(minutes=30)) as door:
        yield door


async def browser_of(door: Door, name: str, user_agent: str = "") -> tuple[httpx.AsyncClient, str]:
    """A browser with a session, and the session's secret."""
    async with door.database.write() as conn:
        secret = await sessions.begin(conn, await people.id_of(conn, name), user_agent=user_agent)
    return door.browser(cookies={SESSION_COOKIE: secret}), secret


async def ids(browser: httpx.AsyncClient) -> list[str]:
    return [each["id"] for each in (await browser.get("/api/v1/sessions")).json()["items"]]


async def test_the_login_page_names_the_command_of_its_own_stack(sqlite: Database, tmp_path: Path) -> None:
    """With its data directory, so that it works in any directory; by another name than this machine's own, without a path."""
    settings = Settings(data_dir=tmp_path / "two words")
    command = login_link_command(settings)
    assert command == f"turngate login-link --data-dir '{settings.data_dir}'"
    elsewhere = "approvals.example.com"
    async with (
        door_on(sqlite, login_link=command, more_host_names=frozenset({elsewhere})) as door,
        door.browser() as browser,
    ):
        assert command in unescape((await browser.get("/login")).text)
        page = (await browser.get("/login", headers={"Host": elsewhere})).text
    assert ("turngate login-link<" in page, "two words" in page) == (True, False)


async def test_a_person_sees_and_ends_their_own_sessions_only(door: Door) -> None:
    """Others' are neither listed nor ended; an admin sees and ends all; a machine has none."""
    ann, _ = await browser_of(door, "ann")
    bob, _ = await browser_of(door, "bob", "Firefox")
    admin = await token_for(door.database, "root", "admin")
    machine = await token_for(door.database, "ann", "requests:read")
    async with ann, bob:
        (own,), (others,) = await ids(ann), await ids(bob)
        assert (await ann.delete(f"/api/v1/sessions/{others}")).status_code == 404
        assert (await ann.get("/api/v1/sessions", headers=machine)).json()["items"] == []
        assert (await ann.delete(f"/api/v1/sessions/{own}", headers=machine)).status_code == 404
        page = (await ann.get("/api/v1/sessions", headers=admin, params={"limit": 1})).json()
        rest = (
            await ann.get("/api/v1/sessions", headers=admin, params={"limit": 1, "cursor": page["next_cursor"]})
        ).json()
        assert {page["items"][0]["id"], rest["items"][0]["id"]} == {own, others}
        assert rest["next_cursor"] is None
        assert {page["items"][0]["user_agent"], rest["items"][0]["user_agent"]} == {"", "Firefox"}
        assert (await ann.delete(f"/api/v1/sessions/{others}", headers=admin)).status_code == 204
        assert (await bob.get("/api/v1/me")).status_code == 401
        assert (await ann.delete(f"/api/v1/sessions/{own}")).status_code == 204
        assert (await ann.get("/api/v1/me")).status_code == 401
    ended = [(payload["name"], payload["by"]) for _kind, payload in await audit_events(door.database, "session.ended")]
    assert ended == [("bob", "root"), ("ann", "ann")]


async def test_a_link_to_a_page_survives_the_login(door: Door) -> None:
    """A login leads to the page that was asked for before it, once; the next login leads to the inbox."""
    await door.add("ann")
    async with door.browser() as browser:
        redirect = await browser.get("/requests/rq_1?list=agent%3Da%2526b&x=%C3%A4")
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/login")
        await browser.get("/login")
        assert (await log_in(browser, "ann", "wrong horse")).status_code == 403
        let_in = await log_in(browser, "ann")
        assert (let_in.status_code, let_in.headers["location"]) == (
            303,
            "/requests/rq_1?list=agent%3Da%2526b&x=%C3%A4",
        )
        assert (await log_in(browser, "ann")).headers["location"] == "/"


@pytest.mark.parametrize(
    "planted",
    [
        "https://example.com/",
        "//example.com/",
        "/\\example.com/",
        "/\t/example.com/",
        "/\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "",
        "/" + "a" * 3_000,
        "/\u2044/example.com",
    ],
)
async def test_a_login_leads_to_no_other_site(door: Door, planted: str) -> None:
    """What a cookie says is taken for a page only when it is a path of this host."""
    await door.add("ann")
    async with door.browser(cookies={WANTED_PAGE_COOKIE: quote(planted, safe="")}) as browser:
        assert (await log_in(browser, "ann")).headers["location"] == "/"


async def test_the_account_page_ends_sessions_by_forms(door: Door) -> None:
    """One session, then all others, only with the form's token; a browser's own description is escaped."""
    here, secret = await browser_of(door, "ann", "<b>here</b>\u202e")
    others = [(await browser_of(door, name))[0] for name in ("ann", "ann", "bob")]
    sent = {"csrf_token": form_token(secret)}

    async def statuses() -> list[int]:
        return [(await each.get("/api/v1/me")).status_code for each in (here, *others)]

    async def end(browser: httpx.AsyncClient) -> int:
        session_id = (await browser.get("/api/v1/me")).json()["session_id"]
        return (await here.post("/account/sessions/end", data={**sent, "session_id": session_id})).status_code

    async with here, others[0], others[1], others[2]:
        page = (await here.get("/account")).text
        assert "<b>here" not in page
        assert "⟨U+202E⟩" in page
        assert page.count('class="chip">this browser') == 1
        assert page.count("End this session") == 2
        assert (await here.post("/account/sessions/end-others", data={})).status_code == 403
        await end(others[2])
        assert await statuses() == [200, 200, 200, 200]
        assert await end(others[0]) == 303
        assert await statuses() == [200, 401, 200, 200]
        await here.post("/account/sessions/end-others", data=sent)
        assert await statuses() == [200, 401, 401, 200]


async def test_the_account_page_is_for_browsers(door: Door) -> None:
    """A token has no account page, because a machine may have the name that a link gave a person."""
    headers = await token_for(door.database, "ann", "requests:read")
    async with door.browser(headers=headers) as browser:
        assert (await browser.get("/account")).status_code == 403


async def test_a_session_ends_when_it_is_idle_too_long(door: Door) -> None:
    """The setting's half hour counts from the last request, whose time is stored."""
    browser, _ = await browser_of(door, "ann")

    async def rest(minutes: int) -> int:
        at = as_text(now() - timedelta(minutes=minutes))
        async with door.database.write() as conn:
            await conn.execute(update(session_rows).values(last_seen_at=at))
        return (await browser.get("/api/v1/me")).status_code

    async with browser:
        assert await rest(29) == 200
        assert (await browser.get("/api/v1/sessions")).json()["items"][0]["last_seen_at"] > as_text(
            now() - timedelta(minutes=1)
        )
        assert await rest(31) == 401


async def test_an_admin_creates_and_revokes_tokens(door: Door) -> None:
    """The secret is in one answer only; what the token may do is checked; it works until it is revoked, at once."""
    headers = await token_for(door.database, "root", "admin")
    async with door.browser(headers=headers) as admin, door.browser() as stranger:

        async def make(**body: object) -> httpx.Response:
            return await admin.post("/api/v1/tokens", json={"name": "ci", "scopes": ["runs:write"], **body})

        created = await make(expires_in_seconds=3_600)
        assert created.status_code == 201
        token = created.json()
        assert token["expires_at"] < as_text(now() + timedelta(minutes=61))
        bearer = {"Authorization": f"Bearer {token['secret']}"}
        assert (await stranger.get("/api/v1/me", headers=bearer)).json()["machine"] is True
        listed = (await admin.get("/api/v1/tokens")).json()["items"]
        assert {each["name"] for each in listed} == {"ci", "root"}
        assert token["secret"] not in str(listed)
        assert (await stranger.get("/api/v1/tokens", headers=bearer)).status_code == 403
        for body, code in (
            ({"scopes": ["runs:write", "requests:decide"]}, 422),
            ({"scopes": ["root"]}, 422),
            ({"scopes": []}, 422),
            ({"name": "cli:ole"}, 422),
            ({"name": "a\u202eb"}, 422),
            ({"user": "root"}, 403),
            ({"user": "zoe"}, 403),
        ):
            refused = await make(**body)
            assert refused.status_code == code, refused.text
        assert (await admin.delete(f"/api/v1/tokens/{token['id']}")).status_code == 204
        assert (await admin.delete(f"/api/v1/tokens/{token['id']}")).status_code == 404
        assert (await stranger.get("/api/v1/me", headers=bearer)).status_code == 401
    kinds = [kind for kind, _payload in await audit_events(door.database)]
    assert kinds == ["token.issued", "token.issued", "token.revoked"]


async def test_no_one_creates_a_token_in_anothers_name(door: Door) -> None:
    """A token that an admin binds to themself acts as they do; they can't bind one to another person: decisions carry names."""
    await added(door.database, "Ann", "admin")
    await added(door.database, "bob")
    browser, _ = await browser_of(door, "Ann")
    async with browser, door.browser() as stranger:
        both = ["runs:write", "requests:decide"]
        answer = await browser.post("/api/v1/tokens", json={"name": "bobs", "scopes": both, "user": "bob"})
        assert (answer.status_code, answer.json()["code"]) == (403, "not_yourself")
        answer = await browser.post("/api/v1/tokens", json={"name": "laptop", "scopes": both, "user": "ann"})
        bearer = {"Authorization": f"Bearer {answer.json()['secret']}"}
        me = (await stranger.get("/api/v1/me", headers=bearer)).json()
        assert (me["name"], me["role"], me["machine"], me["scopes"]) == ("Ann", "admin", False, sorted(both))
        # Their own token may do what they may, within its scopes, and its last use is stored.
        async with door.database.read() as conn:
            (stored,) = await tokens.listed(conn)
        assert stored.last_used_at is not None
