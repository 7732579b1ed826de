"""Which columns hold content, and which conversation each of their rows belongs to. Plain facts, and queries by them.

*Content* is what people, models and tools wrote: it is encrypted, and erased with its conversation. All else stays: ids,
names of tools and agents, states, instants, declarations that an app publishes. *Hashes* are of content, which is often
short: anyone who has a hash without a key in it can try values until one fits. So an encrypted store keys them, too.

Every text column of every table is in exactly one list (tests/unit/store/test_content.py), so a new column has to be
classified. The payload of an event holds no content, because it can't be changed: ids, the engine's own words, and digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sqlalchemy import ColumnElement, Select, or_, select

from turngate.store.tables.metadata import metadata


class Owner(Enum):
    """How a row names its conversation."""

    CONVERSATION = "by its column conversation_id"
    RUN = "by its column run_id"
    REQUEST = "by its column request_id, through the run"
    GRANT = "by the request whose decision made it, or else by its run; some grants belong to no conversation"
    RESULT = "by the calls that name its digest, of one conversation or several"
    OVERRIDES = "by the runs that name its digest, of one conversation or several"
    SEQUENCE = "by its row of precedents"
    ITSELF = "it is the conversation"
    NONE = "not at all: it is of several conversations, or of none"


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    """What one table's text columns hold. ``people``: names of people. ``plain``: neither content nor people.

    ``hashes``: equal for equal content of several runs, so that rows are found by it. ``digests``: of content, keyed with their
    run's nonce (docs/adr/0053), encrypted as a document, or of policies, which are long and which many people know.
    """

    owner: Owner = Owner.NONE
    content: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TEXT_COLUMNS: Final[Mapping[str, TextColumns]] = {
    # Runs, and what happens in them.
    "conversations": TextColumns(
        owner=Owner.ITSELF, content=_names("data_key"), plain=_names("id head_message_id created_at")
    ),
    "messages": TextColumns(
        owner=Owner.CONVERSATION,
        content=_names("parts provider_options"),
        plain=_names("id parent_id conversation_id run_id role created_at"),
    ),
    "runs": TextColumns(
        owner=Owner.CONVERSATION,
        content=_names("task reason pause_reason interrupt_reason nonce"),
        hashes=_names("request_fingerprint world"),
        people=_names("started_by ended_by paused_by interrupted_by model_chosen_by"),
        plain=_names(
            "id conversation_id agent agent_version model workspace status error_class input_message_id head_message_id "
            "idempotency_key created_at ended_at event_hash parent_run_id parent_tool_call_id path forked_from_run_id "
            "unattended_asks paused_at replay_of_run_id extensions schedule_id fell_back_from interrupted_at "
            "traceparent erasure_id"
        ),
    ),
    "queued_messages": TextColumns(
        owner=Owner.RUN,
        content=_names("text"),
        hashes=_names("fingerprint"),
        people=_names("sent_by"),
        plain=_names("id run_id while_running created_at taken_at"),
    ),
    "steps": TextColumns(
        owner=Owner.RUN,
        content=_names("corrective"),
        digests=_names("trail"),
        plain=_names(
            "run_id assistant_message_id results_message_id model finish_reason plan created_at closed_at model_spec asked_at"
        ),
    ),
    "calls": TextColumns(
        owner=Owner.RUN,
        content=_names("input verdict result edited_input defaults signal presentation nonce"),
        hashes=_names("repeat_key whole_result"),
        digests=_names("digest"),
        plain=_names(
            "run_id tool_call_id tool_name disposition policy_version effect settled_at child_run_id recorded_call_id "
            "manifest"
        ),
    ),
    "executions": TextColumns(
        owner=Owner.RUN,
        content=_names("partial_output"),
        hashes=_names("repeat_key"),
        digests=_names("digest"),
        plain=_names("run_id tool_call_id state decision_id idempotency_key started_at ended_at worker build"),
    ),
    "whole_results": TextColumns(
        owner=Owner.RESULT, content=_names("text"), hashes=_names("digest"), plain=_names("created_at")
    ),
    "worlds": TextColumns(
        owner=Owner.OVERRIDES, content=_names("content"), hashes=_names("digest"), plain=_names("created_at")
    ),
    "progress": TextColumns(owner=Owner.RUN, content=_names("payload"), plain=_names("run_id tool_call_id created_at")),
    "external_calls": TextColumns(
        owner=Owner.RUN,
        content=_names("input context report conversation"),
        hashes=_names("repeat_key"),
        plain=_names("run_id tool_call_id tool wanted_by running_for deadline_at turn"),
    ),
    "summaries": TextColumns(
        owner=Owner.RUN,
        content=_names("text"),
        plain=_names("head_message_id covers root_message_id run_id kind model created_at"),
    ),
    "summaries_wanted": TextColumns(owner=Owner.RUN, plain=_names("run_id created_at")),
    "used_below": TextColumns(owner=Owner.RUN, plain=_names("run_id")),
    "judgements": TextColumns(
        owner=Owner.RUN, content=_names("judgement"), plain=_names("run_id tool_call_id created_at")
    ),
    "deltas": TextColumns(owner=Owner.RUN, content=_names("payload"), plain=_names("run_id created_at")),
    "errors": TextColumns(
        owner=Owner.RUN,
        content=_names("about message traceback"),
        # says: a line of our own code, which the log has, too; lost workers are found by it.
        plain=_names("id run_id tool_call_id says worker build created_at"),
    ),
    "events": TextColumns(
        owner=Owner.RUN, content=_names("words"), plain=_names("run_id type payload created_at previous_hash hash")
    ),
    # Requests, and what people do with them.
    "requests": TextColumns(
        owner=Owner.RUN,
        content=_names(
            "input defaults reason agent_words preview precondition confinement origins summary masked_input lost_start "
            "nonce"
        ),
        hashes=_names("repeat_key"),
        digests=_names("digest"),
        people=_names("not_by decided_by claimed_by terms"),
        plain=_names(
            "id run_id tool_call_id kind status agent tool_name manifest rule risk preview_kind expires_at created_at "
            "urgent_at decision_id verb decided_at path parked_at claimed_until"
        ),
    ),
    "decisions": TextColumns(
        owner=Owner.REQUEST,
        content=_names("args message grant_wanted"),
        digests=_names("digest"),
        people=_names("decided_by credential"),
        plain=_names("id request_id verb outcome created_at"),
    ),
    "approvals": TextColumns(
        owner=Owner.REQUEST,
        content=_names("message"),
        people=_names("decided_by"),
        plain=_names("request_id decision_id created_at"),
    ),
    "precedents": TextColumns(owner=Owner.REQUEST, plain=_names("request_id tool_name verb")),
    "precedent_features": TextColumns(owner=Owner.SEQUENCE),  # its hashes are numbers (HashNumber)
    "comments": TextColumns(
        owner=Owner.REQUEST,
        content=_names("text"),
        people=_names("author"),
        plain=_names("id request_id created_at"),
    ),
    "views": TextColumns(owner=Owner.REQUEST, people=_names("viewer"), plain=_names("request_id first_at last_at")),
    "grants": TextColumns(
        owner=Owner.GRANT,
        content=_names("pattern note"),
        people=_names("created_by revoked_by"),
        plain=_names("id tool_name scope run_id agent expires_at created_by_role created_at request_id revoked_at"),
    ),
    "grant_uses": TextColumns(owner=Owner.RUN, plain=_names("grant_id run_id tool_call_id used_at")),
    "erasures": TextColumns(
        owner=Owner.CONVERSATION,
        people=_names("erased_by"),
        plain=_names("id conversation_id what reason rule counts created_at"),
    ),
    "holds": TextColumns(
        people=_names("created_by removed_by"), plain=_names("id kind target reason created_at removed_at")
    ),
    "retention_runs": TextColumns(
        people=_names("started_by"),
        plain=_names("id started_at ended_at held_by held_until counts rule place problem"),
    ),
    # Of no single conversation.
    "schedules": TextColumns(
        content=_names("input notes pause_reason"),
        people=_names("created_by paused_by deleted_by"),
        plain=_names(
            "id name agent workspace model conversation_id unattended_asks timetable overlap created_at paused_at deleted_at "
            "removed_at fires_after"
        ),
    ),
    "schedule_fires": TextColumns(
        content=_names("reason"), people=_names("fired_by"), plain=_names("schedule_id fire_at outcome run_id noted_at")
    ),
    "deliveries": TextColumns(
        content=_names("payload"), plain=_names("id channel status next_attempt_at created_at ended_at")
    ),
    "delivery_attempts": TextColumns(content=_names("answer"), plain=_names("delivery_id started_at")),
    "idempotent_answers": TextColumns(
        content=_names("answer"),
        hashes=_names("fingerprint"),
        people=_names("principal"),
        plain=_names("key created_at"),
    ),
    "policy_versions": TextColumns(
        content=_names("source comment"),
        digests=_names("digest"),
        people=_names("changed_by"),
        plain=_names("created_at"),
    ),
    "policy_proposals": TextColumns(
        content=_names("source comment why"),
        digests=_names("digest"),
        people=_names("proposed_by ended_by"),
        plain=_names("created_at outcome ended_at"),
    ),
    "totals": TextColumns(plain=_names("meter since")),
    "event_counter": TextColumns(),
    "event_chains": TextColumns(plain=_names("id event_hash")),
    "key_ring": TextColumns(plain=_names("id kind wrapped wrapped_by created_at")),
    "notification_cursors": TextColumns(plain=_names("channel gathering_since")),
    "trace_export": TextColumns(plain=_names("salt held_by held_until")),
    # What apps publish, and who may log in.
    "agents": TextColumns(
        plain=_names("name version model description limits tools task_queue published_at sub_agent_of while_running")
    ),
    "model_names": TextColumns(plain=_names("task_queue name kind model published_at")),
    "published_policies": TextColumns(plain=_names("task_queue file version rules tools published_at")),
    "people_version": TextColumns(),
    "people": TextColumns(people=_names("name"), plain=_names("id created_at erased_at")),
    "users": TextColumns(
        people=_names("name email oidc_subject"),
        plain=_names("role password_hash oidc_issuer created_at disabled_at nonce"),
    ),
    "sessions": TextColumns(
        people=_names("operator"),
        plain=_names("token_hash created_at expires_at id role via last_seen_at user_agent"),
    ),
    "login_links": TextColumns(people=_names("operator"), plain=_names("token_hash expires_at used_at role")),
    "api_tokens": TextColumns(
        people=_names("owner"),
        plain=_names("token_hash name scopes created_at revoked_at expires_at last_used_at bounds"),
    ),
}
"""By table."""


def rows_of(table: str, conversation_id: str) -> ColumnElement[bool] | None:
    """Return the condition for a table's rows of one conversation; None where rows belong to none.

    The rows of an :attr:`Owner.RESULT` and :attr:`Owner.OVERRIDES` may be those of other conversations, too.
    """
    columns, runs, requests = metadata.tables[table].c, metadata.tables["runs"].c, metadata.tables["requests"].c
    own_runs = select(runs.id).where(runs.conversation_id == conversation_id)
    own_requests = select(requests.id).where(requests.run_id.in_(own_runs))
    match TEXT_COLUMNS[table].owner:
        case Owner.ITSELF:
            return columns.id == conversation_id
        case Owner.CONVERSATION:
            return columns.conversation_id == conversation_id
        case Owner.RUN:
            return columns.run_id.in_(own_runs)
        case Owner.REQUEST:
            return columns.request_id.in_(own_requests)
        case Owner.GRANT:
            return or_(columns.request_id.in_(own_requests), columns.run_id.in_(own_runs))
        case Owner.RESULT:
            return columns.digest.in_(_named_by("calls", "whole_result", own_runs))
        case Owner.OVERRIDES:
            return columns.digest.in_(select(runs.world).where(runs.conversation_id == conversation_id))
        case Owner.SEQUENCE:
            precedents = metadata.tables["precedents"].c
            return columns.seq.in_(select(precedents.seq).where(precedents.request_id.in_(own_requests)))
        case Owner.NONE:
            return None


def _named_by(table: str, column: str, own_runs: Select[str]) -> Select[str]:
    columns = metadata.tables[table].c
    return select(columns[column]).where(columns.run_id.in_(own_runs), columns[column].is_not(None))
