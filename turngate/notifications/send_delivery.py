"""Send one delivery: claim, send, store the result. Dying anywhere in between loses nothing.

Before the claim the delivery is due; after it, it is due again when the claim is over; what was sent then is sent twice,
with the same id.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from turngate.notifications.configuration import Channel
from turngate.notifications.items import Payload
from turngate.notifications.send_results import Next, Refused, SendResult, Unreachable, next_of
from turngate.store.access import people
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Database
from turngate.store.events import deliveries
from turngate.store.events.deliveries import Delivery

logger = logging.getLogger(__name__)

SEND_WITHIN: Final = timedelta(seconds=30)
CLAIM_FOR: Final = timedelta(seconds=60)
"""Longer than sending may take, so that a claim is over only when its sender is dead (or stood still)."""


async def claim_due(database: Database, channel: str) -> Delivery | datetime | None:
    """Claim the channel's next delivery if its time has come; else return when it comes, or None when nothing is open."""
    async with database.read() as conn:
        due = await deliveries.next_due(conn, channel)
    if due is None:
        return None
    at = now()
    if from_text(due.next_attempt_at) > at:
        return from_text(due.next_attempt_at)
    async with database.write() as conn:
        claimed = await deliveries.claim(conn, due, at=at, until=at + CLAIM_FOR)
    return claimed or at  # another process took it: look again


async def send_claimed(database: Database, channel: Channel, claimed: Delivery) -> SendResult:
    """Send a claimed delivery and store the result."""
    result, milliseconds = await _attempt(database, channel, claimed)
    at, spread = now(), secrets.randbelow(1_000) / 1_000
    then = next_of(result, attempts=claimed.attempts, created_at=from_text(claimed.created_at), at=at, spread=spread)
    await _finish(database, claimed, result, then, milliseconds)
    if then.status == "failed":
        logger.warning(
            "notification %s to channel %s failed for good after %d attempt(s): %s",
            claimed.id,
            channel.name,
            claimed.attempts,
            result.answer,
        )
    return result


async def send_test(database: Database, channel: Channel) -> tuple[Delivery, SendResult]:
    """Send a test message, once, past what waits for the channel; it is in the delivery log like any other."""
    at = now()
    delivery = Delivery(
        id=deliveries.new_id(),
        channel=channel.name,
        first_seq=0,
        last_seq=0,
        payload=Payload(test=True).stored,
        status="sending",
        next_attempt_at=as_text(at),
        created_at=as_text(at),
    )
    async with database.write() as conn:
        claimed = await deliveries.add_claimed(conn, delivery, at=at, until=at + CLAIM_FOR)
    result, milliseconds = await _attempt(database, channel, claimed)
    then = next_of(result, attempts=claimed.attempts, created_at=at, at=now(), spread=0)
    if then.status == "waiting":
        then = Next(status="failed", due=then.due)
    await _finish(database, claimed, result, then, milliseconds)
    return claimed, result


async def _attempt(database: Database, channel: Channel, claimed: Delivery) -> tuple[SendResult, int]:
    began = time.monotonic()
    result: SendResult
    try:
        await people.look_again(database)
        payload = Payload.of_stored(claimed.payload)
        async with asyncio.timeout(SEND_WITHIN.total_seconds()):
            result = await channel.sender.send(claimed.id, payload, from_text(claimed.created_at))
    except TimeoutError:
        result = Unreachable(answer=f"it took longer than {SEND_WITHIN.total_seconds():g} s")
    except ValidationError:
        result = Refused(answer="a later release of Turngate wrote this; this one cannot read it", for_good=True)
    except Exception as error:
        # A mistake of Turngate's in one message must not stop those after it.
        logger.exception("notification %s to channel %s could not be made", claimed.id, channel.name)
        result = Unreachable(answer=f"Turngate failed here ({type(error).__name__}); the API's log says why")
    return result, round((time.monotonic() - began) * 1_000)


async def _finish(database: Database, claimed: Delivery, result: SendResult, then: Next, milliseconds: int) -> None:
    async with database.write() as conn:
        end = deliveries.AttemptEnd(answer=result.answer, milliseconds=milliseconds, at=now())
        await deliveries.finish(conn, claimed, end, status=then.status, due=then.due)
