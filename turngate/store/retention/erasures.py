"""Erasures: what they reach, their rows, and their events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import ColumnElement, case, func, insert, or_, select, tuple_, update

from turngate.store import evidence
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.retention import erase_content
from turngate.store.runs import runs
from turngate.store.runs.runs import Run
from turngate.store.tables import conversations, erasures, requests, schedules
from turngate.store.tables import holds as holds_table
from turngate.store.tables import runs as runs_table

What = Literal["all", "results", "previews"]
_MOST_FIRST = case((erasures.c.what == "all", 0), (erasures.c.what == "results", 1), else_=2)


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """One erasure. ``what``: all content, only the results of tools, or only previews.

    ``rule``: the retention rule that wanted it; "": a person did.
    ``counts``: JSON of how many rows it emptied, by table.
    """

    id: str
    conversation_id: str
    what: What
    erased_by: str
    reason: str
    rule: str
    counts: str
    created_at: str

    @property
    def counted(self) -> dict[str, int]:
        """How many rows it emptied, by table."""
        counted: dict[str, int] = json.loads(self.counts)
        return counted


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Who wants content erased, why, and by which retention rule, if any. ``tools``: whose results; None: of all tools."""

    by: str
    reason: str
    what: What = "all"
    rule: str = ""
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What an erasure reaches.

    ``conversation_ids``: whose content goes: the one that was named, those of its sub-agents, and its forks' where they are
    included. ``runs``: of these. ``forks``: runs of other conversations that share messages or results with these.
    ``shared_with``: the conversations whose past these share, which stays. ``schedules``: names of those that continue one.
    """

    conversation_ids: Sequence[str]
    runs: Sequence[Run]
    forks: Sequence[Run]
    shared_with: Sequence[str]
    schedules: Sequence[str]
    pending: int

    @property
    def live(self) -> list[Run]:
        """Its live runs."""
        return [run for run in self.runs if run.status == "running"]


async def reach(conn: Connection, conversation_id: str, *, with_forks: bool = False) -> Reach:
    """Return what erasing a conversation reaches. ``with_forks``: its forks, retries and dry runs go, too."""
    ids, members = [conversation_id], await _runs_of(conn, [conversation_id])
    while True:
        below, forks = await _linked(conn, members)
        more = [run for run in (*below, *(forks if with_forks else ())) if run.conversation_id not in ids]
        if not more:
            break
        ids += dict.fromkeys(run.conversation_id for run in more)
        members = await _runs_of(conn, ids)
    above = [run.forked_from_run_id for run in members if run.forked_from_run_id is not None]
    shared = select(runs_table.c.conversation_id).where(
        runs_table.c.id.in_(above), runs_table.c.conversation_id.not_in(ids)
    )
    named = select(schedules.c.name).where(schedules.c.conversation_id.in_(ids), schedules.c.deleted_at.is_(None))
    pending = select(func.count()).where(
        requests.c.run_id.in_([run.id for run in members]), requests.c.status == "pending"
    )
    gone = select(erasures.c.conversation_id).where(
        erasures.c.conversation_id.in_([run.conversation_id for run in forks]), erasures.c.what == "all"
    )
    left_out = {*ids, *(await conn.execute(gone)).scalars()}
    return Reach(
        conversation_ids=ids,
        runs=members,
        forks=[run for run in forks if run.conversation_id not in left_out],
        shared_with=sorted(set((await conn.execute(shared)).scalars())),
        schedules=sorted((await conn.execute(named)).scalars()),
        pending=int((await conn.execute(pending.select_from(requests))).scalar_one()),
    )


async def _runs_of(conn: Connection, conversation_ids: Sequence[str]) -> list[Run]:
    of_these = select(runs_table).where(runs_table.c.conversation_id.in_(conversation_ids))
    rows = await conn.execute(of_these.order_by(runs_table.c.created_at, runs_table.c.id))
    return [Run(**row) for row in rows.mappings()]


async def _linked(conn: Connection, members: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return the runs of sub-agents below these runs, and the runs that share their messages or results."""
    ids = [run.id for run in members]
    below = await _where(conn, runs_table.c.parent_run_id.in_(ids))
    forks = await _where(conn, or_(runs_table.c.forked_from_run_id.in_(ids), runs_table.c.replay_of_run_id.in_(ids)))
    return below, forks


async def _where(conn: Connection, condition: ColumnElement[bool]) -> list[Run]:
    rows = await conn.execute(select(runs_table).where(condition).order_by(runs_table.c.created_at, runs_table.c.id))
    return [Run(**row) for row in rows.mappings()]


async def evidence_of(conn: Connection, members: Sequence[Run]) -> dict[str, str]:
    """Return run → what differs between its rows and the log; runs whose rows are as the log says are left out."""
    differences = {run.id: await evidence.first_difference(conn, run.id) for run in members}
    return {run_id: str(difference) for run_id, difference in differences.items() if difference is not None}


async def erase(
    conn: Connection, conversation_id: str, wish: Wish, *, changed: Mapping[str, str] | None = None
) -> Erasure | None:
    """Erase a conversation's content, with an event in the chain of each of its runs; None: there was nothing to erase.

    Part of one write transaction, and the last of it. No run of the conversation is live. ``changed``: what
    :func:`evidence_of` found.
    """
    members = await _runs_of(conn, [conversation_id])
    await runs.hold_several(conn, [run.id for run in members])
    if wish.what == "all":
        counts = await erase_content.erase(conn, conversation_id)
    elif wish.what == "previews":
        counts = await erase_content.erase_previews(conn, conversation_id)
    else:
        counts = await erase_content.erase_results(conn, conversation_id, wish.tools)
    if not counts and wish.rule:
        return None
    erasure = Erasure(
        id=f"ers_{secrets.token_hex(12)}",
        conversation_id=conversation_id,
        what=wish.what,
        erased_by=wish.by,
        reason=wish.reason,
        rule=wish.rule,
        counts=json.dumps(counts, sort_keys=True),
        created_at=as_text(now()),
    )
    await conn.execute(insert(erasures).values(**vars(erasure)))
    own = runs_table.c.conversation_id == conversation_id
    await conn.execute(update(runs_table).where(own).values(erasure_id=erasure.id))
    for run in members:
        problem = (changed or {}).get(run.id)
        payload: dict[str, object] = {"erasure_id": erasure.id, "by": wish.by, "what": wish.what, "reason": wish.reason}
        payload |= {"counts": counts, "intact": problem is None, "rows": await evidence.rows_digest(conn, run.id)}
        if wish.rule:
            payload["rule"] = wish.rule
        if problem is not None:
            payload["problem"] = problem
        await events.append(conn, run.id, [(evidence.ERASED, payload)])
    return erasure


async def get(conn: Connection, erasure_id: str | None) -> Erasure | None:
    """Return one erasure, or None."""
    if erasure_id is None:
        return None
    row = (await conn.execute(select(erasures).where(erasures.c.id == erasure_id))).mappings().one_or_none()
    return None if row is None else Erasure(**row)


async def newest_of(conn: Connection, conversation_id: str) -> Erasure | None:
    """Return the newest erasure of a conversation; one of all content rather than one of results or previews."""
    query = select(erasures).where(erasures.c.conversation_id == conversation_id)
    rows = await conn.execute(query.order_by(_MOST_FIRST, erasures.c.created_at.desc(), erasures.c.id.desc()).limit(1))
    row = rows.mappings().one_or_none()
    return None if row is None else Erasure(**row)


async def page(conn: Connection, *, limit: int, before: tuple[str, str] | None = None) -> list[Erasure]:
    """Return erasures, newest first. ``before``: (created_at, id) of the last one seen."""
    query = select(erasures).order_by(erasures.c.created_at.desc(), erasures.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(erasures.c.created_at, erasures.c.id) < tuple_(*before))
    return [Erasure(**row) for row in (await conn.execute(query)).mappings()]


# Holds.


HoldKind = Literal["conversation", "agent"]
AGENT: Final = "agent"


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A legal hold: nothing of its target is erased until someone removes it. ``target``: a conversation's id or an agent."""

    id: str
    kind: HoldKind
    target: str
    reason: str
    created_by: str
    created_at: str
    removed_by: str | None = None
    removed_at: str | None = None


async def add_hold(conn: Connection, *, kind: HoldKind, target: str, reason: str, by: str) -> Hold:
    """Add a hold, with its event; last in the transaction."""
    hold = Hold(
        id=f"hold_{secrets.token_hex(12)}",
        kind=kind,
        target=target,
        reason=reason,
        created_by=by,
        created_at=as_text(now()),
    )
    await conn.execute(insert(holds_table).values(**vars(hold)))
    payload = {"hold_id": hold.id, "kind": kind, "target": target, "by": by, "why": reason}
    await events.append(conn, events.SYSTEM, [("hold.added", payload)])
    return hold


async def remove_hold(conn: Connection, hold: Hold, *, reason: str, by: str) -> Hold | None:
    """Remove a hold, with its event; None: someone has removed it already."""
    at = as_text(now())
    changed = update(holds_table).where(holds_table.c.id == hold.id, holds_table.c.removed_at.is_(None))
    if (await conn.execute(changed.values(removed_at=at, removed_by=by))).rowcount == 0:
        return None
    payload = {"hold_id": hold.id, "kind": hold.kind, "target": hold.target, "by": by, "why": reason}
    await events.append(conn, events.SYSTEM, [("hold.removed", payload)])
    return Hold(**{**vars(hold), "removed_at": at, "removed_by": by})


async def holds(conn: Connection, *, every: bool = False) -> list[Hold]:
    """Return the holds that apply, newest first. ``every``: those that were removed, too."""
    query = select(holds_table).order_by(holds_table.c.created_at.desc(), holds_table.c.id.desc())
    if not every:
        query = query.where(holds_table.c.removed_at.is_(None))
    return [Hold(**row) for row in (await conn.execute(query)).mappings()]


async def count_holds(conn: Connection) -> tuple[int, str | None]:
    """Return how many holds apply, and since when the oldest does; None: there is none."""
    query = select(func.count().label("holds"), func.min(holds_table.c.created_at).label("oldest"))
    row = (await conn.execute(query.where(holds_table.c.removed_at.is_(None)))).one()
    return int(row.holds), row.oldest


async def holds_on(conn: Connection, reached: Reach) -> list[Hold]:
    """Return the holds on conversations or agents that an erasure reaches."""
    agents = {run.agent for run in reached.runs}
    return [
        hold
        for hold in await holds(conn)
        if hold.target in (agents if hold.kind == AGENT else reached.conversation_ids)
    ]


async def has_runs(conn: Connection, agent: str) -> bool:
    """Tell whether there is a run of this agent, which no worker may offer any more."""
    return (await conn.execute(select(runs_table.c.id).where(runs_table.c.agent == agent).limit(1))).first() is not None


async def conversation_of(conn: Connection, some_id: str) -> str | None:
    """Return the conversation of this id, or of the run of this id; None: there is neither."""
    if some_id.startswith("run_"):
        run = await runs.get(conn, some_id)
        return None if run is None else run.conversation_id
    query = select(conversations.c.id).where(conversations.c.id == some_id)
    return (await conn.execute(query)).scalar_one_or_none()
