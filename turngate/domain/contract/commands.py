"""What is sent to a run while it is live, by the gateway: updates and signals."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime

from turngate.domain.contract.starts import WireValue
from turngate.domain.requests import RequestStatus
from turngate.domain.runs.turn_state import Decision


class DecideInput(Decision, WireValue):
    """A decision on its way to the workflow.

    ``sent_at``: when it was given, which may be long before a worker takes it.
    """

    sent_at: AwareDatetime


class DecideResult(WireValue):
    """The first answer to a decision; the same decision id again gets the same one.

    ``status`` stays ``pending`` when the decision is one approval of several that are needed.
    """

    decision_id: str
    status: RequestStatus


News = Literal["wanted", "reported"]
"""About a call from outside: the program that runs it is there to start it, or has reported its result."""


class ExternalCallInput(WireValue):
    """News of a call from outside. A repeat changes nothing: what was reported is in the store."""

    call: str
    news: News


class InterruptInput(WireValue):
    """Stop the run now. A repeat with the same or another id changes nothing more."""

    by: str
    reason: str = ""


class PauseInput(WireValue):
    """Hold the run: what runs continues to its end, nothing new starts. A repeat changes nothing."""

    by: str
    reason: str = ""


class ResumeInput(WireValue):
    """Let a held run continue."""

    by: str


class SupersedeInput(WireValue):
    """End what waits for a person, because ``by`` has sent a newer message."""

    by: str
