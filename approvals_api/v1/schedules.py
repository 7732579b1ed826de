"""Schedules: create, list, show, change, pause, resume, run now, delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from turngate.approvals_api.http.dependencies import NAMES_NO_RUN, RunReaderDep, ServicesDep, SightDep, StarterDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.schedules import service as schedule_service
from turngate.approvals_api.schedules.order import MAX_NOTES_CHARS
from turngate.approvals_api.schedules.views import schedule_detail, schedule_page
from turngate.approvals_api.v1.bodies import InterruptBody, ModelName, Text, Workspace
from turngate.approvals_api.v1.new_runs import RUN_CREATED, started
from turngate.approvals_api.v1.parameters import Cursor, Id, IdempotencyKey, Instant, Limit
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.agents.schedules import (
    DEFAULT_CATCH_UP_SECONDS,
    MAX_CATCH_UP_SECONDS,
    MAX_EVERY_SECONDS,
    MAX_JITTER_SECONDS,
    MIN_CATCH_UP_SECONDS,
    Overlap,
    Timetable,
)
from turngate.domain.requests import UnattendedAsks
from turngate.wire.orders import ScheduleChange, ScheduleOrder
from turngate.wire.runs import RunSummary
from turngate.wire.schedules import ScheduleDetail, ScheduleView
from turngate.wire.view import Page

router = api_router("schedules")

ScheduleId = Annotated[
    str,
    Path(description="The schedule's id, such as `sched_5d0e…`, or its name.", max_length=255, pattern=STORABLE),
]
DELETED: Final[dict[int | str, dict[str, Any]]] = problems({409: "`schedule_deleted`"})


def _text(value: object) -> object:
    if value is not None and not isinstance(value, str):
        raise ValueError("an instant is a string")
    return value


class TimetableBody(Timetable):
    """When: ``cron`` (minute, hour, day of month, month, day of week) in ``time_zone``, or ``every_seconds`` from 1970 on.

    ``starts_at``, ``ends_at``: no fire before or after. ``jitter_seconds``: each fire is delayed by a random time up to this.
    """

    every_seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_EVERY_SECONDS)] | None = None
    starts_at: Annotated[Instant, BeforeValidator(_text)] | None = None
    ends_at: Annotated[Instant, BeforeValidator(_text)] | None = None
    jitter_seconds: Annotated[int, Field(strict=True, ge=0, le=MAX_JITTER_SECONDS)] = 0


Name = Annotated[
    str,
    Field(
        description="Unique; letters, digits, `.`, `_` and `-`, not beginning with `sched_`.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    ),
]
CatchUp = Annotated[int, Field(ge=MIN_CATCH_UP_SECONDS, le=MAX_CATCH_UP_SECONDS)]
Notes = Annotated[str, Field(max_length=MAX_NOTES_CHARS, pattern=STORABLE)]


class ScheduleBody(BaseModel):
    """Start a run whenever the timetable says so. The run is unattended, as with ``unattended`` of a run.

    ``conversation``: each run begins a ``new`` one, or they ``continue`` one: ``conversation_id``, or the schedule's own.
    ``overlap``: what happens to a fire while the run before it is live: ``skip`` it, let it wait for that run's end
    (``buffer_one``; further ones are skipped), or ``allow`` it. ``catch_up_seconds``: a fire that was not taken for longer
    than this, because Temporal or the workers were down, is missed.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Name
    agent: Id
    input: Text
    timetable: TimetableBody
    conversation: Literal["new", "continue"] = "new"
    conversation_id: Id | None = None
    workspace: Workspace | None = None
    model: ModelName | None = None
    unattended: UnattendedAsks = "park"
    overlap: Overlap = "skip"
    catch_up_seconds: CatchUp = DEFAULT_CATCH_UP_SECONDS
    notes: Notes = ""

    @property
    def order(self) -> ScheduleOrder:
        """The order that the API's operations take."""
        return ScheduleOrder.model_validate(self.model_dump())


class ScheduleChangeBody(BaseModel):
    """Change a schedule. ``revision``: the one that you changed. What is omitted, or ``null``, stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    revision: Annotated[int, Field(ge=1, le=2**31 - 1)]
    name: Name | None = None
    agent: Id | None = None
    input: Text | None = None
    timetable: TimetableBody | None = None
    workspace: Workspace | None = None
    model: ModelName | None = None
    unattended: UnattendedAsks | None = None
    overlap: Overlap | None = None
    catch_up_seconds: CatchUp | None = None
    notes: Notes | None = None

    @property
    def change(self) -> ScheduleChange:
        """The change that the API's operations take."""
        return ScheduleChange.model_validate(self.model_dump(exclude={"revision"}))


@router.post(
    "/schedules",
    dependencies=[NAMES_NO_RUN],
    status_code=HTTPStatus.CREATED,
    responses={
        201: {
            "description": "The schedule; the first one again for a repeated Idempotency-Key",
            "headers": {"Location": {"description": "Where the schedule is", "schema": {"type": "string"}}},
        },
        **problems({409: "`name_taken` or `idempotency_key_reused`"}),
    },
)
async def create_schedule(
    body: ScheduleBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ScheduleDetail:
    """Create a schedule.

    It is stored at once; `in_force` says whether Temporal already has it.
    """
    schedule = await schedule_service.create(services, principal, body.order, key=idempotency_key)
    response.headers["Location"] = f"/api/v1/schedules/{schedule.id}"
    return schedule


@router.get("/schedules")
async def list_schedules(
    services: ServicesDep, _principal: RunReaderDep, sight: SightDep, cursor: Cursor = None, limit: Limit = 50
) -> Page[ScheduleView]:
    """List schedules, newest first, without deleted ones. A machine's token that starts runs sees its own."""
    before = decode_cursor(cursor)
    return await schedule_page(services, limit=limit, before=before, created_by=sight.started_by)


@router.get("/schedules/{schedule_id}")
async def get_schedule(schedule_id: ScheduleId, services: ServicesDep, _principal: RunReaderDep) -> ScheduleDetail:
    """Show a schedule with its next and its last fires."""
    return await schedule_detail(services, schedule_id)


@router.patch(
    "/schedules/{schedule_id}",
    responses=problems({409: "`revision_differs`, `name_taken` or `schedule_deleted`"}),
)
async def change_schedule(
    schedule_id: ScheduleId, body: ScheduleChangeBody, services: ServicesDep, principal: StarterDep
) -> ScheduleDetail:
    """Change a schedule.

    It applies from the next fire on. Its owner, and whether its runs share a conversation, stay as they are.
    """
    return await schedule_service.update(services, principal, schedule_id, body.change, revision=body.revision)


@router.post("/schedules/{schedule_id}/pause", responses=DELETED)
async def pause_schedule(
    schedule_id: ScheduleId, services: ServicesDep, principal: StarterDep, body: InterruptBody | None = None
) -> ScheduleDetail:
    """Pause a schedule: no fire starts a run until it is resumed.

    Its live run continues. A repeat changes nothing.
    """
    return await schedule_service.pause(services, principal, schedule_id, reason="" if body is None else body.reason)


@router.post("/schedules/{schedule_id}/resume", responses=DELETED)
async def resume_schedule(schedule_id: ScheduleId, services: ServicesDep, principal: StarterDep) -> ScheduleDetail:
    """Resume a schedule from its next fire.

    Fires that were due while it was paused are not made up for.
    """
    return await schedule_service.resume(services, principal, schedule_id)


@router.post(
    "/schedules/{schedule_id}/run",
    status_code=HTTPStatus.CREATED,
    responses={
        **RUN_CREATED,
        **problems({409: "`run_live`, `schedule_deleted` or `idempotency_key_reused`"}),
    },
)
async def run_schedule(
    schedule_id: ScheduleId,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Start a run of a schedule now, also while the schedule is paused."""
    return started(await schedule_service.fire_now(services, principal, schedule_id, key=idempotency_key), response)


@router.delete("/schedules/{schedule_id}", responses=DELETED)
async def delete_schedule(schedule_id: ScheduleId, services: ServicesDep, principal: StarterDep) -> ScheduleDetail:
    """Delete a schedule: it never fires again. Its runs stay, and live ones continue."""
    return await schedule_service.delete(services, principal, schedule_id)
