"""Open a run: its row, its input and its first event, in one transaction. And remove a run that never began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Final

from sqlalchemy import Table, insert

from turngate.domain.conversation.messages import Message
from turngate.domain.requests import UnattendedAsks
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.runs import messages
from turngate.store.runs.external_calls import ExternalCall
from turngate.store.runs.messages import NewMessage
from turngate.store.runs.runs import MOVE_CONVERSATION, Run
from turngate.store.tables import conversations, runs
from turngate.store.tables import external_calls as external_calls_table
from turngate.store.tables import messages as messages_table
from turngate.store.together import Together, Writes

NONCE_BYTES: Final = 16
"""Of a run's nonce, with which the digests of its content are keyed (docs/adr/0053)."""
_INSERT = insert(runs)
_BEGIN = Together(conversations, messages_table, runs, external_calls_table)
_CONTINUE = Together(messages_table, runs, MOVE_CONVERSATION, external_calls_table)
_UNSET: Final = {"reason": "", "error_class": "", "step": 0, "ended_at": None}
"""What a new run's row has by default."""


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A run as it begins, with the fields of :class:`turngate.store.runs.runs.Run`. ``path`` None: the agent's own name.

    ``input_message_id``: of the message that it answers. ``task``: all of the input; lists show its beginning.
    """

    id: str
    conversation_id: str
    agent: str
    agent_version: str
    model: str
    task: str
    input_message_id: str
    started_by: str
    workspace: str | None = None
    idempotency_key: str | None = None
    request_fingerprint: str = ""
    parent_run_id: str | None = None
    parent_tool_call_id: str | None = None
    path: str | None = None
    forked_from_run_id: str | None = None
    forked_from_step: int | None = None
    is_retry: bool = False
    attended: bool = True
    unattended_asks: UnattendedAsks = "park"
    schedule_id: str | None = None
    world: str | None = None
    replay_of_run_id: str | None = None
    model_chosen_by: str | None = None
    nonce: str = field(default_factory=lambda: token_hex(NONCE_BYTES))
    traceparent: str | None = None

    def input_after(self, parent_id: str | None, message: Message) -> NewMessage:
        """Return its input as the message that follows ``parent_id``; None: the first one of its conversation."""
        return NewMessage(
            id=self.input_message_id,
            parent_id=parent_id,
            conversation_id=self.conversation_id,
            run_id=self.id,
            message=message,
        )


async def open_run(
    conn: Connection,
    new: NewRun,
    message: NewMessage | None,
    *,
    details: Mapping[str, Any],
    external: ExternalCall | None = None,
    begins_conversation: bool = False,
    last: bool = False,
) -> Run:
    """Write a live run with its input and its event ``run.started``. Call it last in the transaction.

    Args:
        conn: a write transaction.
        new: the run.
        message: the run's input (:meth:`NewRun.input_after`); None: the conversation has it already.
        details: what the event says beyond agent, model and starter.
        external: the external call that the run represents, if any; its ``run_id`` is filled in.
        begins_conversation: whether to create the run's conversation; else it exists.
        last: nothing follows in the transaction.

    Returns the run. Raises sqlalchemy's IntegrityError when the conversation has a live run or
    the idempotency key was used.
    """
    # From now on the input is part of the conversation, whatever happens to the run.
    own = {"conversation": new.conversation_id, "head": new.input_message_id}
    named = {"agent": new.agent, "model": new.model, "started_by": new.started_by, "by": new.started_by}
    if new.model_chosen_by is not None:
        named["model_chosen_by"] = new.model_chosen_by
    row = _row_of(new)
    digests = events.digests(
        run={new.id: row_digest("run", row, new.nonce)},
        message={} if message is None else {message.id: messages.digest(message, new.nonce)},
    )
    first = events.FirstEvent.of(new.id, ("run.started", {**named, **details, **digests}))
    row |= {"event_count": 1, "event_hash": first.hash}
    rows: dict[Table, list[dict[str, Any]]] = {
        messages_table: [] if message is None else [messages.row_of(message)],
        runs: [row],
        external_calls_table: [] if external is None else [vars(replace(external, run_id=new.id))],
    }
    if begins_conversation:
        conversation = {"id": new.conversation_id, "head_message_id": new.input_message_id}
        rows[conversations] = [{**conversation, "created_at": row["created_at"], "data_key": None}]
    await events.begin(conn, first, Writes(_BEGIN if begins_conversation else _CONTINUE, rows, own), last=last)
    return Run(**{**_UNSET, **row})


async def insert_run(conn: Connection, new: NewRun) -> None:
    """Insert the row of a live run, and nothing else. Raises as :func:`open_run` does."""
    await conn.execute(_INSERT, _row_of(new))


def _row_of(new: NewRun) -> dict[str, Any]:
    return {
        **vars(new),
        "task": new.task[:500],
        "path": new.path or new.agent,
        "status": "running",
        "head_message_id": new.input_message_id,
        "created_at": as_text(now()),
    }


async def remove_unstarted(conn: Connection, run_id: str) -> None:
    """Remove a run whose workflow could not be started, with its input message; does nothing if it has a step."""
    removed = await conn.execute(runs.delete().where(runs.c.id == run_id, runs.c.step == 0))
    if removed.rowcount:
        await conn.execute(messages_table.delete().where(messages_table.c.run_id == run_id))
