"""An external call as its sender sees it: one state, from its call, requests and execution."""

from __future__ import annotations

from turngate.approvals_api.runs.step_views import in_part
from turngate.domain.errors import NotFoundError
from turngate.domain.tools.external import source_of
from turngate.domain.tools.results import Failure
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import executions, external_calls, runs
from turngate.store.runs.calls import Call
from turngate.store.runs.executions import Execution
from turngate.store.runs.external_calls import ExternalCall
from turngate.store.runs.runs import Run
from turngate.wire.calls import CallRequest
from turngate.wire.external_calls import ExternalCallView, ExternalState


async def external_view(conn: Connection, run_id: str) -> ExternalCallView:
    """Return the external call of a run. Raises NotFoundError."""
    run, external = await runs.get(conn, run_id), await external_calls.get(conn, run_id)
    if run is None or external is None:
        raise NotFoundError(f"there is no external call {run_id!r}")
    current = await executions.with_call(conn, run_id, external.tool_call_id)
    call, execution = current or (None, None)
    requests_by_age = sorted(await requests.of_run(conn, run_id), key=lambda request: (request.created_at, request.id))
    newest = requests_by_age[-1] if requests_by_age else None
    return _view(run, external, call, execution, newest)


def _view(
    run: Run, external: ExternalCall, call: Call | None, execution: Execution | None, newest: Request | None
) -> ExternalCallView:
    tool, result = external.declared, None if call is None else call.settled_result
    if result is None and run.status != "running":  # it ended before the call was planned: a configuration error, say
        result = Failure(kind="execution_error", reason=f"The call did not run: {run.reason}")
    state: ExternalState = "done" if result is not None else _open_state(call, execution, newest)
    return ExternalCallView(
        id=run.id,
        source=source_of(run.agent),
        tool_call_id=external.tool_call_id,
        tool_name=tool.name,
        effect=tool.effect,
        state=state,
        input=external.input,
        edited_input=None if call is None else call.edited_input,
        request=None if newest is None else CallRequest.model_validate(newest),
        deadline_at=external.deadline_at if state == "running" else None,
        result=result,
        in_part=None if call is None else in_part(call, result),
    )


def _open_state(call: Call | None, execution: Execution | None, newest: Request | None) -> ExternalState:
    """Return the state of a call without a result."""
    if call is None:
        return "planning"
    if execution is not None and execution.state == "executing":
        return "running"
    if newest is not None and newest.status == "pending":
        return "unknown" if newest.kind == "outcome" else "waiting"
    if newest is None:
        return "ready" if call.disposition == "run" else "planning"
    # An answer that closes the call is stored together with its result; an expired request's result follows a moment later.
    return "ready" if newest.status in {"approved", "responded"} else "waiting"
