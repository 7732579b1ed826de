"""E-mail against a real SMTP server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword
from pydantic import SecretStr
from support.servers.certificates import certificate_for
from support.servers.notification_receivers import LINKS

from turngate.notifications.email_channel import EmailSender
from turngate.notifications.items import Item, Payload
from turngate.notifications.send_results import Delivered, Refused, SendResult, Unreachable

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAME = "naïve\r\nBcc: victim@evil.example"
PAYLOAD = Payload(items=(Item(seq=1, name="run.failed", at="2026-03-01T12:00:00+00:00", run_id="run_1", agent=NAME),))


@dataclass
class Mailbox:
    """aiosmtpd's handler: stores what arrives, refuses what it is configured to refuse."""

    port: int = 0
    envelopes: list[Envelope] = field(default_factory=list)
    refuses: str | None = None
    answer: str = "250 taken"
    greetings: list[str] = field(default_factory=list)
    over_tls: list[bool] = field(default_factory=list)
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def handle_EHLO(self, _server, session, _envelope, hostname, responses):  # noqa: N802 - aiosmtpd's names
        session.host_name = hostname
        self.greetings.append(hostname)
        return responses

    async def handle_RCPT(self, _server, _session, envelope, address, _options):  # noqa: N802
        if self.refuses in {address, "*"}:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 ok"

    async def handle_DATA(self, server, _session, envelope):  # noqa: N802
        self.over_tls.append(server.transport.get_extra_info("ssl_object") is not None)
        if self.answer.startswith("250"):
            self.envelopes.append(envelope)
        return self.answer

    def authenticate(self, _server, _session, _envelope, _mechanism, data: LoginPassword) -> AuthResult:
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"right", handled=False)


@contextlib.asynccontextmanager
async def mailbox(
    *, tls: ssl.SSLContext | None = None, implicit: bool = False, auth: bool = False
) -> AsyncIterator[Mailbox]:
    mailbox = Mailbox()
    options: dict[str, Any] = {"hostname": "mx.test", "enable_SMTPUTF8": True}
    if tls is not None and not implicit:
        options |= {"tls_context": tls, "require_starttls": True}
    if auth:
        options |= {"authenticator": mailbox.authenticate, "auth_required": True, "auth_require_tls": not implicit}
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(mailbox, **options), "127.0.0.1", 0, ssl=tls if implicit else None
    )
    mailbox.port = server.sockets[0].getsockname()[1]
    try:
        yield mailbox
    finally:
        server.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a self-signed certificate for localhost, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = certificate_for("localhost", folder)
    certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
    return certificate


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def sender(box: Mailbox, **fields: Any) -> EmailSender:
    defaults: dict[str, Any] = {
        "channel": "ops",
        "host": "localhost",
        "port": box.port,
        "tls": "none",
        "user": None,
        "password": None,
        "sender": "turngate@example.com",
        "to": ["ada@example.com", "bob@example.com"],
        "links": LINKS,
    }
    return EmailSender(**(defaults | fields))


async def send(email: EmailSender) -> SendResult:
    return await email.send("ntf_1", PAYLOAD, AT)


async def test_a_mail_arrives_whole():
    """One readable envelope for all receivers; a name's line breaks stay in the subject and start no header."""
    async with mailbox() as box:
        assert isinstance(await send(sender(box)), Delivered)
    (envelope,) = box.envelopes
    assert envelope.rcpt_tos == ["ada@example.com", "bob@example.com"]
    assert envelope.mail_from == "turngate@example.com"
    mail = message_from_bytes(envelope.content, policy=policy.default)
    assert mail["Bcc"] is None
    assert mail["Subject"] == "[Turngate] Run failed: naïve⟨U+000D⟩⏎Bcc: victim@evil.example"
    assert mail["Message-ID"] == "<ntf_1@example.com>"
    assert "https://turngate.example/runs/run_1" in mail.get_content()
    assert box.greetings == ["turngate.example"]


async def test_starttls_with_a_login(certificate: Path):
    """The password goes over TLS only, to a server with a valid certificate."""
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with mailbox(tls=server_tls(certificate), auth=True) as box:
        email = sender(box, tls="starttls", user="tg", password=SecretStr("right"), tls_context=trusting)
        assert isinstance(await send(email), Delivered)
        wrong = await send(sender(box, tls="starttls", user="tg", password=SecretStr("wr0ng"), tls_context=trusting))
        stranger = await send(sender(box, tls="starttls", user="tg", password=SecretStr("right")))
    assert box.over_tls == [True]
    assert isinstance(wrong, Refused)
    assert wrong.answer == "535 the server does not take this user and password"
    assert isinstance(stranger, Unreachable)
    assert {password for _login, password in box.logins} == {b"right", b"wr0ng"}


async def test_tls_from_the_start(certificate: Path):
    """``tls = "tls"``, as on port 465."""
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with mailbox(tls=server_tls(certificate), implicit=True) as box:
        assert isinstance(await send(sender(box, tls="tls", tls_context=trusting)), Delivered)
        assert isinstance(await send(sender(box, tls="tls")), Unreachable)
    assert box.over_tls == [True]


async def test_a_server_without_starttls_gets_nothing():
    """Falling back to plain text is what an attacker in between would want."""
    async with mailbox() as box:
        outcome = await send(sender(box, tls="starttls"))
    assert isinstance(outcome, Unreachable)
    assert box.envelopes == []


@pytest.mark.parametrize(("reply", "kind"), [("451 later", Unreachable), ("554 5.7.1 no \x1b[31mspam", Refused)])
async def test_4xx_is_later_and_5xx_is_no(reply: str, kind: type):
    """RFC 5321 §4.2.1."""
    async with mailbox() as box:
        box.answer = reply
        outcome = await send(sender(box))
    assert isinstance(outcome, kind)
    assert outcome.answer.isprintable()
    assert outcome.answer.startswith(reply[:3])


async def test_one_refused_receiver_does_not_take_it_from_the_others():
    """It is delivered, and the log names the refused one; if all are refused it fails."""
    async with mailbox() as box:
        box.refuses = "bob@example.com"
        some = await send(sender(box))
        box.refuses = "*"
        none = await send(sender(box))
    assert isinstance(some, Delivered)
    assert some.answer.endswith("not taken for bob@example.com")
    assert box.envelopes[0].rcpt_tos == ["ada@example.com"]
    assert isinstance(none, Refused)
    assert none.answer.startswith("550 ")


async def test_a_closed_port():
    """A closed port counts as unreachable."""
    assert isinstance(await send(sender(Mailbox(port=1))), Unreachable)
