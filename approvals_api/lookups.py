"""Finding one row by its id, or saying that there is none."""

from __future__ import annotations

from turngate.domain.errors import NotFoundError
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.retention import erasures
from turngate.store.runs import runs
from turngate.store.runs.runs import Run


async def existing_run(conn: Connection, run_id: str) -> Run:
    """Return a run; raises NotFoundError when there is none."""
    run = await runs.get(conn, run_id)
    if run is None:
        raise NotFoundError(f"there is no run {run_id!r}")
    return run


async def existing_conversation(conn: Connection, target: str) -> str:
    """Return the id of the conversation that has this id, or a run of it; raises NotFoundError when there is neither."""
    conversation_id = await erasures.conversation_of(conn, target)
    if conversation_id is None:
        raise NotFoundError(f"there is no conversation or run {target!r}")
    return conversation_id


async def existing_request(conn: Connection, request_id: str) -> Request:
    """Return a request; raises NotFoundError when there is none."""
    request = await requests.get(conn, request_id)
    if request is None:
        raise NotFoundError(f"there is no request {request_id!r}")
    return request
