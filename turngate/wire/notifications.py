"""Notifications: the delivery log."""

from __future__ import annotations

from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.wire.view import View


class DeliveryAttempt(View):
    """One attempt to send. ``answer``: its result; empty while it runs, and for good if the sender died."""

    n: int
    started_at: str
    milliseconds: int
    answer: str


class DeliveryView(View):
    """One message to one channel.

    ``status``: ``gathering`` more events, ``waiting`` until it is due, ``sending``, and in the end ``delivered`` or
    ``failed``. ``title``: its first line. ``events``: how many it reports; zero for a test message.
    ``next_attempt_at``: None once it ended. ``tries``: every attempt, oldest first.
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
        """The result of the newest attempt, in words."""
        if not self.tries:
            return ""
        return self.tries[-1].answer or ("being sent" if self.status == "sending" else "no answer was written down")
