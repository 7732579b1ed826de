"""What endpoints that start a run answer."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Response

from approvals_api.http.problems import problems
from approvals_api.runs import views as run_views
from turngate.store.runs.runs import Run
from turngate.wire.runs import RunSummary

BEGUN: Final[dict[int | str, dict[str, Any]]] = {
    201: {
        "description": "The run as it begins; the first one again for a repeated Idempotency-Key",
        "headers": {"Location": {"description": "Where the run is", "schema": {"type": "string"}}},
    }
}
STARTED: Final = {
    **BEGUN,
    **problems({404: "No such run or conversation", 409: "`run_live` or `idempotency_key_reused`"}),
}


def begun(run: Run | RunSummary, response: Response) -> RunSummary:
    """Return the run as the answer shows it, and tell where it is."""
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run_views.run_summary(run) if isinstance(run, Run) else run
