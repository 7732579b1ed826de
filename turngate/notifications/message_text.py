"""The words of a message, before any medium: a title, labelled values, links. Pure.

Values are of two kinds and never mixed: what Turngate says (titles, labels) and what an agent, a tool or a file named. The
latter come out of here with hidden characters marked and on one line; each medium escapes them once more for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from turngate.domain.runs.outcomes import describe_outcome
from turngate.domain.text.hidden_text import marked_text
from turngate.domain.text.instants import in_utc
from turngate.notifications.items import Item, Payload
from turngate.wire.agents import PATH_MARK

_HEADLINES: Final = {
    "request.reminded": "Still waiting for a decision",
    "request.escalated": "Escalated: others may decide now",
    "request.delegated": "Delegated: others decide now",
    "request.parked": "Ran out of time, waits on",
    "request.approved_once": "Approved, more people must approve",
    "request.approval_withdrawn": "An approval was taken back",
    "request.not_run": "Approved, and did not run",
    "request.expired": "Expired, the call is refused",
    "request.cancelled": "Cancelled with its run",
    "run.started": "Run started",
    "run.completed": "Run completed",
    "run.failed": "Run failed",
    "run.interrupted": "Run interrupted",
    "policy.proposed": "Rules wait for a second admin",
}
_OPENED: Final = {
    "approval": "Approval needed",
    "question": "An agent asks a person",
    "outcome": "Did this call happen?",
}
_SHOWN_CHARS: Final = 200
_WAITING: Final = frozenset(
    {"request.opened", "request.reminded", "request.escalated", "request.delegated", "request.parked"}
    | {"request.approved_once", "request.approval_withdrawn", "policy.proposed"}
)


@dataclass(frozen=True)
class Links:
    """Addresses of the operators' pages. ``base``: without a trailing slash."""

    base: str

    @property
    def inbox(self) -> str:
        """Where everything that waits is listed."""
        return f"{self.base}/"

    def to(self, item: Item) -> str:
        """Return the page of what the item is about."""
        if item.request_id is not None:
            return f"{self.base}/requests/{quote(item.request_id, safe='')}"
        if item.name == "policy.proposed":
            return f"{self.base}/policy#proposal"
        return self.inbox if item.run_id is None else f"{self.base}/runs/{quote(item.run_id, safe='')}"

    def of(self, payload: Payload) -> str:
        """Return the page of what a message is about: its one item's, or the inbox."""
        return self.to(payload.items[0]) if payload.count == 1 and payload.items else self.inbox


def title(payload: Payload) -> str:
    """Return the title of a message, one line: of its one item, or how many of what."""
    if payload.test:
        return "Test message"
    if payload.count == 1 and payload.items:
        return item_title(payload.items[0])
    waiting = sum(item.name in _WAITING for item in payload.items)
    if not waiting:
        return f"{payload.count} events"
    return f"{payload.count} events, {waiting}{'+' if payload.more else ''} to decide"


def item_title(item: Item) -> str:
    """Return what happened, to which tool or agent, how risky: one line."""
    return headline(item) + (f": {named(item)}" if named(item) else "") + risk_note(item)


def named(item: Item) -> str:
    """Return the name of the tool it is about, or of the agent; empty when there is neither."""
    return _marked(item.tool if item.tool is not None else item.agent)


def risk_note(item: Item) -> str:
    """Return the risk in brackets while it is to be decided; else nothing."""
    return f" ({marked_text(item.risk)} risk)" if item.risk is not None and item.name in _WAITING else ""


def headline(item: Item) -> str:
    """Return what happened, in Turngate's words alone."""
    if item.name == "request.opened":
        return _OPENED.get(item.kind or "", "A request is open")
    if item.name == "request.decided":
        return f"Decided: {marked_text(item.status or '')}"
    return _HEADLINES.get(item.name, item.name)


def facts(item: Item) -> list[tuple[str, str]]:
    """Return label and value of everything known about the item; values are on one line, hidden characters marked."""
    deciders = item.deciders if item.name in _WAITING else None
    if deciders is not None and item.not_by is not None:
        deciders = f"{deciders}, but not {item.not_by}"
    if deciders is not None and item.quorum > 1:
        deciders = f"{deciders}; {item.approvals} of {item.quorum} approvals"
    expires_at = item.expires_at if item.name in _WAITING and item.name != "request.parked" else None
    rows = [
        ("Tool", item.tool),
        ("Agent", item.agent.replace("/", PATH_MARK) or None),
        ("Risk", item.risk),
        ("Rule", item.rule),
        ("Who may decide", deciders),
        ("Expires", None if expires_at is None else in_utc(expires_at)),
        ("Decided by", item.decided_by),
        ("Outcome", _how_it_ended(item)),
        ("Proposed by", item.proposed_by),
    ]
    return [(label, _marked(value)) for label, value in rows if value]


def _how_it_ended(item: Item) -> str | None:
    if item.outcome in {None, "completed"}:
        return None
    return describe_outcome(item.outcome, error_class=item.error_class or "", by=item.ended_by)


def more_line(payload: Payload) -> str | None:
    """Return the line for what is not shown; None when everything is."""
    return f"… and {payload.more} more" if payload.more else None


def _marked(value: str) -> str:
    # Clipped once more after it: a marker is eight times as long as the character it stands for.
    marked = marked_text(value[:_SHOWN_CHARS])
    return marked if len(marked) <= _SHOWN_CHARS else f"{marked[: _SHOWN_CHARS - 1]}…"
