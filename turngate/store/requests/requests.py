"""Requests and decisions: the operators' inbox, a projection of what the workflows decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select, update

from turngate.domain.policy.terms import AskTerms
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.runs.requests import Outcome, RequestKind, RequestStatus, Verb
from turngate.domain.tools.tool import ToolManifest
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.requests import inbox
from turngate.store.tables import decisions, requests, runs

PENDING = InboxFilter()

# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_INSERT = insert(requests)
_BY_ID = select(requests).where(requests.c.id == bindparam("request"))
_BY_DECISION = select(requests).where(requests.c.decision_id == bindparam("decided"))
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


@dataclass(frozen=True, kw_only=True)
class ListedRequest:
    """One line of the inbox: a request without what weighs most. ``input``: the exact text that would run.

    ``path``: the agents from the run that a person started down to this one, joined by ``/``. ``approvals``: how many of
    the ``quorum`` it has. ``rungs_climbed``: of its ladder. ``parked_at``: it ran out of time and waits on.
    ``claimed_by``, ``claimed_until``: who has taken it on, and until when that counts.
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
    risk: str
    expires_at: str | None
    created_at: str
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


@dataclass(frozen=True, kw_only=True)
class Request(ListedRequest):
    """A request in full. ``agent_words``: what the model said with the call.

    ``precondition``: JSON of what the call depended on when it was asked for; None when its tool does not say. ``terms``:
    JSON of AskTerms, as the ladder's ``rungs_climbed`` first rungs left them.
    """

    manifest: str
    agent_words: str
    preview_kind: str | None
    preview: str | None
    not_by: str | None
    decision_id: str | None = None
    precondition: str | None = None
    terms: str = ""

    @property
    def ask_terms(self) -> AskTerms:
        """Who may decide it and how, as it stands now; requests of releases before terms were kept have the plain ones."""
        return AskTerms.model_validate_json(self.terms) if self.terms else AskTerms()

    @property
    def tool(self) -> ToolManifest:
        """The tool's declaration as it was when the request was opened."""
        return ToolManifest.model_validate_json(self.manifest)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One person's answer with its content. ``args``: edited arguments or an answer, exact JSON text.

    ``grant_wanted``: JSON of the grant to be made if it wins.
    """

    id: str
    request_id: str
    verb: Verb
    digest: str
    args: str | None
    message: str
    outcome: Outcome | None
    decided_by: str
    created_at: str
    grant_wanted: str | None = None


_LISTED = tuple(requests.c[each.name] for each in fields(ListedRequest))
"""A list reads no manifest and no preview: they are most of a request's bytes, and PostgreSQL sends them over a socket."""


async def insert_all(conn: Connection, opened: Sequence[Request]) -> None:
    """Insert new requests."""
    if opened:
        await conn.execute(_INSERT, [vars(request) for request in opened])


async def get(conn: Connection, request_id: str) -> Request | None:
    """Return one request, or None."""
    row = (await conn.execute(_BY_ID, {"request": request_id})).mappings().one_or_none()
    return Request(**row) if row else None


async def by_decision(conn: Connection, decision_id: str) -> Request | None:
    """Return the request that this decision won, or None."""
    row = (await conn.execute(_BY_DECISION, {"decided": decision_id})).mappings().one_or_none()
    return Request(**row) if row else None


async def of_run(conn: Connection, run_id: str) -> list[Request]:
    """Return the run's requests, oldest first."""
    query = select(requests).where(requests.c.run_id == run_id).order_by(requests.c.created_at, requests.c.id)
    return [Request(**row) for row in (await conn.execute(query)).mappings()]


async def of_call(conn: Connection, run_id: str, tool_call_id: str, *, kind: RequestKind) -> list[Request]:
    """Return the requests of one kind that a call opened, oldest first."""
    query = (
        select(requests)
        .where(requests.c.run_id == run_id, requests.c.tool_call_id == tool_call_id, requests.c.kind == kind)
        .order_by(requests.c.created_at, requests.c.id)
    )
    return [Request(**row) for row in (await conn.execute(query)).mappings()]


async def page(
    conn: Connection, wanted: InboxFilter = PENDING, *, limit: int, after: tuple[str, str] | None = None
) -> list[ListedRequest]:
    """Return requests: pending ones oldest first, others newest first. ``after``: ``inbox.key_of`` the last one seen."""
    query = inbox.page_query(wanted, _LISTED, limit=limit, resumed=after is not None)
    rows = await conn.execute(query, inbox.values_of(wanted, after))
    return [ListedRequest(**row) for row in rows.mappings()]


async def count(conn: Connection, wanted: InboxFilter = PENDING) -> int:
    """Return how many requests there are on all pages of this filter."""
    return int((await conn.execute(inbox.count_query(wanted), inbox.values_of(wanted))).scalar_one())


async def decided_in_live_runs(conn: Connection) -> list[str]:
    """Return the ids of the requests that a person decided and whose run has not ended, in order of decision."""
    query = (
        select(requests.c.id)
        .join(runs, runs.c.id == requests.c.run_id)
        .where(runs.c.status == "running", requests.c.decision_id.is_not(None))
        .order_by(requests.c.decided_at, requests.c.id)
    )
    return list((await conn.execute(query)).scalars())


async def settle(
    conn: Connection,
    request_id: str,
    *,
    status: RequestStatus,
    at: datetime,
    decision_id: str | None = None,
    verb: Verb | None = None,
    by: str | None = None,
) -> bool:
    """End a pending request; False when it had ended already. The one compare-and-set every ending goes through."""
    ended = {"request": request_id, "to": status, "at": as_text(at), "decision": decision_id, "how": verb, "who": by}
    return (await conn.execute(_SETTLE, ended)).rowcount == 1


async def set_precondition(conn: Connection, request_id: str, precondition: str) -> None:
    """Replace what the call depends on (JSON): an operator edited it, and the edited call depends on other things."""
    await conn.execute(update(requests).where(requests.c.id == request_id).values(precondition=precondition))


async def climb(conn: Connection, request: Request, *, rungs: int, terms: str) -> bool:
    """Write how far a request has climbed its ladder, and its terms from there on (JSON of AskTerms).

    False when it is not any more as ``request`` says: it has ended, or climbed already.
    """
    as_seen = requests.c.status == "pending", requests.c.rungs_climbed == request.rungs_climbed
    query = update(requests).where(requests.c.id == request.id, *as_seen)
    return (await conn.execute(query.values(rungs_climbed=rungs, terms=terms))).rowcount == 1


async def park(conn: Connection, request_id: str, *, at: datetime) -> bool:
    """Mark a pending request as one that ran out of time and waits on; False when it is not, or was."""
    waits = requests.c.status == "pending", requests.c.parked_at.is_(None)
    query = update(requests).where(requests.c.id == request_id, *waits).values(parked_at=as_text(at))
    return (await conn.execute(query)).rowcount == 1


async def cancel_pending(conn: Connection, run_id: str, *, at: datetime) -> list[str]:
    """Cancel what still waits in a run that ends; returns the ids."""
    query = (
        update(requests)
        .where(requests.c.run_id == run_id, requests.c.status == "pending")
        .values(status="cancelled", decided_at=as_text(at))
    )
    return list((await conn.execute(query.returning(requests.c.id))).scalars())


async def offer(conn: Connection, decision: Decision) -> None:
    """Keep a decision's content until the workflow takes it. Raises IntegrityError when the id was used."""
    await conn.execute(insert(decisions).values(**vars(decision)))


async def withdraw(conn: Connection, decision_id: str) -> None:
    """Remove an offer that was refused; one that won its request stays."""
    won = select(requests.c.decision_id).where(requests.c.decision_id == decision_id)
    await conn.execute(delete(decisions).where(decisions.c.id == decision_id, decisions.c.id.not_in(won)))


async def decision(conn: Connection, decision_id: str) -> Decision | None:
    """Return a decision's content, or None."""
    row = (await conn.execute(_DECISION, {"decided": decision_id})).mappings().one_or_none()
    return Decision(**row) if row else None


def new_decision(
    *,
    decision_id: str,
    request_id: str,
    verb: Verb,
    digest: str,
    args: str | None,
    message: str,
    outcome: Outcome | None,
    by: str,
    grant_wanted: str | None = None,
) -> Decision:
    """Return a decision made now."""
    return Decision(
        id=decision_id,
        request_id=request_id,
        verb=verb,
        digest=digest,
        args=args,
        message=message,
        outcome=outcome,
        decided_by=by,
        created_at=as_text(now()),
        grant_wanted=grant_wanted,
    )
