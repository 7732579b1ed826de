"""Requests and decisions: the operators' inbox. Whatever ends a request goes through :func:`settle`, once."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from pydantic import TypeAdapter
from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.engine import RowMapping

from turngate.domain.digest import derived_id
from turngate.domain.origins.origin import Doubts, Origins
from turngate.domain.policy.policy import Risk
from turngate.domain.policy.terms import AskTerms, names_of
from turngate.domain.requests import ExecutionState, LostStart, RequestKind, RequestStatus, Resolution, Verb
from turngate.domain.runs.inbox import MOST_COUNTED, MOST_OFFERED, UNCLAIMED, InboxFilter, urgent_at
from turngate.domain.tools.defaults import Defaults, read_stored
from turngate.domain.tools.preview import BREAK, HEAD_CHARS, MARKED, Preview, PreviewKind, PreviewSize
from turngate.domain.tools.results import TOOL_RESULT, Failure
from turngate.domain.tools.tool import ProcessConfinement, ToolManifest
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events.row_digests import changed_column
from turngate.store.joined import parts
from turngate.store.tables import approvals, calls, decisions, events, executions, requests, runs
from turngate.store.tables.evidence import CLIMBS
from turngate.store.texts import among, beginning_of, is_sealed, listed, times
from turngate.store.together import Together, Writes
from turngate.wire.orders import DecisionOrder
from turngate.wire.people import id_of
from turngate.wire.requests import RequestItem

# The inbox's SQL: which rows a filter means, in which order, and where the next page begins.


# Written out, not bound: only so do the planners see that an index of the pending requests alone will do.
_PENDING = requests.c.status == literal_column("'pending'")
_PREVIEW_KIND: Final[TypeAdapter[PreviewKind]] = TypeAdapter(PreviewKind)
DEPENDS_ON_NOTHING: Final = "null"
"""The precondition of a call that depends on nothing, as JSON."""
CACHED_QUERIES: Final = 256
"""Building a query costs more than running it, and people look through the same few filters all day."""
MOST_SEARCHED: Final = 10_000
"""How many requests one search reads: the first in its order. It reads whole rows, on SQLite in the process that serves."""
MOST_FILTERED: Final = 100_000
"""How many requests that have ended a filter looks through, the newest: with millions, one that few match takes minutes."""
ESCAPE: Final = "!"
_ENDED = requests.c.status != literal_column("'pending'")


@lru_cache(maxsize=CACHED_QUERIES)
def page_query(wanted: InboxFilter, columns: tuple[Column[Any], ...], *, limit: int, resumed: bool) -> Select[Any]:
    """Return the query of one page: pending requests by the filter's order, ended ones by their end and ``all``, newest first.

    ``columns``: of each request. ``resumed``: it begins after a request seen before. Run it with :func:`values_of`.
    """
    instant, newest_first = _order(wanted)
    query = select(*columns).where(*_conditions(wanted)).limit(limit).order_by(*_in_order(wanted))
    if resumed:
        seen, place = tuple_(bindparam("seen_at"), bindparam("seen_id")), tuple_(instant, requests.c.id)
        query = query.where(place < seen if newest_first else place > seen)
    return query


@lru_cache(maxsize=CACHED_QUERIES)
def count_query(wanted: InboxFilter) -> Select[int]:
    """Return the query of how many there are on all pages, up to :data:`MOST_COUNTED` and one. Run it with :func:`values_of`."""
    some: Select[Any] = select(literal_column("1")).select_from(requests).where(*_conditions(wanted))
    # In order, because PostgreSQL would otherwise read the whole table for a filter that few requests match.
    some = some.order_by(*_in_order(wanted)).limit(MOST_COUNTED + 1)
    return select(func.count()).select_from(some.subquery())


@dataclass(frozen=True, kw_only=True)
class Choices:
    """To what the filter of a list can be set so that it finds something. ``claimed``: people, as rows name them."""

    tools: Sequence[str]
    agents: Sequence[str]
    rules: Sequence[str]
    claimed: Sequence[str]


@lru_cache(maxsize=CACHED_QUERIES)
def _choices_query(wanted: InboxFilter) -> Select[Any]:
    columns = requests.c.tool_name, requests.c.agent, requests.c.rule, requests.c.claimed_by, requests.c.claimed_until
    first = page_query(wanted, columns, limit=MOST_OFFERED, resumed=False).subquery()
    claimed = case((first.c.claimed_until > bindparam("at"), first.c.claimed_by), else_=None)
    return select(first.c.tool_name, first.c.agent, first.c.rule, claimed).distinct()


async def choices(conn: Connection, wanted: InboxFilter) -> Choices:
    """Return what the first requests of a list have. ``wanted``: without conditions."""
    rows = (await conn.execute(_choices_query(wanted), {"at": as_text(now())})).all()
    tools, agents, rules, claimed = (sorted({each[place] for each in rows} - {None, ""}) for place in range(4))
    return Choices(tools=tools, agents=agents, rules=rules, claimed=claimed)


def values_of(wanted: InboxFilter, after: tuple[str, str] | None = None) -> dict[str, str]:
    """Return the values that the filter's queries are run with. ``after``: the :func:`key_of` the last request seen."""
    values = {} if wanted.claimed is None else {"at": as_text(now())}
    for place, word in enumerate(wanted.words):
        values[f"word_{place}"] = _like(word)
        values[f"json_{place}"] = _like(json.dumps(word)[1:-1])
    return values if after is None else {**values, "seen_at": after[0], "seen_id": after[1]}


def key_of(wanted: InboxFilter, request: ListedRequest | RequestItem) -> tuple[str, str]:
    """Return a request's place in the filter's order: an instant, then its id."""
    instant, _newest_first = _order(wanted)
    return str(getattr(request, instant.name)), request.id


def _order(wanted: InboxFilter) -> tuple[Column[str], bool]:
    if wanted.status == "pending":
        return (requests.c.urgent_at if wanted.order == "urgency" else requests.c.created_at), False
    return (requests.c.created_at if wanted.status == "all" else requests.c.decided_at), True


def _in_order(wanted: InboxFilter) -> tuple[ColumnElement[str], ColumnElement[str]]:
    instant, newest_first = _order(wanted)
    return (instant.desc(), requests.c.id.desc()) if newest_first else (instant, requests.c.id)


def _conditions(wanted: InboxFilter) -> list[ColumnElement[bool]]:
    conditions = [*_plain_conditions(wanted), *_newest_alone(wanted)]
    if not wanted.words:
        return conditions
    first = select(requests.c.id).where(*conditions).order_by(*_in_order(wanted)).limit(MOST_SEARCHED)
    return [requests.c.id.in_(first), *(_has(place) for place in range(len(wanted.words)))]


def _newest_alone(wanted: InboxFilter) -> list[ColumnElement[bool]]:
    """Return the condition that bounds how many requests a filter looks through, where it might look through millions."""
    if not wanted.looks_through_newest:
        return []
    newest = _in_order(wanted)
    if wanted.status == "all":  # no index has its columns, so rows are read
        return [requests.c.id.in_(select(requests.c.id).order_by(*newest).limit(MOST_SEARCHED))]
    oldest = select(requests.c.decided_at).where(_ENDED).order_by(*newest).offset(MOST_FILTERED).limit(1)
    return [requests.c.decided_at >= func.coalesce(oldest.scalar_subquery(), "")]


def _has(place: int) -> ColumnElement[bool]:
    """Return the condition that a word of the search occurs in a request or in its run's task.

    No search finds what is encrypted: arguments and tasks, in an encrypted store.
    """
    word: BindParameter[str] = bindparam(f"word_{place}")
    names = ("tool_name", "agent", "path", "id", "run_id", "claimed_by", "decided_by")
    # What people may not see, they may not find: a search that finds a secret confirms a guess of it.
    visible_input = func.coalesce(requests.c.masked_input, requests.c.input)
    in_json: tuple[BindParameter[str], BindParameter[str]] = word, bindparam(f"json_{place}")
    of_run = or_(
        and_(requests.c.masked_input.is_(None), ~is_sealed(runs.c.task), runs.c.task.ilike(word, escape=ESCAPE)),
        runs.c.started_by.ilike(word, escape=ESCAPE),
    )
    return or_(
        *(requests.c[name].ilike(word, escape=ESCAPE) for name in names),
        and_(~is_sealed(visible_input), or_(*(visible_input.ilike(each, escape=ESCAPE) for each in in_json))),
        select(runs.c.id).where(runs.c.id == requests.c.run_id, of_run).exists(),
    )


def _like(word: str) -> str:
    """Return the pattern that a word somewhere in a text matches, whatever characters it has."""
    return f"%{re.sub(r'[%_!]', lambda special: ESCAPE + special[0], word)}%"


def _plain_conditions(wanted: InboxFilter) -> list[ColumnElement[bool]]:
    """Return the conditions that the inbox's indexes answer."""
    conditions = list(_status(wanted))
    exactly = {
        "kind": wanted.kind,
        "agent": wanted.agent,
        "tool_name": wanted.tool,
        "risk": wanted.risk,
        "rule": wanted.rule,
        "run_id": wanted.run_id,
    }
    conditions.extend(requests.c[name] == value for name, value in exactly.items() if value is not None)
    if wanted.step is not None:
        of_call = (calls.c.run_id == requests.c.run_id, calls.c.tool_call_id == requests.c.tool_call_id)
        conditions.append(select(calls.c.step).where(*of_call, calls.c.step == wanted.step).exists())
    if wanted.claimed is not None:
        conditions.append(_claimed(wanted.claimed))
    if wanted.parked is not None:
        conditions.append(requests.c.parked_at.is_not(None) if wanted.parked else requests.c.parked_at.is_(None))
    return conditions


def _status(wanted: InboxFilter) -> list[ColumnElement[bool]]:
    match wanted.status:
        case "all":
            return []
        case "pending":
            return [_PENDING]
        case "decided":
            return [_ENDED]
        case status:
            return [_ENDED, requests.c.status == status]


def _claimed(name: str) -> ColumnElement[bool]:
    at: BindParameter[str] = bindparam("at")
    if name == UNCLAIMED:
        return or_(requests.c.claimed_until.is_(None), requests.c.claimed_until <= at)
    return requests.c.claimed_by.in_(names_of(id_of(name))) & (requests.c.claimed_until > at)


PENDING = InboxFilter()

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_INSERT = insert(requests)
_BY_ID = select(requests).where(requests.c.id == bindparam("request"))
_BY_DECISION = select(requests).where(requests.c.decision_id == bindparam("decided"))
_OF_CALL = (
    select(requests)
    .where(requests.c.run_id == bindparam("of_run"), requests.c.tool_call_id == bindparam("call"))
    .order_by(requests.c.created_at, requests.c.id)
)


def _newest_payload(*types: str) -> ScalarSelect[str]:
    """Return the payload of the newest event of these types about a request, as a column of a query."""
    return (
        select(events.c.payload)
        .where(
            events.c.run_id == requests.c.run_id,
            or_(*(events.c.type == literal_column(f"'{each}'") for each in types)),
            events.c.payload.contains(literal('"request_id":"') + requests.c.id + '"'),
        )
        .order_by(events.c.run_seq.desc())  # a request that waits is among the run's newest
        .limit(1)
        .correlate(requests)
        .scalar_subquery()
    )


_OPENED = _newest_payload("request.opened")
_NEWEST = _newest_payload("request.opened", *CLIMBS)
_OPENING = select(_OPENED).where(requests.c.id == bindparam("request"))
_WITH_OPENED = select(requests, _NEWEST).where(requests.c.id == bindparam("request"))
_PENDING_WITH_OPENED = select(requests, _NEWEST).where(_PENDING).order_by(requests.c.urgent_at, requests.c.id)
_INSERT_DECISION = insert(decisions)
_WITH_DECISION = (
    select(requests, decisions, _NEWEST)
    .select_from(requests.outerjoin(decisions, decisions.c.id == bindparam("decided")))
    .where(requests.c.id == bindparam("request"))
)
_NEWEST_ENDED = (
    select(
        requests.c.id,
        requests.c.run_id,
        requests.c.tool_call_id,
        requests.c.tool_name,
        requests.c.rule,
        requests.c.created_at,
        requests.c.decided_at,
        requests.c.verb,
        executions.c.state.label("execution"),
        decisions.c.looked_ms,
    )
    .select_from(
        requests.outerjoin(
            executions,
            (executions.c.run_id == requests.c.run_id) & (executions.c.tool_call_id == requests.c.tool_call_id),
        ).outerjoin(decisions, decisions.c.id == requests.c.decision_id)
    )
    .where(_ENDED, requests.c.kind == "approval", requests.c.decided_at.is_not(None))
    .order_by(requests.c.decided_at.desc(), requests.c.id.desc())
    .limit(bindparam("most"))
)
_HOLD = _BY_ID.with_for_update()
_DECISION = select(decisions).where(decisions.c.id == bindparam("decided"))
_SETTLE = (
    update(requests)
    .where(requests.c.id == bindparam("request"), requests.c.status == "pending")
    .values(
        status=bindparam("to"),
        decided_at=bindparam("at"),
        decision_id=bindparam("decision"),
        verb=bindparam("how"),
        decided_by=bindparam("who"),
    )
)
_DECIDE = Together(decisions, _SETTLE)
_CHANGEABLE: Final = (
    "terms",
    "rungs_climbed",
    "approvals",
    "urgent_at",
    "parked_at",
    "claimed_by",
    "claimed_until",
)
"""What may change of a request while it is pending."""
_SETTLE_AS_SEEN = _SETTLE.where(
    *(requests.c[name].is_not_distinct_from(bindparam(f"seen_{name}")) for name in _CHANGEABLE)
)
_DECIDE_AS_SEEN = Together(_SETTLE_AS_SEEN, decisions, guarded=True)


@dataclass(frozen=True, kw_only=True)
class ListedRequest:
    """One line of the inbox: a request without what weighs most. ``input``: the exact text that would run.

    ``masked_input``: that text as people see it, if it or the run's task holds secrets.
    ``path``: the agents from the run that a person started
    down to this one, joined by ``/``. ``urgent_at``: its place among pending ones
    (:func:`turngate.domain.runs.inbox.urgent_at`). ``approvals``: how many of the ``quorum`` it has.
    ``rungs_climbed``: of its ladder. ``parked_at``: it ran out of time and waits on.
    ``claimed_by``, ``claimed_until``: who has taken it on, and until when that counts. ``summary``: what the call does, in one
    sentence; None: it was opened before there was one. ``defaults``: as in the call.
    """

    id: str
    run_id: str
    tool_call_id: str
    kind: RequestKind
    status: RequestStatus
    agent: str
    tool_name: str
    input: str
    digest: str
    rule: str
    reason: str
    risk: Risk
    expires_at: str | None
    created_at: str
    urgent_at: str
    verb: Verb | None = None
    decided_by: str | None = None
    decided_at: str | None = None
    path: str = ""
    rungs_climbed: int = 0
    quorum: int = 1
    approvals: int = 0
    parked_at: str | None = None
    claimed_by: str | None = None
    claimed_until: str | None = None
    summary: str | None = None
    masked_input: str | None = None
    defaults: str | None = None

    @property
    def left_out(self) -> Defaults:
        """What the handler gets besides ``input``."""
        return read_stored(self.defaults)

    @property
    def shown_input(self) -> str:
        """Its arguments as people see them."""
        return self.input if self.masked_input is None else self.masked_input


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a list says of a request beside its own columns. ``doubts``: how many of its values have each.

    ``step``, ``position``: of its call in its run; None: the call is not in the store. ``preview_head``: the first 2,000
    characters of its tool's preview, as who may decide sees it; "": there is none. ``preview_size``: of all of it.
    ``not_run``: why a call that was approved did not start, as the model reads it;
    None: it did, or still may.
    """

    step: int | None
    position: int | None
    doubts: Doubts
    preview_kind: str | None
    preview_head: str
    preview_size: PreviewSize
    not_run: str | None = None


@dataclass(frozen=True, kw_only=True)
class Request(ListedRequest):
    """A request in full. ``agent_words``: what the model said with the call.

    ``precondition``: JSON of what the call depended on when it was asked for; None when its tool does not say. ``terms``:
    JSON of AskTerms, as the ladder's ``rungs_climbed`` first rungs left them. ``confinement``: JSON of how the call's
    processes are confined; None: its tool starts none. ``origins``: JSON of where its arguments come from; None: not known.
    ``repeat_key``: equal for calls that mean the same; None: not known. ``lost_start``: JSON of how a lost call had started.
    ``nonce``: its run's.
    """

    manifest: str
    agent_words: str
    preview_kind: str | None
    preview: str | None
    not_by: str | None
    decision_id: str | None = None
    precondition: str | None = None
    confinement: str | None = None
    origins: str | None = None
    repeat_key: str | None = None
    terms: str = "{}"
    lost_start: str | None = None
    nonce: str = ""

    @property
    def ask_terms(self) -> AskTerms:
        """Who may decide it and how, after the ladder's rungs so far."""
        return AskTerms.model_validate_json(self.terms)

    def has_expired(self, at: datetime) -> bool:
        """Tell whether its time was over by then, whether that is written already or not. A request that parks has no end."""
        ends = self.expires_at is not None and self.ask_terms.on_expiry == "reject"
        return ends and from_text(self.expires_at or "") <= at

    def rung_at(self, rung: int) -> datetime | None:
        """Return when it climbs this rung of its ladder (from 0), if no one has decided it; None: it never does."""
        ladder, opened_at = self.ask_terms.ladder, from_text(self.created_at)
        if not 0 <= rung < len(ladder) or (self.parked_at is not None and self.expires_at is None):
            return None
        at = opened_at + timedelta(seconds=ladder[rung].after_seconds)
        return at if self.expires_at is None or at < from_text(self.expires_at) else None

    @property
    def starts_at(self) -> str | None:
        """When its approved call may start; until then the approval can be taken back. None: at once, or it is not approved."""
        if self.status != "approved" or self.decided_at is None:
            return None
        return start_of(self.ask_terms, from_text(self.decided_at))

    @property
    def start_that_was_lost(self) -> LostStart | None:
        """How the call had started of which no one knows the end; None: it is no such question, or not known."""
        return None if self.lost_start is None else LostStart.model_validate_json(self.lost_start)

    @property
    def depends_on(self) -> str | None:
        """What the call depended on when it was asked for, as JSON; None: on nothing, or its tool does not say."""
        return None if self.precondition == DEPENDS_ON_NOTHING else self.precondition

    @property
    def process_confinement(self) -> ProcessConfinement | None:
        """How the call's processes are confined; None: its tool starts none."""
        return None if self.confinement is None else ProcessConfinement.model_validate_json(self.confinement)

    @property
    def origins_of_arguments(self) -> Origins | None:
        """Where its arguments come from, as it was found when the request was opened; None: it isn't known."""
        return None if self.origins is None else Origins.model_validate_json(self.origins)

    @property
    def shown_preview(self) -> Preview | None:
        """What its tool showed of the call when it was asked for; None: nothing."""
        if self.preview_kind is None:
            return None
        return Preview(kind=_PREVIEW_KIND.validate_python(self.preview_kind), text=self.preview or "")

    @property
    def tool(self) -> ToolManifest:
        """The tool's declaration as it was when the request was opened."""
        return ToolManifest.model_validate_json(self.manifest)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One person's answer with its content. ``args``: edited arguments or an answer, exact JSON text.

    ``grant_wanted``: JSON of the grant to be made if it wins. ``credential``: the token or session that sent it; None: not known.
    ``looked_ms``, ``seen_percent``: as in :class:`~turngate.wire.orders.Look`.
    """

    id: str
    request_id: str
    verb: Verb
    digest: str
    args: str | None
    message: str
    outcome: Resolution | None
    decided_by: str
    created_at: str
    grant_wanted: str | None = None
    credential: str | None = None
    looked_ms: int | None = None
    seen_percent: int | None = None


@dataclass(frozen=True, kw_only=True)
class EndedApproval:
    """How an approval ended. ``verb``: None: no one decided it. ``execution``: of its call; None: it was not started.

    ``looked_ms``: how long it was looked at before it was decided; None: not known. ``taken_back``: the approval was taken
    back before the call started.
    """

    tool_name: str
    rule: str
    created_at: str
    decided_at: str
    verb: Verb | None
    execution: ExecutionState | None
    looked_ms: int | None = None
    taken_back: bool = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a request ends. ``decision_id``, ``verb``, ``by``: of the decision that ends it; None: none does."""

    status: RequestStatus
    at: datetime
    decision_id: str | None = None
    verb: Verb | None = None
    by: str | None = None


_LISTED = tuple(requests.c[each.name] for each in fields(ListedRequest))
"""A list reads no manifest and no whole preview: they are most of a request's bytes, and PostgreSQL sends them over a socket."""


_DOUBT_MARKS: Final = {name: f'"doubt":"{name}"' for name in Doubts.model_fields}
"""How the JSON of origins writes each doubt. Inside a text every quote has a backslash, so no text can forge one."""
_PREVIEW = func.rtrim(requests.c.preview, BREAK)
_HAS_DOUBTS = requests.c.origins.contains('"doubt":"')
_BESIDE = (
    select(
        requests.c.id,
        calls.c.step,
        calls.c.position,
        requests.c.preview_kind,
        beginning_of(requests.c.preview, HEAD_CHARS).label("preview_head"),
        case((is_sealed(requests.c.preview), None), else_=func.length(_PREVIEW)).label("preview_chars"),
        times(BREAK, _PREVIEW).label("preview_breaks"),
        sum((times(mark, _PREVIEW) for mark in MARKED), literal_column("0")).label("preview_marked"),
        *(
            case((_HAS_DOUBTS, times(mark, requests.c.origins)), else_=0).label(name)
            for name, mark in _DOUBT_MARKS.items()
        ),
        case((is_sealed(requests.c.origins), requests.c.origins), else_=None).label("unread_origins"),
        case(
            ((requests.c.status == "approved") & executions.c.run_id.is_(None), calls.c.result),
            else_=None,
        ).label("unstarted"),
    )
    .outerjoin(calls, (calls.c.run_id == requests.c.run_id) & (calls.c.tool_call_id == requests.c.tool_call_id))
    .outerjoin(
        executions,
        (executions.c.run_id == requests.c.run_id) & (executions.c.tool_call_id == requests.c.tool_call_id),
    )
    .where(requests.c.id.in_(among("requests")))
)
"""The database counts doubts and a preview's lines: a list would read more of origins and previews than of all else."""


def start_of(terms: AskTerms, approved_at: datetime) -> str | None:
    """Return when a call may start that was approved then, on these terms; None: at once."""
    return as_text(approved_at + timedelta(seconds=terms.grace_seconds)) if terms.grace_seconds else None


def again_id(replaced: Request) -> str:
    """Return the id of the request that replaces this one, if one does."""
    return _id_after(replaced.run_id, replaced.tool_call_id, replaced.id)


def _id_after(run_id: str, tool_call_id: str, replaced_id: str) -> str:
    return derived_id("rq", run_id, tool_call_id, "again", replaced_id)


TOOK_BACK: Final = " took an approval of this call back."
"""After the person's name, how the reason of a request begins that replaces one whose approval was taken back."""


async def insert_all(conn: Connection, opened: Sequence[Request]) -> None:
    """Insert new requests."""
    if opened:
        await conn.execute(_INSERT, [vars(request) for request in opened])


async def get(conn: Connection, request_id: str) -> Request | None:
    """Return one request, or None."""
    row = (await conn.execute(_BY_ID, {"request": request_id})).mappings().one_or_none()
    return Request(**row) if row else None


async def get_listed(conn: Connection, request_ids: Collection[str]) -> dict[str, ListedRequest]:
    """Return those of these requests that exist, by id."""
    rows = await conn.execute(select(*_LISTED).where(requests.c.id.in_(request_ids)))
    return {row["id"]: ListedRequest(**row) for row in rows.mappings()}


async def pending_of(conn: Connection, run_ids: Collection[str]) -> list[ListedRequest]:
    """Return the pending requests of these runs."""
    rows = await conn.execute(select(*_LISTED).where(_PENDING, requests.c.run_id.in_(run_ids)))
    return [ListedRequest(**row) for row in rows.mappings()]


async def get_all(conn: Connection, request_ids: Collection[str]) -> dict[str, Request]:
    """Return those of these requests that exist, by id, with all that they say."""
    rows = await conn.execute(select(requests).where(requests.c.id.in_(request_ids)))
    return {row["id"]: Request(**row) for row in rows.mappings()}


async def beside(conn: Connection, request_ids: Iterable[str]) -> dict[str, Beside]:
    """Return by request what a list says of it beside its own columns, in one query."""
    rows = (await conn.execute(_BESIDE, {"requests": listed(request_ids)})).mappings()
    return {
        row["id"]: Beside(
            step=row["step"],
            position=row["position"],
            doubts=_doubts(row),
            preview_kind=row["preview_kind"],
            preview_head=row["preview_head"] or "",
            preview_size=_preview_size(row),
            not_run=_why_not_run(row["unstarted"]),
        )
        for row in rows
    }


def _preview_size(row: RowMapping) -> PreviewSize:
    if row["preview_chars"] is None:  # there is none, or it is encrypted, and was read whole
        return PreviewSize.of(row["preview_head"] or "")
    return PreviewSize(chars=row["preview_chars"], breaks=row["preview_breaks"], marked=row["preview_marked"])


def _why_not_run(result: str | None) -> str | None:
    """Return why an approved call has this result (JSON) although it never started; None: it has none, or an answer."""
    settled = None if result is None else TOOL_RESULT.validate_json(result)
    return settled.reason if isinstance(settled, Failure) else None


def _doubts(row: RowMapping) -> Doubts:
    """Return how many there are of each. ``unread_origins``: what the database could not read, because it is encrypted."""
    unread = row["unread_origins"]
    if unread is not None:
        return Doubts(**{name: unread.count(mark) for name, mark in _DOUBT_MARKS.items()})
    return Doubts(**{name: row[name] for name in _DOUBT_MARKS})


class AsOpened(NamedTuple):
    """A request, and the column of it that was changed since it was opened; None: none was. Of what is erased, all are."""

    request: Request
    changed: str | None

    @classmethod
    async def of(cls, conn: Connection, row: Any) -> Self:
        """Compare a request with the events that opened it and changed its terms. ``row``: its columns first, `_NEWEST` last."""
        (columns,) = parts(row, requests)
        request, newest = Request(**columns or {}), json.loads(row[-1] or "{}")
        opened, nonces = newest, [request.nonce]
        if "rung" in newest:
            (payload,) = (await conn.execute(_OPENING, {"request": request.id})).one()
            opened = json.loads(payload or "{}")
        if "content" not in opened:
            return cls(request, "id")
        if request.rungs_climbed != newest.get("rung", 0):
            return cls(request, "rungs_climbed")
        changed = changed_column("request", vars(request), nonces, opened["content"])
        return cls(request, changed or changed_column("terms", vars(request), nonces, newest["terms"]))


async def as_opened(conn: Connection, request_id: str) -> AsOpened | None:
    """Return a request with what of it was changed since it was opened, or None."""
    row = (await conn.execute(_WITH_OPENED, {"request": request_id})).one_or_none()
    return None if row is None else await AsOpened.of(conn, row)


async def changed_pending(conn: Connection, *, limit: int) -> list[AsOpened]:
    """Return the pending requests that were changed since they were opened, of the first ``limit`` ones in the inbox."""
    rows = (await conn.execute(_PENDING_WITH_OPENED.limit(limit))).all()
    return [each for each in [await AsOpened.of(conn, row) for row in rows] if each.changed is not None]


async def with_decision(conn: Connection, request_id: str, decision_id: str) -> tuple[AsOpened | None, Decision | None]:
    """Return a request and the decision of this id, in one query; None where there is none.

    The decision may be about another request.
    """
    row = (await conn.execute(_WITH_DECISION, {"request": request_id, "decided": decision_id})).one_or_none()
    if row is None:
        return None, await decision(conn, decision_id)
    _request, stored = parts(row, requests, decisions)
    return await AsOpened.of(conn, row), None if stored is None else Decision(**stored)


async def hold(conn: Connection, request_id: str) -> Request | None:
    """Return one request, which no one else can change before this transaction ends; or None."""
    row = (await conn.execute(_HOLD, {"request": request_id})).mappings().one_or_none()
    return Request(**row) if row else None


async def by_decision(conn: Connection, decision_id: str) -> Request | None:
    """Return the request that this decision won, or None."""
    row = (await conn.execute(_BY_DECISION, {"decided": decision_id})).mappings().one_or_none()
    return Request(**row) if row else None


async def of_run(conn: Connection, run_id: str) -> list[Request]:
    """Return the run's requests, oldest first."""
    query = select(requests).where(requests.c.run_id == run_id).order_by(requests.c.created_at, requests.c.id)
    return [Request(**row) for row in (await conn.execute(query)).mappings()]


async def of_call(
    conn: Connection, run_id: str, tool_call_id: str, *, kind: RequestKind | None = None
) -> list[Request]:
    """Return the requests that a call opened, oldest first. ``kind``: only these."""
    rows = (await conn.execute(_OF_CALL, {"of_run": run_id, "call": tool_call_id})).mappings()
    return [request for request in (Request(**row) for row in rows) if kind in {None, request.kind}]


async def page(
    conn: Connection, wanted: InboxFilter = PENDING, *, limit: int, after: tuple[str, str] | None = None
) -> list[ListedRequest]:
    """Return requests: pending ones in the filter's order, others newest first. ``after``: :func:`key_of` the last one seen."""
    query = page_query(wanted, _LISTED, limit=limit, resumed=after is not None)
    rows = await conn.execute(query, values_of(wanted, after))
    names = tuple(rows.keys())  # a mapping of each row takes four times as long
    return [ListedRequest(**dict(zip(names, row, strict=True))) for row in rows]


async def count(conn: Connection, wanted: InboxFilter = PENDING) -> int:
    """Return how many requests there are on all pages of this filter, up to :data:`MOST_COUNTED` and one."""
    return int((await conn.execute(count_query(wanted), values_of(wanted))).scalar_one())


async def newest_ended(conn: Connection, *, limit: int) -> list[EndedApproval]:
    """Return the approvals that ended last, the newest first, with how their calls ended."""
    rows = (await conn.execute(_NEWEST_ENDED, {"most": limit})).mappings().all()
    again_ids = [_id_after(row["run_id"], row["tool_call_id"], row["id"]) for row in rows]
    may_say_so = or_(is_sealed(requests.c.reason), requests.c.reason.contains(TOOK_BACK))
    about = select(requests.c.id, requests.c.reason).where(requests.c.id.in_(again_ids), may_say_so)
    taken_back = {row.id for row in await conn.execute(about) if TOOK_BACK in row.reason}
    names = [each.name for each in fields(EndedApproval) if each.name != "taken_back"]
    return [
        EndedApproval(**{name: row[name] for name in names}, taken_back=again_id in taken_back)
        for row, again_id in zip(rows, again_ids, strict=True)
    ]


async def ended_in_live_runs(conn: Connection) -> list[str]:
    """Return the ids of the requests that were decided or superseded and whose run has not ended, in that order."""
    query = (
        select(requests.c.id)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(runs.c.status == "running", _ENDED, requests.c.status.not_in(("expired", "cancelled")))
        .order_by(requests.c.decided_at, requests.c.id)
    )
    return list((await conn.execute(query)).scalars())


async def settle(conn: Connection, request_id: str, ending: Ending) -> bool:
    """End a pending request; False if it has ended already. Every ending goes through this one compare-and-set."""
    return (await conn.execute(_SETTLE, _ended(request_id, ending))).rowcount == 1


def decision_writes(request_id: str, ending: Ending, decision: Decision | None) -> Writes:
    """Return what ends a request as :func:`settle` does, and stores the decision that ends it; None: that is stored.

    The last of their counts is 0 where the request has ended already; the caller then rolls back. They raise IntegrityError
    when the decision's id was used.
    """
    stored = [] if decision is None else [vars(decision)]
    return Writes(_DECIDE, {decisions: stored}, _ended(request_id, ending))


def decision_writes_as_seen(seen: Request, ending: Ending, decision: Decision) -> Writes:
    """Return what ends a request and stores the decision that ends it, if the request is as it was ``seen``, pending.

    The first of their counts is 0, and nothing is written, where it isn't. They raise IntegrityError when the decision's id
    was used.
    """
    as_seen = {f"seen_{name}": getattr(seen, name) for name in _CHANGEABLE}
    return Writes(_DECIDE_AS_SEEN, {decisions: [vars(decision)]}, {**_ended(seen.id, ending), **as_seen})


def _ended(request_id: str, ending: Ending) -> dict[str, str | None]:
    return {
        "request": request_id,
        "to": ending.status,
        "at": as_text(ending.at),
        "decision": ending.decision_id,
        "how": ending.verb,
        "who": ending.by,
    }


async def climb(conn: Connection, request: Request, *, rungs: int, terms: str) -> bool:
    """Write how far a request has climbed its ladder, and its terms from there on (JSON of AskTerms).

    False when it is not any more as ``request`` says: it has ended, or climbed already.
    """
    as_seen = requests.c.status == "pending", requests.c.rungs_climbed == request.rungs_climbed
    query = update(requests).where(requests.c.id == request.id, *as_seen)
    return (await conn.execute(query.values(rungs_climbed=rungs, terms=terms))).rowcount == 1


async def park(conn: Connection, request: Request, *, at: datetime) -> bool:
    """Mark a pending request as one that ran out of time and waits on; False when it is not, or was."""
    waits = requests.c.status == "pending", requests.c.parked_at.is_(None)
    urgent = urgent_at(from_text(request.created_at), None, request.risk)
    marks = {"parked_at": as_text(at), "urgent_at": as_text(urgent)}
    query = update(requests).where(requests.c.id == request.id, *waits).values(marks)
    return (await conn.execute(query)).rowcount == 1


async def supersede(conn: Connection, run_id: str, *, at: datetime) -> list[Request]:
    """End what waits for a person in a run, because a newer message came; returns these requests.

    What happened to a lost call has to be said all the same: such requests stay.
    """
    waiting = requests.c.run_id == run_id, requests.c.status == "pending", requests.c.kind != "outcome"
    query = update(requests).where(*waiting).values(status="superseded", decided_at=as_text(at)).returning(requests)
    return [Request(**row) for row in (await conn.execute(query)).mappings()]


async def cancel_pending(conn: Connection, run_id: str, *, at: datetime) -> list[str]:
    """Cancel what still waits in a run that ends; returns the ids. A question about what happened waits on: it still counts."""
    query = (
        update(requests)
        .where(requests.c.run_id == run_id, requests.c.status == "pending", requests.c.kind != "outcome")
        .values(status="cancelled", decided_at=as_text(at))
    )
    return list((await conn.execute(query.returning(requests.c.id))).scalars())


async def add_decision(conn: Connection, decision: Decision) -> None:
    """Store a decision, as part of the transaction in which it counts. Raises IntegrityError when the id was used."""
    await conn.execute(_INSERT_DECISION, vars(decision))


async def decision(conn: Connection, decision_id: str) -> Decision | None:
    """Return a decision's content, or None."""
    row = (await conn.execute(_DECISION, {"decided": decision_id})).mappings().one_or_none()
    return Decision(**row) if row else None


def new_decision(
    order: DecisionOrder, *, decision_id: str, request_id: str, by: str, credential: str | None = None
) -> Decision:
    """Return the row of a decision made now."""
    return Decision(
        id=decision_id,
        request_id=request_id,
        verb=order.verb,
        digest=order.digest,
        args=order.args,
        message=order.message,
        outcome=order.outcome,
        decided_by=by,
        created_at=as_text(now()),
        grant_wanted=None if order.grant is None else order.grant.model_dump_json(),
        credential=credential,
        looked_ms=order.looked_ms,
        seen_percent=order.seen_percent,
    )


# Approvals of a request that several people have to approve. The one that completes the quorum becomes its decision.


@dataclass(frozen=True, kw_only=True)
class Approval:
    """One person's approval."""

    request_id: str
    decided_by: str
    decision_id: str
    message: str
    created_at: str


async def of_request(conn: Connection, request_id: str) -> list[Approval]:
    """Return the approvals so far, oldest first."""
    query = select(approvals).where(approvals.c.request_id == request_id).order_by(approvals.c.created_at)
    return [Approval(**row) for row in (await conn.execute(query)).mappings()]


async def add_approval(conn: Connection, approval: Approval) -> int:
    """Count one more approval; returns how many there are now.

    Raises sqlalchemy's IntegrityError when this person has approved it, or the decision id was used.
    """
    await conn.execute(insert(approvals).values(**vars(approval)))
    return await _count_approvals(conn, approval.request_id)


async def remove_approval(conn: Connection, request_id: str, *, by: str) -> tuple[str, int] | None:
    """Take back a person's approval; returns its decision's id, and how many are left. None: they gave none."""
    theirs = approvals.c.request_id == request_id, approvals.c.decided_by == by
    removed = (
        await conn.execute(delete(approvals).where(*theirs).returning(approvals.c.decision_id))
    ).scalar_one_or_none()
    return None if removed is None else (removed, await _count_approvals(conn, request_id))


async def _count_approvals(conn: Connection, request_id: str) -> int:
    query = select(func.count()).select_from(approvals).where(approvals.c.request_id == request_id)
    count = int((await conn.execute(query)).scalar_one())
    await conn.execute(update(requests).where(requests.c.id == request_id).values(approvals=count))
    return count
