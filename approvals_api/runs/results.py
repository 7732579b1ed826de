"""A call's whole result: stored separately if it was too large for the model, else the one that every view shows."""

from __future__ import annotations

from dataclasses import dataclass

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.runs.masks import Masks
from turngate.domain.conversation.clipping import whole_text
from turngate.domain.errors import NotFoundError
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Connection
from turngate.store.runs import calls, whole_results
from turngate.store.runs.calls import Call
from turngate.store.runs.runs import Run


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """The result of one call. ``body``: JSON of its value, or of a failure's fields: whole, and as it was stored."""

    run: Run
    call: Call
    result: Ok | Failure
    body: str

    @property
    def document(self) -> str:
        """The whole result as ``{"result": …}``. It contains the stored text as it is: no number is formatted again."""
        rest = self.result.model_dump_json(exclude={"value"} if isinstance(self.result, Ok) else {"fields"})
        member = "value" if isinstance(self.result, Ok) else "fields"
        return f'{{"result":{rest[:-1]},"{member}":{self.body}}}}}'


async def whole_result(conn: Connection, run_id: str, tool_call_id: str) -> StoredResult:
    """Return a call's whole result.

    Raises NotFoundError: there is no such run or call, or (code ``no_result_yet``) the call is still open.
    """
    run = await existing_run(conn, run_id)
    call = await calls.get(conn, run_id, tool_call_id)
    if call is None:
        raise NotFoundError(f"run {run_id!r} has no call {tool_call_id!r}: its calls are in GET /api/v1/runs/{run_id}")
    result = call.settled_result
    if result is None:
        raise NotFoundError(f"call {tool_call_id!r} has no result yet: it is still open", code="no_result_yet")
    whole = None if call.whole_result is None else await whole_results.text_of(conn, call.whole_result)
    masks = await Masks.of_run(conn, run)
    result = masks.call(call).settled_result or result
    body = whole_text(result) if whole is None else masks.json_text(whole, call)
    return StoredResult(run=run, call=call, result=result, body=body)
