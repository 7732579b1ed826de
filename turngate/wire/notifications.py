"""Notifications: the delivery log, and the browsers that are notified."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.policy.policy import Risk
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


MAX_PATTERNS: Final = 20
Pattern = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\u0000]*$")]


class PushFilter(BaseModel):
    """Which requests a browser announces, of those that its person may decide. Empty: of all.

    ``rules``, ``tools``: names or globs. ``risk_at_least``: and of this risk or more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rules: Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)] = []
    tools: Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)] = []
    risk_at_least: Risk | None = None


class BrowserView(View):
    """A browser that is notified. ``push_service``: the host that messages to it go through."""

    id: str
    push_service: str
    user_agent: str
    wanted: PushFilter
    created_at: str


class BrowsersView(View):
    """Your browsers. ``server_key``: for ``pushManager.subscribe`` (base64url); None: this server notifies no browser."""

    server_key: str | None
    items: list[BrowserView]
