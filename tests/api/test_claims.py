"""Working together on requests: a claim keeps others off, first looks are logged, presence says who is looking."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update
from support.api.store_app import Desk, desk_on

from turngate.approvals_api.requests import presence
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.tables import views
from turngate.wire.people import display_name


@pytest.fixture
async def desk(sqlite: Database) -> AsyncIterator[Desk]:
    async with desk_on(sqlite) as desk:
        yield desk


async def test_a_claim_keeps_others_off_until_it_is_released(desk: Desk) -> None:
    """Others who claim, release or decide get 409 with the holder and the time; after the release the next person may."""
    address = await desk.put(await desk.run())
    ann, bob = await desk.person("ann"), await desk.person("bob")
    for seconds in (30, 3_600):
        claimed = await ann.post(f"{address}/claim", json={"seconds": seconds})
        assert claimed.status_code == 200, claimed.text
    lease = claimed.json()
    assert (lease["request_id"], lease["claimed_by"]) == ("rq", "ann")
    decision = {"decision": "approve", "digest": "d"}
    for refused in (
        await bob.post(f"{address}/claim", json={}),
        await bob.request("DELETE", f"{address}/claim"),
        await bob.post(f"{address}/decisions", json=decision),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "claimed"), refused.text
        assert (refused.json()["claimed_by"], refused.json()["claimed_until"]) == ("ann", lease["claimed_until"])
    request = (await bob.get(address)).json()
    assert (request["claimed_by"], request["status"]) == ("ann", "pending")
    assert (await ann.delete(f"{address}/claim")).status_code == 204
    assert (await ann.delete(f"{address}/claim")).status_code == 204
    assert (await bob.post(f"{address}/claim")).json()["claimed_by"] == "bob"
    claims = [(kind, payload["by"]) for kind, payload in await desk.events() if kind != "request.viewed"]
    assert claims == [("request.claimed", "ann"), ("request.released", "ann"), ("request.claimed", "bob")]
    # The claim does not keep off the one who holds it.
    assert (await bob.post(f"{address}/decisions", json=decision)).json()["status"] == "approved"


async def test_a_persons_terminal_and_page_hold_one_claim(desk: Desk) -> None:
    """What Ann claims on the page is hers in her terminal: she renews it, finds it, decides and gives it back there."""
    run = await desk.run()
    address = await desk.put(run)
    terminal, ann, bob = await desk.terminal("ann"), await desk.person("ann"), await desk.person("bob")
    await ann.post(f"{address}/claim", json={"seconds": 30})
    renewed = (await terminal.post(f"{address}/claim", json={"seconds": 3_600})).json()
    assert renewed["claimed_by"] == "ann"
    claims = [(kind, display_name(each["by"])) for kind, each in await desk.events() if "claim" in kind]
    assert claims == [("request.claimed", "ann")]
    for who in (ann, terminal):
        mine = (await who.get("/api/v1/requests", params={"claimed": "me"})).json()["items"]
        assert [each["id"] for each in mine] == ["rq"]
    assert (await bob.get("/api/v1/requests", params={"claimed": "me"})).json()["items"] == []
    assert (await terminal.delete(f"{address}/claim")).status_code == 204
    await terminal.post(f"{address}/claim")
    assert "You have claimed this" in (await ann.get("/requests/rq")).text
    assert "Take over" in (await bob.get("/requests/rq")).text
    bulk = {"decision": "approve", "items": [{"request_id": "rq", "digest": "d"}]}
    assert (await bob.post("/api/v1/requests/decisions", json=bulk)).json()["items"][0]["problem"]["code"] == "claimed"
    decided = await ann.post(f"{address}/decisions", json={"decision": "approve", "digest": "d"})
    assert decided.json()["status"] == "approved"


async def test_a_claim_is_taken_over_on_purpose_or_by_an_admin(desk: Desk) -> None:
    """An operator has to say so; an admin need not, and may release anyone's. The log names the previous holder."""
    address = await desk.put(await desk.run())
    ann, bob, root = await desk.person("ann"), await desk.person("bob"), await desk.person("root", "admin")
    await ann.post(f"{address}/claim")
    assert (await bob.post(f"{address}/claim", json={"take_over": True})).json()["claimed_by"] == "bob"
    assert (await root.post(f"{address}/claim")).json()["claimed_by"] == "root"
    await bob.post(f"{address}/claim", json={"take_over": True})
    assert (await root.delete(f"{address}/claim")).status_code == 204
    taken = [(payload["by"], payload["from"]) for kind, payload in await desk.events() if "taken" in kind]
    assert taken == [("bob", "ann"), ("root", "bob"), ("bob", "root")]


async def test_only_who_may_decide_may_claim(desk: Desk) -> None:
    """Not a viewer, not a token that may only read, not the run's starter if the rule bars them; nothing changes."""
    run = await desk.run()
    address = await desk.put(run, not_by="ann")
    for who, code in (
        (await desk.person("ann"), "not_eligible"),
        (await desk.person("vic", "viewer"), "missing_scope"),
        (await desk.machine("bot", "requests:read", "runs:write"), "missing_scope"),
    ):
        refused = await who.post(f"{address}/claim")
        assert (refused.status_code, refused.json()["code"]) == (403, code), refused.text
    bob = await desk.person("bob")
    assert (await bob.post("/api/v1/requests/none/claim")).status_code == 404
    assert (await bob.delete("/api/v1/requests/none/claim")).status_code == 404
    for body in ({"seconds": 29}, {"seconds": 3_601}, {"seconds": "60"}, {"by": "eve"}):
        assert (await bob.post(f"{address}/claim", json=body)).status_code == 422, body
    async with desk.database.write() as conn:
        await requests.settle(conn, "rq", requests.Ending(status="expired", at=now()))
    ended = await bob.post(f"{address}/claim")
    assert (ended.status_code, ended.json()["code"]) == (409, "request_not_pending")
    assert await desk.events() == []


@pytest.mark.exhaustive
async def test_each_persons_first_look_is_logged_and_changes_nothing(desk: Desk) -> None:
    """By API or by page, once per person and token; the request reads the same before and after."""
    address = await desk.put(await desk.run())
    ann, bot = await desk.person("ann"), await desk.machine("bot", "requests:read")
    first = await ann.get(address)
    assert first.status_code == 200, first.text
    assert (await ann.get("/requests/rq", headers={"Accept": "text/html"})).status_code == 200
    assert (await bot.get(address)).json() == (await ann.get(address)).json() == first.json()
    bob = await desk.person("bob")
    assert (await bob.get("/requests/rq", headers={"Accept": "text/html"})).status_code == 200
    assert [payload["by"] for kind, payload in await desk.events() if kind == "request.viewed"] == ["ann", "bot", "bob"]
    for listing in ("/api/v1/requests", "/"):
        assert (await ann.get(listing)).status_code == 200
    assert len(await desk.events()) == 3


async def test_a_store_that_cannot_write_can_still_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While another process holds the write lock, the request is displayed; our own log says that the look is not recorded."""
    monkeypatch.setattr(presence, "LOG_SECONDS", 0.2)
    address = await desk.put(await desk.run())
    ann = await desk.person("ann")
    other = sqlite3.connect(desk.database.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        async with asyncio.timeout(5):
            assert (await ann.get(address)).status_code == 200
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert "ann was shown rq" in caplog.text
    assert await desk.events() == []
    assert (await ann.get(address)).status_code == 200
    assert [kind for kind, _payload in await desk.events()] == ["request.viewed"]


async def test_presence_shows_who_else_is_there(desk: Desk) -> None:
    """Others of the last minute, by name, never oneself; announcing yourself returns them too."""
    address = await desk.put(await desk.run())
    ann, bob = await desk.person("ann"), await desk.person("bob")
    await ann.get(address)
    seen = (await bob.post(f"{address}/presence", json={})).json()["looking"]
    assert [each["name"] for each in seen] == ["ann"]
    assert (await bob.get(f"{address}/presence")).json()["looking"] == seen
    assert [each["name"] for each in (await ann.get(f"{address}/presence")).json()["looking"]] == ["bob"]
    async with desk.database.write() as conn:
        await conn.execute(update(views).values(last_at="2026-01-01T00:00:00.000000+00:00"))
    assert (await bob.get(f"{address}/presence")).json() == {"looking": []}
    assert [payload["by"] for _kind, payload in await desk.events()] == ["ann", "bob"]
    for method in ("GET", "POST"):
        assert (await bob.request(method, "/api/v1/requests/none/presence")).status_code == 404
    async with desk.database.read() as conn:
        assert await events.last_seq(conn) == len(await events.after(conn, 0))


async def test_presence_counts_a_person_once_whatever_they_look_with(desk: Desk) -> None:
    """One's own terminal and browser are no one else, on either side; another person sees one name for both."""
    address = await desk.put(await desk.run())
    terminal, browser, bob = await desk.terminal("ann"), await desk.person("ann"), await desk.person("bob")
    for mine in (browser, terminal, browser):
        assert (await mine.get(address)).status_code == 200
        assert (await mine.post(f"{address}/presence", json={})).json() == {"looking": []}
    page = await browser.get("/requests/rq", headers={"Accept": "text/html"})
    assert '<p class="presence" data-presence hidden>' in page.text
    assert [each["name"] for each in (await bob.post(f"{address}/presence", json={})).json()["looking"]] == ["ann"]
    for mine in (browser, terminal):
        assert [each["name"] for each in (await mine.get(f"{address}/presence")).json()["looking"]] == ["bob"]
    assert [display_name(payload["by"]) for _kind, payload in await desk.events()] == ["ann", "cli:ann", "bob"]
