"""Comments: kept as they were written, in order, and told of without their words."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError
from support.stored_requests import asked

import activities
import workflows
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import comments, requests
from turngate.store.runs import runs


async def test_comments_come_back_in_order_and_their_words_are_in_no_event(database: Database, run: runs.Run) -> None:
    """Pages of any size show each once, oldest first; the log says who and which, not what."""
    async with database.write() as conn:
        await requests.insert_all(conn, [asked(run, "rq"), asked(run, "other")])
        said = [
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
            assert seen == said
        told = await events.after(conn, 0)
    assert told[0].type == "request.commented"
    assert told[0].payload == {"request_id": "rq", "comment_id": said[0].id, "by": "ann"}
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await comments.add(conn, run_id=run.id, request_id="unknown", author="ann", text="x")


def test_no_model_can_be_told_what_people_said_to_each_other() -> None:
    """What builds a prompt, or could, knows no comments: neither the workflow nor an activity imports them."""
    package_files = [path for package in (activities, workflows) for path in Path(package.__path__[0]).rglob("*.py")]
    assert len(package_files) > 20
    assert [path.name for path in package_files if "comments" in path.read_text()] == []
