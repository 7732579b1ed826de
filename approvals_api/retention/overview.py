"""What retention has done and will do: for the page, the API, the command line and the health check."""

from __future__ import annotations

import asyncio

from approvals_api.retention.apply import next_at, read_rules
from approvals_api.settings import RetentionSettings
from turngate.domain.errors import ConfigurationError
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.retention import retention_runs
from turngate.store.retention.retention_runs import RetentionRun
from turngate.wire.retention import RetentionRunView, RetentionStatus


async def retention_status(database: Database, settings: RetentionSettings | None, *, runs: int) -> RetentionStatus:
    """Return when retention ran, newest first, at most ``runs`` times, and when it runs next."""
    async with database.read() as conn:
        newest = await retention_runs.newest(conn, limit=runs)
    views = [run_view(each) for each in newest]
    if settings is None:
        return RetentionStatus(file=None, every_seconds=None, next_at=None, problem="", runs=views)
    problem = ""
    try:
        await asyncio.to_thread(read_rules, settings.file)
    except ConfigurationError as error:
        problem = error.message
    due = await next_at(database, settings)
    return RetentionStatus(
        file=settings.file.name,
        every_seconds=None if settings.every is None else int(settings.every.total_seconds()),
        next_at=None if due is None else as_text(max(due, now())),
        problem=problem,
        runs=views,
    )


def run_view(run: RetentionRun) -> RetentionRunView:
    """Return one application of the rules as the API shows it."""
    state = "ended"
    if run.ended_at is None:
        state = "running" if run.is_held(now()) else "broken off"
    columns = {name: value for name, value in vars(run).items() if name in RetentionRunView.model_fields}
    return RetentionRunView.model_validate({**columns, "state": state, "counts": run.counted})
