"""Notifications: the delivery log."""

from __future__ import annotations

from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.wire.view import View


class DeliveryAttempt(View):
    """One attempt to send. ``answer``: what came of it; empty while it lasts, and for good when its sender died."""

    n: int
    started_at: str
    milliseconds: int
    answer: str


class DeliveryView(View):
    """One message to one channel.

    ``status``: ``gathering`` takes more events, ``waiting`` waits for its time, ``sending`` is on its way, ``delivered`` and
    ``failed`` are its end. ``title``: its first line. ``events``: how many it tells of; zero for a test message.
    ``next_attempt_at``: None once it ended. ``tries``: every attempt, first one first.
    """

    id: str
    channel: str
    status: DeliveryStatus
    title: str
    events: int
    attempts: int
    next_attempt_at: str | None
    created_at: str
    ended_at: str | None
    tries: list[DeliveryAttempt]

    @property
    def last_answer(self) -> str:
        """What came of the newest attempt, in words."""
        if not self.tries:
            return ""
        return self.tries[-1].answer or ("being sent" if self.status == "sending" else "no answer was written down")
