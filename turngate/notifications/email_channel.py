"""E-mail by SMTP: plain text, one message per delivery for all of a channel's receivers."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final, Literal
from urllib.parse import urlsplit

import aiosmtplib
from pydantic import SecretStr

from turngate.domain.text.hidden_text import marked_text
from turngate.notifications import message_text
from turngate.notifications.http_post import authorities
from turngate.notifications.items import Payload
from turngate.notifications.message_text import Links
from turngate.notifications.send_results import Delivered, Refused, SendResult, Unreachable

Tls = Literal["starttls", "tls", "none"]
TIMEOUT_SECONDS: Final = 10.0
"""For each step of the conversation. The sender bounds the whole."""
MAX_SUBJECT_CHARS: Final = 200
_SHOWN_CHARS: Final = 200
_PERMANENT: Final = 500


@dataclass(frozen=True, kw_only=True, repr=False)
class EmailSender:
    """Sends by one SMTP server. ``channel``: its name, for ``List-Id``. ``sender``, ``to``: plain addresses."""

    channel: str
    host: str
    port: int
    tls: Tls
    user: str | None
    password: SecretStr | None
    sender: str
    to: Sequence[str]
    links: Links
    tls_context: ssl.SSLContext = field(default_factory=authorities)

    async def send(self, delivery_id: str, payload: Payload, created_at: datetime) -> SendResult:
        """Send one message; a repeat has the same Message-ID. Never raises for what the network or the server does."""
        message = self.message_of(delivery_id, payload, created_at)
        # The name we greet with, given, because the library would look ours up in DNS.
        smtp = aiosmtplib.SMTP(
            hostname=self.host,
            port=self.port,
            use_tls=self.tls == "tls",
            start_tls=self.tls == "starttls",
            username=self.user,
            password=None if self.password is None else self.password.get_secret_value(),
            local_hostname=_greeting(self._own_name()),
            timeout=TIMEOUT_SECONDS,
            tls_context=None if self.tls == "none" else self.tls_context,
        )
        try:
            async with smtp:
                refused, answer = await smtp.send_message(message, sender=self.sender, recipients=list(self.to))
        except aiosmtplib.SMTPRecipientsRefused as error:
            first = error.recipients[0]
            return _refusal(first.code, f"no receiver was taken: {first.message}")
        except aiosmtplib.SMTPAuthenticationError as error:
            return _refusal(error.code, "the server does not take this user and password")  # its words may repeat them
        except aiosmtplib.SMTPResponseException as error:
            return _refusal(error.code, error.message)
        except aiosmtplib.SMTPTimeoutError:
            return Unreachable(answer=f"no answer within {TIMEOUT_SECONDS:g} s")
        except (aiosmtplib.SMTPException, OSError) as error:
            return Unreachable(answer=_harmless(str(error) or type(error).__name__))
        left_out = f"; not taken for {', '.join(sorted(refused))}" if refused else ""
        return Delivered(answer=_harmless(f"{answer}{left_out}"))

    def message_of(self, delivery_id: str, payload: Payload, created_at: datetime) -> EmailMessage:
        """Return the message. Whatever a tool or an agent named is on one line here, so it can start no header."""
        message = EmailMessage()
        subject = f"[Turngate] {message_text.title(payload)}"
        message["Subject"] = subject if len(subject) <= MAX_SUBJECT_CHARS else f"{subject[: MAX_SUBJECT_CHARS - 1]}…"
        message["From"] = self.sender
        message["To"] = ", ".join(self.to)
        message["Date"] = format_datetime(created_at)
        message["Message-ID"] = f"<{delivery_id}@{self.sender.rpartition('@')[2]}>"
        message["List-Id"] = f"<{self.channel}.notifications.{self._own_name()}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no absence note answers it
        message["X-Auto-Response-Suppress"] = "All"  # the same for Exchange
        message.set_content(_body(payload, self.links))
        return message

    def _own_name(self) -> str:
        return urlsplit(self.links.base).hostname or "localhost"


def _greeting(host: str) -> str:
    """Return how EHLO names a host: an address in brackets (RFC 5321 §4.1.3)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return f"[IPv6:{address}]" if address.version == 6 else f"[{address}]"  # noqa: PLR2004 - the version's number


def _body(payload: Payload, links: Links) -> str:
    paragraphs: list[str] = []
    if payload.test:
        paragraphs.append("Turngate reaches this address.")
    for item in payload.items:
        rows = [message_text.item_title(item), *(f"  {label}: {value}" for label, value in message_text.facts(item))]
        paragraphs.append("\n".join([*rows, f"  {links.to(item)}"]))
    more = message_text.more_line(payload)
    if more is not None:
        paragraphs.append(more)
    if payload.count != 1:
        paragraphs.append(f"The inbox: {links.inbox}")
    paragraphs.append("Nothing can be decided by answering this message. Open the link and log in.")
    return "\n\n".join(paragraphs) + "\n"


def _refusal(code: int, reply: str) -> SendResult:
    answer = f"{code} {_harmless(reply)}"
    return Refused(answer=answer) if code >= _PERMANENT else Unreachable(answer=answer)


def _harmless(text: str) -> str:
    return marked_text(text.strip()[:_SHOWN_CHARS])
