"""Opening a run, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from turngate.domain.conversation.messages import user_message
from turngate.domain.tools.external import ExternalTool
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.runs import external_calls, messages, runs
from turngate.store.runs.external_calls import ExternalCall
from turngate.store.runs.new_run import NewRun, open_run

TOOL = ExternalTool(name="pay").model_dump_json()


def new(run_id: str = "r", conversation_id: str = "conv", message_id: str = "m") -> NewRun:
    return NewRun(
        id=run_id,
        conversation_id=conversation_id,
        agent="agent",
        agent_version="v1",
        model="scripted:test",
        task="go",
        input_message_id=message_id,
        started_by="ann",
    )


async def test_a_run_begins_with_its_message_and_its_event(database: Database) -> None:
    """The input follows earlier messages, the conversation continues from it, and the event has who, what and its digest."""
    async with database.write() as conn:
        await messages.create_with_past(conn, "conv", [user_message("before")])
        before = await messages.head_of(conn, "conv")
        details = {"by": "bob", "unattended": "park"}
        message = new().input_after(before, user_message("go"))
        await open_run(conn, new(), message, details=details)
    async with database.read() as conn:
        run = await runs.get(conn, "r")
        path = await messages.path_to(conn, await messages.head_of(conn, "conv"))
        happened = await events.after(conn, 0, run_id="r")
    assert run is not None
    assert (run.status, run.path, run.head_message_id) == ("running", "agent", "m")
    assert [(each.run_id, each.message.text) for each in path] == [(None, "before"), ("r", "go")]
    named = {"agent": "agent", "model": "scripted:test", "started_by": "ann"}
    own = {"message": {"m": messages.digest(message, run.nonce)}, "run": {"r": row_digest("run", vars(run), run.nonce)}}
    payload = {**named, **details, "digests": own}
    assert [(event.type, event.payload) for event in happened] == [("run.started", payload)]


@pytest.mark.parametrize("begins_conversation", [True, False])
async def test_i15_a_runs_chain_begins_with_its_row(database: Database, begins_conversation: bool) -> None:
    """I15: the row of a new run is stored with the hash of its first event, and later events follow on it."""
    if not begins_conversation:
        async with database.write() as conn:
            await messages.create_conversation(conn, "conv")
    async with database.write() as conn:
        message = new().input_after(None, user_message("\x00\ud800"))
        details = {"by": "b\x00b"}
        begun = await open_run(
            conn, new(), message, details=details, begins_conversation=begins_conversation, last=True
        )
    async with database.read() as conn:
        assert await runs.get(conn, "r") == begun
        (first,) = await events.after(conn, 0, run_id="r")
        assert (begun.event_count, begun.event_hash) == (first.run_seq, first.hash)
        assert first.seq == await events.last_seq(conn)
        assert await messages.head_of(conn, "conv") == "m"
    async with database.write() as conn:
        await events.append(conn, "r", [("run.noted", {})])
    async with database.read() as conn:
        assert await events.chain_break(conn, "r") is None
        assert [each.run_seq for each in await events.after(conn, 0, run_id="r")] == [1, 2]


async def test_a_run_may_begin_without_a_new_message(database: Database) -> None:
    """It answers a message of the conversation; the external call that it represents is stored with it."""
    call = ExternalCall(run_id="", tool_call_id="c", tool=TOOL, input="{}", context="")
    async with database.write() as conn:
        await messages.create_with_past(conn, "conv", [user_message("before")])
        head = await messages.head_of(conn, "conv")
        assert head is not None
        await open_run(conn, new(message_id=head), None, details={}, external=call)
    async with database.read() as conn:
        assert [each.id for each in await messages.path_to(conn, await messages.head_of(conn, "conv"))] == [head]
        stored = await external_calls.get(conn, "r")
    assert stored is not None
    assert stored.tool_call_id == "c"


async def test_a_conversation_has_one_live_run(database: Database) -> None:
    """The database refuses a second one, and stores none of it."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        await open_run(conn, new(), new().input_after(None, user_message("go")), details={})
    other = new("other", message_id="n")
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await open_run(conn, other, other.input_after("m", user_message("go")), details={})
    async with database.read() as conn:
        assert await runs.get(conn, "other") is None
        assert await messages.head_of(conn, "conv") == "m"
        assert await events.after(conn, 0, run_id="other") == []
