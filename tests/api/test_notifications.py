"""Notifications from end to end: events of a real store to real receivers, sent by the API process; their log and page."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import httpx
import pytest
from standardwebhooks import Webhook
from support.api.api_server import serving, token_for
from support.engine.stack import until
from support.servers.notification_receivers import Receiver, answer, new_run, opened, receiving, webhook_channel
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.events.notifier import SENDERS, keep_notifying
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.settings import ApiSettings
from turngate.notifications import http_post, send_delivery
from turngate.notifications.configuration import Channel
from turngate.notifications.items import Payload
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import sessions
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import deliveries

HOSTILE = "<script>alert(1)</script>\u202e`@channel"


async def gateway() -> Gateway:
    """A real client of a Temporal server that is not there: nothing here needs one."""
    return Gateway(await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter()))


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@dataclass
class Site:
    http: httpx.AsyncClient
    admin: dict[str, str]
    reader: dict[str, str]


@contextlib.asynccontextmanager
async def api(database: Database, *channels: Channel) -> AsyncIterator[Site]:
    settings = ApiSettings(channels=channels)
    app = create_app(database=database, gateway=await gateway(), settings=settings)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        yield Site(
            http=http,
            admin=await token_for(database, f"root-{secrets.token_hex(2)}", "admin"),
            reader=await token_for(database, f"eye-{secrets.token_hex(2)}", "requests:read"),
        )


@contextlib.asynccontextmanager
async def process(url: str, *channels: Channel) -> AsyncIterator[None]:
    """What an API process does for notifications, on a database connection of its own; killed at the end of the block."""
    database = Database(url)
    feed = EventFeed(database)
    task = asyncio.create_task(keep_notifying(database, feed, channels))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await feed.close()
        await database.close()


async def begun(database: Database, *names: str) -> None:
    """Wait until these channels listen: a new one only gets later events."""

    async def look() -> bool:
        async with database.read() as conn:
            return all([await deliveries.cursor(conn, name) for name in names])

    await until(look, f"cursor of {', '.join(names)}")


async def notified_requests(database: Database, channel: str = "ops") -> Counter[str]:
    """How often each request is in the channel's outbox."""
    async with database.read() as conn:
        page = await deliveries.page(conn, limit=10_000, channel=channel)
    payloads = [Payload.model_validate_json(each.payload) for each in page]
    assert all(payload.more == 0 for payload in payloads)
    return Counter(item.request_id or "" for payload in payloads for item in payload.items)


async def test_an_opened_request_reaches_a_webhook(database: Database, receiver: Receiver):
    """Within a moment, verified as a receiver would, with a link and without any text of an agent; the log says so."""
    secret = "whsec_" + "A" * 32
    async with database.write() as conn:
        await new_run(conn, "run_1")
    async with api(database, webhook_channel(receiver, secrets=(secret,))) as site:
        await begun(database, "ops")
        await opened(database, "run_1", "req_1")
        (got, *_rest) = await receiver.got(1)
        message = Webhook(secret).verify(got.body, dict(got.headers))
        assert (message["type"], message["data"]["request_id"]) == ("request.opened", "req_1")
        assert message["data"]["url"] == "https://turngate.example/requests/req_1"
        for words in (b"ARGUMENTS", b"AGENT-WORDS", b"THE-REASON", b"PREVIEW"):
            assert words not in got.body

        async def look() -> dict | None:
            page = (await site.http.get("/api/v1/notifications/deliveries", headers=site.reader)).json()
            return next((each for each in page["items"] if each["status"] == "delivered"), None)

        delivery = await until(look, "delivered notification")
    assert delivery["id"] == got.headers["webhook-id"]
    assert (delivery["title"], delivery["events"]) == ("Approval needed: refund (high risk)", 1)
    assert delivery["tries"][0]["answer"] == "204 No Content"


async def test_a_hanging_receiver_delays_no_other_channel_and_no_page(
    sqlite: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """While one receiver holds all of its senders and answers none, the other gets everything and the inbox answers."""
    monkeypatch.setattr(http_post, "TIMEOUT_SECONDS", 600)
    monkeypatch.setattr(send_delivery, "SEND_WITHIN", timedelta(minutes=10))
    receiver.answer = None
    async with sqlite.write() as conn:
        await new_run(conn, "run_1")
    async with receiving() as quick, api(sqlite, webhook_channel(receiver, "dead"), webhook_channel(quick)) as site:
        await begun(sqlite, "dead", "ops")
        await opened(sqlite, "run_1", *(f"req_{n}" for n in range(8)))
        await receiver.got(SENDERS)
        await quick.got(8)
        assert (await site.http.get("/api/v1/requests", headers=site.reader)).status_code == 200
        async with sqlite.read() as conn:
            held = await deliveries.page(conn, limit=9, channel="dead")
    assert Counter(each.status for each in held) == {"sending": SENDERS, "waiting": 8 - SENDERS}


async def test_a_burst_is_one_message_and_a_digest(sqlite: Database, receiver: Receiver):
    """The first is sent at once, the rest together at the end of the window."""
    async with sqlite.write() as conn:
        await new_run(conn, "run_1")
    async with process(sqlite.url, webhook_channel(receiver, window=0.5)):
        await begun(sqlite, "ops")
        await opened(sqlite, "run_1", *(f"req_{n}" for n in range(70)))
        first, digest = (each.json for each in await receiver.got(2))
    assert first["data"]["request_id"] == "req_0"
    assert (digest["type"], len(digest["data"]["items"]), digest["data"]["more"]) == ("notifications.digest", 50, 19)
    assert digest["data"]["url"] == "https://turngate.example/"


async def test_two_processes_send_each_event_once(database: Database, receiver: Receiver):
    """They share the work; nothing is sent twice, nothing is left out."""
    async with database.write() as conn:
        await new_run(conn, "run_1")
    channel = webhook_channel(receiver)
    async with process(database.url, channel), process(database.url, channel):
        await begun(database, "ops")
        for n in range(15):
            await opened(database, "run_1", f"req_{n}")
            await asyncio.sleep(0)
        received = await receiver.got(15)
    assert Counter(each.json["data"]["request_id"] for each in received) == Counter(f"req_{n}" for n in range(15))
    assert len({each.headers["webhook-id"] for each in received}) == 15


async def test_i5_killed_at_any_point_nothing_is_lost(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """Processes die while events come in; the next one continues. Each is once in the outbox, at least once at the receiver."""
    monkeypatch.setattr(
        send_delivery, "CLAIM_FOR", send_delivery.SEND_WITHIN / 100
    )  # what a dead sender held is free in 0.3 s
    async with database.write() as conn:
        await new_run(conn, "run_1")
    channel = webhook_channel(receiver)
    async with process(database.url, channel):
        await begun(database, "ops")
    opened_ids = []
    for n in range(12):
        opened_ids.append(f"req_{n}")
        async with process(database.url, channel):
            await opened(database, "run_1", opened_ids[-1])
            await asyncio.sleep(n * 0.006)  # a little further each time: reading, writing, claiming, sending, logging
    async with process(database.url, channel):

        async def look() -> bool:
            received = {each.json["data"]["request_id"] for each in receiver.received}
            async with database.read() as conn:
                rest = await deliveries.next_due(conn, "ops")
            return received == set(opened_ids) and rest is None

        await until(look, "everything at its receiver", seconds=60)
    assert await notified_requests(database) == Counter(opened_ids)
    by_id = {each.headers["webhook-id"]: each.json["data"]["request_id"] for each in receiver.received}
    assert len(by_id) == 12


async def test_the_log_is_paged_filtered_and_for_readers(sqlite: Database):
    """Newest first by cursor; by channel and status; without the scope to read requests there is no log."""
    ids = []
    async with sqlite.write() as conn:
        for n in range(5):
            payload = Payload(test=True).model_dump_json(exclude_defaults=True)
            each = deliveries.Delivery(
                id=deliveries.new_id(),
                channel=f"ch{n % 2}",
                first_seq=n,
                last_seq=n,
                payload=payload,
                status="failed" if n else "waiting",
                next_attempt_at=as_text(now()),
                created_at=as_text(now()),
            )
            ids.append(each.id)
            await deliveries.add(conn, [each])
    path = "/api/v1/notifications/deliveries"
    async with api(sqlite) as site:
        seen, cursor = [], None
        while True:
            params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = (await site.http.get(path, params=params, headers=site.reader)).json()
            seen += [each["id"] for each in page["items"]]
            if (cursor := page["next_cursor"]) is None:
                break
        assert seen == ids[::-1]
        for params, wanted in (
            ({"channel": "ch0"}, [4, 2, 0]),
            ({"status": "failed"}, [4, 3, 2, 1]),
            ({"channel": "ch0", "status": "waiting"}, [0]),
            ({"channel": "nope"}, []),
        ):
            page = (await site.http.get(path, params=params, headers=site.reader)).json()
            assert [each["id"] for each in page["items"]] == [ids[n] for n in wanted]
        starter = await token_for(sqlite, "bot", "runs:write")
        assert (await site.http.get(path, headers=starter)).json()["code"] == "missing_scope"
        assert (await site.http.get(path, params={"status": "lost"}, headers=site.reader)).status_code == 422
        assert (await site.http.get(path)).status_code == 401


async def test_only_an_admin_sends_again(sqlite: Database, receiver: Receiver):
    """403 for others; the loop sends it; once delivered 409, unknown 404."""
    receiver.answers = [answer(410)]
    async with sqlite.write() as conn:
        await new_run(conn, "run_1")
    async with api(sqlite, webhook_channel(receiver)) as site:
        await begun(sqlite, "ops")
        await opened(sqlite, "run_1", "req_1")

        async def ended(status: str) -> str | None:
            page = (await site.http.get("/api/v1/notifications/deliveries", headers=site.reader)).json()
            return next((each["id"] for each in page["items"] if each["status"] == status), None)

        failed = await until(lambda: ended("failed"), "failed delivery")
        path = f"/api/v1/notifications/deliveries/{failed}/retry"
        decider = await token_for(sqlite, "ada", "requests:decide", "requests:read")
        for headers in (site.reader, decider):
            assert (await site.http.post(path, headers=headers)).json()["code"] == "missing_scope"
        again = await site.http.post(path, headers=site.admin)
        assert (again.status_code, again.json()["status"]) == (200, "waiting")
        await until(lambda: ended("delivered"), "delivered delivery")
        late = await site.http.post(path, headers=site.admin)
        assert (late.status_code, late.json()["code"]) == (409, "not_retryable")
        unknown = await site.http.post("/api/v1/notifications/deliveries/ntf_none/retry", headers=site.admin)
        assert unknown.status_code == 404
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 1


async def test_the_page_shows_the_log_and_lets_an_admin_send_again(sqlite: Database, receiver: Receiver):
    """Escaped and marked; only an admin has the button, by form and token, and it works without JavaScript."""
    receiver.answers = [answer(410, HOSTILE)]
    async with sqlite.write() as conn:
        await new_run(conn, "run_1")
    async with api(sqlite, webhook_channel(receiver)) as site:
        await begun(sqlite, "ops")
        await opened(sqlite, "run_1", "req_1", tool_name=HOSTILE)
        origin = {"Origin": str(site.http.base_url).rstrip("/")}

        async def look() -> bool:
            async with sqlite.read() as conn:
                return bool(await deliveries.page(conn, limit=1, status="failed"))

        await until(look, "failed delivery")
        for role, may in (("operator", False), ("admin", True)):
            async with sqlite.write() as conn:
                site.http.cookies = {SESSION_COOKIE: await sessions.begin(conn, f"{role}-1", role=role)}
            page = await site.http.get("/notifications?status=failed")
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
            assert "\u202e" not in page.text
            assert "U+202E" in page.text
            assert "410 Said" in page.text
            assert ("Send again" in page.text) is may
            async with sqlite.read() as conn:
                (failed,) = await deliveries.page(conn, limit=1)
            path = f"/notifications/{failed.id}/retry?status=failed"
            assert (await site.http.post(path, headers=origin)).status_code == 403  # no form token, or not an admin
        token = page.text.partition('name="csrf_token" value="')[2].partition('"')[0]
        sent = await site.http.post(path, data={"csrf_token": token}, headers=origin)
        assert (sent.status_code, sent.headers["location"]) == (303, "/notifications?status=failed")
        await receiver.got(2)

        async def delivered() -> bool:
            async with sqlite.read() as conn:
                return (await deliveries.page(conn, limit=1))[0].status == "delivered"

        await until(delivered, "delivered delivery")
        late = await site.http.post(path, data={"csrf_token": token}, headers={**origin, "Accept": "text/html"})
        assert late.status_code == 409
        assert "this delivery was delivered" in late.text
        empty = await site.http.get("/notifications?status=failed&channel=ops")
        assert "No deliveries here" in empty.text
