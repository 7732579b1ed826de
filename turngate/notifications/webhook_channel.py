"""Webhooks by Standard Webhooks 1.0 (https://www.standardwebhooks.com): signed, timed, with one id for all attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import SecretStr
from standardwebhooks import Webhook

from turngate.notifications.http_post import Poster
from turngate.notifications.items import Item, Payload
from turngate.notifications.message_text import Links
from turngate.notifications.send_results import SendResult
from turngate.store.clock import now

USER_AGENT: Final = "Turngate-Webhooks/1"
TYPE_OF_DIGEST: Final = "notifications.digest"
TYPE_OF_TEST: Final = "notifications.test"


@dataclass(frozen=True, kw_only=True, repr=False)
class WebhookSender:
    """Sends to one URL. ``secrets``: ``whsec_…``, each signs; several while the receiver changes from one to the next."""

    poster: Poster
    secrets: Sequence[SecretStr]
    links: Links

    async def send(self, delivery_id: str, payload: Payload, created_at: datetime) -> SendResult:
        """Send one message; a repeat has the same id and the same body, and a new time and signature."""
        body = json.dumps(body_of(payload, self.links, created_at))
        headers = signed_headers(self.secrets, delivery_id, body, now())
        if payload.count == 1 and payload.items and payload.items[0].traceparent is not None:
            headers["traceparent"] = payload.items[0].traceparent
        return await self.poster.post(body.encode(), headers)


def signed_headers(secrets: Sequence[SecretStr], delivery_id: str, body: str, at: datetime) -> dict[str, str]:
    """Return the headers of a signed webhook. ``at``: aware UTC; the library takes any clock time for UTC."""
    signatures = [Webhook(secret.get_secret_value()).sign(delivery_id, at, body) for secret in secrets]
    return {
        "Content-Type": "application/json",
        "User-Agent": USER_AGENT,
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def body_of(payload: Payload, links: Links, created_at: datetime) -> dict[str, Any]:
    """Return ``{type, timestamp, data}``. Values are raw: JSON needs no other escape than its own (ASCII only)."""
    if payload.test:
        about: dict[str, Any] = {"url": links.inbox}
        return {"type": TYPE_OF_TEST, "timestamp": created_at.isoformat(), "data": about}
    if payload.count == 1 and payload.items:
        item = payload.items[0]
        return {"type": item.name, "timestamp": item.at, "data": _data(item, links)}
    about = {
        "items": [{"type": item.name, "timestamp": item.at, **_data(item, links)} for item in payload.items],
        "more": payload.more,
        "url": links.inbox,
    }
    return {"type": TYPE_OF_DIGEST, "timestamp": created_at.isoformat(), "data": about}


def _data(item: Item, links: Links) -> dict[str, Any]:
    known = item.model_dump(exclude={"name", "at", "approvals", "quorum", "traceparent"}, exclude_none=True)
    if item.request_id is not None:
        known |= {"approvals": item.approvals, "quorum": item.quorum}
    return {**known, "url": links.to(item)}
