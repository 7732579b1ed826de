"""What happened to a run's model, step by step: failed attempts, switches, fallbacks, summaries that could not be written.

Reads the events. A step that has no response yet has notes, too: they say what it waits for.
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
    """One failed attempt to get a response. ``was_shown``: watchers have seen some of its words."""

    failure: ModelAttempt
    was_shown: bool

    @property
    def again_at(self) -> str | None:
        """When it is tried again; None: as soon as Temporal's retry policy allows."""
        wait = self.failure.retry_in_seconds
        return None if wait is None else as_text(from_text(self.failure.at) + timedelta(seconds=wait))


@dataclass(frozen=True, kw_only=True)
class UnfinishedAnswer:
    """The beginning of what the model had written when its request failed. Nothing of it ran or was stored as a message."""

    attempt: int
    text: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A person switched the run to another model from this step on."""

    by: str
    was: str
    now: str
    at: str


@dataclass(frozen=True, kw_only=True)
class StepNotes:
    """Notes on one step's model, each kind oldest first. ``not_summarised``: why, in words."""

    attempts: list[FailedAttempt] = field(default_factory=list)
    unfinished: list[UnfinishedAnswer] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    fallbacks: list[ModelFallback] = field(default_factory=list)
    not_summarised: list[str] = field(default_factory=list)

    @property
    def waits_until(self) -> str | None:
        """When the request is sent again; None: nothing failed, or the model was switched since and is called now."""
        if not self.attempts or (self.switches and self.switches[-1].at >= self.attempts[-1].failure.at):
            return None
        return self.attempts[-1].again_at


@dataclass(frozen=True, kw_only=True)
class CarriedOver:
    """A run that began with a summary of ``messages`` messages of the run it was forked from. ``model``: its author."""

    messages: int
    model: str


async def carried_over(conn: Connection, run_id: str) -> CarriedOver | None:
    """Return the summary that a run began with; None: it shares the past of another run, or has none."""
    notes = await _newest(conn, run_id, "context.carried_over")
    return CarriedOver(messages=notes[-1].payload["messages"], model=notes[-1].payload["model"]) if notes else None


async def step_notes(conn: Connection, run_id: str) -> dict[int, StepNotes]:
    """Return the notes of a run by step."""
    notes: defaultdict[int, StepNotes] = defaultdict(StepNotes)
    for each in await _newest(conn, run_id, "model.retrying"):
        attempt = FailedAttempt(
            failure=ModelAttempt(at=each.created_at, **each.payload), was_shown=bool(each.payload.get("shown"))
        )
        notes[attempt.failure.step].attempts.append(attempt)
    for each in await _newest(conn, run_id, "model.broke_off"):
        answer = UnfinishedAnswer(attempt=each.payload["attempt"], text=each.payload["text"], at=each.created_at)
        notes[each.payload["step"]].unfinished.append(answer)
    for each in await _newest(conn, run_id, "run.model_switched"):
        payload = each.payload
        if "by" in payload:  # a control call of the model shows in its step anyway
            switch = Switch(by=payload["by"], was=payload["from"], now=payload["to"], at=each.created_at)
            notes[payload["step"] + 1].switches.append(switch)
    for each in await _newest(conn, run_id, "run.model_fell_back"):
        notes[each.payload["step"]].fallbacks.append(fallback(each))
    for each in await _newest(conn, run_id, "context.compaction_skipped"):
        why = not_summarised(each.payload["reason"], error_class=each.payload["error_class"])
        notes[each.payload["step"]].not_summarised.append(why)
    return dict(notes)


def fallback(event: Event) -> ModelFallback:
    """Return the fallback of an event ``run.model_fell_back``."""
    return ModelFallback(
        step=event.payload["step"],
        instead_of=event.payload["from"],
        model=event.payload["to"],
        error_class=event.payload["error_class"],
        message=event.payload["message"],
        at=event.created_at,
    )


async def _newest(conn: Connection, run_id: str, kind: str) -> list[Event]:
    return list(reversed(await events.newest(conn, run_id, kind, limit=MAX_NOTES)))
