"""Evidence (I15): what the log says of the stored rows, so that a row that was changed after the fact is found.

The chain of events cannot be changed unseen, but people decide by the rows: requests, calls, messages, decisions. Each event
that writes one therefore carries a digest of its bytes, and :func:`first_difference` compares. A row's digest is over what
the database returns, so text that the columns had to change (``turngate.store.storable``) is hashed as it is stored.

An event's ``digests`` (:func:`turngate.store.events.events.digests`) are by :data:`KINDS`. The results message of a step has
none: it holds nothing but the results of its calls, and is compared with them. Logs of 0.1.0 have no ``digests``; what they do
not have is not compared.

When content is erased, what the log had digests of is gone. So the event ``conversation.erased`` has one digest of all rows of
its run as erasing left them (:func:`rows_digest`), and from then on the rows are compared with that. Whether they were as the
log said until then was compared first, and the event says it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from pydantic import JsonValue, ValidationError
from sqlalchemy import select
from sqlalchemy.engine import RowMapping

from turngate.domain.conversation.clipping import result_digest
from turngate.domain.conversation.history import CLOSED_BY_REPAIR
from turngate.domain.digest import call_digest, derived_id, framed_sha256, keyed_sha256
from turngate.domain.errors import UnreadableContentError
from turngate.domain.runs.budgets import AFTER_THE_STEP
from turngate.domain.runs.event_chain import ChainBreak, ChainedEvent
from turngate.domain.tools.defaults import stored
from turngate.domain.tools.results import Failure, Ok, as_object
from turngate.domain.tools.tool import ToolManifest
from turngate.store.database import Connection
from turngate.store.events import audit
from turngate.store.events.events import NewEvent
from turngate.store.requests import requests
from turngate.store.requests.requests import Approval, Decision, Request
from turngate.store.runs import calls, executions, messages, queued_messages, steps, whole_results
from turngate.store.runs.calls import Call
from turngate.store.runs.executions import Execution
from turngate.store.runs.queued_messages import QueuedMessage
from turngate.store.runs.steps import Step
from turngate.store.storable import storable, stored_digest
from turngate.store.tables import approvals as approvals_table
from turngate.store.tables import decisions as decisions_table
from turngate.store.tables import runs as runs_table

READ_AT_ONCE: Final = 200

REQUEST_FIELDS: Final = (
    "id", "run_id", "tool_call_id", "kind", "agent", "tool_name", "manifest", "input", "digest", "rule", "reason", "risk",
    "agent_words", "preview_kind", "preview", "not_by", "expires_at", "created_at", "path", "quorum",
)  # fmt: skip
"""What never changes in a request once it is open. Its terms change when it climbs its ladder, and have a digest of their own."""
ADDED_TO_REQUESTS: Final = ("origins", "summary", "masked_input", "lost_start", "defaults")
CALL_FIELDS: Final = (
    "run_id", "tool_call_id", "step", "position", "tool_name", "input", "repeat_key", "digest", "policy_version", "effect",
)  # fmt: skip
"""What never changes in a call once it is planned. Its disposition and verdict do, where policy judges it again."""
DECISION_FIELDS: Final = (
    "id", "request_id", "verb", "digest", "args", "message", "outcome", "decided_by", "created_at", "grant_wanted", "credential",
)  # fmt: skip
ADDED_TO_DECISIONS: Final = ("looked_ms", "seen_percent")
KINDS: Final = {
    "call": "call {}",
    "control": "what call {} asks of its run",
    "result": "the result of call {}",
    "message": "message {}",
    "queued": "the queued message {}",
}
"""What an event's ``digests`` are of, by the id of the call or message, in words."""
MAY_CHANGE: Final = frozenset({"call", "control"})
"""Kinds of which the newest digest counts; what the others are of is written once."""
ENDINGS: Final = ("expired", "cancelled", "superseded")
ERASED: Final = "conversation.erased"
CLIMBS: Final = ("request.reminded", "request.escalated", "request.delegated")


def request_digest(request: Request) -> str:
    """Return the digest of what a person is shown of a request.

    Fields that were added later are part of it where they have a value: older requests have none, and keep their digest.
    """
    return stored_digest(request_values(request), request.nonce)


def call_row_digest(call: Call) -> str:
    """Return the digest of a call as it was planned, with what policy says of it."""
    manifest = () if call.manifest is None else ("manifest",)
    return _digest(call, (*CALL_FIELDS, "disposition", "verdict", "recorded_call_id", *manifest), call.nonce)


def calls_digest(planned: Iterable[Call]) -> str:
    """Return the digest of the calls of one step, as planned, in the model's order; logs of earlier releases have it."""
    return framed_sha256(*(_digest(each, CALL_FIELDS, "") for each in planned))


def decision_digest(decision: Decision, nonce: str) -> str:
    """Return the digest of what a person sent. Fields that were added later: as in :func:`request_digest`.

    ``nonce``: the request's.
    """
    return stored_digest(decision_values(decision), nonce)


def request_values(request: Request) -> dict[str, object]:
    """Return what :func:`request_digest` is over, by name."""
    return {name: getattr(request, name) for name in (*REQUEST_FIELDS, *_present(request, ADDED_TO_REQUESTS))}


def decision_values(decision: Decision) -> dict[str, object]:
    """Return what :func:`decision_digest` is over, by name."""
    return {name: getattr(decision, name) for name in (*DECISION_FIELDS, *_present(decision, ADDED_TO_DECISIONS))}


def text_digest(text: str, nonce: str) -> str:
    """Return the digest of a request's terms, or of what a call asks of its run (both JSON)."""
    return keyed_sha256(nonce, storable(text))


def opening_event(request: Request, **more: object) -> NewEvent:
    """Return the event of a request's opening: which call asks for what, by which rule, and a digest of what is shown.

    ``more``: further fields.
    """
    of_call = {"request_id": request.id, "tool_call_id": request.tool_call_id, "tool": request.tool_name}
    of_question = {"kind": request.kind, "rule": request.rule, "digest": request.digest}
    content = {"content": request_digest(request), "terms": text_digest(request.terms, request.nonce)}
    return "request.opened", {**of_call, **of_question, **content, **more}


async def first_difference(conn: Connection, run_id: str) -> ChainBreak | None:
    """Compare a run's rows with its events, and return the first that differ; None when all agree.

    The events' own chain is checked by ``turngate.domain.runs.event_chain``. Nothing is written.
    """
    try:
        run = await _RunEvidence.read(conn, run_id)
    except UnreadableContentError as unreadable:
        return ChainBreak(run_id=run_id, run_seq=0, problem=str(unreadable))
    return next(run.differences(), None)


async def rows_digest(conn: Connection, run_id: str) -> str:
    """Return the digest of a run's rows as they are now, for the event that says what was erased of them."""
    return (await _RunEvidence.read(conn, run_id)).rows_digest()


def is_complete(started: ChainedEvent) -> bool:
    """Tell from its first event whether a run's messages, results and verdicts all have digests in the log."""
    return "digests" in _logged(started).payload


async def run_ids(conn: Connection) -> AsyncIterator[str]:
    """Yield the id of every run, in order; read in batches."""
    query, last = select(runs_table.c.id).order_by(runs_table.c.id).limit(READ_AT_ONCE), ""
    while batch := list((await conn.execute(query.where(runs_table.c.id > last))).scalars()):
        for run_id in batch:
            yield run_id
        last = batch[-1]


@dataclass(frozen=True, kw_only=True)
class _LoggedEvent:
    run_seq: int
    type: str
    payload: Mapping[str, Any]
    lacks_words: bool = False

    @property
    def digests(self) -> Mapping[str, Mapping[str, str]]:
        """Kind → id → digest, of the rows that were written with it."""
        by_kind: Mapping[str, Mapping[str, str]] = self.payload.get("digests", {})
        return by_kind


@dataclass
class _RequestLog:
    """What the log says of one request: how it was opened, what happened to it since, and how often it climbed.

    ``approvals``: those that count, by decision id. ``withdrawn``: those that were taken back.
    """

    opened: _LoggedEvent | None = None
    last: _LoggedEvent | None = None
    climbs: list[_LoggedEvent] = field(default_factory=list)
    approvals: dict[str, _LoggedEvent] = field(default_factory=dict)
    withdrawn: list[_LoggedEvent] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _RunEvidence:
    """One run's events and rows."""

    run_id: str
    nonce: str
    events: Sequence[_LoggedEvent]
    requests: Mapping[str, Request]
    calls: Mapping[str, Call]
    decisions: Mapping[str, Decision]
    approvals: Mapping[str, Approval]
    executions: Mapping[str, Execution]
    messages: Mapping[str, RowMapping]
    queued: Mapping[str, QueuedMessage]
    steps: Sequence[Step]
    whole_results: Mapping[str, str]

    @classmethod
    async def read(cls, conn: Connection, run_id: str) -> _RunEvidence:
        logged = [_logged(event) async for event in audit.every(conn, run_id=run_id)]
        opened = await requests.of_run(conn, run_id)
        ids = [each.id for each in opened]
        decided = await conn.execute(select(decisions_table).where(decisions_table.c.request_id.in_(ids)))
        approved = await conn.execute(select(approvals_table).where(approvals_table.c.request_id.in_(ids)))
        planned = await calls.of_run(conn, run_id)
        wholes = [each.whole_result or "" for each in planned]
        sent = [row_id for event in logged for row_id in event.digests.get("queued", {})]
        own_nonce = select(runs_table.c.nonce).where(runs_table.c.id == run_id)
        return cls(
            run_id=run_id,
            nonce=(await conn.execute(own_nonce)).scalar_one_or_none() or "",
            events=logged,
            requests={each.id: each for each in opened},
            calls={each.tool_call_id: each for each in planned},
            decisions={row["id"]: Decision(**row) for row in decided.mappings()},
            approvals={row["decision_id"]: Approval(**row) for row in approved.mappings()},
            executions={each.tool_call_id: each for each in await executions.of_run(conn, run_id)},
            messages={row["id"]: row for row in await messages.rows_of_run(conn, run_id)},
            queued={each.id: each for each in await queued_messages.of_ids(conn, sent)},
            steps=await steps.of_run(conn, run_id),
            whole_results=await whole_results.of_digests(conn, wholes),
        )

    @property
    def _nonces(self) -> tuple[str, str]:
        """With what its digests may be keyed: a process of an earlier release, beside this one, knows no nonce."""
        return self.nonce, ""

    @cached_property
    def is_complete(self) -> bool:
        """Whether every row of the run must have a digest in the log."""
        return any(event.type == "run.started" and "digests" in event.payload for event in self.events)

    @cached_property
    def digests(self) -> Mapping[str, Mapping[str, tuple[_LoggedEvent, str]]]:
        """Kind → id → the event that counts, with its digest."""
        logged: dict[str, dict[str, tuple[_LoggedEvent, str]]] = {kind: {} for kind in KINDS}
        for event in self.events:
            for kind, of_rows in event.digests.items():
                new = {row_id: (event, digest) for row_id, digest in of_rows.items()}
                logged[kind] = {**logged[kind], **new} if kind in MAY_CHANGE else {**new, **logged[kind]}
        return logged

    def differences(self) -> Iterator[ChainBreak]:
        """Yield what differs, in the order of events; rows that no event accounts for come last."""
        erased = next((each for each in reversed(self.events) if each.type == ERASED), None)
        yield from self._words(0 if erased is None else erased.run_seq)
        if erased is not None:
            yield from self._since_erased(erased)
            return
        logs = self._request_logs()
        yield from self._planned()
        yield from self._rows(
            "call", {each.tool_call_id: _either(call_row_digest, each) for each in self.calls.values()}
        )
        for request_id, log in logs.items():
            yield from self._request(request_id, log)
        yield from self._edits(logs)
        for call_id, started in self._starts().items():
            yield from self._execution(call_id, started)
        yield from self._settled()
        yield from self._messages()
        for request_id in self.requests:
            if request_id not in logs or logs[request_id].opened is None:
                yield self._differs(None, f"no event opened request {request_id}")

    def rows_digest(self) -> str:
        """Return the digest of all rows that are compared, whole; of requests without what changes after their end."""
        stored = {
            "requests": [{**vars(each), "claimed_by": None, "claimed_until": None} for each in self.requests.values()],
            "calls": [vars(each) for each in self.calls.values()],
            "decisions": [vars(each) for each in self.decisions.values()],
            "approvals": [vars(each) for each in self.approvals.values()],
            "executions": [_without_key(each) for each in self.executions.values()],
            "messages": [dict(each) for each in self.messages.values()],
            "queued": [vars(each) for each in self.queued.values()],
            "steps": [vars(each) for each in self.steps],
        }
        lines = {name: sorted(json.dumps(row, sort_keys=True) for row in rows) for name, rows in stored.items()}
        return framed_sha256(json.dumps(lines, sort_keys=True, separators=(",", ":")))

    def _words(self, until: int) -> Iterator[ChainBreak]:
        """Look for words that are gone from events after event ``until``, the last one that says that they were erased."""
        for event in self.events:
            if event.lacks_words and event.run_seq > until:
                yield self._differs(event, "its words are missing, and no event says that they were erased")

    def _since_erased(self, erased: _LoggedEvent) -> Iterator[ChainBreak]:
        """Compare the rows of a run with what erasing left of them."""
        before = next((each for each in self.events if each.type == ERASED and not each.payload.get("intact")), None)
        if before is not None:
            yield self._differs(before, "before this run's content was erased, a row was not as the log says")
        if erased.payload.get("rows") != self.rows_digest():
            yield self._differs(erased, "a row is not as erasing the run's content left it")

    def _request_logs(self) -> dict[str, _RequestLog]:
        logs: dict[str, _RequestLog] = {}
        for event in self.events:
            request_id = event.payload.get("request_id")
            if not event.type.startswith("request.") or not isinstance(request_id, str):
                continue
            if event.type == "request.opened":
                logs[request_id] = _RequestLog(opened=event)
            log = logs.setdefault(request_id, _RequestLog())
            if event.type in CLIMBS:
                log.climbs.append(event)
            elif event.type == "request.approved_once":
                log.approvals[str(event.payload.get("decision_id"))] = event
            elif event.type == "request.approval_withdrawn":
                approval = log.approvals.pop(str(event.payload.get("decision_id")), event)
                log.withdrawn.append(approval)
            elif event.type in {"request.decided", "request.rebuilt", *(f"request.{each}" for each in ENDINGS)}:
                log.last = event
        return logs

    def _planned(self) -> Iterator[ChainBreak]:
        """Compare the calls of each step with what was planned. A log of 0.1.0 has no digest of them."""
        for event in self.events:
            if event.type != "step.responded" or "planned" not in event.payload:
                continue
            step = event.payload.get("step")
            of_model = [each for each in self.calls.values() if each.step == step and each.position < AFTER_THE_STEP]
            if calls_digest(sorted(of_model, key=lambda each: each.position)) != event.payload["planned"]:
                yield self._differs(event, f"the calls of step {step} are not as they were planned")

    def _rows(
        self, kind: str, stored: Mapping[str, Collection[str]], *, without: Container[str] = ()
    ) -> Iterator[ChainBreak]:
        """Compare rows of one kind with their digests. ``without``: ids that may be in the log or the store only.

        ``stored``: by id, the digests that a row may have.
        """
        logged = self.digests[kind]
        for row_id in sorted(logged.keys() | stored.keys()):
            event, digest = logged.get(row_id, (None, None))
            name = KINDS[kind].format(row_id)
            if row_id in without and (event is None or row_id not in stored):
                continue
            if event is None and self.is_complete:
                yield self._differs(None, f"no event accounts for {name}")
            elif event is not None and row_id not in stored:
                yield self._differs(event, f"{name} is missing")
            elif event is not None and digest not in stored[row_id]:
                yield self._differs(event, f"{name} is not as it was stored")

    def _settled(self) -> Iterator[ChainBreak]:
        """Compare what calls ask of the run, who answers them, and their results."""
        by_id = self.calls.values()
        control = {
            each.tool_call_id: {text_digest(each.signal, nonce) for nonce in (each.nonce, "")}
            for each in by_id
            if each.signal is not None
        }
        yield from self._rows("control", control)
        yield from self._children()
        results = {each.tool_call_id: _either(calls.result_digest, each) for each in by_id if each.result is not None}
        yield from self._rows("result", results, without=self._answers())
        for call in by_id:
            answer = self._answers().get(call.tool_call_id)
            if answer is not None and call.result is not None and _result(call) != answer:
                yield self._differs(None, f"the result of call {call.tool_call_id} is not what a person answered")
            whole = None if call.whole_result is None else self.whole_results.get(call.whole_result, "")
            # Text that could not be stored as it was (U+FFFD) has the digest of what came.
            if whole is not None and "\ufffd" not in whole and result_digest(whole) != call.whole_result:
                yield self._differs(
                    None, f"the whole result of call {call.tool_call_id} is not the one that was stored"
                )

    def _answers(self) -> dict[str, Ok]:
        """Return the results of questions by call: a person's answers, which the log has as their decisions."""
        decided = (
            (each.tool_call_id, self.decisions.get(each.decision_id or ""))
            for each in self.requests.values()
            if each.kind == "question" and each.status == "responded"
        )
        with_value = ((call_id, _decoded(stored.args or "")) for call_id, stored in decided if stored is not None)
        return {call_id: Ok(value=as_object(value)) for call_id, value in with_value if value is not None}

    def _children(self) -> Iterator[ChainBreak]:
        """Compare which runs answer for sub-agents."""
        started = {call_id: event for call_id, event in self._starts().items() if "child_run_id" in event.payload}
        for call in self.calls.values():
            event = started.get(call.tool_call_id)
            child = None if event is None else event.payload["child_run_id"]
            if call.child_run_id != child and (self.is_complete or event is not None):
                yield self._differs(
                    event, f"the run that answers call {call.tool_call_id} is not the one that was started"
                )

    def _messages(self) -> Iterator[ChainBreak]:
        """Compare what was sent to the run, and the messages that it wrote; results messages with the results of calls."""
        yield from self._rows(
            "queued",
            {each.id: {queued_messages.digest(each, nonce) for nonce in self._nonces} for each in self.queued.values()},
        )
        ends = {derived_id("msg", self.run_id, str(each.step), "results"): each for each in self.steps}
        unplanned = [
            each.assistant_message_id for each in self.steps if each.plan is None
        ]  # its event comes with the plan
        stored = {
            message_id: {messages.digest_of_row(row, nonce) for nonce in self._nonces}
            for message_id, row in self.messages.items()
        }
        yield from self._rows("message", stored, without={*ends, *unplanned})
        for message_id, step in ends.items():
            if self.is_complete and self._is_other_end(message_id, step):
                yield self._differs(None, f"the results of step {step.step} are not those of its calls")

    def _is_other_end(self, message_id: str, step: Step) -> bool:
        """Tell whether the message that closed a step is not the one of its calls. One with a digest was compared by that."""
        end, response = self.messages.get(message_id), self.messages.get(step.assistant_message_id)
        if end is None or message_id in self.digests["message"]:
            return end is None and step.results_message_id is not None
        if response is None or end["parent_id"] != response["id"]:
            return True
        of_step = [each for each in self.calls.values() if each.step == step.step]
        expected = steps.results_message(messages.stored(response).message, of_step, CLOSED_BY_REPAIR)
        try:
            return messages.stored(end).message != expected
        except ValueError:  # it cannot be read
            return True

    def _request(self, request_id: str, log: _RequestLog) -> Iterator[ChainBreak]:
        request, opened = self.requests.get(request_id), log.opened
        if opened is None:
            return  # reported by its row, if it has one
        if request is None:
            yield self._differs(opened, f"the row of request {request_id} is missing")
            return
        named = ("tool_call_id", request.tool_call_id), ("tool", request.tool_name), ("kind", request.kind)
        for name, value in (*named, ("rule", request.rule), ("digest", request.digest)):
            if opened.payload.get(name) != value:
                yield self._differs(opened, f"the {name} of request {request_id} is not the one that was asked about")
        if "content" in opened.payload and opened.payload["content"] != request_digest(request):
            yield self._differs(opened, f"request {request_id} is not as it was shown")
        if self._recomputed(request) not in {None, request.digest}:
            yield self._differs(opened, f"the digest of request {request_id} is not that of its call")
        yield from self._terms(request, log, opened)
        yield from self._approvals(request, log)
        yield from self._withdrawn(request, log)
        yield from self._ending(request, log)

    def _terms(self, request: Request, log: _RequestLog, opened: _LoggedEvent) -> Iterator[ChainBreak]:
        newest = next((each for each in reversed((opened, *log.climbs)) if "terms" in each.payload), None)
        if newest is not None and newest.payload["terms"] != text_digest(request.terms, request.nonce):
            yield self._differs(newest, f"the terms of request {request.id} are not those it was asked on")
        rungs = [each.payload.get("rung") for each in log.climbs]
        if "content" in opened.payload and request.rungs_climbed != (rungs[-1] if rungs else 0):
            yield self._differs(opened, f"request {request.id} has not climbed its ladder as its row says")

    def _approvals(self, request: Request, log: _RequestLog) -> Iterator[ChainBreak]:
        """Compare the approvals of a request that needs several; its decision is the last of them."""
        rows = {each.decision_id: each for each in self.approvals.values() if each.request_id == request.id}
        logged = dict(log.approvals)
        if rows and log.last is not None and log.last.type == "request.decided" and request.verb == "approve":
            logged[str(log.last.payload.get("decision_id"))] = log.last
        for decision_id in rows.keys() | logged.keys():
            row, event = rows.get(decision_id), logged.get(decision_id)
            if row is None or event is None or row.decided_by != event.payload.get("by") or self._is_other(event):
                yield self._differs(event or log.opened, f"an approval of request {request.id} is not as it was given")
        if request.approvals != len(rows):
            yield self._differs(
                log.opened, f"request {request.id} counts {request.approvals} approvals; {len(rows)} were given"
            )

    def _withdrawn(self, request: Request, log: _RequestLog) -> Iterator[ChainBreak]:
        """Compare the approvals that were taken back; the decisions that gave them are still stored."""
        for event in log.withdrawn:
            if self._is_other(event):
                yield self._differs(
                    event, f"an approval of request {request.id}, taken back later, is not as it was given"
                )

    def _is_other(self, event: _LoggedEvent) -> bool:
        """Tell whether a decision's row is gone, or is not what the log says. 0.1.0 logged nothing of its content."""
        stored = self.decisions.get(str(event.payload.get("decision_id")))
        known = event.payload.get("content")
        if known is None or stored is None:
            return known is not None
        request = self.requests.get(stored.request_id)
        nonces = ("",) if request is None else (request.nonce, "")
        return all(decision_digest(stored, nonce) != known for nonce in nonces)

    def _ending(self, request: Request, log: _RequestLog) -> Iterator[ChainBreak]:
        """Compare how a request ended, by whom, and what they sent."""
        last = log.last
        if last is None or last.type == "request.rebuilt":
            yield from self._undecided(request, log)
            return
        if last.type != "request.decided":
            ended = last.type.removeprefix("request.")
            if request.status != ended or request.decided_by is not None or request.decision_id is not None:
                yield self._differs(last, f"request {request.id} is {request.status}; the log says {ended}")
            if self._is_other(last):
                yield self._differs(last, f"the edit that ended request {request.id} is not the one that was sent")
            return
        pairs = (
            ("status", request.status),
            ("verb", request.verb),
            ("by", request.decided_by),
            ("decision_id", request.decision_id),
        )
        for name, value in pairs:
            if last.payload.get(name) != value:
                logged = last.payload.get(name)
                yield self._differs(last, f"request {request.id}: its {name} is {value!r}; the log says {logged!r}")
        yield from self._decision(request, last)
        if self._is_other(last):
            yield self._differs(last, f"the decision of request {request.id} is not the one that was decided")

    def _undecided(self, request: Request, log: _RequestLog) -> Iterator[ChainBreak]:
        """Compare a request whose decision the log does not have: it waits, or was rebuilt, and then only its status is known."""
        last = log.last
        status = "pending" if last is None else last.payload.get("status")
        if request.status != status:
            yield self._differs(last or log.opened, f"request {request.id} is {request.status}; the log says {status}")
        if last is None and (request.decided_by is not None or request.decision_id is not None):
            yield self._differs(log.opened, f"request {request.id} names a decision that the log does not have")

    def _decision(self, request: Request, decided: _LoggedEvent) -> Iterator[ChainBreak]:
        stored = self.decisions.get(str(decided.payload.get("decision_id")))
        if stored is not None:
            for name, value in (("verb", stored.verb), ("by", stored.decided_by), ("outcome", stored.outcome)):
                if decided.payload.get(name) != value:
                    yield self._differs(decided, f"the {name} of decision {stored.id} is not the one that was logged")
            if stored.request_id != request.id:
                yield self._differs(decided, f"decision {stored.id} names another request")
        if decided.payload.get("verb") != "edit":
            return
        edited = decided.payload.get("edited_digest")
        if stored is None or stored.digest != edited:
            yield self._differs(decided, f"the edit of request {request.id} is not the one that was decided")
            return
        if self._recomputed(request, stored.args) not in {None, edited}:
            yield self._differs(decided, f"the digest of the edit of request {request.id} is not that of its call")

    def _edits(self, logs: Mapping[str, _RequestLog]) -> Iterator[ChainBreak]:
        """Compare the bytes that run with the last edit of a call, or with the last request about it, if that is newer.

        An edit that does not fit the tool, or that needs other terms, leads to one more request, whose bytes then count.
        """
        decided: dict[str, tuple[_LoggedEvent, str | None]] = {}
        for request_id, log in logs.items():
            request = self.requests.get(request_id)
            if request is None or log.opened is None:
                continue
            call_id = request.tool_call_id
            if call_id not in decided or decided[call_id][0].run_seq < log.opened.run_seq:
                decided[call_id] = log.opened, request.input
            if log.last is not None:
                decided[call_id] = self._edit(request, log.last) or decided[call_id]
        for call_id, (event, text) in decided.items():
            call = self.calls.get(call_id)
            if call is None or call.running_input != text:
                yield self._differs(event, f"call {call_id} is not the one that was edited")

    def _edit(self, request: Request, last: _LoggedEvent) -> tuple[_LoggedEvent, str | None] | None:
        """Return the event of a request's edit, with the bytes that were to run; None: it was not edited."""
        if "edited_digest" not in last.payload:
            return None
        if "decision_id" not in last.payload:  # a log of 0.1.0, where an edit that led to another request has no row
            call = self.calls.get(request.tool_call_id)
            text = None if call is None else call.running_input
            is_edit = self._recomputed(request, text) in {None, last.payload["edited_digest"]}
            return last, text if is_edit else None
        decision = self.decisions.get(str(last.payload["decision_id"]))
        return last, None if decision is None else decision.args

    def _starts(self) -> dict[str, _LoggedEvent]:
        """Return each call's newest start."""
        started = (each for each in self.events if each.type == "execution.started")
        return {str(each.payload.get("tool_call_id")): each for each in started}

    def _execution(self, call_id: str, started: _LoggedEvent) -> Iterator[ChainBreak]:
        row = self.executions.get(call_id)
        if row is None:
            yield self._differs(started, f"the row of the execution of call {call_id} is missing")
            return
        for name, value in (("digest", row.digest), ("decision_id", row.decision_id)):
            if started.payload.get(name) != value:
                yield self._differs(
                    started, f"the {name} of the execution of call {call_id} is not the one that started it"
                )

    def _recomputed(self, request: Request, raw_input: str | None = None) -> str | None:
        """Return the digest computed from the stored bytes; None where they cannot tell.

        A request about an outcome, and one that overruled an earlier verdict, carry the digest of the planned call. Text
        that could not be stored as it was (U+FFFD) has the digest of what came.
        """
        call, text = self.calls.get(request.tool_call_id), request.input if raw_input is None else raw_input
        if call is None:
            return ""
        if raw_input is None and request.kind == "outcome":
            return None
        try:
            manifest = ToolManifest.model_validate_json(request.manifest)
        except ValidationError:
            return ""
        if "\ufffd" in text or '"overruled"' in call.verdict:
            return None
        defaults = request.defaults
        if raw_input is not None:
            defaults = stored(manifest.defaults_of_edit(text, request.input, request.left_out))
        return call_digest(
            tool_name=request.tool_name,
            manifest_digest=manifest.digest,
            raw_input=text,
            run_id=request.run_id,
            tool_call_id=request.tool_call_id,
            policy_version=call.policy_version,
            nonce=request.nonce,
            defaults=defaults,
        )

    def _differs(self, event: _LoggedEvent | None, problem: str) -> ChainBreak:
        return ChainBreak(run_id=self.run_id, run_seq=0 if event is None else event.run_seq, problem=problem)


def _logged(event: ChainedEvent) -> _LoggedEvent:
    payload = json.loads(event.payload)
    is_object = isinstance(payload, dict)
    return _LoggedEvent(
        run_seq=event.run_seq,
        type=event.type,
        payload=payload if is_object else {},
        lacks_words=event.lacks_words,
    )


def _result(call: Call) -> Ok | Failure | None:
    try:
        return call.settled_result
    except ValidationError:
        return None


def _decoded(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _without_key(row: Execution) -> dict[str, object]:
    """Return an execution as the digests of erased rows have it; releases of before had no key to find it by."""
    return {name: value for name, value in vars(row).items() if name != "repeat_key"}


def _present(row: Request | Decision, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(row, name) is not None]


def _either(digest: Callable[[Call], str], call: Call) -> Collection[str]:
    """Return the digests that a call may have in the log: a process of an earlier release doesn't key them."""
    return {digest(call), digest(replace(call, nonce=""))}


def _digest(row: Request | Call | Decision, names: Sequence[str], nonce: str) -> str:
    return stored_digest({name: getattr(row, name) for name in names}, nonce)
