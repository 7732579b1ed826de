"""The tables. SQLAlchemy Core; the same on SQLite and PostgreSQL.

JSON is kept as text on purpose: PostgreSQL's ``jsonb`` re-orders keys and rewrites numbers, and opaque provider fields
and raw arguments must come back byte for byte. Instants are ISO 8601 UTC text with microseconds: they sort as text and
read the same on both databases.
"""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, MetaData, String, Table, Text, UniqueConstraint, text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

agents = Table(
    "agents",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("version", String(64), nullable=False),
    Column("model", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("limits", Text, nullable=False),
    Column("tools", Text, nullable=False),
    Column("task_queue", Text, nullable=False),
    Column("published_at", Text, nullable=False),
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("head_message_id", String(64)),
    Column("created_at", Text, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("parent_id", String(64), ForeignKey("messages.id")),
    Column("conversation_id", String(64), ForeignKey("conversations.id"), nullable=False),
    Column("run_id", String(64)),
    Column("step", Integer),
    Column("role", String(16), nullable=False),
    Column("parts", Text, nullable=False),
    Column("provider_options", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("ix_messages_conversation_id", "conversation_id"),
)

runs = Table(
    "runs",
    metadata,
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
    Column("step", Integer, nullable=False, server_default="0"),
    Column("input_message_id", String(64), nullable=False),
    Column("head_message_id", String(64), nullable=False),
    Column("started_by", Text, nullable=False),
    Column("idempotency_key", String(255), unique=True),
    Column("request_fingerprint", String(64), nullable=False, server_default=""),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("event_count", Integer, nullable=False, server_default="0"),
    Column("event_hash", String(64), nullable=False, server_default=""),
    # One live run per conversation, held by the database itself.
    Index(
        "uq_runs_live_conversation",
        "conversation_id",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
    Index("ix_runs_created_at_id", "created_at", "id"),
)

steps = Table(
    "steps",
    metadata,
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
)

calls = Table(
    "calls",
    metadata,
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
    Index("ix_calls_run_id_step", "run_id", "step", "position"),
    Index("ix_calls_repeat_key", "run_id", "repeat_key"),
)

executions = Table(
    "executions",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.id"), primary_key=True),
    Column("tool_call_id", String(255), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    # The decision this execution redeemed; unique, so an approval is redeemed at most once (I3). NULL: allowed by policy.
    Column("decision_id", String(255), unique=True),
    Column("idempotency_key", String(64), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("partial_output", Text, nullable=False, server_default=""),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
)

requests = Table(
    "requests",
    metadata,
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
    # Not unique by call and kind: a ``once`` call that is lost, sent again and lost again asks what became of it each time.
    Index("ix_requests_run_id_tool_call_id", "run_id", "tool_call_id"),
    Index("ix_requests_status_created_at_id", "status", "created_at", "id"),
    # A decision decides one request: an id that is used again elsewhere is refused here at the latest.
    Index("uq_requests_decision_id", "decision_id", unique=True),
    Index("ix_requests_run_id", "run_id"),
)

# A decision's content (edited arguments, message), kept out of Temporal (I8). A row is an offer until the request names it.
decisions = Table(
    "decisions",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("request_id", String(64), ForeignKey("requests.id"), nullable=False),
    Column("verb", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("args", Text),
    Column("message", Text, nullable=False),
    Column("outcome", String(16)),
    Column("decided_by", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)

events = Table(
    "events",
    metadata,
    # Assigned by us under one lock, so readers never see a later number before an earlier one commits.
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

event_counter = Table(
    "event_counter",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", Integer, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", String(64), primary_key=True),
    Column("operator", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
)

login_links = Table(
    "login_links",
    metadata,
    Column("token_hash", String(64), primary_key=True),
    Column("operator", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
    Column("used_at", Text),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("token_hash", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("revoked_at", Text),
)
