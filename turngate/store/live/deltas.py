"""Deltas: parts of a model's response while it streams. For watchers only: not in the audit log, bounded, deleted later.

One row holds what arrived within some 30 milliseconds. Rows belong to one attempt at one step; as soon as another attempt
begins, or the current one has failed, the earlier rows are deleted and a row says why (``reset``). They are deleted in the
transaction that appends the stored response's event, so a watcher reads either the deltas or the response.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import RowMapping, Select, bindparam, delete, insert, select

from turngate.domain.conversation.messages import Delta
from turngate.store import sequences
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.live.live_rows import LiveTable
from turngate.store.sequences import MAX_NUMBER, NEWEST_EVENT, Numbered
from turngate.store.tables import deltas, runs, steps

MAX_ROWS_PER_STEP = 2_000
"""How many rows of one response stay, enough for a minute without a pause; older ones are deleted."""
RETENTION_AFTER_END = timedelta(minutes=10)
"""How long the rows of a lost worker stay after their response or run has ended."""
LOST = "its worker was lost"

_OF_STEP = (deltas.c.run_id == bindparam("run")) & (deltas.c.step == bindparam("at_step"))
_IS_MADE = (
    select(runs.c.id).where(runs.c.id == bindparam("run"), runs.c.status == "running").exists()
    & ~select(steps.c.step).where(steps.c.run_id == bindparam("run"), steps.c.step == bindparam("at_step")).exists()
)
_AFTER_SEQ = NEWEST_EVENT.where(_IS_MADE)
_IF_CURRENT = _AFTER_SEQ.where(
    ~select(deltas.c.id).where(_OF_STEP, deltas.c.attempt > bindparam("this_attempt")).exists()
)
_NEWEST = select(deltas.c.payload).where(_OF_STEP).order_by(deltas.c.n.desc()).limit(1)
_INSERT = insert(deltas)
_FORGET = delete(deltas).where(_OF_STEP)
_MAKE_ROOM = delete(deltas).where(_OF_STEP, deltas.c.n <= bindparam("upto"))
_LIVE = LiveTable(
    table=deltas,
    is_live=select(runs.c.id).where(runs.c.id == deltas.c.run_id, runs.c.status == "running").exists()
    & ~select(steps.c.step).where(steps.c.run_id == deltas.c.run_id, steps.c.step == deltas.c.step).exists(),
    retention_after_end=RETENTION_AFTER_END,
)


class DeltaBatch(NamedTuple):
    """Deltas that arrived together, in order, and how many characters before them were left out."""

    deltas: Sequence[Delta]
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class Deltas:
    """One row. ``attempt``: grows with each attempt at a step. ``n``: place within the attempt, from 1.

    ``reset``: why the earlier rows of this step are void; None: they still count. ``dropped``: characters left out before
    it. ``after_seq``: the newest event when it was written: the row's place is right after that event.
    """

    id: int
    run_id: str
    step: int
    attempt: int
    n: int
    deltas: tuple[Delta, ...]
    reset: str | None
    dropped: int
    after_seq: int
    created_at: str


class Attempt(NamedTuple):
    """One attempt at the response of a step. ``number``: grows with each attempt at the step."""

    run_id: str
    step: int
    number: int


async def begin(conn: Connection, run_id: str, step: int, batch: DeltaBatch) -> Attempt | None:
    """Add the first row of a new attempt at a step, and return the attempt; None if the step's response is stored.

    Rows of earlier attempts are deleted. If the last of them is not known to have failed, its worker was lost, and the new
    row says so.
    """
    row_id = await sequences.take(conn, Numbered.DELTAS)
    at = {"run": run_id, "at_step": step}
    after_seq = (await conn.execute(_AFTER_SEQ, at)).scalar_one_or_none()
    if after_seq is None:
        return None
    before = (await conn.execute(_NEWEST, at)).scalar_one_or_none()
    reset = None
    if before is not None:
        ended = json.loads(before)
        reset = LOST if ended["reset"] is None or ended["deltas"] else None
        await conn.execute(_FORGET, at)
    attempt = Attempt(run_id, step, row_id)
    await _insert(conn, _NewRow(row_id, attempt, 1, after_seq), batch, reset=reset)
    return attempt


async def append(conn: Connection, attempt: Attempt, n: int, batch: DeltaBatch) -> bool:
    """Add the ``n``-th row of an attempt; False, and nothing is added, if it is not the newest, or the step has a response.

    So nothing comes from a worker that was thought lost, and nothing after the response. If there are too many rows, the
    oldest are deleted.
    """
    # Before the query: its lock keeps another attempt from beginning in between.
    row_id = await sequences.take(conn, Numbered.DELTAS)
    after_seq = await _place(conn, attempt)
    if after_seq is None:
        return False
    await _insert(conn, _NewRow(row_id, attempt, n, after_seq), batch)
    if n > MAX_ROWS_PER_STEP:
        oldest = {"run": attempt.run_id, "at_step": attempt.step, "upto": n - MAX_ROWS_PER_STEP}
        await conn.execute(_MAKE_ROOM, oldest)
    return True


async def give_up(conn: Connection, attempt: Attempt, n: int, reason: str) -> None:
    """Void the rows of an attempt; does nothing if another attempt has begun, or the step has a response."""
    row_id = await sequences.take(conn, Numbered.DELTAS)
    after_seq = await _place(conn, attempt)
    if after_seq is None:
        return
    await conn.execute(_FORGET, {"run": attempt.run_id, "at_step": attempt.step})
    await _insert(conn, _NewRow(row_id, attempt, n, after_seq), DeltaBatch(()), reset=reason)


async def forget(conn: Connection, run_id: str, step: int) -> None:
    """Delete the rows of a step, in the transaction that appends the event of its response."""
    await conn.execute(_FORGET, {"run": run_id, "at_step": step})


async def sweep(conn: Connection) -> None:
    """Delete expired rows of lost workers among the oldest 1,000. Cheap if there is none."""
    await _LIVE.sweep(conn)


async def after(
    conn: Connection,
    last: int,
    *,
    upto: int = MAX_NUMBER,
    ended_from: int,
    run_ids: Sequence[str] | Select[tuple[str]] | None = None,
    limit: int = 500,
) -> list[Deltas]:
    """Return rows after number ``last`` (exclusive), up to ``upto``, oldest first.

    ``run_ids``: only of these runs; ids or their query. Up to number ``ended_from`` it has only those of responses that still
    stream; after that, all.
    """
    query = _LIVE.after(last, upto=upto, ended_from=ended_from, run_ids=run_ids, limit=limit)
    return [_loaded(row) for row in (await conn.execute(query)).mappings()]


async def _place(conn: Connection, attempt: Attempt) -> int | None:
    """Return the newest event, after which the attempt's next row comes; None if the attempt is over."""
    at = {"run": attempt.run_id, "at_step": attempt.step, "this_attempt": attempt.number}
    after_seq = (await conn.execute(_IF_CURRENT, at)).scalar_one_or_none()
    return None if after_seq is None else int(after_seq)


class _NewRow(NamedTuple):
    """Where a row belongs. ``row_id``: its number among all deltas. ``after_seq``: as in :class:`Deltas`."""

    row_id: int
    attempt: Attempt
    n: int
    after_seq: int


async def _insert(conn: Connection, row: _NewRow, batch: DeltaBatch, *, reset: str | None = None) -> None:
    payload = {
        "after": row.after_seq,
        "reset": reset,
        "dropped": batch.dropped,
        "deltas": [delta.model_dump() for delta in batch.deltas],
    }
    columns = {
        "id": row.row_id,
        "run_id": row.attempt.run_id,
        "step": row.attempt.step,
        "attempt": row.attempt.number,
        "n": row.n,
        "payload": json.dumps(payload, ensure_ascii=False),
        "created_at": as_text(now()),
    }
    await conn.execute(_INSERT, columns)


def _loaded(row: RowMapping) -> Deltas:
    payload = json.loads(row["payload"])
    return Deltas(
        id=row["id"],
        run_id=row["run_id"],
        step=row["step"],
        attempt=row["attempt"],
        n=row["n"],
        deltas=tuple(Delta.model_validate(each) for each in payload["deltas"]),
        reset=payload["reset"],
        dropped=payload["dropped"],
        after_seq=payload["after"],
        created_at=row["created_at"],
    )
