"""What the events say of a run's model, step by step: failed attempts, switches, fallbacks, summaries that did not come about.

Reads the store. A step that has no response yet has notes, too: they say what it waits for.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from turngate.domain.conversation.summaries import not_summarised
from turngate.store.clock import as_text, from_text
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.events import Event
from turngate.wire.explanation import ModelAttempt, ModelFallback

MAX_NOTES: Final = 200
"""Of each kind; the newest ones."""


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """One attempt to get a response that failed. ``shown``: watchers had seen some of what it said."""

    told: ModelAttempt
    shown: bool

    @property
    def again_at(self) -> str | None:
        """When it is tried again; None: as soon as Temporal's policy lets it."""
        wait = self.told.retry_in_seconds
        return None if wait is None else as_text(from_text(self.told.at) + timedelta(seconds=wait))


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A person let another model answer from this step on."""

    by: str
    was: str
    now: str
    at: str


@dataclass(frozen=True, kw_only=True)
class StepNotes:
    """What is to be said of one step's model, each kind oldest first. ``not_summarised``: why, in words."""

    attempts: list[FailedAttempt] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    fallbacks: list[ModelFallback] = field(default_factory=list)
    not_summarised: list[str] = field(default_factory=list)

    @property
    def waits_until(self) -> str | None:
        """When the request is sent again; None: nothing failed, or somebody switched the model since, who is asked now."""
        if not self.attempts or (self.switches and self.switches[-1].at >= self.attempts[-1].told.at):
            return None
        return self.attempts[-1].again_at


@dataclass(frozen=True, kw_only=True)
class CarriedOver:
    """A run began with a summary of so many messages of the run it was forked from. ``model``: who wrote it."""

    messages: int
    model: str


async def carried_over(conn: Connection, run_id: str) -> CarriedOver | None:
    """Return what a run began with in place of another one's past; None: it shares that past, or has none."""
    told = await _told(conn, run_id, "context.carried_over")
    return CarriedOver(messages=told[-1].payload["messages"], model=told[-1].payload["model"]) if told else None


async def step_notes(conn: Connection, run_id: str) -> dict[int, StepNotes]:
    """Return the notes of a run by step."""
    found: defaultdict[int, StepNotes] = defaultdict(StepNotes)
    for each in await _told(conn, run_id, "model.retrying"):
        attempt = FailedAttempt(
            told=ModelAttempt(at=each.created_at, **each.payload), shown=bool(each.payload.get("shown"))
        )
        found[attempt.told.step].attempts.append(attempt)
    for each in await _told(conn, run_id, "run.model_switched"):
        said = each.payload
        if "by" in said:  # a call of the model's own that switches it says so itself
            switch = Switch(by=said["by"], was=said["from"], now=said["to"], at=each.created_at)
            found[said["step"] + 1].switches.append(switch)
    for each in await _told(conn, run_id, "run.model_fell_back"):
        found[each.payload["step"]].fallbacks.append(fallback(each))
    for each in await _told(conn, run_id, "context.compaction_skipped"):
        why = not_summarised(each.payload["reason"], error_class=each.payload["error_class"])
        found[each.payload["step"]].not_summarised.append(why)
    return dict(found)


def fallback(told: Event) -> ModelFallback:
    """Return what an event ``run.model_fell_back`` says."""
    return ModelFallback(
        step=told.payload["step"],
        instead_of=told.payload["from"],
        model=told.payload["to"],
        error_class=told.payload["error_class"],
        message=told.payload["message"],
        at=told.created_at,
    )


async def _told(conn: Connection, run_id: str, kind: str) -> list[Event]:
    return list(reversed(await events.newest(conn, run_id, kind, limit=MAX_NOTES)))
