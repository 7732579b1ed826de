"""Browsers that people have notified: subscribe and remove them, and announce to each what its person may decide.

One channel of the outbox serves them all. What it gathers is first divided: each browser gets a delivery of its own, which is
sent, retried and logged like any other. Rights are checked then, and again before each attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError
from sqlalchemy.exc import IntegrityError

from approvals_api.events.notifier import keep_notifying
from approvals_api.policy.proposals import may_confirm
from approvals_api.principal import Principal
from approvals_api.requests.eligibility import starters, why_not
from approvals_api.services import Services
from approvals_api.settings import PushSettings
from approvals_api.validation.errors import invalid
from turngate.domain.errors import ConflictError, ForbiddenError, UnavailableError
from turngate.domain.identity import ROLE_SCOPES
from turngate.domain.runs.inbox import InboxFilter
from turngate.notifications.configuration import Channel, check_url
from turngate.notifications.items import Item, Payload
from turngate.notifications.selection import Selection
from turngate.notifications.send_results import Delivered, Refused, SendResult
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import deliveries, events, push_subscriptions
from turngate.store.events.push_subscriptions import MAX_PER_PERSON, Address, NewSubscription, PushSubscription
from turngate.store.policy import policies
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.wire.notifications import BrowserView, PushFilter

CHANNEL: Final = "web push"
"""Its name in the outbox and the log. A channel of the notifications file can't have a space in its name."""
PROPOSED: Final = "policy.proposed"
ANNOUNCED: Final = ("request.opened", "request.reminded", "request.escalated", "request.delegated", PROPOSED)
WINDOW: Final = timedelta(seconds=10)
MAX_ENDPOINT_CHARS: Final = 2_000
MAX_KEY_CHARS: Final = 200
LOOK_FOR_FIRST: Final = timedelta(seconds=30)
"""How often to look whether another process has stored the first browser of all."""


@dataclass(frozen=True, kw_only=True)
class BrowserOrder:
    """A browser to notify, as it was sent. ``user_agent``: what it calls itself."""

    address: Address
    wanted: PushFilter
    user_agent: str = ""


async def subscribe(services: Services, principal: Principal, order: BrowserOrder) -> PushSubscription:
    """Notify a browser of what this person may decide; a repeat with the same endpoint changes what it announces.

    Its first message says that it works.

    Raises:
        InvalidInputError: the address is none that messages are sent to, or the keys are not those of a browser.
        ForbiddenError: ``not_a_person``: a token without a user decides for no one.
        ConflictError: ``push_off``: this server notifies no browser; ``too_many_browsers``.
    """
    _require_push(services)
    if principal.machine:
        raise ForbiddenError("only people are notified: use a token that belongs to a user", code="not_a_person")
    host = _checked_host(order.address)
    new = NewSubscription(
        person=principal.name,
        role=principal.role,
        address=order.address,
        wanted=order.wanted.model_dump_json(exclude_defaults=True),
        user_agent=order.user_agent,
    )
    try:
        stored = await _put(services.database, new, host)
    except IntegrityError:  # the same browser sent it twice at once: now it exists and can be changed
        stored = await _put(services.database, new, host)
    if stored is None:
        raise ConflictError(
            f"{MAX_PER_PERSON} of your browsers are notified: remove one before you add another",
            code="too_many_browsers",
        )
    services.first_browser.set()
    return stored


async def _put(database: Database, new: NewSubscription, host: str) -> PushSubscription | None:
    async with database.write() as conn:
        stored = await push_subscriptions.put(conn, new, channel=CHANNEL)
        if stored is not None:
            await deliveries.add(conn, [_delivery(Payload(test=True), stored, from_delivery="")])
            subscribed = {"subscription_id": stored.id, "host": host, "by": stored.person}
            await events.append(conn, events.SYSTEM, [("notification.subscribed", subscribed)])
        return stored


def _require_push(services: Services) -> PushSettings:
    if services.settings.push is None:
        raise ConflictError("this server notifies no browser", code="push_off")
    return services.settings.push


def _checked_host(address: Address) -> str:
    from turngate.notifications.web_push import BrowserKeys  # noqa: PLC0415 - cryptography is slow to import

    if len(address.endpoint) > MAX_ENDPOINT_CHARS:
        raise invalid("/endpoint", f"an endpoint has at most {MAX_ENDPOINT_CHARS:,} characters")
    try:
        check_url(address.endpoint, allow_private=False)
    except ValueError as problem:
        raise invalid("/endpoint", str(problem)) from None
    if max(len(address.p256dh), len(address.auth)) > MAX_KEY_CHARS:
        raise invalid("/keys", "these are no keys of a browser")
    try:
        BrowserKeys.read(address.p256dh, address.auth)
    except ValueError as problem:
        raise invalid("/keys", str(problem)) from None
    return _host_of(address)


def _host_of(address: Address) -> str:
    return urlsplit(address.endpoint).hostname or ""


async def listed(conn: Connection, principal: Principal) -> list[BrowserView]:
    """Return the principal's browsers, oldest first."""
    return [browser_view(each) for each in await push_subscriptions.every(conn, principal.name)]


def browser_view(subscription: PushSubscription) -> BrowserView:
    """Return a browser without its address, which is a secret."""
    return BrowserView(
        id=subscription.id,
        push_service=_host_of(subscription.address),
        user_agent=subscription.user_agent,
        wanted=wanted_by(subscription),
        created_at=subscription.created_at,
    )


def wanted_by(subscription: PushSubscription) -> PushFilter:
    """Return which requests a browser announces."""
    return PushFilter.model_validate_json(subscription.wanted)


async def remove(services: Services, principal: Principal, subscription_id: str) -> None:
    """Notify one of the principal's browsers no longer; safe to repeat."""
    async with services.database.write() as conn:
        await push_subscriptions.remove(conn, subscription_id, reason="removed", of=principal.name)


# Sending.


async def keep_pushing(services: Services) -> None:
    """Notify browsers from the first one on, until cancelled. Returns at once where push is off.

    Nothing is read for it while there is none, so a server that no browser follows does no work.
    """
    if services.settings.push is None:
        return
    while not await _any_there(services.database):
        services.first_browser.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_FOR_FIRST.total_seconds()):
                await services.first_browser.wait()
    others = [each.name for each in services.settings.channels]
    channel = push_channel(services.database, services.settings.push)
    await keep_notifying(services.database, services.feed, (channel,), others=others)


async def _any_there(database: Database) -> bool:
    try:
        async with database.read() as conn:
            return await push_subscriptions.any_there(conn)
    except UnavailableError:
        return False


def push_channel(database: Database, settings: PushSettings) -> Channel:
    """Return the channel of all browsers."""
    return Channel(
        name=CHANNEL,
        kind="browsers",
        selection=Selection(events=ANNOUNCED),
        window=WINDOW,
        sender=BrowserSender(database=database, settings=settings),
    )


@dataclass(frozen=True, kw_only=True)
class BrowserSender:
    """Divides what the channel gathered among the browsers, and sends each of them its part."""

    database: Database
    settings: PushSettings

    async def send(self, delivery_id: str, payload: Payload, created_at: datetime) -> SendResult:
        """Divide a delivery for no one yet, or send the one of a browser."""
        if payload.browser is None:
            return await self._divide(delivery_id, payload)
        return await self._send_to(payload.browser, payload, created_at)

    async def _divide(self, delivery_id: str, payload: Payload) -> SendResult:
        """Write a delivery for each browser that wants some of it. A repeat writes the same ones, so it changes nothing."""
        async with self.database.read() as conn:
            news = await _news(conn, payload.items)
            parts = [
                (each, part) for each in await push_subscriptions.every(conn) if (part := _part_of(each, news, payload))
            ]
        new = [_delivery(part, each, from_delivery=delivery_id) for each, part in parts]
        async with self.database.write() as conn:
            missing = [each for each in new if await deliveries.get(conn, each.id) is None]
            await deliveries.add(conn, missing)
        return Delivered(answer=f"divided among {len(new)} browser(s)")

    async def _send_to(self, subscription_id: str, payload: Payload, created_at: datetime) -> SendResult:
        from turngate.notifications import web_push  # noqa: PLC0415 - cryptography is slow to import

        async with self.database.read() as conn:
            to = await push_subscriptions.get(conn, subscription_id)
            if to is None:
                return Delivered(answer="not sent: this browser is no longer notified")
            part = _part_of(to, await _news(conn, payload.items), payload)
            waiting = await requests.count(conn, InboxFilter())
        if part is None:
            return Delivered(answer="not sent: nothing of it waits for this person any more")
        push = web_push.Push(
            body=web_push.message_of(part, waiting=waiting),
            is_urgent=any(each.risk == "high" for each in part.items),
            keep=_keep(part, created_at, longest=web_push.LONGEST_WAIT),
        )
        keys = web_push.BrowserKeys.read(to.address.p256dh, to.address.auth)
        authorization = self.settings.key.read().authorization(
            to.address.endpoint, contact=self.settings.contact, at=now()
        )
        result = await web_push.post(push, keys, self.settings.poster(to.address.endpoint), authorization)
        if isinstance(result, Refused) and result.for_good:
            async with self.database.write() as conn:
                await push_subscriptions.remove(conn, to.id, reason="gone")
        return result


@dataclass(frozen=True)
class _News:
    """An item that still waits for a person, with its request; None: of the stored rules, which wait for an admin."""

    item: Item
    request: Request | None
    starters: Collection[str] = ()

    def is_for(self, person: Principal) -> bool:
        """Tell whether this person may answer it."""
        if self.request is None:
            return may_confirm(person, self.item.proposed_by or "")
        return person.may("requests:decide") and why_not(self.request, person, self.starters) is None


async def _news(conn: Connection, items: Sequence[Item]) -> list[_News]:
    news = []
    proposal = await policies.waiting_proposal(conn) if any(each.name == PROPOSED for each in items) else None
    for item in items:
        if item.name == PROPOSED and proposal is not None and item.proposed_by == proposal.proposed_by:
            news.append(_News(item, None))
        request = None if item.request_id is None else await requests.get(conn, item.request_id)
        if request is not None and request.status == "pending":
            news.append(_News(item, request, await starters(conn, request)))
    return news


def _part_of(to: PushSubscription, news: Sequence[_News], whole: Payload) -> Payload | None:
    """Return what a browser gets of a message: what it wants, of what its person may decide; None: nothing."""
    if whole.test:
        return whole
    if to.role is None:
        return None
    try:
        wanted = wanted_by(to)
    except ValidationError:  # of a later release: rather silent than too loud
        return None
    chosen = Selection(
        events=ANNOUNCED,
        tools=wanted.tools or None,
        rules=wanted.rules or None,
        risk_at_least=wanted.risk_at_least,
    )
    person = Principal(name=to.person, via="session", scopes=ROLE_SCOPES[to.role], role=to.role)
    items = [
        each.item
        for each in news
        if chosen.wants(
            each.item.name, agent=each.item.agent, tool=each.item.tool, risk=each.item.risk, rule=each.item.rule
        )
        and each.is_for(person)
    ]
    return whole.model_copy(update={"items": tuple(items), "more": 0}) if items else None


def _delivery(part: Payload, to: PushSubscription, *, from_delivery: str) -> deliveries.Delivery:
    """Return a browser's delivery. ``from_delivery``: what was divided, so that the id is the same each time; empty: new."""
    own_id = f"ntf_{hashlib.sha256(f'{from_delivery} {to.id}'.encode()).hexdigest()[:24]}"
    at = as_text(now())
    return deliveries.Delivery(
        id=own_id if from_delivery else deliveries.new_id(),
        channel=CHANNEL,
        first_seq=part.items[0].seq if part.items else 0,
        last_seq=part.items[-1].seq if part.items else 0,
        payload=part.model_copy(update={"browser": to.id, "person": to.person}).model_dump_json(exclude_defaults=True),
        status="waiting",
        next_attempt_at=at,
        created_at=at,
    )


def _keep(part: Payload, created_at: datetime, *, longest: timedelta) -> timedelta:
    """Return how long the push service is to keep a message: until the last of its requests expires, a day at most."""
    ends = [created_at + longest if each.expires_at is None else from_text(each.expires_at) for each in part.items]
    return max(timedelta(), min(max(ends, default=created_at + longest) - now(), longest))
