"""What a message says about one event, and the bounded list of them that one delivery carries.

Built from the store by an allow list of fields: neither arguments nor an agent's words nor a result can get in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from turngate.notifications.selection import name_of
from turngate.store.database import Connection
from turngate.store.events.events import SYSTEM, Event
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import runs
from turngate.wire.people import AS_STORED, Person, Says

MAX_ITEMS: Final = 50
"""Items that one message shows; what is beyond is counted."""
MOST_DECIDERS: Final = 5
"""Whom a message names: a text of ids is never cut, as half an id has no name."""
MAX_VALUE_CHARS: Final = 200
"""Of a name that an agent, a tool or a server from outside chose."""


class Item(BaseModel):
    """One event as it is sent. Texts are as stored (raw): each medium makes them harmless in its own way.

    ``agent``: after the agents above it, joined by ``/``. ``deciders``: who may decide, in words; ``not_by``: someone
    who may not, although those words would let them. ``decided_by``, ``status``: of a request that has ended.
    ``outcome``, ``error_class``, ``ended_by``: how a run ended (:mod:`turngate.domain.runs.outcomes`), never why in an author's
    or a model's words. ``proposed_by``: of stored rules that wait for a second admin.
    ``traceparent``: names the span that the event is about; None: traces are not exported.
    """

    model_config = ConfigDict(frozen=True)

    seq: int
    name: str
    at: str
    run_id: str | None = None
    request_id: str | None = None
    kind: str | None = None
    tool: str | None = None
    agent: str = ""
    risk: str | None = None
    rule: str | None = None
    deciders: Says | None = None
    not_by: Person | None = None
    approvals: int = 0
    quorum: int = 1
    expires_at: str | None = None
    status: str | None = None
    decided_by: Person | None = None
    outcome: str | None = None
    error_class: str | None = None
    ended_by: Person | None = None
    proposed_by: Person | None = None
    traceparent: str | None = None


class Payload(BaseModel):
    """What one delivery says. ``more``: items beyond those that are shown. ``test``: it was asked for to try the channel."""

    model_config = ConfigDict(frozen=True)

    items: tuple[Item, ...] = ()
    more: int = 0
    test: bool = False

    @classmethod
    def of_stored(cls, text: str) -> Payload:
        """Return what :attr:`stored` is, with the names of people, as it is sent."""
        return cls.model_validate_json(cls.model_validate_json(text).model_dump_json())

    @property
    def stored(self) -> str:
        """As JSON, with the ids of people."""
        return self.model_dump_json(exclude_defaults=True, context=AS_STORED)

    @property
    def count(self) -> int:
        """How many events it is about."""
        return len(self.items) + self.more

    def with_items(self, more: Sequence[Item]) -> Payload:
        """Return it with further items; beyond the limit they are counted only."""
        room = max(0, MAX_ITEMS - len(self.items))
        return Payload(items=(*self.items, *more[:room]), more=self.more + len(more[room:]))


async def item_of(conn: Connection, event: Event) -> Item | None:
    """Return what to send of an event; None for one that is never sent, or whose request is gone.

    Nothing is sent about a dry run: nothing has happened in it, and its starter looks at the result.
    """
    name = name_of(event.type, event.payload)
    if name is None:
        return None
    run_id = None if event.run_id == SYSTEM else event.run_id
    item = Item(seq=event.seq, name=name, at=event.created_at, run_id=run_id)
    if name.startswith("request."):
        request = await requests.get(conn, str(event.payload.get("request_id")))
        if request is None:
            return None
        return _of_request(item, request, ended=name in {"request.decided", "request.not_run"})
    if name == "policy.proposed":
        return item.model_copy(update={"proposed_by": _clipped(str(event.payload.get("by") or "")) or None})
    run = None if run_id is None else await runs.get(conn, run_id)
    if run is not None and run.is_dry:
        return None
    named = _clipped(run.path or run.agent) if run else _clipped(str(event.payload.get("agent", "")))
    about_run = item.model_copy(update={"agent": named})
    return _of_end(about_run, event) if event.type == "run.ended" else about_run


def _of_end(item: Item, event: Event) -> Item:
    outcome, error_class, by = (str(event.payload.get(name) or "") for name in ("outcome", "error_class", "by"))
    return item.model_copy(
        update={
            "outcome": outcome,
            "error_class": _clipped(error_class) or None,
            "ended_by": (_clipped(by) or None) if outcome == "interrupted" else None,
        }
    )


def _of_request(item: Item, request: Request, *, ended: bool) -> Item:
    return item.model_copy(
        update={
            "request_id": request.id,
            "kind": request.kind,
            "tool": _clipped(request.tool_name),
            "agent": _clipped(request.path or request.agent),
            "risk": request.risk,
            "rule": _clipped(request.rule),
            "deciders": deciders_of(request),
            "not_by": None if request.not_by is None else _clipped(request.not_by),
            "approvals": request.approvals,
            "quorum": request.quorum,
            "expires_at": request.expires_at,
            "status": request.status if ended else None,
            "decided_by": _clipped(request.decided_by) if ended and request.decided_by else None,
        }
    )


def deciders_of(request: Request) -> str:
    """Return who may decide a request as it is now, in words."""
    terms = request.ask_terms
    named = [*(f"any {role}" for role in terms.roles), *terms.people] or ["any operator"]
    if len(named) > MOST_DECIDERS:
        named = [*named[:MOST_DECIDERS], f"{len(named) - MOST_DECIDERS} more"]
    return " or ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
