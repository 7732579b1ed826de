"""What stands around a run on its page: what its events say of the model, its budgets, and the step that comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from approvals_api.lookups import existing_run
from approvals_api.runs.budgets import Budgets, budgets_of
from approvals_api.runs.notes import CarriedOver, StepNotes, carried_over, step_notes
from turngate.domain.conversation.messages import DeltaKind
from turngate.domain.tools.external import is_external
from turngate.store.database import Connection
from turngate.store.live import deltas
from turngate.store.live.deltas import KEPT_PER_STEP
from turngate.wire.runs import RunDetail

MAX_SPOKEN_CHARS: Final = 50_000
"""Of one part, as in the module: what is said is read by people, and the whole of it comes when it is stored."""
NOTHING: Final = StepNotes()


@dataclass(kw_only=True)
class SpokenPart:
    """A part of a response that is being made, as far as it has come. ``in_part``: some of it is not shown."""

    kind: DeltaKind
    tool_name: str = ""
    text: str = ""
    in_part: bool = False


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """The step whose response does not stand yet. ``said``: so far; ``reset``: why what was said before is void."""

    step: int
    notes: StepNotes
    said: list[SpokenPart] = field(default_factory=list)
    reset: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunAround:
    """``next``: None while calls are open, and of a run that nothing goes on in. ``began_with``: a summary of another's past."""

    notes: Mapping[int, StepNotes]
    budgets: Budgets
    next: NextStep | None
    began_with: CarriedOver | None = None

    def of(self, step: int) -> StepNotes:
        """Return a step's notes."""
        return self.notes.get(step, NOTHING)

    @property
    def state(self) -> str:
        """A text that differs when what stands around differs; not with each word of the model, which is shown live."""
        counted = [f"{step} {len(each.attempts)} {len(each.switches)}" for step, each in sorted(self.notes.items())]
        used = [f"{each.budget} {each.used} {each.most}" for each in self.budgets.uses]
        return " ".join([*counted, *used, "" if self.next is None else str(self.next.step)])


async def around_of(conn: Connection, run: RunDetail) -> RunAround:
    """Return what stands around a run that was read on the same connection."""
    notes = await step_notes(conn, run.id)
    budgets = await budgets_of(conn, await existing_run(conn, run.id))
    coming = None
    if run.status == "running" and not is_external(run.agent) and _is_settled(run):
        step = run.steps[-1].step + 1 if run.steps else 1
        coming = await _coming(conn, run.id, NextStep(step=step, notes=notes.get(step, NOTHING)))
    began_with = None if run.forked_from_run_id is None else await carried_over(conn, run.id)
    return RunAround(notes=notes, budgets=budgets, next=coming, began_with=began_with)


def _is_settled(run: RunDetail) -> bool:
    return not run.steps or all(call.result is not None for call in run.steps[-1].calls)


async def _coming(conn: Connection, run_id: str, coming: NextStep) -> NextStep:
    """Return the step with what its newest attempt has said."""
    every = await deltas.after(conn, 0, ended_from=0, run_ids=[run_id], limit=KEPT_PER_STEP + 1)
    newest = max((row.attempt for row in every if row.step == coming.step), default=None)
    rows = [row for row in every if row.step == coming.step and row.attempt == newest]
    first = rows[0] if rows else None
    parts: dict[int, SpokenPart] = {}
    reset = None
    for row in rows:
        if row.reset is not None:
            parts, reset = {}, row.reset
        for said in row.deltas:
            part = parts.setdefault(said.part, SpokenPart(kind=said.kind))
            part.tool_name = part.tool_name or said.tool_name
            part.in_part |= (
                row.dropped > 0 or (row is first and row.n > 1) or len(part.text + said.text) > MAX_SPOKEN_CHARS
            )
            part.text = (part.text + said.text)[-MAX_SPOKEN_CHARS:]
    return NextStep(step=coming.step, notes=coming.notes, said=list(parts.values()), reset=reset)
