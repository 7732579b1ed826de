"""What redemption may come to: one type each, matched by ``run_tool``."""

from __future__ import annotations

from dataclasses import dataclass

from turngate.domain.agents.app import Agent
from turngate.domain.contract import ChildRun, PlannedCall, Wait
from turngate.domain.tools.tool import Tool
from turngate.store.runs import calls, runs


@dataclass(frozen=True)
class Redeemed:
    """The handler may start now, with exactly this input. ``attempt``: its how-many-th start this is, from 1."""

    tool: Tool
    run: runs.Run
    call: calls.Call
    raw_input: str
    idempotency_key: str
    attempt: int = 1


@dataclass(frozen=True)
class AlreadySettled:
    """The call has its result; an earlier attempt's answer was lost on the way."""

    finishes: bool = False
    raises: str = ""
    """Why the run fails with it; empty when it goes on."""


@dataclass(frozen=True)
class LookFirst:
    """Author's code has to be heard before this can be decided: look, and redeem again with what was seen."""

    agent: Agent
    run: runs.Run
    call: calls.Call
    tool: Tool
    asked_with: str | None
    """What the call depended on when the approval was asked for; None when its tool does not say, or nobody was asked."""
    lost: bool
    for_asking: bool = False
    """A person is to be asked after all: take what they are shown, besides."""


@dataclass(frozen=True)
class AskAgain:
    """What the call depends on changed since a person approved it: it was asked for again."""

    again: PlannedCall


@dataclass(frozen=True)
class Waits:
    """The call is settled when this is over."""

    wait: Wait


@dataclass(frozen=True)
class Delegated:
    """The call is settled when this run has ended."""

    child: ChildRun


@dataclass(frozen=True)
class OutcomeUnknown:
    """The handler of a ``once`` call was started and nobody knows how it ended; a person is asked."""

    request_id: str
    digest: str


Decided = Redeemed | AlreadySettled | OutcomeUnknown | AskAgain | Waits | Delegated
Redemption = Decided | LookFirst
