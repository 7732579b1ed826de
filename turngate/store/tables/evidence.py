"""Evidence (I15) as data: what events say of which columns. Plain facts; :mod:`turngate.store.evidence` compares by them.

Three kinds of facts. A *digest* is over several columns of one row, as they were written with the event. A *value* is in the
event's payload. What no one relies on has no fact, and :data:`NOT_COMPARED` says why. Every column of every table is in one of
these (tests/unit/store/test_evidence_table.py), so a new column has to be decided about.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True, kw_only=True)
class EvidenceTable:
    """A table of which events say something. ``key``: the columns that name a row in them, beside the run.

    ``of_run``: its rows belong to a run, and the run's own chain has their events; else any chain may. ``is_accounted``: a row
    that no event names was added past Turngate. ``may_go``: rows are deleted without an event. ``key_chars``: how much of the key
    events have; None: all.
    """

    key: tuple[str, ...]
    of_run: bool = True
    is_accounted: bool = False
    may_go: bool = False
    key_chars: int | None = None


TABLES: Final[Mapping[str, EvidenceTable]] = {
    "runs": EvidenceTable(key=("id",)),
    "steps": EvidenceTable(key=("step",)),
    "calls": EvidenceTable(key=("tool_call_id",)),
    "executions": EvidenceTable(key=("tool_call_id",), is_accounted=True),
    "requests": EvidenceTable(key=("id",), is_accounted=True),
    "decisions": EvidenceTable(key=("id",)),
    "approvals": EvidenceTable(key=("decision_id",), is_accounted=True),
    "comments": EvidenceTable(key=("id",), is_accounted=True),
    "messages": EvidenceTable(key=("id",)),
    "queued_messages": EvidenceTable(key=("id",), is_accounted=True),
    "grant_uses": EvidenceTable(key=("grant_id", "tool_call_id"), is_accounted=True),
    "views": EvidenceTable(key=("request_id", "viewer"), is_accounted=True),
    "schedule_fires": EvidenceTable(key=("run_id", "schedule_id")),
    "grants": EvidenceTable(key=("id",), of_run=False, is_accounted=True),
    "users": EvidenceTable(key=("name",), of_run=False, is_accounted=True),
    # Erasing a person removes their tokens.
    "api_tokens": EvidenceTable(key=("token_hash",), of_run=False, is_accounted=True, key_chars=16, may_go=True),
    "sessions": EvidenceTable(key=("id",), of_run=False, is_accounted=True, may_go=True),
    "policy_versions": EvidenceTable(key=("version",), of_run=False, is_accounted=True),
    "policy_proposals": EvidenceTable(key=("number",), of_run=False, is_accounted=True),
    "holds": EvidenceTable(key=("id",), of_run=False, is_accounted=True),
    "schedules": EvidenceTable(key=("id",), of_run=False, is_accounted=True),
}


@dataclass(frozen=True, kw_only=True)
class Digested:
    """Columns that events have one digest of. A column is only ever added at the end.

    ``newest``: they may change, and the newest digest counts; else the first one.
    """

    table: str
    columns: tuple[str, ...]
    newest: bool = False


DIGESTS: Final[Mapping[str, Digested]] = {
    "run": Digested(
        table="runs",
        columns=_names(
            "id conversation_id workspace task started_by idempotency_key created_at parent_run_id parent_tool_call_id "
            "forked_from_run_id forked_from_step is_retry attended unattended_asks schedule_id replay_of_run_id traceparent "
            "world"
        ),
    ),
    "request": Digested(
        table="requests",
        columns=_names(
            "id run_id tool_call_id kind agent tool_name manifest input digest rule reason risk agent_words preview_kind preview "
            "not_by expires_at created_at path quorum origins summary masked_input lost_start defaults confinement precondition"
        ),
    ),
    "terms": Digested(table="requests", columns=("terms",), newest=True),
    "call": Digested(
        table="calls",
        columns=_names(
            "run_id tool_call_id step position tool_name input repeat_key digest policy_version effect disposition verdict "
            "recorded_call_id manifest"
        ),
        newest=True,
    ),
    "running": Digested(table="calls", columns=_names("edited_input defaults"), newest=True),
    "control": Digested(table="calls", columns=("signal",), newest=True),
    "result": Digested(table="calls", columns=_names("result presentation whole_result")),
    "decision": Digested(
        table="decisions",
        columns=_names(
            "id request_id verb digest args message outcome decided_by created_at grant_wanted credential looked_ms seen_percent"
        ),
        newest=True,
    ),
    "message": Digested(
        table="messages", columns=_names("id parent_id conversation_id run_id step role parts provider_options")
    ),
    "queued": Digested(table="queued_messages", columns=_names("id text while_running sent_by fingerprint")),
    "comment": Digested(table="comments", columns=_names("id request_id author text created_at")),
    "grant": Digested(
        table="grants",
        columns=_names("tool_name pattern scope run_id agent note created_by created_by_role created_at request_id"),
    ),
    "login": Digested(table="users", columns=_names("password_hash"), newest=True),
    "identity": Digested(table="users", columns=_names("oidc_issuer oidc_subject"), newest=True),
    "token": Digested(table="api_tokens", columns=_names("token_hash name scopes created_at owner expires_at bounds")),
    "session": Digested(table="sessions", columns=_names("token_hash operator created_at expires_at role via")),
    "policy": Digested(table="policy_versions", columns=_names("version source digest changed_by comment created_at")),
    "proposal": Digested(
        table="policy_proposals",
        columns=_names("number version source digest proposed_by comment why created_at"),
    ),
    "schedule": Digested(
        table="schedules",
        columns=_names(
            "name agent input workspace model conversation_id unattended_asks timetable overlap catch_up_seconds notes created_by"
        ),
        newest=True,
    ),
}
"""By the name that an event's ``digests`` have: kind → row → digest."""


# What a payload says.


CLIMBS: Final = ("request.reminded", "request.escalated", "request.delegated")
"""Events of a request that climbs its ladder: its terms change."""
UNKNOWN: Final = object()
"""A column's value after an event that changes it and doesn't say to what."""
UNCHANGED: Final = object()
"""A column's value after an event that need not change it."""


@dataclass(frozen=True)
class InPayload:
    """The payload has the value in this field. ``otherwise``: what it means if it lacks the field."""

    field: str
    otherwise: Any = UNKNOWN


@dataclass(frozen=True)
class InWords:
    """The event's words have the text in this field, or the payload does where there was nothing to say."""

    field: str


@dataclass(frozen=True)
class Always:
    """The event means this value; a set: one of these."""

    value: Any


@dataclass(frozen=True)
class About:
    """The instant of the event, give or take what a transaction takes."""


@dataclass(frozen=True)
class Interrupter:
    """Who interrupted a run, from the event of its end: None for every other end."""


@dataclass(frozen=True)
class OneMore:
    """One more than before."""


Source = InPayload | InWords | Always | About | Interrupter | OneMore
RUN: Final = "run"
"""In place of a payload's field: the run whose chain the event is in."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What an event says of the columns of one row. ``key``: the payload's fields that name it.

    ``if_known``: only of a row that an earlier event is about. ``if_there``: the row need not be there from then on.
    ``ends``: the row is deleted.
    """

    table: str
    key: tuple[str, ...]
    says: Mapping[str, Source]
    if_known: bool = False
    if_there: bool = False
    ends: bool = False


_TABLE: Final = """
run.started | runs run | status='running' agent model started_by reason='' error_class='' ended_by=None ended_at=None
run.started | runs run | paused_at=None paused_by=None pause_reason='' interrupted_at=None interrupted_by=None interrupt_reason=''
run.started | runs run | fell_back_from=None model_chosen_by=model_chosen_by?
run.started | schedule_fires run schedule_id | fired_by
run.handed_off | runs run | agent=to model fell_back_from=None model_chosen_by=None
run.model_switched | runs run | model=to fell_back_from=None model_chosen_by=by?
run.model_fell_back | runs run | model=to fell_back_from=instead_of
run.paused | runs run | paused_at=@ paused_by=by pause_reason=words:reason
run.resumed | runs run | paused_at=None paused_by=None pause_reason=''
run.interrupted | runs run | interrupted_at=@ interrupted_by=by interrupt_reason=words:reason
message.queued | queued_messages message_id | sent_by=by while_running
run.ended | runs run | status error_class reason=words:reason ended_by=interrupter ended_at=@

step.responded | steps step | finish_reason
execution.started | executions tool_call_id | state={'executing','failed','unknown'} digest decision_id attempts=attempt
execution.started | executions tool_call_id | idempotency_key
execution.started | calls tool_call_id | child_run_id=child_run_id?
execution.finished | executions tool_call_id if_known | state
execution.unknown | executions tool_call_id if_known | state='unknown'
call.closed | executions tool_call_id if_known | state={'failed','unknown'}
grant.used | grant_uses grant_id tool_call_id | used_at=@
grant.used | grants grant_id if_known | uses=+1

request.opened | requests request_id | status='pending' tool_call_id tool_name=tool kind rule digest rungs_climbed=0
request.opened | requests request_id | parked_at=parked_at? decided_by=None decision_id=None verb=None decided_at=None
request.reminded | requests request_id | rungs_climbed=rung
request.escalated | requests request_id | rungs_climbed=rung
request.delegated | requests request_id | rungs_climbed=rung
request.parked | requests request_id | parked_at=at
request.approved_once | approvals decision_id | decided_by=by request_id
request.approved_once | requests request_id | approvals
request.approval_withdrawn | approvals decision_id if_there |
request.approval_withdrawn | requests request_id | approvals=approvals!
request.decided | requests request_id | status verb decided_by=by decision_id decided_at=at approvals
request.decided | decisions decision_id | request_id verb outcome decided_by=by
request.decided | approvals decision_id if_there | decided_by=by request_id
request.decided | executions tool_call_id if_known | state=execution
request.expired | requests request_id | status='expired' decided_by=None decision_id=None verb=None decided_at=at
request.cancelled | requests request_id | status='cancelled' decided_by=None decision_id=None verb=None decided_at=at
request.superseded | requests request_id | status='superseded' decided_by=None decision_id=None verb=None decided_at=at
request.commented | comments comment_id | author=by request_id
request.viewed | views request_id by | first_at=@

grant.created | grants grant_id | tool_name=tool scope max_uses expires_at created_by=by uses=0 revoked_at=None revoked_by=None
grant.revoked | grants grant_id | revoked_by=by revoked_at=@
user.added | users name | role created_at=@ disabled_at=None
user.changed | users name | role=role!
user.disabled | users name | disabled_at=@
user.enabled | users name | disabled_at=None
token.issued | api_tokens token_id | name owner expires_at revoked_at=None
token.revoked | api_tokens token_id | revoked_at=@
session.opened | sessions session_id | operator=name via
session.ended | sessions session_id ends |
policy.changed | policy_versions version | digest changed_by=by
policy.proposed | policy_proposals proposal | version digest proposed_by=by why comment outcome=None ended_by=None ended_at=None
policy.confirmed | policy_proposals proposal | outcome='confirmed' ended_by=by ended_at=@
policy.refused | policy_proposals proposal | outcome='refused' ended_by=by ended_at=@
hold.added | holds hold_id | kind target reason=why created_by=by created_at=@ removed_by=None removed_at=None
hold.removed | holds hold_id | removed_by=by removed_at=@
schedule.created | schedules schedule_id | created_at=@ deleted_at=None deleted_by=None paused_at=paused_at? paused_by=paused_by?
schedule.paused | schedules schedule_id | paused_by=by paused_at=@
schedule.resumed | schedules schedule_id | paused_by=None paused_at=None
schedule.deleted | schedules schedule_id | deleted_by=by deleted_at=@
"""
"""Event | table, payload's fields that name the row, options of :class:`Fact` | column=source, as :func:`_source` reads it."""


def _source(text: str) -> Source:
    """Read a source.

    ``name``: that field. ``name?``: or None, where it lacks. ``name!``: or as before, where it lacks. ``words:name``: of the
    words. ``@``: the event's instant. ``+1``: one more. ``interrupter``: who interrupted the run. Else a value of Python.
    """
    if text[0] in "'{0123456789" or text == "None":
        return Always(ast.literal_eval(text))
    if text.startswith("words:"):
        return InWords(text.removeprefix("words:"))
    named: dict[str, Source] = {"@": About(), "+1": OneMore(), "interrupter": Interrupter()}
    if text in named:
        return named[text]
    otherwise = {"?": None, "!": UNCHANGED}.get(text[-1], UNKNOWN)
    return InPayload(text.rstrip("?!"), otherwise)


def _facts(lines: str) -> Mapping[str, tuple[Fact, ...]]:
    facts: dict[str, tuple[Fact, ...]] = {}
    for event, row, says in (map(str.strip, line.split("|")) for line in lines.splitlines() if line):
        table, *named = row.split()
        options = {each: True for each in named if each in {"if_known", "if_there", "ends"}}
        columns = {name: _source(source or name) for name, _, source in (each.partition("=") for each in says.split())}
        key = tuple(each for each in named if each not in options)
        facts[event] = (*facts.get(event, ()), Fact(table=table, key=key, says=columns, **options))
    return facts


FACTS: Final = _facts(_TABLE)
"""By the event's type, in the order in which they count."""

CONTENT: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "request.opened": (("request", "request_id", "content"), ("terms", "request_id", "terms")),
    **dict.fromkeys(CLIMBS, (("terms", "request_id", "terms"),)),
    "request.superseded": (("decision", "decision_id", "content"),),
    **dict.fromkeys(
        ("request.decided", "request.approved_once"),
        (
            ("decision", "decision_id", "content"),
            ("request", "request_id", "shown"),
            ("terms", "request_id", "terms"),
        ),
    ),
}
"""Digests that are fields of their own: event → kind, the field that names the row, and the field that has the digest."""


# What is not compared.


RELATED: Final[Mapping[str, str]] = {
    "requests": "approvals",
    "approvals": "request_id decided_by message created_at",
    "runs": "head_message_id",
    "steps": "results_message_id",
    "whole_results": "digest text",
    "worlds": "digest content",
}
"""Columns that are compared with other rows, which are compared with the log."""

_ERASURE: Final = "it says what was erased by whom, and so does an event of each run"
_BUDGET: Final = "counts for budgets; the provider's bill is the record"
_HINT: Final = "a hint: what is found by it is compared with the call itself"
_STATE: Final = "bookkeeping of a follower: what it leads to is compared or shown again"
_TIME: Final = "shown in lists; the events have their own instants"
_COPY: Final = "it follows from other columns, which are compared"

NOT_COMPARED: Final[Mapping[str, Mapping[str, str]]] = {
    "runs": {
        "step input_message_id": "where the run is: its steps and messages are compared",
        "agent_version path": _COPY,
        "event_count event_hash": "the head of the chain, which is checked as that",
        "request_fingerprint": "equal for a repeat of the order that started the run",
        "tokens_used cost_micros extensions": _BUDGET,
        "control control_seen": _STATE,
        "nonce": "without it no digest of the run fits",
        "erasure_id": _ERASURE,
    },
    "steps": {
        "run_id": "part of the row's key",
        "assistant_message_id model input_tokens output_tokens plan corrective model_spec trail": "the engine's notes of a "
        "response: its message and calls are compared",
        "created_at closed_at asked_at": _TIME,
    },
    "calls": {"settled_at": _TIME, "nonce": "without it no digest of the call fits"},
    "executions": {
        "run_id": "part of the row's key",
        "partial_output": "what a stopped command had said, for people",
        "started_at ended_at": _TIME,
        "worker build": "for who looks for a crash",
        "repeat_key": _HINT,
    },
    "requests": {
        "urgent_at": "its place in the inbox",
        "claimed_by claimed_until": "a courtesy among people: it forbids no one to decide",
        "repeat_key": _HINT,
        "nonce": "without it no digest of the request fits",
    },
    "messages": {"created_at": _TIME},
    "queued_messages": {
        "run_id taken_at": "which run took it: the message that it became is compared",
        "created_at": _TIME,
    },
    "grant_uses": {"run_id": "part of the row's key"},
    "views": {"last_at": "presence, which is over in a minute"},
    "users": {
        "email": "for lists: nothing is sent there, and no one logs in by it",
        "nonce": "without it no digest of their identity fits",
    },
    "api_tokens": {"last_used_at": "for lists"},
    "sessions": {"last_seen_at user_agent": "for lists"},
    "schedules": {
        "revision removed_at": _STATE,
        "fires_after": "which instants of the timetable count: each fire is an event",
        "pause_reason": "words for people: who paused it is compared",
    },
    "schedule_fires": {"fire_at outcome reason noted_at": "each fire is an event; a run that it opened is compared"},
    "whole_results": {"created_at": _TIME},
    "worlds": {"created_at": _TIME},
}
"""Table → columns → why no one relies on them."""

TABLES_NOT_COMPARED: Final[Mapping[str, str]] = {
    "conversations": "its messages are compared (an earlier head leaves some out); a changed data key opens nothing",
    "agents model_names published_policies": "an app publishes it again at each start of a worker",
    "progress deltas errors summaries_wanted": "for those who watch, and gone after; nothing is decided by it",
    "precedents precedent_features": _HINT,
    "deliveries delivery_attempts notification_cursors trace_export event_counter": _STATE,
    "used_below": _BUDGET,
    "totals": "counts for limits; calls that were counted are events",
    "judgements": "what the judge said is part of the verdict, which is compared",
    "summaries": "what a model is sent in place of messages, which stay and are compared",
    "external_calls": "the call and its context are compared as its run's; the rest of the conversation isn't (docs/security.md)",
    "erasures": _ERASURE,
    "retention_runs": "retention.applied says what was done",
    "idempotent_answers": "an answer that a repeat gets again, for a day",
    "people people_version": "what an id is called; the log has ids",
    "login_links": "a link that is used opens a session, which the log has; who added the link, it doesn't (docs/security.md)",
    "events event_chains": "the log itself",
    "key_ring": "a key that was changed opens nothing",
}
"""Tables → why no one relies on any of their columns."""
