"""External calls, which another program runs: may it run one, with which arguments, and what was the result."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turngate.approvals_api.external_calls import service as external_service
from turngate.approvals_api.http.dependencies import NAMES_NO_RUN, RunReaderDep, ServicesDep, StarterDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.requests.answer_check import MAX_ARGS_CHARS
from turngate.approvals_api.v1.parameters import Cursor, Limit
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.tools.external import MAX_MESSAGES, SOURCE, ExternalMessage, ExternalTool
from turngate.domain.tools.results import TOOL_RESULT
from turngate.wire.external_calls import ExternalCallView, ExternalStart
from turngate.wire.orders import ExternalCallOrder, ReportOrder
from turngate.wire.view import Page

# Bodies.


MAX_WAIT_SECONDS: Final = 60
MAX_CONTEXT_CHARS: Final = 20_000

Attempt = Annotated[
    str,
    Field(
        pattern=r"^[!-~]{8,64}$",
        description="An id of your choice for this attempt to run the call: 8 to 64 printable ASCII characters. The same id "
        "repeats the attempt.",
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExternalCallBody(_Body):
    """A call that its sender wants to run. ``input``: the arguments, as the exact JSON text that will run.

    ``context``: more for the person who decides, such as the model's own words. ``turn``: your id for the part of a
    conversation in which the call was made, such as one message of a user and everything that follows from it.
    """

    source: Annotated[str, Field(pattern=rf"^{SOURCE.pattern}$", description="Names your program in policy and inbox.")]
    tool_call_id: Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]
    tool: ExternalTool
    input: Annotated[str, Field(max_length=MAX_ARGS_CHARS, pattern=STORABLE)]
    context: Annotated[str, Field(max_length=MAX_CONTEXT_CHARS, pattern=STORABLE)] = ""
    turn: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=255,
            pattern=STORABLE,
            description="A call that a person rejected in a turn is closed without a request when it is sent again in that turn. "
            "Without a turn: for an hour, in every conversation of the source.",
        ),
    ] = None
    conversation: Annotated[
        list[ExternalMessage],
        Field(
            max_length=MAX_MESSAGES,
            description="What led to the call, oldest first, at most 200,000 characters. People see the task, the newest message "
            "and where the arguments come from, marked as told by your program. No rule believes it.",
        ),
    ] = []

    @property
    def order(self) -> ExternalCallOrder:
        """The order that the API's operations take."""
        return ExternalCallOrder(**{**dict(self), "conversation": tuple(self.conversation)})


class StartBody(_Body):
    """Start a call."""

    attempt: Attempt


class ReportedOk(_Body):
    """The call ran to its end."""

    tag: Literal["ok"]
    value: dict[str, JsonValue]


class ReportedFailure(_Body):
    """The call ran and failed, or could not run."""

    tag: Literal["failure"]
    kind: Annotated[str, Field(min_length=1, max_length=64, pattern=STORABLE)]
    reason: Annotated[str, Field(max_length=MAX_CONTEXT_CHARS, pattern=STORABLE)] = ""
    fields: dict[str, JsonValue] = {}


class ReportBody(_Body):
    """Report a call's result. A failure's ``kind`` is your own word, ``tool_failure`` or ``nothing_happened``.

    ``result`` null: you don't know whether it happened. For a call that must not run twice, a person is asked; also of one that
    you report as ``execution_error`` or ``timeout``, which don't say it.
    """

    attempt: Attempt
    result: Annotated[ReportedOk | ReportedFailure, Field(discriminator="tag")] | None

    @property
    def order(self) -> ReportOrder:
        """The order that the API's operations take, with the result as the engine stores it."""
        result = None if self.result is None else TOOL_RESULT.validate_python(self.result.model_dump())
        return ReportOrder(attempt=self.attempt, result=result)


router = api_router("external calls")

CallId = Annotated[str, Path(description="The call's `id`, such as `run_4f1c…`.", max_length=255, pattern=STORABLE)]
Wait = Annotated[
    int,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Seconds to wait for an answer. After them the call is returned in its current state.",
    ),
]


@router.post(
    "/external-calls",
    dependencies=[NAMES_NO_RUN],
    status_code=HTTPStatus.CREATED,
    responses=problems({409: "`call_id_reused`: another call was sent under this id"}),
)
async def send_external_call(
    body: ExternalCallBody, services: ServicesDep, principal: StarterDep, response: Response, wait: Wait = 0
) -> ExternalCallView:
    """Ask whether you may run a call yourself.

    Policy or a person answers. The same `source` and `tool_call_id` again is the same call and gets the same answer.
    """
    view = await external_service.send(services, principal, body.order, wait_seconds=wait)
    response.headers["Location"] = f"/api/v1/external-calls/{view.id}"
    return view


@router.get("/external-calls", dependencies=[NAMES_NO_RUN])
async def list_external_calls(
    services: ServicesDep,
    principal: RunReaderDep,
    source: Annotated[
        str, Query(pattern=rf"^{SOURCE.pattern}$", description="The source that the calls were sent under.")
    ],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[ExternalCallView]:
    """List your open calls of a source, oldest first: to continue them after a restart."""
    return await external_service.list_open(services, principal, source, limit=limit, cursor=cursor)


@router.get("/external-calls/{call_id}", responses=problems({404: "No such call"}))
async def get_external_call(
    call_id: CallId, services: ServicesDep, _principal: RunReaderDep, wait: Wait = 0
) -> ExternalCallView:
    """Show a call, as soon as it is `ready` or `done` or the time to wait is over."""
    return await external_service.look(services, call_id, wait_seconds=wait)


@router.post(
    "/external-calls/{call_id}/start",
    responses=problems(
        {404: "No such call", 409: "`not_ready`, or `already_started` by another attempt of a call that runs once"}
    ),
)
async def start_external_call(
    call_id: CallId, body: StartBody, services: ServicesDep, principal: StarterDep
) -> ExternalStart:
    """Redeem the answer, and get exactly what to run. Run nothing unless the answer has `run`.

    The same `attempt` again gets the same answer, so a lost answer can be fetched again.
    """
    return await external_service.start(services, principal, call_id, attempt=body.attempt)


@router.post(
    "/external-calls/{call_id}/result",
    responses=problems({404: "No such call", 409: "`not_started`, `reported` or `too_late`"}),
)
async def report_external_call(
    call_id: CallId, body: ReportBody, services: ServicesDep, principal: StarterDep
) -> ExternalCallView:
    """Report the result of a call that you started. The same report again changes nothing."""
    return await external_service.report(services, principal, call_id, body.order)
