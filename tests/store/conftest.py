"""Rows that most store tests stand on: a conversation, and live runs in conversations of their own."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

import pytest

from turngate.domain.messages import user_message
from turngate.store import messages, opening, runs
from turngate.store.database import Connection, Database

NewRun = Callable[..., Awaitable[runs.Run]]


async def insert_run(
    conn: Connection, run_id: str, conversation_id: str, *, key: str | None = None, parent_id: str | None = None
) -> runs.Run:
    """Insert a live run with its input message; the conversation must exist."""
    message_id = f"msg_{run_id}"
    await messages.append(
        conn,
        message_id=message_id,
        parent_id=parent_id,
        conversation_id=conversation_id,
        run_id=run_id,
        step=None,
        message=user_message("go"),
    )
    await opening.insert_run(
        conn,
        opening.NewRun(
            id=run_id,
            conversation_id=conversation_id,
            agent="agent",
            agent_version="v1",
            model="scripted:test",
            task="go",
            input_message_id=message_id,
            started_by="starter",
            idempotency_key=key,
        ),
    )
    run = await runs.get(conn, run_id)
    assert run is not None
    return run


@pytest.fixture
def new_run(database: Database) -> NewRun:
    """Makes a live run, in a conversation of its own unless one is named."""
    number = itertools.count(1)

    async def make(conversation_id: str | None = None, **options: str | None) -> runs.Run:
        run_id = f"run_{next(number)}"
        async with database.write() as conn:
            if conversation_id is None:
                conversation_id = f"conv_{run_id}"
                await messages.create_conversation(conn, conversation_id)
            return await insert_run(conn, run_id, conversation_id, **options)

    return make


@pytest.fixture
async def run(new_run: NewRun) -> runs.Run:
    """One live run."""
    return await new_run()
