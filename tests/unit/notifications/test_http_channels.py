"""Webhooks and Slack against a real HTTP server, and addresses that are never connected to."""

from __future__ import annotations

import gzip
import logging
import threading
from datetime import UTC, datetime, timedelta
from http.server import HTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook, WebhookVerificationError
from support.project.samples import run_sample
from support.servers.notification_receivers import LINKS, Receiver, answer, webhook_channel

from turngate.notifications import http_post
from turngate.notifications.http_post import Poster
from turngate.notifications.items import Item, Payload
from turngate.notifications.send_results import Delivered, Refused, Unreachable
from turngate.notifications.slack_channel import SlackSender
from turngate.notifications.webhook_channel import signed_headers

GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "send-notifications.md"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
PAYLOAD = Payload(items=(Item(seq=1, name="run.failed", at="2026-03-01T12:00:00+00:00", run_id="run_1", agent="a"),))
OLD, NEW, OTHER = (f"whsec_{letter * 32}" for letter in "ABC")


async def test_a_receiver_verifies_a_webhook_with_the_library(receiver: Receiver):
    """Signed with every secret during a rotation: either verifies, another does not, nor does a changed body."""
    channel = webhook_channel(receiver, secrets=(OLD, NEW))
    outcome = await channel.sender.send("ntf_1", PAYLOAD, AT)
    assert isinstance(outcome, Delivered)
    got = receiver.received[0]
    assert got.headers["webhook-id"] == "ntf_1"
    assert got.headers["content-type"] == "application/json"
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(got.body, dict(got.headers))["type"] == "run.failed"
    for secret, body in ((OTHER, got.body), (OLD, got.body + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, dict(got.headers))


async def test_the_receiver_of_the_how_to_verifies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The guide's code accepts a signed request and answers 401 to any other."""
    names = run_sample(GUIDE, 0)
    monkeypatch.setenv("PAGER_SECRET", NEW)
    server = HTTPServer(("127.0.0.1", 0), names["Hook"])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        at = Receiver(port=server.server_port)
        good = await webhook_channel(at, secrets=(OLD, NEW)).sender.send("ntf_1", PAYLOAD, AT)
        bad = await webhook_channel(at, secrets=(OTHER,)).sender.send("ntf_2", PAYLOAD, AT)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (type(good), type(bad), bad.answer[:3]) == (Delivered, Refused, "401")
    assert "ntf_1 run.failed https://turngate.example/runs/run_1\n" in capsys.readouterr().out


async def test_a_repeat_has_the_same_id_and_body(receiver: Receiver):
    """A receiver that has it already can recognise it."""
    channel = webhook_channel(receiver)
    for _each in range(2):
        await channel.sender.send("ntf_1", PAYLOAD, AT)
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "ntf_1"
    assert first.body == second.body


def test_the_timestamp_is_utc_whatever_the_zone():
    """The library takes a clock time unchanged; Turngate's is always UTC, or signatures would fail in half the world."""
    headers = signed_headers([SecretStr(OLD)], "ntf_1", "{}", AT)
    assert headers["webhook-timestamp"] == str(int(AT.timestamp()))
    assert headers["webhook-signature"] == Webhook(OLD).sign("ntf_1", AT, "{}")


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (answer(200, "ok"), Delivered, "200 Said: ok"),
        (answer(500, "boom"), Unreachable, "500 Said: boom"),
        (answer(503, Retry_After="120"), Unreachable, "503 Said"),
        (answer(408), Unreachable, "408 Said"),
        (answer(429, Retry_After="30"), Unreachable, "429 Said"),
        (answer(400, "no <b>\u202ethanks\r\nX: 1"), Refused, "400 Said: no <b>⟨U+202E⟩thanks⟨U+000D⟩⏎X: 1"),
        (answer(404), Refused, "404 Said"),
        (answer(410), Refused, "410 Said"),
        (answer(302, Location="http://169.254.169.254/"), Refused, "302 Said (redirects are not followed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ncut", Delivered, "200 OK: cut"),
        (b"nonsense\r\n\r\n", Unreachable, "the connection broke (RemoteProtocolError)"),
        (b"", Unreachable, "the connection broke (RemoteProtocolError)"),
    ],
)
async def test_every_answer_has_its_meaning(receiver: Receiver, reply: bytes, kind: type, text: str):
    """2xx is delivered; 4xx is refused, except 408 and 429; the rest counts as unreachable. All after one request."""
    receiver.answer = reply
    outcome = await webhook_channel(receiver).sender.send("ntf_1", PAYLOAD, AT)
    assert isinstance(outcome, kind)
    assert outcome.answer.startswith(text)
    assert receiver.connections == 1
    if isinstance(outcome, Refused):
        assert outcome.for_good is (b" 410 " in reply)
    if isinstance(outcome, Unreachable):
        wishes = {b" 503 ": 120, b" 429 ": 30}
        wish = next((timedelta(seconds=each) for status, each in wishes.items() if status in reply), None)
        assert outcome.retry_after == wish


async def test_of_an_answer_a_kibibyte_is_read(receiver: Receiver):
    """A receiver cannot fill the memory, neither by length nor by compression; 200 characters are stored."""
    packed = gzip.compress(b"x" * 10_000_000)
    receiver.answers = [
        b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * 5_000_000,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + packed,
    ]
    for _each in range(2):
        outcome = await webhook_channel(receiver).sender.send("ntf_1", PAYLOAD, AT)
        assert isinstance(outcome, Delivered)
        assert len(outcome.answer) < 2_000


async def test_a_silent_receiver_times_out(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    """After the timeout, not before and not much later; in production after 10 s."""
    monkeypatch.setattr(http_post, "TIMEOUT_SECONDS", 0.2)
    receiver.answer = None
    assert await webhook_channel(receiver).sender.send("ntf_1", PAYLOAD, AT) == Unreachable(
        answer="no answer within 0.2 s"
    )


async def test_a_body_that_never_ends_delays_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    """The status arrived, so it was delivered."""
    monkeypatch.setattr(http_post, "BODY_SECONDS", 0.1)
    receiver.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
    outcome = await webhook_channel(receiver).sender.send("ntf_1", PAYLOAD, AT)
    assert isinstance(outcome, Delivered)


async def test_a_closed_port(receiver: Receiver):
    """A closed port counts as unreachable."""
    receiver.port = 1
    outcome = await webhook_channel(receiver).sender.send("ntf_1", PAYLOAD, AT)
    assert isinstance(outcome, Unreachable)
    assert outcome.answer.startswith("cannot connect")


@pytest.mark.parametrize(
    ("address", "allow_private"),
    [("127.0.0.1", False), ("10.1.2.3", False), ("169.254.169.254", True), ("::1", False), ("0.0.0.0", True)],  # noqa: S104
)
async def test_private_addresses_are_refused_before_connecting(
    receiver: Receiver, address: str, allow_private: bool, caplog: pytest.LogCaptureFixture
):
    """By any name; the address is in the log and not in the answer; metadata services are never reachable."""
    looked_up = []

    async def resolve(host: str, _port: int) -> list[str]:
        looked_up.append(host)
        return [address]

    poster = Poster(url=f"http://receiver.example:{receiver.port}/s3cret", allow_private=allow_private, resolve=resolve)
    with caplog.at_level(logging.WARNING):
        outcome = await poster.post(b"{}", {})
    assert isinstance(outcome, Refused)
    assert "allow_private = true" in outcome.answer
    assert (looked_up, receiver.connections) == (["receiver.example"], 0)
    assert address in caplog.text
    assert address not in outcome.answer
    assert "s3cret" not in caplog.text + outcome.answer + repr(poster)


async def test_an_echoed_url_is_not_stored(receiver: Receiver):
    """It may be the secret, as Slack's is."""
    receiver.answer = answer(400, f"cannot POST {receiver.url}")
    outcome = await webhook_channel(receiver).sender.send("ntf_1", PAYLOAD, AT)
    assert "s3cret" not in outcome.answer


async def test_slack_gets_blocks_and_text(receiver: Receiver):
    """JSON as its incoming webhooks accept it; Slack's own refusals are stored unchanged."""
    receiver.answers = [answer(200, "ok"), answer(400, "invalid_blocks")]
    sender = SlackSender(poster=Poster(url=receiver.url, allow_private=True), links=LINKS)
    assert isinstance(await sender.send("ntf_1", PAYLOAD, AT), Delivered)
    message = receiver.received[0].json
    assert message["text"] == "Run failed: a"
    assert message["blocks"][0]["text"]["text"].startswith("*Run failed*: `a`\n")
    assert await sender.send("ntf_1", Payload(test=True), AT) == Refused(answer="400 Said: invalid_blocks")
    assert "Test message" in receiver.received[1].json["text"]
