"""The schema of Turngate 0.1.0.

One function per noun, in the order that foreign keys need. ``turngate.store.tables`` says what each column holds; a test
compares the two. Constraints get their names from the convention in ``turngate.store.tables.metadata``.

Never change this file after the release: databases have it. Add a migration (CONTRIBUTING.md says how).
"""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Integer, String, Text, UniqueConstraint, text

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table, the counter and the chain that every store has, and the guard of the events."""
    _create_agents()
    _create_conversations()
    _create_runs()
    _create_calls()
    _create_requests()
    _create_policy()
    _create_schedules()
    _create_external_calls()
    _create_events()
    _create_notifications()
    _create_access()
    _create_live()


def downgrade() -> NoReturn:
    """Refuse: there is no schema before this one, and dropping every table is no way back."""
    raise NotImplementedError("the first schema has no predecessor: restore a backup, or start with an empty database")


# Agents and what they say


def _create_agents() -> None:
    """Create what workers publish: agents, model names, and the content of runs' overrides."""
    op.create_table(
        "agents",
        Column("name", String(64), primary_key=True),
        Column("version", String(64), nullable=False),
        Column("model", Text, nullable=False),
        Column("description", Text, nullable=False),
        Column("limits", Text, nullable=False),
        Column("tools", Text, nullable=False),
        Column("task_queue", Text, nullable=False),
        Column("published_at", Text, nullable=False),
        Column("sub_agent_of", Text, nullable=False, server_default=""),
        Column("while_running", String(16), nullable=False, server_default="queue"),
    )
    op.create_table(
        "model_names",
        Column("name", String(200), primary_key=True),
        Column("kind", String(16), nullable=False),
        Column("model", Text, nullable=False),
        Column("published_at", Text, nullable=False),
    )
    op.create_table(
        "worlds",
        Column("digest", String(64), primary_key=True),
        Column("content", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )


def _create_conversations() -> None:
    """Create the tree of messages, and the summaries of its long branches."""
    op.create_table(
        "conversations",
        Column("id", String(64), primary_key=True),
        Column("head_message_id", String(64)),
        Column("created_at", Text, nullable=False),
    )
    op.create_table(
        "messages",
        Column("id", String(64), primary_key=True),
        Column("parent_id", String(64), ForeignKey("messages.id")),
        Column("conversation_id", String(64), ForeignKey("conversations.id"), nullable=False),
        Column("run_id", String(64)),
        Column("step", Integer),
        Column("role", String(16), nullable=False),
        Column("parts", Text, nullable=False),
        Column("provider_options", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_messages_conversation_id", "messages", ["conversation_id"])
    op.create_table(
        "summaries",
        Column("head_message_id", String(64), primary_key=True),
        Column("covers", String(64), nullable=False),
        Column("root_message_id", String(64), nullable=False),
        Column("run_id", String(64), nullable=False),
        Column("step", Integer, nullable=False),
        Column("kind", String(16), nullable=False),
        Column("forced", Boolean, nullable=False, server_default=text("false")),
        Column("text", Text, nullable=False),
        Column("model", Text, nullable=False, server_default=""),
        Column("input_tokens", Integer, nullable=False, server_default="0"),
        Column("output_tokens", Integer, nullable=False, server_default="0"),
        Column("tokens_before", Integer, nullable=False),
        Column("tokens_after", Integer, nullable=False),
        Column("clipped", Boolean, nullable=False, server_default=text("false")),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_summaries_run_id", "summaries", ["run_id", "step"])
    op.create_table(
        "summaries_wanted",
        Column("run_id", String(64), primary_key=True),
        Column("created_at", Text, nullable=False),
    )


# Runs


def _create_runs() -> None:
    """Create runs, their steps, the messages that wait for them, and the usage of the runs below them."""
    op.create_table(
        "runs",
        Column("id", String(64), primary_key=True),
        Column("conversation_id", String(64), ForeignKey("conversations.id"), nullable=False),
        Column("agent", String(64), nullable=False),
        Column("agent_version", String(64), nullable=False),
        Column("model", Text, nullable=False),
        Column("workspace", Text),
        Column("task", Text, nullable=False),
        Column("status", String(16), nullable=False),
        Column("reason", Text, nullable=False, server_default=""),
        Column("error_class", String(64), nullable=False, server_default=""),
        Column("ended_by", Text),
        Column("step", Integer, nullable=False, server_default="0"),
        Column("input_message_id", String(64), nullable=False),
        Column("head_message_id", String(64), nullable=False),
        Column("started_by", Text, nullable=False),
        Column("idempotency_key", String(255)),
        Column("request_fingerprint", String(64), nullable=False, server_default=""),
        Column("created_at", Text, nullable=False),
        Column("ended_at", Text),
        Column("event_count", Integer, nullable=False, server_default="0"),
        Column("event_hash", String(64), nullable=False, server_default=""),
        Column("parent_run_id", String(64)),
        Column("parent_tool_call_id", String(255)),
        Column("path", Text, nullable=False, server_default=""),
        Column("forked_from_run_id", String(64)),
        Column("forked_from_step", Integer),
        Column("attended", Boolean, nullable=False, server_default=text("true")),
        Column("unattended_asks", String(16), nullable=False, server_default="park"),
        Column("paused_at", Text),
        Column("paused_by", Text),
        Column("pause_reason", Text, nullable=False, server_default=""),
        Column("world", String(64)),
        Column("replay_of_run_id", String(64)),
        Column("tokens_used", BigInteger, nullable=False, server_default="0"),
        Column("cost_micros", BigInteger, nullable=False, server_default="0"),
        Column("extensions", Text, nullable=False, server_default="[]"),
        Column("schedule_id", String(64)),
        Column("model_chosen_by", Text),
        Column("fell_back_from", Text),
        UniqueConstraint("idempotency_key"),
    )
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"])
    op.create_index("ix_runs_parent_run_id", "runs", ["parent_run_id"])
    op.create_index("ix_runs_schedule_id", "runs", ["schedule_id"])
    # The database itself keeps a conversation to one live run.
    _create_partial_index(
        "uq_runs_live_conversation", "runs", ["conversation_id"], where="status = 'running'", unique=True
    )
    op.create_table(
        "steps",
        Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
        Column("step", Integer, primary_key=True, autoincrement=False),
        Column("assistant_message_id", String(64), nullable=False),
        Column("results_message_id", String(64)),
        Column("model", Text, nullable=False),
        Column("finish_reason", String(32), nullable=False),
        Column("input_tokens", Integer, nullable=False),
        Column("output_tokens", Integer, nullable=False),
        Column("plan", Text),
        Column("created_at", Text, nullable=False),
        Column("closed_at", Text),
        Column("corrective", Text),
        Column("model_spec", Text),
        Column("trail", Text),
    )
    op.create_table(
        "queued_messages",
        Column("id", String(64), primary_key=True),
        Column("run_id", String(64), nullable=False),
        Column("text", Text, nullable=False),
        Column("while_running", String(16), nullable=False),
        Column("sent_by", Text, nullable=False),
        Column("fingerprint", String(64), nullable=False),
        Column("created_at", Text, nullable=False),
        Column("taken_at", Text),
    )
    op.create_index("ix_queued_messages_run_id", "queued_messages", ["run_id", "created_at", "id"])
    op.create_table(
        "used_below",
        Column("run_id", String(64), primary_key=True),
        Column("tokens", BigInteger, nullable=False, server_default="0"),
        Column("cost_micros", BigInteger, nullable=False, server_default="0"),
        Column("tool_calls", BigInteger, nullable=False, server_default="0"),
    )


def _create_calls() -> None:
    """Create calls, their executions, and what is stored beside them."""
    op.create_table(
        "calls",
        Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
        Column("tool_call_id", String(255), primary_key=True),
        Column("step", Integer, nullable=False),
        Column("position", Integer, nullable=False),
        Column("tool_name", Text, nullable=False),
        Column("input", Text, nullable=False),
        Column("repeat_key", String(64), nullable=False),
        Column("disposition", String(16), nullable=False),
        Column("verdict", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("policy_version", String(64), nullable=False),
        Column("effect", String(16), nullable=False),
        Column("result", Text),
        Column("edited_input", Text),
        Column("settled_at", Text),
        Column("signal", Text),
        Column("child_run_id", String(64)),
        Column("presentation", Text),
        Column("whole_result", String(64)),
        Column("recorded_call_id", String(255)),
    )
    op.create_index("ix_calls_run_id_step", "calls", ["run_id", "step", "position"])
    op.create_index("ix_calls_repeat_key", "calls", ["run_id", "repeat_key"])
    op.create_table(
        "executions",
        Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
        Column("tool_call_id", String(255), primary_key=True),
        Column("state", String(16), nullable=False),
        Column("digest", String(64), nullable=False),
        Column("decision_id", String(255)),
        Column("idempotency_key", String(64), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("partial_output", Text, nullable=False, server_default=""),
        Column("started_at", Text, nullable=False),
        Column("ended_at", Text),
        # An approval is redeemed at most once (I3).
        UniqueConstraint("decision_id"),
    )
    op.create_table(
        "whole_results",
        Column("digest", String(64), primary_key=True),
        Column("text", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_table(
        "judgements",
        Column("run_id", String(64), primary_key=True),
        Column("tool_call_id", String(255), primary_key=True),
        Column("judgement", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_judgements_created_at", "judgements", ["created_at"])


# People's part: requests, policy


def _create_requests() -> None:
    """Create the inbox: requests, their decisions, and what people do around them."""
    op.create_table(
        "requests",
        Column("id", String(64), primary_key=True),
        Column("run_id", String(64), ForeignKey("runs.id"), nullable=False),
        Column("tool_call_id", String(255), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("status", String(16), nullable=False),
        Column("agent", String(64), nullable=False),
        Column("tool_name", Text, nullable=False),
        Column("manifest", Text, nullable=False),
        Column("input", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("rule", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("risk", String(8), nullable=False),
        Column("agent_words", Text, nullable=False),
        Column("preview_kind", String(16)),
        Column("preview", Text),
        Column("not_by", Text),
        Column("expires_at", Text),
        Column("created_at", Text, nullable=False),
        Column("decision_id", String(255)),
        Column("verb", String(16)),
        Column("decided_by", Text),
        Column("decided_at", Text),
        Column("path", Text, nullable=False, server_default=""),
        Column("precondition", Text),
        Column("terms", Text, nullable=False, server_default=""),
        Column("rungs_climbed", Integer, nullable=False, server_default="0"),
        Column("quorum", Integer, nullable=False, server_default="1"),
        Column("approvals", Integer, nullable=False, server_default="0"),
        Column("parked_at", Text),
        Column("claimed_by", Text),
        Column("claimed_until", Text),
    )
    op.create_index("ix_requests_run_id", "requests", ["run_id"])
    op.create_index("ix_requests_created_at_id", "requests", ["created_at", "id"])
    # A decision decides one request, so its id is unique over all of them (I4).
    op.create_index("uq_requests_decision_id", "requests", ["decision_id"], unique=True)
    # The inbox reads these two indexes alone, under any filter: a row of the table is wide.
    filters = ["kind", "agent", "tool_name", "risk", "rule"]
    _create_partial_index(
        "ix_requests_pending",
        "requests",
        ["created_at", "id", *filters, "claimed_by", "claimed_until", "parked_at", "status"],
        where="status = 'pending'",
    )
    _create_partial_index(
        "ix_requests_ended", "requests", ["decided_at", "id", "status", *filters], where="status != 'pending'"
    )
    op.create_table(
        "decisions",
        Column("id", String(255), primary_key=True),
        Column("request_id", String(64), ForeignKey("requests.id"), nullable=False),
        Column("verb", String(16), nullable=False),
        Column("digest", String(64), nullable=False),
        Column("args", Text),
        Column("message", Text, nullable=False),
        Column("outcome", String(16)),
        Column("decided_by", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("grant_wanted", Text),
    )
    op.create_table(
        "approvals",
        Column("request_id", String(64), ForeignKey("requests.id"), primary_key=True),
        Column("decided_by", String(255), primary_key=True),
        Column("decision_id", String(255), nullable=False),
        Column("message", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        UniqueConstraint("decision_id"),
    )
    op.create_table(
        "comments",
        Column("id", String(64), primary_key=True),
        Column("request_id", String(64), ForeignKey("requests.id"), nullable=False),
        Column("author", Text, nullable=False),
        Column("text", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_comments_request_id", "comments", ["request_id", "created_at"])
    op.create_table(
        "views",
        Column("request_id", String(64), ForeignKey("requests.id"), primary_key=True),
        Column("viewer", String(255), primary_key=True),
        Column("first_at", Text, nullable=False),
        Column("last_at", Text, nullable=False),
    )
    op.create_table(
        "saved_views",
        Column("owner", String(255), primary_key=True),
        Column("name", String(100), primary_key=True),
        Column("query", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_table(
        "idempotent_answers",
        Column("principal", String(255), primary_key=True),
        Column("key", String(255), primary_key=True),
        Column("fingerprint", String(64), nullable=False),
        Column("answer", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )


def _create_policy() -> None:
    """Create the rules that admins store, those that workers publish, and grants with their uses."""
    op.create_table(
        "policy_versions",
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("source", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("changed_by", Text, nullable=False),
        Column("comment", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_table(
        "published_policies",
        Column("task_queue", String(255), primary_key=True),
        Column("file", Text, nullable=False),
        Column("version", String(64), nullable=False),
        Column("rules", Text, nullable=False),
        Column("tools", Text, nullable=False),
        Column("published_at", Text, nullable=False),
    )
    op.create_table(
        "grants",
        Column("id", String(64), primary_key=True),
        Column("tool_name", Text, nullable=False),
        Column("pattern", Text, nullable=False),
        Column("scope", String(16), nullable=False),
        Column("run_id", String(64)),
        Column("agent", String(64)),
        Column("expires_at", Text, nullable=False),
        Column("max_uses", Integer, nullable=False),
        Column("uses", Integer, nullable=False, server_default="0"),
        Column("note", Text, nullable=False, server_default=""),
        Column("created_by", Text, nullable=False),
        Column("created_by_role", String(16), nullable=False, server_default="operator"),
        Column("created_at", Text, nullable=False),
        Column("request_id", String(64)),
        Column("revoked_at", Text),
        Column("revoked_by", Text),
    )
    op.create_index("ix_grants_tool_name", "grants", ["tool_name", "expires_at"])
    op.create_table(
        "grant_uses",
        Column("grant_id", String(64), ForeignKey("grants.id"), primary_key=True),
        Column("run_id", String(64), primary_key=True),
        Column("tool_call_id", String(255), primary_key=True),
        Column("used_at", Text, nullable=False),
    )


# Work that comes from elsewhere: the clock, other programs


def _create_schedules() -> None:
    """Create schedules and their fires."""
    op.create_table(
        "schedules",
        Column("id", String(64), primary_key=True),
        Column("name", String(64), nullable=False),
        Column("agent", String(64), nullable=False),
        Column("input", Text, nullable=False),
        Column("workspace", Text),
        Column("model", Text),
        Column("conversation_id", String(64), ForeignKey("conversations.id")),
        Column("unattended_asks", String(16), nullable=False),
        Column("timetable", Text, nullable=False),
        Column("overlap", String(16), nullable=False),
        Column("catch_up_seconds", Integer, nullable=False),
        Column("notes", Text, nullable=False, server_default=""),
        Column("revision", Integer, nullable=False),
        Column("created_by", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("paused_at", Text),
        Column("paused_by", Text),
        Column("pause_reason", Text, nullable=False, server_default=""),
        Column("deleted_at", Text),
        Column("deleted_by", Text),
        Column("removed_at", Text),
    )
    op.create_index("ix_schedules_created_at_id", "schedules", ["created_at", "id"])
    # A deleted schedule's name is free again.
    _create_partial_index("uq_schedules_name", "schedules", ["name"], where="deleted_at IS NULL", unique=True)
    op.create_table(
        "schedule_fires",
        Column("schedule_id", String(64), ForeignKey("schedules.id"), primary_key=True),
        Column("fire_at", Text, primary_key=True),
        Column("outcome", String(16), nullable=False),
        Column("run_id", String(64)),
        Column("reason", Text, nullable=False, server_default=""),
        Column("fired_by", Text),
        Column("noted_at", Text, nullable=False),
    )


def _create_external_calls() -> None:
    """Create the calls that a program outside runs itself."""
    op.create_table(
        "external_calls",
        Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
        Column("tool_call_id", String(255), nullable=False),
        Column("tool", Text, nullable=False),
        Column("input", Text, nullable=False),
        Column("context", Text, nullable=False),
        Column("wanted_by", String(64)),
        Column("running_for", String(64)),
        Column("deadline_at", Text),
        Column("report", Text),
        Column("turn", String(255)),
        Column("repeat_key", String(64), nullable=False, server_default=""),
    )
    op.create_index("ix_external_calls_repeat_key", "external_calls", ["repeat_key"])


# The log, and what is sent because of it


def _create_events() -> None:
    """Create the log with its counter, the chain of events that belong to no run, and the guard against changes."""
    op.create_table(
        "events",
        Column("seq", Integer, primary_key=True, autoincrement=False),
        Column("run_id", String(64), nullable=False),
        Column("run_seq", Integer, nullable=False),
        Column("type", String(64), nullable=False),
        Column("payload", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("previous_hash", String(64), nullable=False),
        Column("hash", String(64), nullable=False),
        UniqueConstraint("run_id", "run_seq", name="uq_events_run_seq"),
    )
    op.create_table(
        "event_counter",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("last_seq", Integer, nullable=False),
    )
    op.create_table(
        "event_chains",
        Column("id", String(64), primary_key=True),
        Column("event_count", Integer, nullable=False),
        Column("event_hash", String(64), nullable=False),
    )
    op.execute("INSERT INTO event_counter (id, last_seq) VALUES (1, 0)")
    op.execute("INSERT INTO event_chains (id, event_count, event_hash) VALUES ('system', 0, '')")
    _make_events_append_only()


def _make_events_append_only() -> None:
    """Let the database itself refuse to change or remove an event, for every client (I15).

    A later migration that rebuilds the table on SQLite (``batch_alter_table``) drops the triggers: create them again.
    """
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION turngate_events_are_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'events are append-only' USING ERRCODE = 'restrict_violation'; END $$"
        )
        op.execute(
            "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events "
            "FOR EACH STATEMENT EXECUTE FUNCTION turngate_events_are_append_only()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_no_{change.lower()} BEFORE {change} ON events "
            "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
        )
    # INSERT OR REPLACE removes the row in its way, and SQLite runs no DELETE trigger for that.
    op.execute(
        "CREATE TRIGGER events_no_replace BEFORE INSERT ON events WHEN EXISTS "
        "(SELECT 1 FROM events WHERE seq = NEW.seq OR (run_id = NEW.run_id AND run_seq = NEW.run_seq)) "
        "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
    )


def _create_notifications() -> None:
    """Create the outbox: how far each channel has read the events, deliveries and their attempts."""
    op.create_table(
        "notification_cursors",
        Column("channel", String(100), primary_key=True),
        Column("last_seq", Integer, nullable=False),
        Column("gathering_since", Text),
    )
    op.create_table(
        "deliveries",
        Column("id", String(64), primary_key=True),
        Column("channel", String(100), nullable=False),
        Column("first_seq", Integer, nullable=False),
        Column("last_seq", Integer, nullable=False),
        Column("payload", Text, nullable=False),
        Column("status", String(16), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("next_attempt_at", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("ended_at", Text),
    )
    op.create_index("ix_deliveries_status_next_attempt_at", "deliveries", ["status", "next_attempt_at"])
    op.create_index("ix_deliveries_created_at_id", "deliveries", ["created_at", "id"])
    op.create_table(
        "delivery_attempts",
        Column("delivery_id", String(64), ForeignKey("deliveries.id"), primary_key=True),
        Column("n", Integer, primary_key=True, autoincrement=False),
        Column("started_at", Text, nullable=False),
        Column("milliseconds", Integer, nullable=False),
        Column("answer", Text, nullable=False),
    )


# Who may come in


def _create_access() -> None:
    """Create users, their sessions and login links, and API tokens."""
    op.create_table(
        "users",
        Column("name", String(255), primary_key=True),
        Column("role", String(16), nullable=False),
        Column("password_hash", Text),
        Column("email", Text, nullable=False, server_default=""),
        Column("oidc_issuer", String(255)),
        Column("oidc_subject", String(255)),
        Column("created_at", Text, nullable=False),
        Column("disabled_at", Text),
        UniqueConstraint("oidc_issuer", "oidc_subject", name="uq_users_oidc"),
    )
    op.create_table(
        "sessions",
        Column("token_hash", String(64), primary_key=True),
        Column("operator", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("expires_at", Text, nullable=False),
        Column("id", String(32), nullable=False, server_default=""),
        Column("role", String(16), nullable=False, server_default="operator"),
        Column("via", String(16), nullable=False, server_default="link"),
        Column("last_seen_at", Text, nullable=False, server_default=""),
        Column("user_agent", Text, nullable=False, server_default=""),
    )
    op.create_table(
        "login_links",
        Column("token_hash", String(64), primary_key=True),
        Column("operator", Text, nullable=False),
        Column("expires_at", Text, nullable=False),
        Column("used_at", Text),
        Column("role", String(16), nullable=False, server_default="operator"),
    )
    op.create_table(
        "api_tokens",
        Column("token_hash", String(64), primary_key=True),
        Column("name", Text, nullable=False),
        Column("scopes", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("revoked_at", Text),
        Column("owner", String(255)),
        Column("expires_at", Text),
        Column("last_used_at", Text),
    )


# What watchers see while it happens


def _create_live() -> None:
    """Create the rows of live streams, which are no part of the log: tools' progress and models' deltas."""
    op.create_table(
        "progress",
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column("run_id", String(64), nullable=False),
        Column("tool_call_id", String(255), nullable=False),
        Column("n", Integer, nullable=False),
        Column("payload", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_progress_run_id", "progress", ["run_id", "tool_call_id", "n"])
    op.create_table(
        "deltas",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("run_id", String(64), nullable=False),
        Column("step", Integer, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("n", Integer, nullable=False),
        Column("payload", Text, nullable=False),
        Column("created_at", Text, nullable=False),
    )
    op.create_index("ix_deltas_run_id", "deltas", ["run_id", "step", "n"])


def _create_partial_index(name: str, table: str, columns: list[str], *, where: str, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))
