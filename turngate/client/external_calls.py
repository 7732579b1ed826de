"""Calls that your own program runs, once Turngate says that it may."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import httpx

from turngate.client.calls import Call, get, post, segment, without_none
from turngate.client.calls import model as read_as
from turngate.domain.tools.results import Failure, Ok
from turngate.wire.external_calls import ExternalCallView, ExternalStart
from turngate.wire.orders import ExternalCallOrder
from turngate.wire.view import Page

LONGEST_WAIT: Final = 10
"""Seconds that one call waits for an answer: below the client's own time-out. Ask again for more."""


def send_external_call(order: ExternalCallOrder, *, wait: int = 0) -> Call[ExternalCallView]:
    """Ask whether a call may run that this program would run itself, and return its state.

    Safe to repeat: the same source and id again is the same call, also from another process.

    Args:
        order: the call, its tool and where it comes from.
        wait: seconds to wait for an answer, 0 to 10 with the client's own time-out.

    Raises:
        InvalidInputError: something does not fit; ``details["errors"]`` says what.
        ConflictError: ``call_id_reused``: another call was sent under this id.
    """
    body = without_none(order.model_dump(mode="json"))
    return replace(post("/external-calls", _call, body), params={"wait": wait} if wait else {}, same_again=True)


def list_external_calls(*, source: str, limit: int = 50, cursor: str | None = None) -> Call[Page[ExternalCallView]]:
    """Return one page of the calls that this credential has open under a source, oldest first. ``limit``: 1 to 200."""
    return get("/external-calls", read_as(Page[ExternalCallView]), source=source, limit=limit, cursor=cursor)


def get_external_call(call_id: str, *, wait: int = 0) -> Call[ExternalCallView]:
    """Return a call as soon as it is ``ready`` or ``done``, or after ``wait`` seconds. Raises NotFoundError."""
    return get(f"/external-calls/{segment(call_id)}", _call, wait=wait or None)


def start_external_call(call_id: str, *, attempt: str) -> Call[ExternalStart]:
    """Redeem the answer for one attempt, and return what to run; run nothing unless ``run`` is there.

    ``attempt``: 8 to 64 characters that name this try; the same again gets the same answer.

    Raises:
        ConflictError: ``not_ready``; ``already_started``: another attempt runs a call that must not run twice.
        ForbiddenError: ``not_sender``.
    """
    call = post(f"/external-calls/{segment(call_id)}/start", read_as(ExternalStart), {"attempt": attempt})
    return replace(call, same_again=True)


def report_external_call(call_id: str, *, attempt: str, result: Ok | Failure | None) -> Call[ExternalCallView]:
    """Report the result of a call that this attempt ran. The same report again changes nothing.

    ``result`` None: the program does not know; of a call that runs once a person is asked whether it happened.

    Raises ConflictError ``not_started``, ``reported`` (something else was) or ``too_late``.
    """
    body = {"attempt": attempt, "result": None if result is None else result.model_dump(mode="json")}
    return replace(post(f"/external-calls/{segment(call_id)}/result", _call, body), same_again=True)


def _call(response: httpx.Response) -> ExternalCallView:
    return ExternalCallView.model_validate_json(response.content)
