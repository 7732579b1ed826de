"""The context of a run on its page: what it waits for, notes on its model, its budgets, and the step that comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.runs.budgets import Budgets, budgets_of
from turngate.approvals_api.runs.explain import waits_of
from turngate.approvals_api.runs.notes import CarriedOver, StepNotes, carried_over, step_notes
from turngate.approvals_api.runs.remedies import for_stall
from turngate.approvals_api.runs.stalled import is_stalled
from turngate.approvals_api.runs.views import delta_view
from turngate.approvals_api.services import Services
from turngate.domain.tools.external import is_external
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.live import deltas
from turngate.store.live.deltas import MAX_ROWS_PER_STEP
from turngate.store.requests.requests import ListedRequest
from turngate.wire.explanation import NextAction, WaitKind, WaitReason
from turngate.wire.runs import RunDetail, StepView
from turngate.wire.streamed import Streamed, StreamedPart

MAX_SPOKEN_CHARS: Final = 50_000
"""Of one part, as in the script: people read the words as they stream, and the whole response follows when it is stored."""
NOTHING: Final = StepNotes()
STALLED_AFTER: Final = timedelta(minutes=1)
"""How long a person, a tool or a model may take before a run counts as stalled."""
LOOK_WITHIN: Final = timedelta(seconds=1)
"""How long the page of a run waits for Temporal's answer."""
ON_THE_PAGE_ALREADY: Final[frozenset[WaitKind]] = frozenset({"paused", "model_retrying"})
"""What the page of a run has anyway, with the form that ends it."""


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The step whose response is not complete. ``spoken``: the words so far; ``reset``: why earlier words are void."""

    step: int
    notes: StepNotes
    spoken: list[StreamedPart] = field(default_factory=list)
    reset: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """``next``: None while calls are open, and for a run that does not continue. ``began_with``: a summary of another's past."""

    notes: Mapping[int, StepNotes]
    budgets: Budgets
    next: NextStep | None
    began_with: CarriedOver | None = None

    def of(self, step: int) -> StepNotes:
        """Return a step's notes."""
        return self.notes.get(step, NOTHING)

    def after(self, steps: Sequence[StepView]) -> StepNotes:
        """Return the notes of the step after these, which has no response."""
        return self.of(steps[-1].step + 1 if steps else 1)

    @property
    def state(self) -> str:
        """A text that differs when the context differs; not with each word of the model, which is shown live."""
        counted = [f"{step} {len(each.attempts)} {len(each.switches)}" for step, each in sorted(self.notes.items())]
        used = [f"{each.budget} {each.used} {each.most}" for each in self.budgets.uses]
        return " ".join([*counted, *used, "" if self.next is None else str(self.next.step)])


async def context_of(conn: Connection, run: RunDetail) -> RunContext:
    """Return the context of a run that was read on the same connection."""
    notes = await step_notes(conn, run.id)
    budgets = await budgets_of(conn, await existing_run(conn, run.id))
    coming = None
    if run.status == "running" and not is_external(run.agent) and _is_settled(run):
        step = run.steps[-1].step + 1 if run.steps else 1
        coming = await _coming(conn, run.id, NextStep(step=step, notes=notes.get(step, NOTHING)))
    began_with = None if run.forked_from_run_id is None else await carried_over(conn, run.id)
    return RunContext(notes=notes, budgets=budgets, next=coming, began_with=began_with)


async def stalls_of(
    services: Services, run: RunDetail, pending: Sequence[ListedRequest]
) -> list[tuple[WaitReason, NextAction | None]]:
    """Return what holds a live run up, and what to do about each; empty: nothing, or it has ended. Not in a transaction."""
    waits_for = await waits_of(services, run, pending, within=LOOK_WITHIN) or []
    at = now()
    return [
        (each, for_stall(run, each))
        for each in waits_for
        if each.kind not in ON_THE_PAGE_ALREADY and is_stalled(each, at, STALLED_AFTER)
    ]


def _is_settled(run: RunDetail) -> bool:
    return not run.steps or all(call.result is not None for call in run.steps[-1].calls)


async def _coming(conn: Connection, run_id: str, coming: NextStep) -> NextStep:
    """Return the step with the words of its newest attempt."""
    every = await deltas.after(conn, 0, ended_from=0, run_ids=[run_id], limit=MAX_ROWS_PER_STEP + 1)
    streamed = Streamed(most=MAX_SPOKEN_CHARS)
    for row in every:
        if row.step == coming.step:
            streamed.take(delta_view(row))
    spoken = list(streamed.parts.values())
    return NextStep(step=coming.step, notes=coming.notes, spoken=spoken, reset=streamed.void or None)
