"""Comments: stored as they were written, in order, with events that leave out their text."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError
from support.stores.stored_requests import request_row

from turngate import activities, workflows
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import comments, requests
from turngate.store.runs import runs


async def test_comments_are_in_order_and_their_text_is_in_no_event(database: Database, run: runs.Run) -> None:
    """Pages of any size show each once, oldest first; the event says who wrote which comment, not what."""
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, "rq"), request_row(run, "other")])
        written = [
            await comments.add(conn, run_id=run.id, request_id="rq", author="ann", text=f"secret é {number}")
            for number in range(5)
        ]
        await comments.add(conn, run_id=run.id, request_id="other", author="bob", text="elsewhere")
    async with database.read() as conn:
        for limit in (1, 2, 9):
            seen: list[comments.Comment] = []
            while page := await comments.of_request(
                conn, "rq", limit=limit, after=(seen[-1].created_at, seen[-1].id) if seen else None
            ):
                seen += page
            assert seen == written
        rows = await events.after(conn, 0)
    assert rows[0].type == "request.commented"
    fields = {name: value for name, value in rows[0].payload.items() if name != "digests"}
    assert fields == {"request_id": "rq", "comment_id": written[0].id, "by": "ann"}
    assert "secret" not in str(rows[0].payload)
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await comments.add(conn, run_id=run.id, request_id="unknown", author="ann", text="x")


def test_no_model_can_read_peoples_comments() -> None:
    """Code that builds a prompt, or could, has no access to comments: neither workflow nor activities import them."""
    package_files = [path for package in (activities, workflows) for path in Path(package.__path__[0]).rglob("*.py")]
    assert len(package_files) > 20
    assert [path.name for path in package_files if "comments" in path.read_text()] == []
