"""What stood in the place of a conversation's beginning, at the steps of a run where that changed."""

from __future__ import annotations

from collections.abc import Sequence

from turngate.store.database import Connection
from turngate.store.runs import summaries
from turngate.wire.runs import CutView, StepView


async def with_cuts(conn: Connection, run_id: str, steps: Sequence[StepView]) -> list[StepView]:
    """Return the steps of a run, each with the cut that was made before its request."""
    made = {cut.step: CutView.model_validate(cut) for cut in await summaries.of_run(conn, run_id)}
    return [step.model_copy(update={"cut": made.get(step.step)}) for step in steps]
