"""Evidence: what happened in a period, counted and sampled for auditors, from one consistent view of the store.

The log is verified from its first event, because a chain proves nothing from its middle. Every row that it names is compared
with it: who started a run of another period may decide whether a decision is an exception. Nothing is written, or signed, here.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import JsonValue
from sqlalchemy import select

from turngate.approvals_api.requests.views import masks_of, request_detail
from turngate.domain.digest import framed_sha256
from turngate.domain.policy.terms import person_of
from turngate.domain.runs.event_chain import ChainBreak, ChainedEvent, LogCheck
from turngate.domain.tools.defaults import for_readers
from turngate.domain.tools.secrets import masked_strings
from turngate.store import evidence
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import audit, events
from turngate.store.events.counts import LogCounts, count_rows, payload_of
from turngate.store.requests import requests
from turngate.store.requests.requests import Decision, Request
from turngate.store.runs import calls, executions, runs
from turngate.store.runs.starters import starters_of
from turngate.store.tables import views
from turngate.wire.evidence import (
    ChainedEventView,
    ChainEvidence,
    CountsEvidence,
    EvidenceDocument,
    ExceptionKind,
    FourEyesException,
    LooseningWait,
    NotedEvent,
    Period,
    SampledRequest,
    SampleEvidence,
    Viewer,
)
from turngate.wire.people import AS_STORED, names_in_text

MOST_NOTED: Final = 10_000
"""How many changes or exceptions are listed."""
POLICY: Final = ("policy.", "grant.created", "grant.revoked", "user.", "token.", "hold.", "retention.", "person.erased")
DRILLS: Final = ("drill.", "store.restored", "store.reconciled")
DRILL_KINDS: Final = ("restore", "stop")
LEFT_OUT: Final = frozenset({"messages"})
"""What of a request's page is left out: the conversation, which has no bound."""

OnEvent = Callable[[ChainedEvent], str | None]
"""Takes each event of the log, in order; returns what is wrong with it, or None."""


@dataclass(frozen=True, kw_only=True)
class EvidenceOrder:
    """What is wanted. ``seed`` None: made from the log. ``on_event``: e.g. compares with signed heads."""

    since: datetime
    until: datetime
    sample: int
    seed: str | None
    by: str
    version: str
    on_event: OnEvent | None = None


@dataclass
class NotedEvents:
    """What a package names of events, and what follows from events alone: anyone with the log comes to the same.

    Give it those of the period, in their order.
    """

    noted: list[NotedEvent] = field(default_factory=list)
    decided: list[tuple[ChainedEvent, dict[str, Any]]] = field(default_factory=list)

    def add(self, event: ChainedEvent) -> None:
        """Take the next event of the period."""
        if event.type == "request.decided":
            self.decided.append((event, payload_of(event)))
        elif event.type.startswith((*POLICY, *DRILLS)) and len(self.noted) < MOST_NOTED:
            payload = payload_of(event)
            by = payload.get("by")
            who = by if isinstance(by, str) else None
            self.noted.append(NotedEvent(seq=event.seq, at=event.created_at, type=event.type, by=who, payload=payload))

    def sections(self) -> dict[str, Any]:
        """Return the sections of a package that are made of these events."""
        return {
            "policy_changes": [each for each in self.noted if each.type.startswith(POLICY)],
            "loosening_waits": self._loosening_waits(),
            "drills": [each for each in self.noted if each.type.startswith(DRILLS)],
            "drills_missing": self._missing_drills(),
        }

    def exceptions(self) -> list[FourEyesException]:
        """Return the exceptions to four eyes that the log shows by itself: by machines, and rules by one person."""
        by_machines = [
            exception_of("machine", event, payload) for event, payload in self.decided if payload.get("machine")
        ]
        alone = [
            FourEyesException(
                kind="rules_by_one",
                seq=change.seq,
                at=change.at,
                by=change.by or "",
                about=f"version {change.payload.get('version')}",
            )
            for change in self.noted
            if change.type == "policy.changed" and not change.payload.get("confirmed_by")
        ]
        return [*by_machines, *alone]

    def _loosening_waits(self) -> list[LooseningWait]:
        waits = []
        ended = {"policy.confirmed", "policy.refused"}
        ends = {_proposal(each): each for each in self.noted if each.type in ended}
        for proposed in (each for each in self.noted if each.type == "policy.proposed"):
            end = ends.get(_proposal(proposed))
            waited = None if end is None else (from_text(end.at) - from_text(proposed.at)) / timedelta(seconds=1)
            waits.append(
                LooseningWait(
                    proposal=_proposal(proposed),
                    proposed_by=proposed.by or "",
                    proposed_at=proposed.at,
                    outcome=None if end is None else end.type.removeprefix("policy."),
                    ended_by=None if end is None else end.by,
                    waited_seconds=waited,
                )
            )
        return waits

    def _missing_drills(self) -> list[str]:
        done = {str(each.payload.get("kind")) for each in self.noted if each.type == "drill.finished"}
        return [kind for kind in DRILL_KINDS if kind not in done]


def _proposal(event: NotedEvent) -> int:
    number = event.payload.get("proposal")
    return number if isinstance(number, int) else 0


def exception_of(kind: ExceptionKind, event: ChainedEvent, payload: dict[str, Any]) -> FourEyesException:
    """Return a decision as an exception to four eyes."""
    by, about = str(payload.get("by", "")), str(payload.get("request_id", ""))
    return FourEyesException(kind=kind, seq=event.seq, at=event.created_at, by=by, about=about)


@dataclass
class _Scan:
    """What one pass over the log brings."""

    counts: LogCounts
    check: LogCheck = field(default_factory=LogCheck)
    problem: str | None = None
    last_hash: str = ""
    period_hash: str = ""
    noted: NotedEvents = field(default_factory=NotedEvents)
    runs: int = 0
    ledger: evidence.Ledger = field(default_factory=evidence.Ledger)

    def take(self, event: ChainedEvent, on_event: OnEvent | None) -> None:
        """Take the next event of the log."""
        broken: ChainBreak | str | None = self.check.add(event)
        if broken is None and on_event is not None:
            broken = on_event(event)
        if broken is not None and self.problem is None:
            self.problem = str(broken)
        self.last_hash = event.hash
        self.ledger.add(event)
        self.runs += event.type == "run.started"
        self.counts.add(event)
        if not self.counts.first <= event.seq <= self.counts.last:
            return
        self.period_hash = event.hash
        self.noted.add(event)


async def collect(conn: Connection, order: EvidenceOrder) -> EvidenceDocument:
    """Return the evidence of a period, unsigned. ``conn``: one consistent view."""
    first, last = await audit.seq_at(conn, order.since), await audit.seq_at(conn, order.until) - 1
    scan = _Scan(counts=LogCounts(first=first, last=last))
    newest = await events.last_seq(conn)
    async for event in audit.every(conn):
        scan.take(event, order.on_event)
    heads: list[str] = []
    async for head in audit.stored_heads(conn):
        broken = scan.check.close(head)
        scan.problem = scan.problem or (None if broken is None else str(broken))
        heads.append(f"{head.run_id}\t{head.length}\t{head.hash}")
    ended = scan.check.end(last_seq=newest)
    scan.problem = scan.problem or (None if ended is None else str(ended))
    different = None if scan.problem else await evidence.first_in_store(conn, scan.ledger)
    scan.problem = scan.problem or (None if different is None else str(different))
    rows = await count_rows(conn, scan.counts, order.since, order.until)
    seed = order.seed or default_seed(first, last, scan.period_hash)
    drawn = draw(scan.counts.requests_opened, seed, order.sample)
    exceptions = await _exceptions(conn, scan.noted)
    document = EvidenceDocument(
        made_at=as_text(now()),
        made_by=order.by,
        version=order.version,
        period=Period(since=as_text(order.since), until=as_text(order.until), first_seq=first, last_seq=last),
        chain=ChainEvidence(
            verified_to=newest,
            last_hash=scan.last_hash,
            events_digest=scan.counts.events_digest,
            heads_digest=framed_sha256(*heads),
            chains=len(heads),
            runs_compared=scan.runs,
            problem=scan.problem,
        ),
        counts=CountsEvidence(
            from_events=scan.counts.totals(),
            from_rows={what: dict(counted) for what, counted in rows.totals.items()},
            requests_by_risk=dict(rows.by_risk),
            differences=list(rows.differences),
            difference_count=rows.difference_count,
        ),
        sample=SampleEvidence(
            seed=seed,
            seed_was_given=order.seed is not None,
            population=len(scan.counts.requests_opened),
            population_digest=scan.counts.population_digest,
            requests=[await _sampled(conn, request_id, rank) for rank, request_id in drawn],
        ),
        four_eyes=exceptions[:MOST_NOTED],
        four_eyes_count=len(exceptions),
        **scan.noted.sections(),
    )
    return document.model_copy(update={"people": names_in_text(document.model_dump_json())})


def default_seed(first: int, last: int, last_hash: str) -> str:
    """Return the seed that no one chose (:data:`turngate.wire.evidence.SAMPLE_METHOD`)."""
    return _sha256(f"turngate-evidence-1\n{first}\n{last}\n{last_hash}\n")


def draw(request_ids: Iterable[str], seed: str, size: int) -> list[tuple[str, str]]:
    """Return (rank, request) of the sample, lowest rank first (:data:`turngate.wire.evidence.SAMPLE_METHOD`)."""
    return sorted((_sha256(f"{seed}\n{each}\n"), each) for each in request_ids)[:size]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def _sampled(conn: Connection, request_id: str, rank: str) -> SampledRequest:
    detail, request = await request_detail(conn, request_id), await requests.get(conn, request_id)
    if request is None:  # pragma: no cover - the detail would have failed before
        raise LookupError(f"request {request_id!r} is gone in this very transaction")
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    decided = None if request.decision_id is None else await requests.decision(conn, request.decision_id)
    erased = None if detail.erased is None else detail.erased.says
    stated: dict[str, Any] = {"without_row": await _why_without_row(conn, request, decided, erased)}
    if stated["without_row"] is None:
        stated |= {"row": evidence.request_values(request), "terms": request.terms, "nonce": request.nonce}
        stated["decision_row"] = None if decided is None else evidence.decision_values(decided)
    looked = await conn.execute(
        select(views.c.viewer, views.c.first_at).where(views.c.request_id == request_id).order_by(views.c.first_at)
    )
    return SampledRequest(
        request_id=request_id,
        run_id=request.run_id,
        tool_call_id=request.tool_call_id,
        rank=rank,
        view=detail.model_dump(mode="json", exclude=set(LEFT_OUT), context=AS_STORED),
        erased=erased,
        **stated,
        manifest_digest=request.tool.digest,
        policy_verdict="" if call is None else call.verdict,
        policy_version="" if call is None else call.policy_version,
        viewers=[Viewer(viewer=row.viewer, first_at=row.first_at) for row in looked],
        **await _execution(conn, request),
        is_high_risk=request.risk == "high",
        quorum=request.quorum,
        events=[ChainedEventView.model_validate(each) async for each in _events_about(conn, request)],
    )


async def _execution(conn: Connection, request: Request) -> dict[str, Any]:
    ran = await executions.get(conn, request.run_id, request.tool_call_id)
    if ran is None:
        return {}
    return {
        "execution_digest": ran.digest,
        "execution_decision_id": ran.decision_id,
        "executed_at": ran.started_at,
    }


async def _why_without_row(
    conn: Connection, request: Request, decided: Decision | None, erased: str | None
) -> str | None:
    """Return why the bytes that the digests are over can't be given, or None.

    With the run's nonce, short secrets could be guessed from their digests. So it is given only where nothing is masked.
    """
    if erased is not None:
        return "its content was erased"
    masks = await masks_of(conn, request)
    decision = {} if decided is None else evidence.decision_values(decided)
    stored = [*evidence.request_values(request).values(), *decision.values(), request.terms]
    texts: list[JsonValue] = [each for each in stored if isinstance(each, str)]
    is_masked = masks.tools or masks.values or request.masked_input or masked_strings(texts, frozenset()) != texts
    is_masked = is_masked or for_readers(request.left_out) != request.left_out
    return "it holds secrets, which are masked" if is_masked else None


async def _events_about(conn: Connection, request: Request) -> AsyncIterator[ChainedEvent]:
    async for event in audit.every(conn, run_id=request.run_id):
        payload = payload_of(event)
        if payload.get("request_id") == request.id or payload.get("tool_call_id") == request.tool_call_id:
            yield replace(event, words=None)  # what was said may hold secrets; the payload has its digests


async def _exceptions(conn: Connection, noted: NotedEvents) -> list[FourEyesException]:
    exceptions = noted.exceptions()
    for event, payload in noted.decided:
        request, run = await requests.get(conn, str(payload.get("request_id", ""))), await runs.get(conn, event.run_id)
        if request is None or run is None:
            continue  # the counts say so
        started = await starters_of(conn, run, until=request.created_at)
        if person_of(str(payload.get("by", ""))) in {person_of(each) for each in started}:
            kind: ExceptionKind = "own_run" if request.not_by is None else "against_the_rule"
            exceptions.append(exception_of(kind, event, payload))
    return sorted(exceptions, key=lambda each: each.seq)
