"""Browsers that are notified, from end to end: subscribed over the API, told through the outbox, read by the browser itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from support.engine import until
from support.html_forms import PostedPage
from support.notification_receivers import Receiver, answer, new_run, opened, receiving
from support.push_browsers import FakeBrowser, poster_to, verified_claims
from support.store_app import Desk, desk_on

from approvals_api import browsers
from approvals_api.http.authentication import SESSION_COOKIE
from approvals_api.settings import ApiSettings, PushSettings, push_poster
from turngate.notifications.items import Payload, item_of
from turngate.notifications.send_delivery import claim_due, send_claimed
from turngate.runtime.push_key import PushKeySource
from turngate.store import tables
from turngate.store.access import sessions, users
from turngate.store.access.users import User
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import deliveries, events, push_subscriptions
from turngate.store.events.deliveries import Delivery
from turngate.store.policy import policies

PATH = "/api/v1/notifications/browsers"
ANNOUNCED = {"request.opened", "policy.proposed"}


@dataclass
class Office:
    """The API with its notifications, one push service, and the people's browsers."""

    desk: Desk
    receiver: Receiver
    push: PushSettings

    async def subscribe(self, name: str, *, role: Any = "operator", **wanted: Any) -> FakeBrowser:
        browser = FakeBrowser()
        client = await self.desk.person(name, role)
        sent = await client.post(PATH, json={**browser.subscription, "wanted": wanted})
        assert sent.status_code == 200, sent.text
        return browser

    async def open(self, request_id: str, **fields: Any) -> None:
        await opened(self.desk.database, "run_1", request_id, **fields)

    async def settled(self) -> None:
        """Wait until everything that has happened is read, divided and sent or given up."""
        database = self.desk.database

        async def look() -> bool:
            async with database.read() as conn:
                cursor = await deliveries.cursor(conn, browsers.CHANNEL)
                newest = await events.last_seq(conn)
                open_one = await deliveries.next_due(conn, browsers.CHANNEL)
                relevant = [each.seq for each in await events.after(conn, 0) if each.type in ANNOUNCED]
            lags = cursor is None or (relevant and cursor.last_seq < relevant[-1])
            return not lags and open_one is None and newest > 0

        await until(look, "outbox of browsers at rest")

    def messages_to(self, browser: FakeBrowser) -> list[dict[str, Any]]:
        """What a browser got, without the first message, which says that it works."""
        got = [browser.read(each) for each in self.receiver.received if each.path == browser.path]
        return [each for each in got if each["title"] != "Notifications are on"]


def push_to(receiver: Receiver, tmp_path: Path) -> PushSettings:
    return PushSettings(
        key=PushKeySource(file=tmp_path / "push.pem"), contact="https://turngate.example", poster=poster_to(receiver)
    )


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsers, "WINDOW", browsers.WINDOW * 0)


@contextlib.asynccontextmanager
async def office_on(database: Database, tmp_path: Path) -> AsyncIterator[Office]:
    async with receiving() as receiver:
        push = push_to(receiver, tmp_path)
        async with desk_on(database, ApiSettings(push=push)) as desk:
            task = asyncio.create_task(browsers.keep_pushing(desk.services))
            try:
                async with database.write() as conn:
                    await new_run(conn, "run_1")
                yield Office(desk, receiver, push)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def office(database: Database, tmp_path: Path, at_once: None) -> AsyncIterator[Office]:
    async with office_on(database, tmp_path) as office:
        yield office


async def test_a_browser_gets_a_request_that_its_person_may_decide(office: Office) -> None:
    """Signed by the server, encrypted for the browser: tool, agent, risk, a link, the count; no argument, no agent's word."""
    browser = await office.subscribe("ann")
    await office.open("rq_1")
    received = await office.receiver.got(2)
    await office.settled()
    assert office.messages_to(browser) == [
        {
            "title": "Approval needed: refund (high risk)",
            "body": "support",
            "path": "/requests/rq_1",
            "tag": "rq_1",
            "waiting": 1,
        }
    ]
    ann = await office.desk.person("ann")
    listed = (await ann.get(PATH)).json()
    for got in received:
        claims = verified_claims(got.headers["authorization"], listed["server_key"])
        assert (claims["aud"], claims["sub"]) == ("https://push.example", "https://turngate.example")
        for words in (b"ARGUMENTS", b"AGENT-WORDS", b"THE-REASON", b"PREVIEW"):
            assert words not in browser.decrypt(got.body)
    assert [each.headers["urgency"] for each in received] == ["normal", "high"]
    assert (listed["items"][0]["push_service"], "endpoint" in listed["items"][0]) == ("push.example", False)
    log = (await ann.get("/api/v1/notifications/deliveries", params={"channel": browsers.CHANNEL})).json()["items"]
    assert {each["status"] for each in log} == {"delivered"}
    assert "Approval needed: refund (high risk) (for ann)" in [each["title"] for each in log]
    assert browser.path not in str(log)


async def propose(database: Database, version: int, *, by: str) -> None:
    """Propose stored rules, as the form of the policy page does with four eyes."""
    new = policies.StoredPolicy(version=version, source="", digest="d", changed_by=by, comment="")
    async with database.write() as conn:
        await policies.propose(conn, new, why="it allows calls")
        await events.append(conn, events.SYSTEM, [("policy.proposed", {"by": by, "proposal": 1})])


async def test_other_admins_get_proposed_rules(office: Office) -> None:
    """Not their proposer, no operator, no one who asks for some tools only; nothing is sent of rules that no longer wait."""
    browser = await office.subscribe("bob", role="admin")
    others = [await office.subscribe("ann", role="admin"), await office.subscribe("carl")]
    others.append(await office.subscribe("dora", role="admin", tools=["pay"]))
    await propose(office.desk.database, 1, by="ann")
    await office.receiver.got(5)
    await propose(office.desk.database, 7, by="ann")
    await office.settled()
    assert office.messages_to(browser) == [
        {
            "title": "Rules wait for a second admin",
            "body": "ann",
            "path": "/policy#proposal",
            "tag": "policy.proposed",
            "waiting": 0,
        }
    ]
    assert [office.messages_to(each) for each in others] == [[], [], []]


async def test_only_those_who_may_decide_get_it(office: Office) -> None:
    """Not a viewer, not the starter where the rule wants someone else, not who the terms leave out, not the disabled."""
    async with office.desk.database.write() as conn:
        for name in ("eve", "gone"):
            await users.add(conn, User(name=name, role="operator"), by="root")
    ann, bob = await office.subscribe("ann"), await office.subscribe("bob")
    eve, gone = await office.subscribe("eve"), await office.subscribe("gone")
    async with office.desk.database.write() as conn:
        await users.set_role(conn, "eve", "viewer", by="root")
        await conn.execute(update(tables.users).where(tables.users.c.name == "gone").values(disabled_at=as_text(now())))
    await office.open("rq_open")
    await office.open("rq_not_ann", not_by="ann")
    await office.open("rq_only_ann", terms='{"people":["ann"]}')
    await office.settled()
    assert sorted(each["tag"] for each in office.messages_to(ann)) == ["rq_only_ann", "rq_open"]
    assert sorted(each["tag"] for each in office.messages_to(bob)) == ["rq_not_ann", "rq_open"]
    assert office.messages_to(eve) == office.messages_to(gone) == []


async def test_a_browser_announces_what_its_person_wants(office: Office) -> None:
    """By rule, by tool, by risk; the same endpoint again changes it, in place of a second browser."""
    by_rule = await office.subscribe("ann", rules=["refunds-*"])
    by_tool = await office.subscribe("ann", tools=["pay_*"])
    by_risk = await office.subscribe("ann", risk_at_least="high")
    changed = await office.subscribe("bob", tools=["none"])
    bob = await office.desk.person("bob")
    await bob.post(PATH, json={**changed.subscription, "wanted": {"tools": ["pay_out"]}})
    assert len((await bob.get(PATH)).json()["items"]) == 1
    await office.open("rq_refund", risk="low")
    await office.open("rq_pay", tool_name="pay_out", rule="payments", risk="high")
    await office.settled()
    tags = [[each["tag"] for each in office.messages_to(each)] for each in (by_rule, by_tool, by_risk, changed)]
    assert tags == [["rq_refund"], ["rq_pay"], ["rq_pay"], ["rq_pay"]]


@pytest.mark.parametrize("status", [404, 410])
async def test_a_browser_that_is_gone_is_removed(office: Office, status: int) -> None:
    """The push service says that it knows it no more: nothing is sent there again, and the log says why it ended."""
    office.receiver.answers = [answer(status)]
    browser = await office.subscribe("ann")
    await office.receiver.got(1)
    ann = await office.desk.person("ann")

    async def removed() -> bool:
        return not (await ann.get(PATH)).json()["items"]

    await until(removed, "browser removed")
    await office.open("rq_1")
    await office.settled()
    assert office.messages_to(browser) == []
    ended = [(kind, payload.get("reason")) for kind, payload in await office.desk.events("system")]
    assert ("notification.unsubscribed", "gone") in ended


async def test_i5_what_a_push_service_refuses_is_sent_again(database: Database, tmp_path: Path, at_once: None) -> None:
    """From the store, with the same delivery: a sender that died in between costs nothing but time."""
    async with office_on(database, tmp_path) as office:
        channel = browsers.push_channel(database, office.push)
        async with database.write() as conn:
            stored = await push_subscriptions.put(conn, _new("ann", browser := FakeBrowser()), channel=browsers.CHANNEL)
        assert stored is not None
        await office.open("rq_1")
        batch = await _batch(database, "rq_1")
        for _sender in range(2):  # the first one died after it had divided the message, before it said so
            await channel.sender.send(batch.id, Payload.model_validate_json(batch.payload), now())
        async with database.read() as conn:
            parts = [each for each in await deliveries.page(conn, limit=9) if each.id != batch.id]
        assert len(parts) == 1
        office.receiver.answers = [answer(503)]
        for wanted in ("waiting", "delivered"):
            async with database.write() as conn:
                await deliveries.send_again(conn, parts[0].id, at=now())
            claimed = await claim_due(database, browsers.CHANNEL)
            assert isinstance(claimed, Delivery)
            await send_claimed(database, channel, claimed)
            async with database.read() as conn:
                now_is = await deliveries.get(conn, parts[0].id)
            assert now_is is not None
            assert now_is.status == wanted
        assert [each["tag"] for each in office.messages_to(browser)] == ["rq_1", "rq_1"]


def _new(name: str, browser: FakeBrowser) -> push_subscriptions.NewSubscription:
    address = push_subscriptions.Address(endpoint=browser.endpoint, **browser.subscription["keys"])
    return push_subscriptions.NewSubscription(person=name, role="operator", address=address, wanted="{}")


async def _batch(database: Database, request_id: str) -> Delivery:
    """A message that was gathered and not divided yet."""
    async with database.read() as conn:
        (event,) = [each for each in await events.after(conn, 0) if each.payload.get("request_id") == request_id]
        item = await item_of(conn, event)
    assert item is not None
    batch = Delivery(
        id=deliveries.new_id(),
        channel="elsewhere",
        first_seq=event.seq,
        last_seq=event.seq,
        payload=Payload(items=(item,)).model_dump_json(exclude_defaults=True),
        status="delivered",
        next_attempt_at=as_text(now()),
        created_at=as_text(now()),
    )
    async with database.write() as conn:
        await deliveries.add(conn, [batch])
    return batch


async def test_what_is_decided_meanwhile_is_not_sent(database: Database, tmp_path: Path) -> None:
    """A delivery whose request no longer waits ends without a message, and the log says so."""
    async with office_on(database, tmp_path) as office:
        channel = browsers.push_channel(database, office.push)
        async with database.write() as conn:
            stored = await push_subscriptions.put(conn, _new("ann", FakeBrowser()), channel=browsers.CHANNEL)
        assert stored is not None
        await office.open("rq_1")
        batch = await _batch(database, "rq_1")
        payload = Payload.model_validate_json(batch.payload).model_copy(update={"browser": stored.id})
        async with database.write() as conn:
            await conn.execute(update(tables.requests).values(status="approved"))
        result = await channel.sender.send("ntf_1", payload, now())
        assert (office.receiver.received, result.answer) == (
            [],
            "not sent: nothing of it waits for this person any more",
        )


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://push.example/x",
        "https://ann:secret@push.example/x",
        "https://push.example\\@127.0.0.1/",
        "ftp://push.example/",
        "https://",
        "https://" + "a" * 2_001,
    ],
)
async def test_an_address_that_is_none_of_a_push_service_is_refused(office: Office, endpoint: str) -> None:
    """Only https, without a user name, and of a size that is one: 422, and nothing is stored."""
    ann = await office.desk.person("ann")
    sent = await ann.post(PATH, json={**FakeBrowser().subscription, "endpoint": endpoint})
    assert sent.status_code == 422, sent.text
    assert (await ann.get(PATH)).json()["items"] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "169.254.169.254", "10.0.0.1", "localhost"])
async def test_nothing_is_sent_to_a_private_address(host: str) -> None:
    """The guard of webhooks looks at the address that is connected to, so no browser can name an internal machine."""
    result = await push_poster(f"https://{host}/x").post(b"", {})
    assert "private network" in result.answer


async def test_keys_that_are_none_and_programs_are_refused(office: Office) -> None:
    """A point off the curve is a 422; a token without a user has no browser (403), nor one that only reads."""
    ann = await office.desk.person("ann")
    good = FakeBrowser().subscription
    wrong = {**good, "keys": {**good["keys"], "p256dh": "B" * 87}}
    assert (await ann.post(PATH, json=wrong)).status_code == 422
    assert (await ann.post(PATH, json={**good, "wanted": {"agents": ["a"]}})).status_code == 422
    bot = await office.desk.machine("bot", "requests:decide", "requests:read")
    assert (await bot.post(PATH, json=good)).json()["code"] == "not_a_person"
    reader = await office.desk.machine("eye", "requests:read")
    assert (await reader.post(PATH, json=good)).json()["code"] == "missing_scope"


async def test_a_person_has_ten_browsers_at_most(office: Office) -> None:
    """The eleventh is a 409, one of them may change, and others' browsers don't count."""
    held = [await office.subscribe("ann") for _each in range(push_subscriptions.MAX_PER_PERSON)]
    ann = await office.desk.person("ann")
    refused = await ann.post(PATH, json=FakeBrowser().subscription)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_browsers")
    assert (await ann.post(PATH, json=held[0].subscription)).status_code == 200
    await office.subscribe("bob")


async def test_a_server_without_a_key_notifies_no_browser(sqlite: Database) -> None:
    """409 `push_off`, and the page says so."""
    async with desk_on(sqlite) as desk:
        ann = await desk.person("ann")
        assert (await ann.get(PATH)).json() == {"server_key": None, "items": []}
        assert (await ann.post(PATH, json=FakeBrowser().subscription)).json()["code"] == "push_off"
        assert "This server notifies no browsers." in (await ann.get("/account")).text


def form_to(page: str) -> dict[str, str]:
    """What the form that turns notifications on sends before its script has filled it in."""
    (match,) = [each for each in PostedPage(page).forms if each.attributes.get("action") == "/account/browsers"]
    return dict(match.sent)


def form_of(browser: FakeBrowser) -> Callable[[dict[str, str]], dict[str, str]]:
    subscription = browser.subscription
    filled = {"endpoint": subscription["endpoint"], **subscription["keys"]}
    return lambda sent: {**sent, **filled}


async def test_the_account_page_turns_them_on_and_off(office: Office) -> None:
    """By its forms: on with a filter, which the page shows; off again; another person's browser stays."""
    ann, bob = await office.desk.person("ann"), await office.desk.person("bob")
    theirs = await office.subscribe("bob")
    browser = FakeBrowser()
    sent = form_to((await ann.get("/account")).text)
    sent |= {"tools": "refund, pay_*", "risk": "high"}
    turned_on = await ann.post("/account/browsers", data=form_of(browser)(sent))
    assert (turned_on.status_code, turned_on.headers["location"]) == (303, "/account#browsers")
    page = (await ann.get("/account")).text
    assert "this browser" in page
    assert "refund, pay_*" in page
    assert "Change what this browser announces" in page
    assert browser.path not in page
    bad = await ann.post("/account/browsers", data=form_of(browser)({**sent, "risk": "none"}))
    assert (bad.status_code, "risk_at_least" in bad.text) == (422, True)
    assert (
        await ann.post("/account/browsers", data=form_of(browser)({}))
    ).status_code == 403  # without the form's token
    (mine,) = (await ann.get(PATH)).json()["items"]
    off = {"csrf_token": sent["csrf_token"], "browser_id": mine["id"]}
    (other,) = (await bob.get(PATH)).json()["items"]
    for wanted in (off, {**off, "browser_id": other["id"]}):
        assert (await ann.post("/account/browsers/remove", data=wanted)).status_code == 303
    assert (await ann.get(PATH)).json()["items"] == []
    assert len((await bob.get(PATH)).json()["items"]) == 1
    assert theirs.path


async def test_a_browser_is_silent_after_its_person_has_logged_out(office: Office) -> None:
    """Logging out there, ending all other sessions, or an admin who ends them all: each removes the browsers it should."""
    ann = await office.desk.person("ann")
    here = FakeBrowser()
    sent = form_to((await ann.get("/account")).text)
    assert (await ann.post("/account/browsers", data=form_of(here)(sent))).status_code == 303
    await office.subscribe("ann")
    await ann.post("/account/sessions/end-others", data={"csrf_token": sent["csrf_token"]})
    assert len((await ann.get(PATH)).json()["items"]) == 1
    await ann.post("/logout", data={"csrf_token": sent["csrf_token"]})
    again = await office.desk.person("ann")
    assert (await again.get(PATH)).json()["items"] == []
    await office.subscribe("ann")
    async with office.desk.database.write() as conn:
        await sessions.revoke_all(conn, "ann", by="root")
    last = await office.desk.person("ann")
    assert (await last.get(PATH)).json()["items"] == []
    assert last.cookies.get(SESSION_COOKIE)


async def test_the_first_browser_gets_nothing_from_before_it(office: Office) -> None:
    """After everyone had turned them off, a new browser begins with what happens from then on."""
    await office.subscribe("ann")
    ann = await office.desk.person("ann")
    (mine,) = (await ann.get(PATH)).json()["items"]
    await ann.delete(f"{PATH}/{mine['id']}")
    await office.open("rq_before")
    await office.settled()
    new = await office.subscribe("ann")
    await office.open("rq_after")
    await office.settled()
    assert [each["tag"] for each in office.messages_to(new)] == ["rq_after"]
