"""What redemption can come to: one type each, matched by ``run_tool``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turngate.activities.execution.preflight import Inspection
from turngate.domain.contract import ChildRun, PlannedCall, Wait
from turngate.domain.tools.tool import Tool
from turngate.store.runs import calls, runs


@dataclass(frozen=True, kw_only=True)
class UnknownEnd:
    """How a start of a ``once`` call ended without that anyone knows whether it took effect (I3).

    ``why``: in a sentence. ``partial_output``: what its handler had said until then. ``stopped``: its run is being interrupted,
    so nothing may start.
    """

    attempt: int
    why: str
    partial_output: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class Redeemed:
    """The handler may start now, with exactly this input. ``attempt``: which start of it this is, from 1.

    ``is_last_open``: the other calls of its step have their results. ``secrets``: the values that its input refers to, by name;
    they go to the handler, and nowhere else. ``precondition``, ``places``: as the handler's context has them.
    """

    tool: Tool
    run: runs.Run
    call: calls.Call
    raw_input: str
    idempotency_key: str
    attempt: int = 1
    is_last_open: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)
    precondition: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settled:
    """The call has its result: it was refused just now, or an earlier attempt's answer was lost on the way."""

    finishes: bool = False
    """It is a ``finish`` call: the run ends with this step."""
    raises: str = ""
    """Why the run fails with this result; empty when the run continues."""


@dataclass(frozen=True)
class Stopped:
    """Nothing may start in the run now: someone has interrupted or paused it."""


@dataclass(frozen=True)
class AskAgain:
    """A person is asked, or is asked still. ``again``: the call as it waits for them.

    They have not answered yet; or the approval no longer counts, policy no longer allows the call, or no one knows what
    happened to it.
    """

    again: PlannedCall


@dataclass(frozen=True)
class Waits:
    """The call is settled when this wait is over."""

    wait: Wait


@dataclass(frozen=True)
class Delegated:
    """The call is settled when this run has ended."""

    child: ChildRun


Decided = Redeemed | Settled | Stopped | AskAgain | Waits | Delegated
Redemption = Decided | Inspection
