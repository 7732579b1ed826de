"""Runs: one agent turn each, from an input message to the agent's answer or stop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from turngate.domain.requests import RunStatus, UnattendedAsks
from turngate.domain.runs.budgets import EXTENSIONS, Extension
from turngate.domain.runs.failure_classes import MEANINGS, classes_of
from turngate.domain.runs.inbox import MOST_OFFERED
from turngate.domain.runs.outcomes import RunOutcome, outcome_of
from turngate.domain.runs.run_filter import EVERY_RUN, RunFilter
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events.events import Change
from turngate.store.runs import known_traces
from turngate.store.tables import conversations, runs
from turngate.store.texts import among, is_sealed, listed
from turngate.store.together import Together

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_BY_ID = select(runs).where(runs.c.id == bindparam("run"))
_HOLD = _BY_ID.with_for_update()
_LIVE = update(runs).where(runs.c.id == bindparam("run"), runs.c.status == "running")
_USED = {
    "tokens_used": runs.c.tokens_used + bindparam("tokens"),
    "cost_micros": runs.c.cost_micros + bindparam("cost"),
}
ADVANCE: Final = _LIVE.where(runs.c.interrupted_at.is_(None)).values(step=bindparam("at_step"), **_USED)
COMPLETE: Final = _LIVE.values(
    step=bindparam("at_step"), head_message_id=bindparam("head"), status="completed", ended_at=bindparam("at"), **_USED
)
_ADVANCED = ", step = :at_step, tokens_used = tokens_used + :tokens, cost_micros = cost_micros + :cost"
ADVANCED: Final = Change(_ADVANCED)
COMPLETED: Final = Change(f"{_ADVANCED}, head_message_id = :head, status = 'completed', ended_at = :at")
"""As ``ADVANCE`` and ``COMPLETE``, with the run's events."""
_ORDERED = {"control": runs.c.control + 1}
MOVE_HEAD: Final = update(runs).where(runs.c.id == bindparam("run")).values(head_message_id=bindparam("head"))
MOVE_CONVERSATION: Final = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"))
    .values(head_message_id=bindparam("head"))
)
_MOVE_HEADS = Together(MOVE_HEAD, MOVE_CONVERSATION)
# Written out, not bound: only so do the planners see that an index of these runs alone will do.
_STOPPED = runs.c.status.in_([literal_column("'failed'"), literal_column("'interrupted'")])
MOST_SEARCHED: Final = 10_000
"""How many runs one search reads: the newest."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """What a response takes of its run's budgets. ``cost_micros``: in millionths of the currency of ``Limits.cost``."""

    tokens: int = 0
    cost_micros: int = 0


NOTHING = Used()


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ends before the model's answer. ``error_class``: as in :class:`Run`. ``by``: who interrupted it."""

    status: RunStatus
    reason: str = ""
    error_class: str = ""
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. ``head_message_id``: the newest message after which every call is answered. ``ended_at``: None while live.

    ``task``: the first 500 characters of the input, for lists. ``error_class``: a typed failure class, or empty.
    ``parent_run_id``, ``parent_tool_call_id``: the call that a sub-agent's run answers. ``path``: the agents above it and
    itself, joined by ``/``. ``forked_from_run_id``, ``forked_from_step``: the closed step whose past a fork shares,
    or, if it ``is_retry``, the run that it continues and the step where that one ended.
    ``attended``: someone watches the inbox; ``unattended_asks`` says what happens to its questions when no one does.
    ``paused_at``, ``paused_by``, ``pause_reason``: since when, by whom and why it is paused, while it is.
    ``schedule_id``: the schedule that opened it; None: none did.
    ``world``: digest of its overrides; None: it has none. ``replay_of_run_id``: the run
    whose recorded results answer the calls of a dry run. ``tokens_used``, ``cost_micros``: of all its responses.
    ``extensions``: JSON of what was granted beyond its budgets. ``ended_by``: who interrupted it.
    ``model_chosen_by``: who switched its model while it was live; ``fell_back_from``: the model that ``model`` replaces.
    ``interrupted_at``, ``interrupted_by``, ``interrupt_reason``: since when, by whom and why it is to stop. ``control``: how
    many orders of this kind it got; ``control_seen``: how many of them its workflow knows. ``nonce``: the key of the digests of
    its content; empty once its content is erased. ``traceparent``: as
    :class:`turngate.domain.runs.trace.RunTrace` reads it.
    ``erasure_id``: of the newest erasure of content of its conversation; None: there was none.
    """

    id: str
    conversation_id: str
    agent: str
    agent_version: str
    model: str
    workspace: str | None
    task: str
    status: RunStatus
    reason: str
    error_class: str
    step: int
    input_message_id: str
    head_message_id: str
    started_by: str
    idempotency_key: str | None
    request_fingerprint: str
    created_at: str
    ended_at: str | None
    event_count: int
    event_hash: str
    parent_run_id: str | None
    parent_tool_call_id: str | None
    path: str
    forked_from_run_id: str | None
    forked_from_step: int | None
    attended: bool
    unattended_asks: UnattendedAsks
    paused_at: str | None = None
    paused_by: str | None = None
    pause_reason: str = ""
    schedule_id: str | None = None
    is_retry: bool = False
    world: str | None = None
    replay_of_run_id: str | None = None
    tokens_used: int = 0
    cost_micros: int = 0
    extensions: str = "[]"
    ended_by: str | None = None
    model_chosen_by: str | None = None
    fell_back_from: str | None = None
    interrupted_at: str | None = None
    interrupted_by: str | None = None
    interrupt_reason: str = ""
    control: int = 0
    control_seen: int = 0
    nonce: str = ""
    traceparent: str | None = None
    erasure_id: str | None = None

    def __post_init__(self) -> None:
        """Let the log's lines about it have the id of its trace, whichever query read it."""
        known_traces.note(self.id, self.traceparent)

    @property
    def may_start(self) -> bool:
        """Whether anything may start in it now: no one has interrupted or paused it."""
        return self.interrupted_at is None and self.paused_at is None

    @property
    def chosen_model(self) -> str:
        """The model that was chosen for it, even if a fallback is in use; a run that continues from it begins with this."""
        return self.fell_back_from or self.model

    @property
    def model_is_fixed(self) -> bool:
        """Whether every step uses ``model``, because a person chose it or because it is a fallback."""
        return self.model_chosen_by is not None or self.fell_back_from is not None

    @property
    def outcome(self) -> RunOutcome | None:
        """How it ended; None while it is live."""
        return outcome_of(self.status, self.error_class)

    @property
    def granted(self) -> tuple[Extension, ...]:
        """What was granted beyond its budgets, in order."""
        return EXTENSIONS.validate_json(self.extensions)

    @property
    def is_dry(self) -> bool:
        """Whether no call of it may ever run."""
        return self.replay_of_run_id is not None


async def hold(conn: Connection, run_id: str) -> Run | None:
    """Return one run, or None, and let no one else change it until this transaction ends."""
    row = (await conn.execute(_HOLD, {"run": run_id})).mappings().one_or_none()
    return None if row is None else Run(**row)


async def get(conn: Connection, run_id: str) -> Run | None:
    """Return one run, or None."""
    row = (await conn.execute(_BY_ID, {"run": run_id})).mappings().one_or_none()
    return Run(**row) if row else None


async def hold_several(conn: Connection, run_ids: Sequence[str]) -> None:
    """Hold runs in this order, for a transaction that appends events to several of them; call it before the first event.

    On PostgreSQL an event takes the run and then the counter of all events. A transaction that had the counter and then waited
    for the next run, and one that had that run and waited for the counter, would wait for each other.
    """
    if conn.dialect.name == "postgresql" and len(run_ids) > 1:
        for run_id in run_ids:
            await conn.execute(_HOLD, {"run": run_id})


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """What a run is to do: the first 500 characters. ``agent``: whose run it is."""

    agent: str
    task: str


def _tasks_query() -> Select[Any]:
    """Build the walk from runs up to those that people started, the topmost first."""
    own = select(
        runs.c.id.label("below"), runs.c.id, runs.c.parent_run_id, runs.c.agent, runs.c.task, literal(0).label("level")
    ).where(runs.c.id.in_(among("run_ids")))
    chain = own.cte("chain", recursive=True)
    above = runs.alias("above")
    up = (
        select(chain.c.below, above.c.id, above.c.parent_run_id, above.c.agent, above.c.task, chain.c.level + 1)
        .join(chain, above.c.id == chain.c.parent_run_id)
        .where(chain.c.level < MAX_LEVELS)
    )
    chain = chain.union_all(up)
    return select(chain.c.below, chain.c.id, chain.c.agent, chain.c.task).order_by(chain.c.level.desc())


MAX_LEVELS: Final = 16
_TASKS = _tasks_query()


async def tasks_of(conn: Connection, run_ids: Iterable[str]) -> dict[str, list[RunTask]]:
    """Return by run what it and the runs above it are to do, the topmost first, in one query."""
    tasks: dict[str, list[RunTask]] = {run_id: [] for run_id in run_ids}
    if tasks:
        for row in await conn.execute(_TASKS, {"run_ids": listed(tasks)}):
            tasks[row.below].append(RunTask(agent=row.agent, task=row.task))
    return tasks


async def lines_of(conn: Connection, run_ids: Iterable[str]) -> dict[str, set[str]]:
    """Return by run its own id and those of the runs above it, in one query."""
    lines: dict[str, set[str]] = {run_id: {run_id} for run_id in run_ids}
    for row in await conn.execute(_TASKS, {"run_ids": listed(lines)}):
        lines[row.below].add(row.id)
    return lines


async def sub_agents_among(conn: Connection, run_ids: Sequence[str]) -> set[str]:
    """Return which of these runs answer a call of another run."""
    query = select(runs.c.id).where(runs.c.id.in_(run_ids), runs.c.parent_run_id.is_not(None))
    return set((await conn.execute(query)).scalars())


async def by_idempotency_key(conn: Connection, key: str) -> Run | None:
    """Return the run that was started under this key, or None."""
    row = (await conn.execute(select(runs).where(runs.c.idempotency_key == key))).mappings().one_or_none()
    return Run(**row) if row else None


async def live_of_conversation(conn: Connection, conversation_id: str) -> Run | None:
    """Return the conversation's live run, or None; there is at most one."""
    query = select(runs).where(runs.c.conversation_id == conversation_id, runs.c.status == "running")
    row = (await conn.execute(query)).mappings().one_or_none()
    return Run(**row) if row else None


async def hold_live(conn: Connection, conversation_id: str) -> Run | None:
    """Return the conversation's live run, which cannot end before this transaction does; None: none is live."""
    query = select(runs).where(runs.c.conversation_id == conversation_id, runs.c.status == "running").with_for_update()
    row = (await conn.execute(query)).mappings().one_or_none()
    return Run(**row) if row else None


async def interrupt(conn: Connection, run_id: str, *, by: str, reason: str, at: datetime) -> bool:
    """Order a live run to stop; False if it is to stop already, or has ended (the first order counts)."""
    unstopped = runs.c.id == run_id, runs.c.status == "running", runs.c.interrupted_at.is_(None)
    order = {"interrupted_at": as_text(at), "interrupted_by": by, "interrupt_reason": reason}
    return (await conn.execute(update(runs).where(*unstopped).values(**order, **_ORDERED))).rowcount == 1


async def pause(conn: Connection, run_id: str, *, by: str, reason: str, at: datetime) -> bool:
    """Order a live run to hold; False if it is paused already, is to stop, or has ended."""
    unpaused = runs.c.id == run_id, runs.c.status == "running", runs.c.paused_at.is_(None)
    order = {"paused_at": as_text(at), "paused_by": by, "pause_reason": reason}
    query = update(runs).where(*unpaused, runs.c.interrupted_at.is_(None))
    return (await conn.execute(query.values(**order, **_ORDERED))).rowcount == 1


async def resume(conn: Connection, run_id: str) -> bool:
    """Order a run to continue; False if it was not paused."""
    query = update(runs).where(runs.c.id == run_id, runs.c.status == "running", runs.c.paused_at.is_not(None))
    order = {"paused_at": None, "paused_by": None, "pause_reason": ""}
    return (await conn.execute(query.values(**order, **_ORDERED))).rowcount == 1


async def see_control(conn: Connection, run: Run) -> None:
    """Note that the run's workflow knows of what was ordered so far."""
    if run.control_seen < run.control:
        query = update(runs).where(runs.c.id == run.id, runs.c.control_seen < run.control)
        await conn.execute(query.values(control_seen=run.control))


async def with_unseen_orders(conn: Connection) -> list[str]:
    """Return the ids of the live runs whose workflow does not know of the newest order, oldest run first."""
    unseen = runs.c.status == "running", runs.c.control_seen < runs.c.control
    return list((await conn.execute(select(runs.c.id).where(*unseen).order_by(runs.c.created_at))).scalars())


async def count_live(conn: Connection) -> int:
    """Return how many runs have not ended."""
    query = select(func.count()).select_from(runs).where(runs.c.status == "running")
    return int((await conn.execute(query)).scalar_one())


async def newest_ended(conn: Connection, *, since: str, limit: int) -> list[tuple[str, str]]:
    """Return (id, status) of the newest ``limit`` runs, of those that have ended since then; the newest first."""
    newest = select(runs.c.id, runs.c.status, runs.c.ended_at).order_by(runs.c.created_at.desc(), runs.c.id.desc())
    looked = newest.limit(limit).subquery()
    rows = await conn.execute(select(looked.c.id, looked.c.status).where(looked.c.ended_at >= since))
    return [(row.id, row.status) for row in rows]


async def starters_in(conn: Connection, conversation_id: str) -> frozenset[str]:
    """Return who started the runs of a conversation; empty: no run is in it."""
    query = select(runs.c.started_by).where(runs.c.conversation_id == conversation_id).distinct()
    return frozenset((await conn.execute(query)).scalars())


async def page(
    conn: Connection,
    wanted: RunFilter = EVERY_RUN,
    *,
    limit: int,
    before: tuple[str, str] | None = None,
    started_by: str | None = None,
) -> list[Run]:
    """Return runs, newest first. ``before``: (created_at, id) of the last one seen. ``started_by`` None: everyone's.

    A search finds what the columns say, secrets too: compare its words with what people may see. It looks through the first
    :data:`MOST_SEARCHED` runs.
    """
    query = page_query(wanted, limit=limit, before=before, started_by=started_by)
    return [Run(**row) for row in (await conn.execute(query)).mappings()]


async def agents_among(conn: Connection, wanted: RunFilter) -> list[str]:
    """Return the agents of the first runs of a list, by name: those that its filter finds."""
    first = page_query(wanted, limit=MOST_OFFERED).with_only_columns(runs.c.agent).subquery()
    return sorted((await conn.execute(select(first.c.agent).distinct())).scalars())


def page_query(
    wanted: RunFilter, *, limit: int, before: tuple[str, str] | None = None, started_by: str | None = None
) -> Select[Any]:
    """Return the query of :func:`page`."""
    newest = runs.c.created_at.desc(), runs.c.id.desc()
    conditions = [*_conditions(wanted), *([] if started_by is None else [runs.c.started_by == started_by])]
    query = select(runs).where(*conditions).order_by(*newest).limit(limit)
    if wanted.words:
        first = select(runs.c.id).where(*conditions).order_by(*newest).limit(MOST_SEARCHED)
        query = select(runs).where(runs.c.id.in_(first), *map(_has, wanted.words)).order_by(*newest).limit(limit)
    return query if before is None else query.where(tuple_(runs.c.created_at, runs.c.id) < tuple_(*before))


def _conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.cause is not None or wanted.status in {"failed", "interrupted"}:
        conditions.append(_STOPPED)
    if wanted.status is not None:
        conditions.append(runs.c.status == wanted.status)
    if wanted.agent is not None:
        conditions.append(runs.c.agent == wanted.agent)
    if wanted.cause is not None:
        conditions.append(runs.c.status == "failed")
    if wanted.cause == "bug":  # also what no one foresaw
        conditions.append(runs.c.error_class.not_in(sorted(MEANINGS.keys() - classes_of("bug"))))
    elif wanted.cause is not None:
        conditions.append(runs.c.error_class.in_(sorted(classes_of(wanted.cause))))
    return conditions


def _has(word: str) -> ColumnElement[bool]:
    names = ("id", "agent", "path", "error_class", "started_by", "conversation_id")
    content = (
        and_(~is_sealed(runs.c[name]), runs.c[name].icontains(word, autoescape=True)) for name in ("task", "reason")
    )
    return or_(*(runs.c[name].icontains(word, autoescape=True) for name in names), *content)


async def live_among(conn: Connection, run_ids: Collection[str]) -> set[str]:
    """Return which of these runs have not ended."""
    query = select(runs.c.id).where(runs.c.id.in_(run_ids), runs.c.status == "running")
    return set((await conn.execute(query)).scalars())


async def live_of(conn: Connection, run_ids: Collection[str]) -> list[Run]:
    """Return those of these runs that have not ended, the newest first."""
    query = select(runs).where(runs.c.id.in_(run_ids), runs.c.status == "running").order_by(runs.c.created_at.desc())
    return [Run(**row) for row in (await conn.execute(query)).mappings()]


async def advance(conn: Connection, run_id: str, *, step: int, used: Used = NOTHING) -> bool:
    """Note that the live run works on this step, and what that took of its budgets; False when it has ended or is to."""
    noted = {"run": run_id, "at_step": step, "tokens": used.tokens, "cost": used.cost_micros}
    return (await conn.execute(ADVANCE, noted)).rowcount == 1


async def extend(conn: Connection, run_id: str, granted: Extension) -> None:
    """Let the run use more of a budget. Safe to repeat: each call extends once."""
    held = select(runs.c.extensions).where(runs.c.id == run_id).with_for_update()
    before = EXTENSIONS.validate_json((await conn.execute(held)).scalar_one())
    if all(each.call != granted.call for each in before):
        extensions = EXTENSIONS.dump_json((*before, granted)).decode()
        await conn.execute(update(runs).where(runs.c.id == run_id).values(extensions=extensions))


async def set_lead(conn: Connection, run: Run, *, agent: str, agent_version: str, model: str) -> None:
    """Let another agent or model take the run's next step. The path changes, too: it names who asks and who delegates.

    A model that someone chose before, or that was a fallback, no longer counts.
    """
    above, slash, _agent = run.path.rpartition("/")
    query = update(runs).where(runs.c.id == run.id)
    path = f"{above}{slash}{agent}"
    lead = {"agent": agent, "agent_version": agent_version, "model": model, "path": path}
    await conn.execute(query.values(**lead, model_chosen_by=None, fell_back_from=None))


async def switch_model(conn: Connection, run_id: str, *, model: str, by: str) -> bool:
    """Let a model that someone chose answer a live run's next requests; False when it has ended."""
    query = update(runs).where(runs.c.id == run_id, runs.c.status == "running")
    return (await conn.execute(query.values(model=model, model_chosen_by=by, fell_back_from=None))).rowcount == 1


async def fall_back(conn: Connection, run: Run, *, model: str, instead_of: str) -> bool:
    """Replace a model that can't be used by a fallback; False if the run has ended, or its model was switched meanwhile."""
    as_it_was = runs.c.id == run.id, runs.c.status == "running", runs.c.model == run.model
    by = runs.c.model_chosen_by.is_not_distinct_from(run.model_chosen_by)
    query = update(runs).where(*as_it_was, by)
    return (await conn.execute(query.values(model=model, fell_back_from=instead_of))).rowcount == 1


async def move_head(conn: Connection, run: Run, message_id: str) -> None:
    """Move the run's head, and its conversation's, to a message after which every call is answered."""
    values = {"run": run.id, "conversation": run.conversation_id, "head": message_id}
    await _MOVE_HEADS.run(conn, {}, values)


async def begin_at(conn: Connection, run: Run, message_id: str) -> None:
    """Let a run that has not begun begin with this message in place of its input, and its conversation with it."""
    query = update(runs).where(runs.c.id == run.id)
    await conn.execute(query.values(input_message_id=message_id))
    await move_head(conn, run, message_id)


async def complete(conn: Connection, run: Run, *, step: int, head_message_id: str) -> bool:
    """End a live run with the model's answer as its head, and its conversation's; False when it had ended already."""
    ended = {"run": run.id, "at_step": step, "head": head_message_id, "at": as_text(now()), "tokens": 0, "cost": 0}
    if (await conn.execute(COMPLETE, ended)).rowcount != 1:
        return False
    await conn.execute(MOVE_CONVERSATION, {"conversation": run.conversation_id, "head": head_message_id})
    return True


async def end(conn: Connection, run_id: str, ending: Ending) -> bool:
    """End a live run; False if it has ended already (the first ending counts)."""
    query = (
        update(runs)
        .where(runs.c.id == run_id, runs.c.status == "running")
        .values(
            status=ending.status,
            reason=ending.reason,
            error_class=ending.error_class,
            ended_by=ending.by,
            ended_at=as_text(now()),
        )
    )
    return (await conn.execute(query)).rowcount == 1
