"""What a credential may start, and whose runs it may read and steer (I13).

The token of a machine that starts runs reads and steers only the ones it started. A token's bounds narrow what it starts and
continues: to stop or pause a run, its name is enough.

A person, and the token of one, sees every run that their role shows. So does a machine that watches or decides and starts
nothing. ``runs:all`` lifts the limit for a machine that does start runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.principal import Principal
from turngate.domain.errors import ForbiddenError
from turngate.domain.tools.external import is_external, source_of
from turngate.runtime.workspaces import leads_below
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.store.runs.runs import Run
from turngate.store.schedules import schedules
from turngate.store.schedules.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Whose runs a principal may see. ``started_by``: only those that this one started; None: everyone's."""

    started_by: str | None

    async def run(self, database: Database, run_id: str | None) -> str | None:
        """Return the run that a list is narrowed to, or None for no run.

        Raises ForbiddenError (code ``not_own_run``) where the principal has to name a run of its own and doesn't.
        """
        if self.started_by is None:
            return run_id
        async with database.glance() as conn:
            run = None if run_id is None else await runs.get(conn, run_id)
        if run is None or run.started_by != self.started_by:
            raise shows_others(self.started_by)
        return run.id


def sight_of(principal: Principal) -> Sight:
    """Return whose runs a principal may see."""
    own = principal.machine and "runs:write" in principal.scopes and not principal.may("runs:all")
    return Sight(started_by=principal.name if own else None)


def only_own(principal: Principal) -> bool:
    """Tell whether the principal may name only runs that it started."""
    return sight_of(principal).started_by is not None


def require_own(principal: Principal, run: Run) -> None:
    """Raise ForbiddenError (code ``not_own_run``) for a run that this principal may not name."""
    if only_own(principal) and run.started_by != principal.name:
        raise _not_own(principal, f"run {run.id}")


async def own_run(conn: Connection, principal: Principal, run_id: str) -> Run:
    """Return a run that this principal may name. Raises NotFoundError or ForbiddenError."""
    run = await existing_run(conn, run_id)
    require_own(principal, run)
    return run


async def run_to_continue(conn: Connection, principal: Principal, run_id: str) -> Run:
    """Return a run that this principal may continue or steer: its own, and one that its token may start.

    Raises NotFoundError or ForbiddenError.
    """
    run = await own_run(conn, principal, run_id)
    await require_bounds(principal, run.agent, run.workspace)
    return run


async def require_own_conversation(conn: Connection, principal: Principal, conversation_id: str) -> None:
    """Raise ForbiddenError unless the principal may continue and read a conversation: it started every run in it.

    A conversation that someone else has joined is no longer the machine's own: it would read what they wrote.
    """
    if not only_own(principal):
        return
    starters = await runs.starters_in(conn, conversation_id)
    if starters - {principal.name}:
        raise _not_own(principal, f"conversation {conversation_id}")


async def require_own_request(conn: Connection, principal: Principal, request_id: str) -> None:
    """Raise ForbiddenError unless the principal may read the run that this request belongs to; pass an unknown one."""
    if not only_own(principal):
        return
    request = await requests.get(conn, request_id)
    if request is not None:
        await own_run(conn, principal, request.run_id)


async def require_own_schedule(conn: Connection, principal: Principal, id_or_name: str) -> None:
    """Raise ForbiddenError unless the principal may read this schedule; pass an unknown one."""
    if not only_own(principal):
        return
    schedule = await schedules.find(conn, id_or_name)
    if schedule is not None and schedule.created_by != principal.name:
        raise _not_own(principal, f"schedule {schedule.name}")


def require_maker(principal: Principal, schedule: Schedule) -> None:
    """Raise ForbiddenError unless the principal made this schedule, or is an admin.

    Its runs carry its maker's name: if anyone else could say what they do, they could decide about it themselves.
    """
    if schedule.created_by != principal.name and not principal.may("admin"):
        raise ForbiddenError(
            f"{schedule.created_by!r} made the schedule {schedule.name}: only they or an admin may change it. "
            "Make one of your own.",
            code="not_your_schedule",
            created_by=schedule.created_by,
        )


def shows_others(name: str) -> ForbiddenError:
    """Return the refusal of what shows everyone's runs, to the principal of this name, which may see only its own."""
    return ForbiddenError(
        f"{name!r} may read only what belongs to runs it started: name one of them (/runs/{{id}}, or run_id=… where a list "
        "takes it), or use a token with the scope runs:all",
        code="not_own_run",
        needed=["runs:all"],
    )


async def require_bounds(principal: Principal, agent: str, workspace: str | None) -> None:
    """Raise ForbiddenError (code ``beyond_token``) unless this token may start a run of the agent in the directory.

    ``agent``: an agent's name, or that of a source of external calls. Blocking calls run in a thread.
    """
    bounds = principal.bounds
    if is_external(agent):
        source = source_of(agent)
        if not bounds.allow_source(source):
            raise _beyond(principal, f"send calls of the source {source!r}", f"--source {source}")
        return
    if not bounds.allow_agent(agent):
        raise _beyond(principal, f"start runs of the agent {agent!r}", f"--agent {agent}")
    if workspace is None or bounds.workspaces is None:
        return
    if not await asyncio.to_thread(leads_below, workspace, bounds.workspaces):
        raise _beyond(principal, f"start runs in {workspace!r}", "--workspace DIRECTORY")


def _beyond(principal: Principal, what: str, option: str) -> ForbiddenError:
    return ForbiddenError(
        f"this token of {principal.name!r} may not {what}: use one that `turngate token` made with {option}",
        code="beyond_token",
    )


def _not_own(principal: Principal, what: str) -> ForbiddenError:
    return ForbiddenError(
        f"{principal.name!r} did not start {what}, and this token may name only what it started: use a token with the "
        "scope runs:all",
        code="not_own_run",
        needed=["runs:all"],
    )
