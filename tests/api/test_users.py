"""Logging in by name and password, and one's own password."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from argon2 import PasswordHasher
from support.api.login_app import PASSWORD, Door, door_on, log_in, session_of, status
from support.stores.users import audit_events

from turngate.approvals_api.settings import RateLimitSettings
from turngate.store.access import sessions, users
from turngate.store.database import Database
from turngate.wire.people import display_name

OFF = RateLimitSettings(logins_per_name=None, logins_per_address=None)


@pytest.fixture
async def door(sqlite: Database) -> AsyncIterator[Door]:
    async with door_on(sqlite, rate_limits=OFF) as door:
        yield door


def form_token_of(page: str) -> str:
    match = re.search(r'name="csrf_token" value="([0-9a-f]+)"', page)
    assert match is not None
    return match.group(1)


async def test_name_and_password_open_a_session(door: Door) -> None:
    """In any spelling of the name; the session is the user's; a wrong password is refused in the same words for everyone."""
    await door.add("Ann", "viewer")
    await door.add("off")
    async with door.database.write() as conn:
        await users.add(conn, users.User(name="linked", role="viewer", password_hash=None), by="boss")
        await users.set_disabled(conn, "off", disabled=True, by="boss")
    async with door.browser() as browser:
        pages = set()
        for name, typed in (
            ("Ann", "wrong"),
            ("zoe", PASSWORD),
            ("off", PASSWORD),
            ("linked", PASSWORD),
            ("linked", "x"),
        ):
            refused = await log_in(browser, name, typed)
            assert (refused.status_code, session_of(browser)) == (403, None)
            pages.add(refused.text.replace(f'value="{name}"', ""))
        assert len(pages) == 1
        assert "wrong, or the account is disabled" in pages.pop()
        assert (await log_in(browser, "ANN")).headers["location"] == "/"
        me = (await browser.get("/api/v1/me")).json()
        assert (me["name"], me["role"]) == ("Ann", "viewer")
        assert "Ann" in (await browser.get("/account")).text
    failed = [payload["name"] for _kind, payload in await audit_events(door.database, "login.failed")]
    assert [display_name(each) for each in failed] == ["Ann", "", "off", "linked", "linked"]
    story = str(await audit_events(door.database))
    assert PASSWORD not in story
    assert "wrong" not in story


@pytest.mark.parametrize(
    "typed", ["x" * 1025, "é" * 600, "\ud800" * 20, "\x00" * 20], ids=["long", "bytes", "half", "nul"]
)
async def test_a_hostile_password_is_a_wrong_one(door: Door, typed: str) -> None:
    """Too long, half a character, NUL: refused like any other, and the server stays up."""
    await door.add("ann")
    async with door.browser() as browser:
        body = b"name=ann&password=" + b"".join(b"%%%02X" % each for each in typed.encode("utf-8", "surrogatepass"))
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = await browser.post("/login", content=body, headers=form)
    assert answer.status_code == 403


async def test_another_site_cannot_log_a_person_in(door: Door) -> None:
    """A form on another site that sends name and password is refused: no one works in an account that they did not choose."""
    await door.add("ann")
    async with door.browser(headers={"Sec-Fetch-Site": "cross-site"}) as browser:
        assert (await log_in(browser, "ann")).status_code == 403
        assert session_of(browser) is None


async def test_a_log_in_starts_a_new_session_and_ends_the_one_before(door: Door) -> None:
    """A session that was planted in the browser does not become the person's, and ends."""
    await door.add("ann")
    async with door.database.write() as conn:
        planted = await sessions.begin(conn, "mallory")
    async with door.browser(cookies={"turngate_session": planted}) as browser:
        browser.cookies.clear()
        browser.cookies.set("turngate_session", planted, domain="127.0.0.1")
        answer = await log_in(browser, "ann")
        assert answer.status_code == 303
        fresh = session_of(browser)
        assert fresh != planted
    async with door.database.read() as conn:
        assert await sessions.find(conn, planted) is None
        session = await sessions.find(conn, fresh)
    assert session is not None
    assert (display_name(session.name), session.via) == ("ann", "password")
    assert session.user_agent.startswith("python-httpx")


async def test_an_old_hash_is_replaced_at_the_next_log_in(door: Door) -> None:
    """Changed parameters reach everyone who logs in, and the password stays the same."""
    weak = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    async with door.database.write() as conn:
        await users.add(conn, users.User(name="ann", role="viewer", password_hash=weak), by="boss")
    async with door.browser() as browser:
        assert (await log_in(browser, "ann")).status_code == 303
        async with door.database.read() as conn:
            now = (await users.existing(conn, "ann")).password_hash
        assert now is not None
        assert now.split("$")[3] != weak.split("$")[3]
        assert (await log_in(browser, "ann")).status_code == 303


async def test_what_an_admin_changes_counts_with_the_next_request(door: Door) -> None:
    """Another role, a disabled user, another password: none of them waits for a log-out."""
    await door.add("ann", "admin")
    async with door.browser() as browser, door.browser() as second:
        await log_in(browser, "ann")
        assert (await browser.get("/api/v1/tokens")).status_code == 200
        async with door.database.write() as conn:
            await users.set_role(conn, "ann", "viewer", by="boss")
        assert (await browser.get("/api/v1/tokens")).status_code == 403
        async with door.database.write() as conn:
            await users.set_disabled(conn, "ann", disabled=True, by="boss")
        assert await status(browser) == 401
        async with door.database.write() as conn:
            await users.set_disabled(conn, "ann", disabled=False, by="boss")
        assert await status(browser) == 401
        await log_in(browser, "ann")
        await log_in(second, "ann")
        async with door.database.write() as conn:
            await users.set_password(conn, "ann", "$argon2id$another", by="boss")
        assert [await status(browser), await status(second)] == [401, 401]


async def test_a_person_changes_their_password(door: Door) -> None:
    """With the present one and the page's form; too short and wrong are reported; every other session ends."""
    await door.add("ann")
    wanted = "another long password"
    async with door.browser() as browser, door.browser() as second:
        await log_in(second, "ann")
        await log_in(browser, "ann")
        before = session_of(browser)
        token = form_token_of((await browser.get("/account")).text)

        async def change(**typed: str) -> tuple[int, str]:
            fields = {"csrf_token": token, "current": PASSWORD, "wanted": wanted, **typed}
            answer = await browser.post("/account/password", data=fields)
            return answer.status_code, answer.text

        assert (await change(csrf_token="0" * 64))[0] == 403
        for typed, complaint in (({"wanted": "short"}, "at least 12"), ({"current": "wrong"}, "not your password")):
            code, page = await change(**typed)
            assert code == 422
            assert complaint in page
            assert wanted not in page
        assert await status(second) == 200
        assert (await change())[0] == 303
        assert session_of(browser) not in {None, before}
        assert [await status(browser), await status(second)] == [200, 401]
        assert (await log_in(second, "ann")).status_code == 403
        assert (await log_in(second, "ann", wanted)).status_code == 303
