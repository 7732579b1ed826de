"""The delivery log, for people: read it, and send a delivery again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from turngate.approvals_api.paging import one_page
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.notifications import message_text
from turngate.notifications.items import Payload
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import deliveries, events
from turngate.store.events.deliveries import Attempt, Delivery
from turngate.wire.notifications import DeliveryAttempt, DeliveryView
from turngate.wire.view import Page

RETRIED: Final = "notification.retried"
"""The event of a delivery that a person sends again: ``{delivery_id, channel, by}``."""


async def delivery_page(
    conn: Connection,
    *,
    limit: int,
    before: tuple[str, str] | None = None,
    channel: str | None = None,
    status: DeliveryStatus | None = None,
) -> Page[DeliveryView]:
    """Return one page of deliveries, newest first."""
    rows = await deliveries.page(conn, limit=limit + 1, before=before, channel=channel, status=status)
    listed, more = one_page(rows, limit)
    tries = await deliveries.attempts_of(conn, [each.id for each in listed])
    return Page(items=[delivery_view(each, tries.get(each.id, ())) for each in listed], next_cursor=more)


async def send_again(conn: Connection, delivery_id: str, *, by: str) -> DeliveryView:
    """Make a failed or waiting delivery due now, in the caller's write transaction; its senders do the rest.

    ``by``: who sends it again, for the audit log. The event wakes the senders of every process. Call it last.

    Raises:
        NotFoundError: there is no such delivery.
        ConflictError: it was delivered, or is being sent (code ``not_retryable``).
    """
    changed = await deliveries.send_again(conn, delivery_id, at=now())
    delivery = await deliveries.get(conn, delivery_id)
    if delivery is None:
        raise NotFoundError(f"there is no delivery {delivery_id!r}")
    if not changed:
        what = "was delivered" if delivery.status == "delivered" else "is on its way"
        raise ConflictError(
            f"this delivery {what}: only one that failed or waits can be sent again",
            code="not_retryable",
            delivery_status=delivery.status,
        )
    tries = (await deliveries.attempts_of(conn, [delivery.id])).get(delivery.id, ())
    retried = {"delivery_id": delivery.id, "channel": delivery.channel, "by": by}
    await events.append(conn, events.SYSTEM, [(RETRIED, retried)])
    return delivery_view(delivery, tries)


def delivery_view(delivery: Delivery, tries: Sequence[Attempt]) -> DeliveryView:
    """Return a delivery with its attempts."""
    try:
        payload = Payload.model_validate_json(delivery.payload)
    except ValidationError:  # of a later release, which knew more
        payload = Payload()
    return DeliveryView(
        id=delivery.id,
        channel=delivery.channel,
        status=delivery.status,
        title=message_text.title(payload),
        events=payload.count,
        attempts=delivery.attempts,
        next_attempt_at=None if delivery.ended_at else delivery.next_attempt_at,
        created_at=delivery.created_at,
        ended_at=delivery.ended_at,
        tries=[DeliveryAttempt.model_validate(each) for each in tries],
    )
