"""Requests and decisions: the words of the operators' inbox, and which decision fits which request.

Pure. The API decides with these rules, and the worker redeems by them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

RequestKind = Literal["approval", "question", "outcome"]
Verb = Literal["approve", "edit", "reject", "respond"]
RequestStatus = Literal["pending", "approved", "rejected", "responded", "expired", "cancelled", "superseded"]
ExecutionState = Literal["not_started", "executing", "succeeded", "failed", "unknown"]
RunStatus = Literal["running", "completed", "failed", "interrupted"]
Resolution = Literal["happened", "did_not_happen", "tell_model"]
"""What a person says about a call whose outcome is unknown: it took effect (with its result), it did not (run it), or no one
knows. On the wire its field is ``outcome``, and so is the kind of the request."""


class LostStart(BaseModel):
    """How a call had started that no one knows the end of. None: not known.

    ``idempotency_key``: which its handler got, to look for in the other system. ``attempt``: which start it was, from 1.
    ``worker``, ``build``: the process that ran it. ``progress``: the last thing that its handler reported, at ``progress_at``.
    ``check_with``: how to check whether it took effect, as its tool says. ``why``: how it ended, in a sentence; None: its worker
    was lost.
    """

    model_config = ConfigDict(frozen=True)

    idempotency_key: str
    attempt: int
    started_at: str
    worker: str | None = None
    build: str | None = None
    progress: str | None = None
    progress_at: str | None = None
    check_with: str | None = None
    why: str | None = None


UnattendedAsks = Literal["deny", "park", "rules"]
"""What happens to a call that needs a person in a run that no one attends: ``deny`` refuses it, ``park`` lets it wait
without a clock, ``rules`` asks if a rule of the policy says so and refuses the rest."""

ALLOWED_VERBS: dict[RequestKind, tuple[Verb, ...]] = {
    "approval": ("approve", "edit", "reject", "respond"),
    "question": ("respond", "reject"),
    "outcome": ("respond",),
}

STATUS_OF_VERB: dict[Verb, RequestStatus] = {
    "approve": "approved",
    "edit": "approved",
    "reject": "rejected",
    "respond": "responded",
}


def runs_the_call(kind: RequestKind, verb: Verb, outcome: Resolution | None) -> bool:
    """Tell whether this decision lets the tool's handler start."""
    if kind == "outcome":
        return verb == "respond" and outcome == "did_not_happen"
    return kind == "approval" and verb in {"approve", "edit"}


def why_alone(kind: RequestKind, risk: str, quorum: int) -> str | None:
    """Return why a call can't be approved together with others, in words for people; None: it can."""
    if kind == "question":
        return "the agent asks a question, which needs an answer"
    if kind == "outcome":
        return "someone has to find out what happened to this call"
    if risk == "high":
        return "it is of high risk"
    return f"{quorum} people have to approve it" if quorum > 1 else None


# What happens to a message that someone sends while a run of its conversation works or waits.


WhileRunning = Literal["queue", "inject", "supersede"]
"""``queue``: a run of its own answers it as soon as this one has ended, however it ended. ``inject``: the model reads it
before its next step. ``supersede``: as ``inject``, and waiting requests end at once, because they are out of date."""
