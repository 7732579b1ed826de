"""External calls: another program runs them and asks Turngate whether it may."""

from __future__ import annotations

from typing import Final, Literal

from turngate.domain.tools.results import ToolResult
from turngate.domain.tools.tool import Effect
from turngate.wire.calls import CallRequest, ResultInPart
from turngate.wire.view import View

MAX_REPORT_CHARS: Final = 4_000_000
"""Of a reported result, as JSON. A program reports a part of a larger one, with the digest of the whole."""

ExternalState = Literal["planning", "waiting", "ready", "running", "unknown", "done"]


class ExternalCallView(View):
    """A call that another program runs. ``id``: of the run that represents it, with its timeline.

    ``state``: ``planning`` (policy has not answered), ``waiting`` (for a person), ``ready`` (it may be started), ``running``
    (the program may run it), ``unknown`` (no result was reported, so a person is asked), ``done`` (see ``result``).
    ``edited_input``: what runs in place of ``input``. ``request``: the newest; None if no one was asked.
    ``deadline_at``: until when the result of a running call may be reported.
    """

    id: str
    source: str
    tool_call_id: str
    tool_name: str
    effect: Effect
    state: ExternalState
    input: str
    edited_input: str | None = None
    request: CallRequest | None = None
    deadline_at: str | None = None
    result: ToolResult | None = None
    in_part: ResultInPart | None = None


class RunOrder(View):
    """What to run now: exactly ``input``, with ``idempotency_key``. Report the result before ``deadline_at``."""

    tool_name: str
    input: str
    edited: bool
    idempotency_key: str
    deadline_at: str


class ExternalStart(View):
    """The response to a program that wants to start a call. ``run`` None: do not run it; ``call`` has its state."""

    run: RunOrder | None
    call: ExternalCallView
