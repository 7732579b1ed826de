"""Activity ``open_scheduled``: record the run of a schedule's fire. Its workflow starts it."""

from __future__ import annotations

import structlog
from temporalio import activity

from turngate.activities.engine.engine import Engine
from turngate.domain import contract
from turngate.domain.contract import ChildRun, OpenScheduledInput, OpenScheduledResult
from turngate.store.runs import runs
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedule_fires import AgentAtFire

log = structlog.get_logger(__name__)


class OpenScheduled:
    """Records the run of a schedule's fire, or why there is none."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @activity.defn(name=contract.OPEN_SCHEDULED)
    async def open_scheduled(self, order: OpenScheduledInput) -> OpenScheduledResult:
        """Record the run of a fire, or note why there is none. Safe to repeat: the same fire has one run.

        An instant that the stored timetable does not have opens nothing, and one that is to come waits (I13).
        It is retried while the store is away, and when someone starts a run in the same conversation at this moment.
        """
        async with self._engine.database.write() as conn:
            schedule = await schedules.get(conn, order.schedule_id)
            agent = None if schedule is None else self._engine.agents.get(schedule.agent)
            known = None if agent is None else AgentAtFire(version=agent.version, model=agent.model)
            fire = await schedule_fires.settle(conn, order.schedule_id, order.fire_at, known)
            run = None if fire is None or fire.run_id is None else await runs.get(conn, fire.run_id)
        if fire is None:
            log.warning("a fire that its schedule does not have now was ignored", **order.model_dump(mode="json"))
        if fire is not None and fire.outcome == "waiting":
            return OpenScheduledResult(waits=True)
        if agent is None or run is None or run.status != "running":
            return OpenScheduledResult()
        return OpenScheduledResult(run=ChildRun(run_id=run.id, agent=run.agent, limits=agent.limits.for_run()))
