"""The answer of endpoints that start a run."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Response

from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.runs import views as run_views
from turngate.store.runs.runs import Run
from turngate.wire.runs import RunSummary

RUN_CREATED: Final[dict[int | str, dict[str, Any]]] = {
    201: {
        "description": "The new run; for a repeated Idempotency-Key, the first one again",
        "headers": {"Location": {"description": "Where the run is", "schema": {"type": "string"}}},
    }
}
STARTED: Final = {
    **RUN_CREATED,
    **problems({404: "No such run or conversation", 409: "`run_live` or `idempotency_key_reused`"}),
}


def started(run: Run | RunSummary, response: Response) -> RunSummary:
    """Return the run as the answer's body, and set the answer's ``Location``."""
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run_views.run_summary(run) if isinstance(run, Run) else run
