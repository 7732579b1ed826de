"""Which events a channel wants: by name, and by agent, tool and risk. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from turngate.domain.policy.policy import Risk

NOTIFIABLE: Final = (
    "request.opened",
    "request.reminded",
    "request.escalated",
    "request.delegated",
    "request.parked",
    "request.approved_once",
    "request.approval_withdrawn",
    "request.decided",
    "request.not_run",
    "request.expired",
    "request.cancelled",
    "run.started",
    "run.completed",
    "run.failed",
    "run.interrupted",
    "policy.proposed",
)
"""Everything that can be sent outside. An event of any other type stays in the house, whatever the patterns say."""
DEFAULT_EVENTS: Final = (
    "request.opened",
    "request.reminded",
    "request.escalated",
    "request.delegated",
    "request.parked",
    "request.not_run",
    "request.expired",
    "run.failed",
    "policy.proposed",
)
_RISKS: Final[tuple[Risk, ...]] = ("low", "medium", "high")


def name_of(event_type: str, payload: dict[str, object]) -> str | None:
    """Return the name under which an event is sent; None for one that never is.

    ``run.ended`` is named by how it ended: ``run.completed``, ``run.failed`` or ``run.interrupted``. ``call.closed`` of a call
    that people had approved is ``request.not_run``.
    """
    if event_type == "call.closed" and payload.get("request_id"):
        return "request.not_run"
    name = f"run.{payload.get('status')}" if event_type == "run.ended" else event_type
    return name if name in NOTIFIABLE else None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a channel wants: shell-style patterns, any of which may match; None: no such limit.

    Something without a tool, a rule or a risk (a run, proposed rules) does not pass a limit on it: a user who sets one asks for
    calls.
    """

    events: Sequence[str] = DEFAULT_EVENTS
    agents: Sequence[str] | None = None
    tools: Sequence[str] | None = None
    rules: Sequence[str] | None = None
    risk_at_least: Risk | None = None

    def wants_name(self, name: str) -> bool:
        """Tell whether events of this name are wanted at all."""
        return _matches(name, self.events)

    def wants(self, name: str, *, agent: str, tool: str | None, risk: str | None, rule: str | None = None) -> bool:
        """Tell whether this one is wanted. ``agent``: after those above it, joined by ``/``; any of them may match."""
        if not self.wants_name(name):
            return False
        if self.agents is not None and not any(_matches(each, self.agents) for each in agent.split("/")):
            return False
        if self.tools is not None and (tool is None or not _matches(tool, self.tools)):
            return False
        if self.rules is not None and (rule is None or not _matches(rule, self.rules)):
            return False
        return self.risk_at_least is None or _rank(risk) >= _rank(self.risk_at_least)


def _matches(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _rank(risk: str | None) -> int:
    """Return how grave a risk is; a word we do not know counts as the gravest, none as less than any."""
    if risk is None:
        return -1
    return next((rank for rank, word in enumerate(_RISKS) if word == risk), len(_RISKS))
