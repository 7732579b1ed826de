"""What clients send: strict models without coercion, and without members we do not know."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query
from pydantic import BaseModel, ConfigDict, JsonValue

from turngate.domain.requests import Outcome, Verb


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StartRunBody(_Body):
    """Start a run. ``workspace``: absolute path on the server's machine. ``model``: ``provider:name``."""

    agent: str
    input: str
    conversation_id: str | None = None
    workspace: str | None = None
    model: str | None = None


class MessageBody(_Body):
    """Say something more in a run's conversation; the next run answers it."""

    input: str


class ForkBody(_Body):
    """Go on from a closed step of a run, elsewhere. ``step``: None is its newest; what is left out is as in that run."""

    text: str
    step: int | None = None
    agent: str | None = None
    model: str | None = None
    workspace: str | None = None


class InterruptBody(_Body):
    """Stop a run."""

    reason: str = ""


class DecisionBody(_Body):
    """Decide a request. ``args``: any JSON value, kept exactly as it was sent; ``null`` is the same as leaving it out."""

    decision: Verb
    digest: str
    args: JsonValue = None
    message: str = ""
    outcome: Outcome | None = None


IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]
Cursor = Annotated[str | None, Query()]
Limit = Annotated[int, Query(ge=1, le=200)]
