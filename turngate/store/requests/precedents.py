"""Precedents: decided approvals, found again by hashes of what their calls have in common (``turngate.domain.likeness``).

Rows are added after the decision, apart from its transaction. What they find is a hint: a surface that shows it compares the
requests' own rows. None holds a value of an argument, and all go when their request does.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    Row,
    RowMapping,
    Select,
    String,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    select,
    text,
    union_all,
)

from turngate.domain.likeness import MAX_READ_CHARS, MOST_FEATURES
from turngate.domain.requests import ExecutionState, Verb
from turngate.domain.tools.defaults import constant_text, for_readers, read_stored
from turngate.store.database import Connection
from turngate.store.tables import decisions, events, executions, precedent_features, precedents, requests, runs
from turngate.store.texts import at_most, beginning_of

PER_FEATURE: Final = 48
"""Of the calls that share one hash, the newest. What more of them share tells little."""
SHORTLIST: Final = 16
"""Calls that are read to be compared."""
COUNTED: Final = 1_000
"""Of a tool's decisions, the newest."""
MOST_WAITING: Final = 1_000
RECORDED: Final = 50
"""Approved calls of a tool whose end is looked at, the newest."""
MAX_MESSAGE_CHARS: Final = 500
MAX_REASON_CHARS: Final = 200
REASONS_READ: Final = 40
"""Of which those are offered that differ."""
NO_FEATURE: Final = -1
"""In place of a hash, and of a precedent: there is none like it."""

_OF_DECISIONS = (
    select(events.c.seq, events.c.type, events.c.payload)
    .where(
        events.c.seq > bindparam("after"),
        events.c.seq <= bindparam("upto"),
        events.c.type.in_(("request.decided", "request.approval_withdrawn")),
    )
    .order_by(events.c.seq)
)
_NEWEST_ADDED = select(func.max(precedents.c.seq))
# Longer arguments are compared as text, by their beginning: the one character more shows that they are.
_AS_SEEN = func.coalesce(requests.c.masked_input, requests.c.input)
_READ = (beginning_of(_AS_SEEN, MAX_READ_CHARS + 1).label("input"), requests.c.defaults)
_OF_TOOL = precedents.c.tool_name == bindparam("tool")


def _newest(most: int, *columns: Any) -> Select[Any]:
    of_tool = select(*columns).where(_OF_TOOL).order_by(precedents.c.seq.desc())
    return of_tool.limit(literal_column(str(most)))


def _in_one_row(place: int, newest: Select[Any]) -> Select[Any]:
    """Return a query of all numbers that another one returns, with commas: hundreds of rows take longer than the search."""
    seqs = newest.subquery(f"newest_{place}")
    together = func.aggregate_strings(cast(seqs.c.seq, String), ",").label("seqs")
    columns: list[Any] = [literal_column(str(place)).label("place"), together]
    return select(*columns)


def _sharing(place: int) -> Select[Any]:
    sharing = precedent_features.c.feature == bindparam(f"feature_{place}")
    newest = select(precedent_features.c.seq).where(sharing).order_by(precedent_features.c.seq.desc())
    return _in_one_row(place, newest.limit(literal_column(str(PER_FEATURE))))


_LIKE = select(
    union_all(
        *(_sharing(place) for place in range(MOST_FEATURES)),
        _in_one_row(MOST_FEATURES, _newest(SHORTLIST, precedents.c.seq)),
    ).subquery("likely")
)
_COUNTED = _newest(COUNTED, precedents.c.verb, precedents.c.seq).subquery("counted")
_DECIDED_LAST = _newest(COUNTED, precedents.c.seq, precedents.c.verb, precedents.c.request_id).subquery("decided_last")
_IS_SHORT = (
    requests.c.masked_input.is_(None),
    decisions.c.message != literal_column("''"),
    at_most(decisions.c.message, literal_column(str(MAX_REASON_CHARS))),
)
_REASONS = (
    select(decisions.c.message, decisions.c.decided_by, requests.c.run_id)
    .select_from(_DECIDED_LAST)
    .join(requests, requests.c.id == _DECIDED_LAST.c.request_id)
    .join(decisions, decisions.c.id == requests.c.decision_id)
    .where(
        _DECIDED_LAST.c.verb == literal_column("'reject'"),
        *_IS_SHORT,
    )
    .order_by(_DECIDED_LAST.c.seq.desc())
    .limit(literal_column(str(REASONS_READ)))
)
_ENDED_LAST = (
    select(requests.c.id, requests.c.status, requests.c.tool_name, requests.c.decided_at)
    .where(requests.c.status != literal_column("'pending'"), requests.c.decided_at.is_not(None))
    .order_by(requests.c.decided_at.desc(), requests.c.id.desc())
    .limit(literal_column(str(COUNTED)))
    .subquery("ended_last")
)
_LATEST_REASONS = (
    select(decisions.c.message, decisions.c.decided_by, requests.c.run_id)
    .select_from(_ENDED_LAST)
    .join(requests, requests.c.id == _ENDED_LAST.c.id)
    .join(decisions, decisions.c.id == requests.c.decision_id)
    .where(
        _ENDED_LAST.c.status == literal_column("'rejected'"),
        _ENDED_LAST.c.tool_name.in_(bindparam("tools", expanding=True)),
        *_IS_SHORT,
    )
    .order_by(_ENDED_LAST.c.decided_at.desc(), _ENDED_LAST.c.id.desc())
    .limit(literal_column(str(REASONS_READ)))
)
_APPROVED = (
    _newest(RECORDED, requests.c.run_id, requests.c.tool_call_id)
    .join_from(precedents, requests, precedents.c.request_id == requests.c.id)
    .where(precedents.c.verb.in_((literal_column("'approve'"), literal_column("'edit'"))))
    .subquery("approved")
)
_WAITING = (
    select(requests.c.id)
    .where(
        requests.c.repeat_key.in_(bindparam("keys", expanding=True)),
        requests.c.status == literal_column("'pending'"),
        requests.c.id != bindparam("besides"),
    )
    .limit(literal_column(str(MOST_WAITING)))
    .subquery("waiting")
)
# Three answers in one statement, each with its word: PostgreSQL takes a trip for every statement.
_SUMMARY = select(
    union_all(
        select(
            literal_column("'verb'").label("about"),
            _COUNTED.c.verb.label("word"),
            func.count().label("number"),
            func.max(_COUNTED.c.seq).label("newest"),
        ).group_by(_COUNTED.c.verb),
        select(literal_column("'state'"), executions.c.state, func.count(), literal_column("0"))
        .join_from(
            _APPROVED,
            executions,
            (executions.c.run_id == _APPROVED.c.run_id) & (executions.c.tool_call_id == _APPROVED.c.tool_call_id),
        )
        .group_by(executions.c.state),
        select(literal_column("'waiting'"), literal_column("''"), func.count(), literal_column("0")).select_from(
            _WAITING
        ),
    ).subquery("summary")
)
_CASES = (
    select(
        precedents.c.seq,
        precedents.c.request_id,
        requests.c.run_id,
        requests.c.agent,
        *_READ,
        precedents.c.verb,
        requests.c.decided_by,
        requests.c.decided_at,
        beginning_of(func.coalesce(decisions.c.message, ""), MAX_MESSAGE_CHARS).label("message"),
        executions.c.state.label("execution"),
    )
    .join(requests, requests.c.id == precedents.c.request_id)
    .outerjoin(decisions, decisions.c.id == requests.c.decision_id)
    .outerjoin(
        executions,
        (executions.c.run_id == requests.c.run_id) & (executions.c.tool_call_id == requests.c.tool_call_id),
    )
    .where(precedents.c.seq.in_([bindparam(f"seq_{place}") for place in range(SHORTLIST + 1)]))
)
# Two processes may add the same ones.
_ADD = text(
    "INSERT INTO precedents (seq, request_id, tool_name, verb) VALUES (:seq, :request_id, :tool_name, :verb) "
    "ON CONFLICT DO NOTHING"
)
_ADD_FEATURE = text("INSERT INTO precedent_features (feature, seq) VALUES (:feature, :seq) ON CONFLICT DO NOTHING")
_ADD_FEATURE = _ADD_FEATURE.bindparams(bindparam("feature", type_=precedent_features.c.feature.type))


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A request that a person decided. ``seq``: of the event that says so."""

    seq: int
    request_id: str
    tool_name: str
    input: str
    verb: Verb


@dataclass(frozen=True, kw_only=True)
class Case:
    """A precedent. ``input``: as its handler would get it, its first characters. ``message``: of the decision.

    ``execution``: None: it was not started.
    """

    seq: int
    request_id: str
    run_id: str
    agent: str
    input: str
    verb: Verb
    decided_by: str
    decided_at: str
    message: str
    execution: ExecutionState | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a tool's newest decisions went, and its newest approved calls. ``last_rejection``: a precedent; None: there is none.

    ``waiting``: how many other approvals wait that ask for the same call; it stops at :data:`MOST_WAITING`.
    """

    decisions: Counter[Verb]
    last_rejection: int | None
    ends: Counter[ExecutionState]
    waiting: int


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why someone rejected a call."""

    message: str
    decided_by: str
    run_id: str


# Adding.


async def newest_added(conn: Connection) -> int:
    """Return the event of the newest precedent; 0: there is none."""
    return (await conn.execute(_NEWEST_ADDED)).scalar_one() or 0


async def decided_between(conn: Connection, after: int, upto: int) -> tuple[list[Decided], list[str]]:
    """Return the approvals that people decided by the events after ``after`` (exclusive) up to ``upto``, oldest first.

    And the requests whose approval was taken back by these events and that were not decided after that: no precedents.
    """
    seqs: dict[str, int] = {}
    taken_back: dict[str, None] = {}
    for row in await conn.execute(_OF_DECISIONS, {"after": after, "upto": upto}):
        request_id = str(json.loads(row.payload)["request_id"])
        if row.type == "request.decided":
            seqs[request_id] = int(row.seq)
            taken_back.pop(request_id, None)
        else:
            seqs.pop(request_id, None)
            taken_back[request_id] = None
    columns = requests.c.id, requests.c.tool_name, requests.c.verb, *_READ
    query = select(*columns).join(runs, runs.c.id == requests.c.run_id)
    query = query.where(requests.c.id.in_(seqs), requests.c.kind == "approval", requests.c.verb.is_not(None))
    query = query.where(runs.c.erasure_id.is_(None))  # what is left of an erased call is like no other
    decided = [
        Decided(seq=seqs[row.id], request_id=row.id, tool_name=row.tool_name, input=_whole(row), verb=row.verb)
        for row in await conn.execute(query)
    ]
    return sorted(decided, key=lambda each: each.seq), list(taken_back)


async def remove(conn: Connection, request_ids: Collection[str]) -> None:
    """Remove the precedents of these requests, if there are any."""
    if request_ids:
        await conn.execute(delete(precedents).where(precedents.c.request_id.in_(request_ids)))


async def add(conn: Connection, decided: Sequence[tuple[Decided, Collection[int]]]) -> None:
    """Add precedents, each with the features of its call. One that is there already stays."""
    if not decided:
        return
    rows = [
        {"seq": each.seq, "request_id": each.request_id, "tool_name": each.tool_name, "verb": each.verb}
        for each, _features in decided
    ]
    await conn.execute(_ADD, rows)
    await conn.execute(
        _ADD_FEATURE, [{"feature": one, "seq": each.seq} for each, features in decided for one in features]
    )


# Finding.


_OF_TOOL_DECIDED = (
    select(
        precedents.c.verb,
        requests.c.agent,
        beginning_of(_AS_SEEN, bindparam("chars")).label("input"),
        requests.c.defaults,
    )
    .join_from(precedents, requests, precedents.c.request_id == requests.c.id)
    .where(_OF_TOOL)
    .order_by(precedents.c.seq.desc())
    .limit(bindparam("most"))
)


MOST_TOOLS: Final = 8
"""Whose decided calls are read together."""


def _of_tool_about(place: int) -> Select[Any]:
    """Return a query as the one of a tool's decided calls, with how the processes of a request's call are confined."""
    asking = requests.alias(f"asking_{place}")
    about = asking.c.id == bindparam(f"request_{place}")
    confinement = select(asking.c.confinement).where(about).scalar_subquery()
    masked = select(asking.c.masked_input).where(about).scalar_subquery()
    newest = (
        select(precedents.c.seq, precedents.c.verb, precedents.c.request_id)
        .where(precedents.c.tool_name == bindparam(f"tool_{place}"))
        .order_by(precedents.c.seq.desc())
        .limit(bindparam("most"))
        .subquery(f"newest_{place}")
    )
    return select(
        literal_column(str(place)).label("place"),
        newest.c.seq,
        newest.c.verb,
        requests.c.agent,
        beginning_of(_AS_SEEN, bindparam("chars")).label("input"),
        requests.c.defaults,
        confinement.label("confinement"),
        masked.is_not(None).label("has_secret"),
    ).join_from(newest, requests, newest.c.request_id == requests.c.id)


_OF_TOOLS_DECIDED = union_all(*map(_of_tool_about, range(MOST_TOOLS)))


@dataclass(frozen=True, kw_only=True)
class DecidedInput:
    """A decided call of a tool. ``input``: its arguments as its handler gets them, without secrets, the first characters."""

    verb: Verb
    agent: str
    input: str


async def newest_of_tool(conn: Connection, tool_name: str, *, limit: int, max_chars: int) -> list[DecidedInput]:
    """Return what people decided about the newest calls of a tool, newest first. Of longer arguments one character more."""
    rows = await conn.execute(_OF_TOOL_DECIDED, {"tool": tool_name, "most": limit, "chars": max_chars + 1})
    return [DecidedInput(verb=row.verb, agent=row.agent, input=_whole(row)[: max_chars + 1]) for row in rows]


@dataclass(frozen=True, kw_only=True)
class DecidedLike:
    """What people decided about a tool that a request is about. ``confinement``: JSON of how the request's processes are.

    ``has_secret``: the request has one.
    """

    confinement: str | None
    has_secret: bool
    decided: list[DecidedInput]


async def newest_of_tools(
    conn: Connection, tools: Mapping[str, str], *, limit: int, max_chars: int
) -> dict[str, DecidedLike]:
    """Return as :func:`newest_of_tool` does, for several requests. ``tools``: request → tool; the first :data:`MOST_TOOLS`."""
    wanted = list(tools.items())[:MOST_TOOLS]
    values: dict[str, str | int] = {"most": limit, "chars": max_chars + 1}
    for place in range(MOST_TOOLS):
        request_id, tool = wanted[place] if place < len(wanted) else ("", "")
        values |= {f"request_{place}": request_id, f"tool_{place}": tool}
    by_request: dict[str, DecidedLike] = {}
    rows = (await conn.execute(_OF_TOOLS_DECIDED, values)).all()
    for row in sorted(rows, key=lambda row: -row.seq):
        about = DecidedLike(confinement=row.confinement, has_secret=bool(row.has_secret), decided=[])
        of_tool = by_request.setdefault(wanted[row.place][0], about)
        of_tool.decided.append(DecidedInput(verb=row.verb, agent=row.agent, input=_whole(row)[: max_chars + 1]))
    return by_request


async def like(conn: Connection, tool_name: str, features: Sequence[int]) -> list[int]:
    """Return decided calls of a tool that may be like one with these features, the likeliest first, at most :data:`SHORTLIST`.

    Those that share the rarest features, then the newest. One statement; its cost does not grow with the decisions.
    """
    padded = [*features[:MOST_FEATURES], *[NO_FEATURE] * (MOST_FEATURES - len(features))]
    values: dict[str, int | str] = {f"feature_{place}": feature for place, feature in enumerate(padded)}
    rows = await conn.execute(_LIKE, {**values, "tool": tool_name})
    sharing = {row.place: [int(seq) for seq in row.seqs.split(",")] for row in rows if row.seqs is not None}
    newest = sharing.pop(MOST_FEATURES, [])
    score: defaultdict[int, float] = defaultdict(float)
    for seqs in sharing.values():
        for seq in seqs:
            score[seq] += 1 / len(seqs)
    likeliest = sorted(score, key=lambda seq: (-score[seq], -seq))
    return list(dict.fromkeys([*likeliest, *sorted(newest, reverse=True)]))[:SHORTLIST]


async def summary(conn: Connection, tool_name: str, repeat_key: str, *, besides: str) -> Summary:
    """Return how a tool's newest decisions and calls went. ``besides``: the request that asks, which is not counted."""
    rows = (await conn.execute(_SUMMARY, {"tool": tool_name, "keys": [repeat_key], "besides": besides})).all()
    verbs = {row.word: row for row in rows if row.about == "verb"}
    return Summary(
        decisions=Counter({verb: row.number for verb, row in verbs.items()}),
        last_rejection=int(verbs["reject"].newest) if "reject" in verbs else None,
        ends=Counter({row.word: row.number for row in rows if row.about == "state"}),
        waiting=sum(row.number for row in rows if row.about == "waiting"),
    )


async def reasons(conn: Connection, tool_name: str) -> list[Reason]:
    """Return why people rejected calls of a tool lately, the newest first. None of calls with secrets, and none that is long."""
    return _short((await conn.execute(_REASONS, {"tool": tool_name})).mappings())


async def latest_reasons(conn: Connection, tool_names: Collection[str]) -> list[Reason]:
    """Return as :func:`reasons` does, for several tools and for questions, too: of the requests of all tools that ended last."""
    rows = await conn.execute(_LATEST_REASONS, {"tools": sorted(tool_names)})
    return _short(rows.mappings())


def _short(rows: Iterable[RowMapping]) -> list[Reason]:
    """Return the reasons without those that are too long: of an encrypted one the database knows it only roughly."""
    return [Reason(**row) for row in rows if len(row["message"]) <= MAX_REASON_CHARS]


async def cases(conn: Connection, seqs: Sequence[int]) -> dict[int, Case]:
    """Return these precedents, at most one more than :data:`SHORTLIST`; without those whose request is gone."""
    padded = [*seqs, *[NO_FEATURE] * (SHORTLIST + 1 - len(seqs))]
    rows = await conn.execute(_CASES, {f"seq_{place}": seq for place, seq in enumerate(padded)})
    by_seq: dict[int, Case] = {}
    for row in rows.mappings():
        columns = dict(row)
        columns["input"] = constant_text(columns["input"], for_readers(read_stored(columns.pop("defaults"))))
        by_seq[row["seq"]] = Case(**columns)
    return by_seq


def _whole(row: Row[Any]) -> str:
    """Return a call's arguments as its handler gets them, if all of what is written was read."""
    return constant_text(row.input, for_readers(read_stored(row.defaults)))
