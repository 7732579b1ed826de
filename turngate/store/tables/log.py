"""Events, notifications about them, and deltas; what was erased, and what must be kept."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, UniqueConstraint

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import SequenceNumber, metadata

events = Table(
    "events",
    metadata,
    # Assigned by us under one lock, so readers never see a later number before an earlier one commits.
    Column("seq", SequenceNumber, primary_key=True, autoincrement=False),
    Column("run_id", StorableString(64), nullable=False),
    Column("run_seq", Integer, nullable=False),
    Column("type", StorableString(64), nullable=False),
    Column("payload", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("previous_hash", StorableString(64), nullable=False),
    Column("hash", StorableString(64), nullable=False),
    # Words of people, models and tools (JSON: name → [nonce, text]), of which the payload has digests: so they can be erased.
    Column("words", StorableText),
    UniqueConstraint("run_id", "run_seq", name="uq_events_run_seq"),
)

# The keys above conversations' data keys, wrapped. ``kind``: ring (by the deployment's own key, ``wrapped_by``), deployment or
# check (by a ring key).
key_ring = Table(
    "key_ring",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("kind", StorableString(16), nullable=False),
    Column("wrapped", StorableText, nullable=False),
    Column("wrapped_by", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
)

event_counter = Table(
    "event_counter",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", SequenceNumber, nullable=False),
)

# Chains of events that belong to no run (log-ins, grants, policy): their length and newest hash, as ``runs`` has them.
event_chains = Table(
    "event_chains",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("event_count", Integer, nullable=False),
    Column("event_hash", StorableString(64), nullable=False),
)

# How far each channel has read the events, and what it has to send.
notification_cursors = Table(
    "notification_cursors",
    metadata,
    Column("channel", StorableString(100), primary_key=True),
    Column("last_seq", SequenceNumber, nullable=False),
    # Set while events are gathered into one digest.
    Column("gathering_since", StorableText),
)

# How far the events are exported as traces, and which process does it until when. One row, from the first pseudonym on.
trace_export = Table(
    "trace_export",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", SequenceNumber, nullable=False),
    # With which people's names become pseudonyms.
    Column("salt", StorableString(64), nullable=False),
    Column("held_by", StorableString(64), nullable=False),
    Column("held_until", StorableText, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("channel", StorableString(100), nullable=False),
    Column("first_seq", SequenceNumber, nullable=False),
    Column("last_seq", SequenceNumber, nullable=False),
    Column("payload", StorableText, nullable=False),
    Column("status", StorableString(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("ended_at", StorableText),
    Index("ix_deliveries_status_next_attempt_at", "status", "next_attempt_at"),
    Index("ix_deliveries_created_at_id", "created_at", "id"),
)

delivery_attempts = Table(
    "delivery_attempts",
    metadata,
    Column("delivery_id", StorableString(64), ForeignKey("deliveries.id"), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("started_at", StorableText, nullable=False),
    Column("milliseconds", Integer, nullable=False),
    Column("answer", StorableText, nullable=False),
)

# Deltas: parts of responses that are still streaming, for watchers.


deltas = Table(
    "deltas",
    metadata,
    Column("id", SequenceNumber, primary_key=True, autoincrement=False),
    Column("run_id", StorableString(64), nullable=False),
    Column("step", Integer, nullable=False),
    # The id of the attempt's first row: it grows from attempt to attempt.
    Column("attempt", SequenceNumber, nullable=False),
    Column("n", Integer, nullable=False),
    Column("payload", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_deltas_run_id", "run_id", "step", "n"),
)

# What crashed or failed in runs. No hot path writes here.
errors = Table(
    "errors",
    metadata,
    Column("id", StorableString(16), primary_key=True),
    Column("run_id", StorableString(64), nullable=False),
    Column("step", Integer),
    Column("tool_call_id", StorableString(255)),
    Column("attempt", Integer, nullable=False),
    Column("says", StorableText, nullable=False),
    Column("about", StorableText, nullable=False),
    Column("message", StorableText, nullable=False),
    Column("traceback", StorableText, nullable=False),
    Column("worker", StorableText, nullable=False),
    Column("build", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_errors_run_id", "run_id", "created_at", "id"),
    Index("ix_errors_created_at", "created_at", "id"),
)


# Retention.


# One row for each time that content of a conversation was erased.
erasures = Table(
    "erasures",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("conversation_id", StorableString(64), ForeignKey("conversations.id"), nullable=False),
    # all: everything; results: the results of tools, wherever they are.
    Column("what", StorableString(16), nullable=False),
    Column("erased_by", StorableText, nullable=False),
    Column("reason", StorableText, nullable=False),
    # The retention rule that wanted it; "": a person did.
    Column("rule", StorableText, nullable=False, server_default=""),
    # JSON: kind of row → how many.
    Column("counts", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_erasures_conversation_id", "conversation_id"),
    Index("ix_erasures_created_at_id", "created_at", "id"),
)

# One row for each time that the retention rules are applied. ``live`` is 1 until it ends, so there is one at a time; the process
# that holds it (``held_by``, until ``held_until``) does the work, and after a crash another one continues at ``place``.
retention_runs = Table(
    "retention_runs",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("started_at", StorableText, nullable=False),
    Column("started_by", StorableText, nullable=False),
    Column("ended_at", StorableText),
    Column("live", Integer, unique=True),
    Column("held_by", StorableString(64), nullable=False),
    Column("held_until", StorableText, nullable=False),
    # JSON: rule → how much went.
    Column("counts", StorableText, nullable=False),
    # The rule that is being applied, and the last conversation that was looked at for it.
    Column("rule", StorableText, nullable=False),
    Column("place", StorableString(64), nullable=False),
    # Why it ended early; "": it did not.
    Column("problem", StorableText, nullable=False, server_default=""),
    Index("ix_retention_runs_started_at", "started_at", "id"),
)

# Legal holds: nothing of the conversation, or of any conversation of the agent, is erased while one has not been removed.
holds = Table(
    "holds",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("kind", StorableString(16), nullable=False),
    Column("target", StorableString(64), nullable=False),
    Column("reason", StorableText, nullable=False),
    Column("created_by", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("removed_by", StorableText),
    Column("removed_at", StorableText),
    Index("ix_holds_target", "target", "kind"),
)
