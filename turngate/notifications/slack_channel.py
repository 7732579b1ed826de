"""Slack, and what speaks its incoming-webhook format (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks).

Blocks for people, ``text`` for notifications and old clients. Links are links, never buttons that act.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from turngate.notifications import message_text
from turngate.notifications.http_post import Poster
from turngate.notifications.items import Item, Payload
from turngate.notifications.message_text import Links
from turngate.notifications.send_results import SendResult

MAX_SECTION_CHARS: Final = 2_900
"""Slack takes 3,000 characters in a section's text and 50 blocks in a message."""
_PING: Final = re.compile(r"@(?=channel|here|everyone)", re.IGNORECASE)
_NO_TICK: Final = "\N{MODIFIER LETTER GRAVE ACCENT}"


@dataclass(frozen=True, kw_only=True, repr=False)
class SlackSender:
    """Sends to one incoming webhook, whose URL is the secret."""

    poster: Poster
    links: Links

    async def send(self, _delivery_id: str, payload: Payload, _created_at: datetime) -> SendResult:
        """Send one message. Slack knows no ids: a repeat after a lost answer is a second message."""
        body = json.dumps(message_of(payload, self.links)).encode()
        return await self.poster.post(body, {"Content-Type": "application/json; charset=utf-8"})


def escaped(text: str) -> str:
    """Return text without entities, links and mentions: ``&``, ``<`` and ``>`` as Slack asks, pings with another @.

    Source: https://docs.slack.dev/messaging/formatting-message-text
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _PING.sub("\N{FULLWIDTH COMMERCIAL AT}", escaped)


def code(value: str) -> str:
    """Return a value that someone else named, as code: there Slack formats nothing, and it is seen to be a value."""
    return f"`{escaped(value.strip()).replace('`', _NO_TICK)}`"


def message_of(payload: Payload, links: Links) -> dict[str, Any]:
    """Return the JSON of a message."""
    if payload.test:
        lines = ["*Test message*", f"Turngate reaches this channel. {_link(links.inbox, 'Open the inbox')}"]
    elif payload.count == 1 and payload.items:
        item = payload.items[0]
        lines = [_headline(item, bold=True), *_facts(item), _link(links.to(item), "Open it in Turngate")]
    else:
        more = message_text.more_line(payload)
        last = [*([more] if more else []), _link(links.inbox, "Open the inbox")]
        lines = [f"*{message_text.title(payload)}*", *(_line(item, links) for item in payload.items), " ".join(last)]
    return {
        "text": escaped(message_text.title(payload)),
        "blocks": [_section(text) for text in _packed(lines)],
        # Of the fallback text: no markup, nothing that looks like a name or a URL made one. No previews of our pages.
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _headline(item: Item, *, bold: bool = False) -> str:
    happened = f"*{message_text.headline(item)}*" if bold else message_text.headline(item)
    name = message_text.named(item)
    return happened + (f": {code(name)}" if name else "") + escaped(message_text.risk_note(item))


def _facts(item: Item) -> list[str]:
    return [f"{label}: {code(value)}" for label, value in message_text.facts(item)]


def _line(item: Item, links: Links) -> str:
    agent = dict(message_text.facts(item)).get("Agent")
    asked_by = f" by {code(agent)}" if agent and item.tool is not None else ""
    return f"• {_headline(item)}{asked_by} {_link(links.to(item), 'open')}"


def _link(url: str, label: str) -> str:
    """Return a link of our own. The URL is made of our base and a quoted id, so only ``&`` can need care."""
    return f"<{url.replace('&', '&amp;')}|{label}>"


def _section(text: str) -> dict[str, Any]:
    # verbatim: Slack makes no names, channels or URLs in it into links by itself.
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _packed(lines: list[str]) -> Iterator[str]:
    """Yield the lines in as few texts as Slack's limit allows."""
    text = ""
    for line in lines:
        if text and len(text) + 1 + len(line) > MAX_SECTION_CHARS:
            yield text
            text = ""
        text = f"{text}\n{line}" if text else line[:MAX_SECTION_CHARS]
    yield text
