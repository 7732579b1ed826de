"""ScheduledStart: one fire of a schedule, from Temporal's clock to the workflow of the run that it opens.

The store decides whether a run is opened, because it knows every live run (docs/adr/0018). No content passes through here.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import (
        AgentTurnInput,
        ChildRun,
        OpenScheduledInput,
        OpenScheduledResult,
        ScheduledStartInput,
    )
    from turngate.workflows import activity_options
    from turngate.workflows.labels import labels_of_child

FIRE_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
"""The instant on the timetable, jitter apart (https://docs.temporal.io/schedule)."""
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)


@workflow.defn(name=contract.SCHEDULED_START)
class ScheduledStart:
    """One fire. It ends when its run is started, or when there is none to start; it does not wait for the run's end."""

    @workflow.run
    async def run(self, start: ScheduledStartInput) -> str | None:
        """Record the run in the store, then start it; returns its id."""
        fire_at = start.fire_at or _fire_at()
        run = await self._opened(start, OpenScheduledInput(schedule_id=start.schedule_id, fire_at=fire_at))
        if run is None:
            return None
        limits = run.limits.with_heartbeat(start.heartbeat_timeout_seconds)
        with suppress(ChildWorkflowError, WorkflowAlreadyStartedError):
            await workflow.start_child_workflow(
                contract.AGENT_TURN,
                AgentTurnInput(run_id=run.run_id, agent=run.agent, limits=limits),
                id=run.run_id,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                **labels_of_child(run, "schedule"),
            )
        return run.run_id

    async def _opened(self, start: ScheduledStartInput, order: OpenScheduledInput) -> ChildRun | None:
        """Return the run to start, or None. While another run has to end first, ask the store again."""
        pause = FIRST_PAUSE
        while True:
            opened: OpenScheduledResult = await workflow.execute_activity(
                contract.OPEN_SCHEDULED, order, result_type=OpenScheduledResult, **activity_options.OPEN_SCHEDULED
            )
            if not opened.waits:
                return opened.run
            if workflow.info().is_continue_as_new_suggested():  # a run may wait for a person for weeks
                newest = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                carried = start.model_copy(update={"fire_at": order.fire_at})
                workflow.continue_as_new(carried, initial_versioning_behavior=newest)
            await workflow.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _fire_at() -> datetime:
    """Return the fire's instant; of a workflow that was started by hand, when it was."""
    return workflow.info().typed_search_attributes.get(FIRE_AT) or workflow.info().workflow_start_time
