"""What waits for a person and what was answered; grants; the stored rules."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, Table, text

from turngate.store.storable import HashNumber, StorableString, StorableText
from turngate.store.tables.metadata import SequenceNumber, metadata

requests = Table(
    "requests",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("run_id", StorableString(64), ForeignKey("runs.id"), nullable=False),
    Column("tool_call_id", StorableString(255), nullable=False),
    Column("kind", StorableString(16), nullable=False),
    Column("status", StorableString(16), nullable=False),
    Column("agent", StorableString(64), nullable=False),
    Column("tool_name", StorableText, nullable=False),
    Column("manifest", StorableText, nullable=False),
    Column("input", StorableText, nullable=False),
    Column("digest", StorableString(64), nullable=False),
    Column("rule", StorableText, nullable=False),
    Column("reason", StorableText, nullable=False),
    Column("risk", StorableString(8), nullable=False),
    Column("agent_words", StorableText, nullable=False),
    Column("preview_kind", StorableString(16)),
    Column("preview", StorableText),
    Column("not_by", StorableText),
    Column("expires_at", StorableText),
    Column("created_at", StorableText, nullable=False),
    # By which pending requests are ordered (turngate.domain.runs.inbox.urgent_at).
    Column("urgent_at", StorableText, nullable=False, server_default=""),
    Column("decision_id", StorableString(255)),
    Column("verb", StorableString(16)),
    Column("decided_by", StorableText),
    Column("decided_at", StorableText),
    Column("path", StorableText, nullable=False, server_default=""),
    # What the call depended on when it was asked for (JSON), if its tool says so; taken again before it runs.
    Column("precondition", StorableText),
    # How the processes of the call are confined (JSON of ProcessConfinement), if its tool starts any.
    Column("confinement", StorableText),
    # Where each argument comes from (JSON of Origins), as it was found when the request was opened.
    Column("origins", StorableText),
    # Equal for calls that mean the same (turngate.domain.digest.repeat_key); NULL: not known. A hint: what is shown is compared.
    Column("repeat_key", StorableString(64)),
    # What the call does, in one sentence of its tool or of Turngate, as it was when the request was opened.
    Column("summary", StorableText),
    # What the arguments leave out (JSON of Defaults), so that the tool's own values are used; NULL: nothing, or it isn't known.
    Column("defaults", StorableText),
    # Its arguments as people see and find them, where some of them are secret.
    Column("masked_input", StorableText),
    # Who may decide, how many, until when and what then (JSON of AskTerms), after the ladder's rungs so far.
    Column("terms", StorableText, nullable=False, server_default=""),
    Column("rungs_climbed", Integer, nullable=False, server_default="0"),
    Column("quorum", Integer, nullable=False, server_default="1"),
    Column("approvals", Integer, nullable=False, server_default="0"),
    # Since when it waits without expiring: its time ran out, and its rule says so.
    Column("parked_at", StorableText),
    # Who has claimed it, and until when no one else is meant to decide it.
    Column("claimed_by", StorableText),
    Column("claimed_until", StorableText),
    # Not unique by call and kind: a ``once`` call that is lost, sent again and lost again asks what happened to it each time.
    # Of a question about a lost call: JSON of how the call had started.
    Column("lost_start", StorableText),
    Column("nonce", StorableText, nullable=False, server_default=""),
    Index("ix_requests_run_id", "run_id"),
    # The inbox under any filter is read from these two alone (turngate.store.requests.requests): a row of this table is wide.
    Index(
        "ix_requests_pending",
        "urgent_at",
        "id",
        "created_at",
        "kind",
        "agent",
        "tool_name",
        "risk",
        "rule",
        "claimed_by",
        "claimed_until",
        "parked_at",
        "status",  # always 'pending' here, but SQLite reads the row for it when the index does not say so
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    ),
    Index(
        "ix_requests_ended",
        "decided_at",
        "id",
        "status",
        "kind",
        "agent",
        "tool_name",
        "risk",
        "rule",
        sqlite_where=text("status != 'pending'"),
        postgresql_where=text("status != 'pending'"),
    ),
    Index("ix_requests_created_at_id", "created_at", "id"),
    # Of pending requests alone, which are few: it costs an insert next to nothing.
    Index(
        "ix_requests_repeat_key",
        "repeat_key",
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    ),
    # A decision decides one request: an id that is used again elsewhere is refused here at the latest.
    Index("uq_requests_decision_id", "decision_id", unique=True),
)

# What people decided, with its content (edited arguments, message). Written with what follows from it, or not at all.
decisions = Table(
    "decisions",
    metadata,
    Column("id", StorableString(255), primary_key=True),
    Column("request_id", StorableString(64), ForeignKey("requests.id"), nullable=False),
    Column("verb", StorableString(16), nullable=False),
    Column("digest", StorableString(64), nullable=False),
    Column("args", StorableText),
    Column("message", StorableText, nullable=False),
    Column("outcome", StorableString(16)),
    Column("decided_by", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    # JSON of the grant that is to be made if this decision wins.
    Column("grant_wanted", StorableText),
    # The token or session that sent it, to which its id belongs; NULL: not known.
    Column("credential", StorableText),
    # How long the sender's page showed the request, and how much of its call, as their browser says; NULL: not known.
    Column("looked_ms", Integer),
    Column("seen_percent", Integer),
)

# Approvals of a request that needs several; the one that completes the quorum is its decision. One per person.
approvals = Table(
    "approvals",
    metadata,
    Column("request_id", StorableString(64), ForeignKey("requests.id"), primary_key=True),
    Column("decided_by", StorableString(255), primary_key=True),
    Column("decision_id", StorableString(255), nullable=False, unique=True),
    Column("message", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
)

# By what decided approvals are found again (turngate.domain.likeness). Written after the decision, apart from it: a row that is
# missing is a precedent that is not shown. ``seq``: of the event of the decision, so that newer ones are larger.
precedents = Table(
    "precedents",
    metadata,
    Column("seq", SequenceNumber, primary_key=True, autoincrement=False),
    Column(
        "request_id", StorableString(64), ForeignKey("requests.id", ondelete="CASCADE"), nullable=False, unique=True
    ),
    Column("tool_name", StorableText, nullable=False),
    Column("verb", StorableString(16), nullable=False),
    Index("ix_precedents_tool_name", "tool_name", "seq", "verb"),
)

# Hashes of arguments, none of their values. They go when the row of ``precedents`` goes.
precedent_features = Table(
    "precedent_features",
    metadata,
    Column("feature", HashNumber, primary_key=True, autoincrement=False),
    Column(
        "seq", SequenceNumber, ForeignKey("precedents.seq", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Index("ix_precedent_features_seq", "seq"),
    sqlite_with_rowid=False,
)

comments = Table(
    "comments",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("request_id", StorableString(64), ForeignKey("requests.id"), nullable=False),
    Column("author", StorableText, nullable=False),
    Column("text", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_comments_request_id", "request_id", "created_at"),
)

# Who has looked at a request, first and last; the last is presence.
views = Table(
    "views",
    metadata,
    Column("request_id", StorableString(64), ForeignKey("requests.id"), primary_key=True),
    Column("viewer", StorableString(255), primary_key=True),
    Column("first_at", StorableText, nullable=False),
    Column("last_at", StorableText, nullable=False),
)

# "Approve calls like this". ``pattern``: JSON of GrantPattern. ``uses`` counts rows of grant_uses.
grants = Table(
    "grants",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("tool_name", StorableText, nullable=False),
    Column("pattern", StorableText, nullable=False),
    Column("scope", StorableString(16), nullable=False),
    Column("run_id", StorableString(64)),
    Column("agent", StorableString(64)),
    Column("expires_at", StorableText, nullable=False),
    Column("max_uses", Integer, nullable=False),
    Column("uses", Integer, nullable=False, server_default="0"),
    Column("note", StorableText, nullable=False, server_default=""),
    Column("created_by", StorableText, nullable=False),
    Column("created_by_role", StorableString(16), nullable=False, server_default="operator"),
    Column("created_at", StorableText, nullable=False),
    # The request whose decision created it; NULL when none did.
    Column("request_id", StorableString(64)),
    Column("revoked_at", StorableText),
    Column("revoked_by", StorableText),
    Index("ix_grants_tool_name", "tool_name", "expires_at"),
)

grant_uses = Table(
    "grant_uses",
    metadata,
    Column("grant_id", StorableString(64), ForeignKey("grants.id"), primary_key=True),
    Column("run_id", StorableString(64), primary_key=True),
    Column("tool_call_id", StorableString(255), primary_key=True),
    Column("used_at", StorableText, nullable=False),
)

# What the calls that a rule lets run come to in its newest window: one row for each, whatever the number of windows.
totals = Table(
    "totals",
    metadata,
    Column("meter", StorableString(255), primary_key=True),
    Column("since", StorableText, nullable=False),
    # In millionths (turngate.domain.policy.totals).
    Column("used", BigInteger, nullable=False),
)

# The stored rules, whole, one row per change; the newest is in force beside the app's file.
policy_versions = Table(
    "policy_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("source", StorableText, nullable=False),
    Column("digest", StorableString(64), nullable=False),
    Column("changed_by", StorableText, nullable=False),
    Column("comment", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
)

# Versions that wait, or waited, for a second admin. The newest one waits while it has no outcome and is the next version.
policy_proposals = Table(
    "policy_proposals",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("source", StorableText, nullable=False),
    Column("digest", StorableString(64), nullable=False),
    Column("proposed_by", StorableText, nullable=False),
    Column("comment", StorableText, nullable=False),
    Column("why", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("outcome", StorableString(16)),
    Column("ended_by", StorableText),
    Column("ended_at", StorableText),
)

# The file rules of each app as its worker last published them, with what the API has to know of its tools (both JSON).
published_policies = Table(
    "published_policies",
    metadata,
    Column("task_queue", StorableString(255), primary_key=True),
    Column("file", StorableText, nullable=False),
    Column("version", StorableString(64), nullable=False),
    Column("rules", StorableText, nullable=False),
    Column("tools", StorableText, nullable=False),
    Column("published_at", StorableText, nullable=False),
)

# Answers to changes that carried an Idempotency-Key, so that a repeat gets the first one. Decisions and runs keep their own.
idempotent_answers = Table(
    "idempotent_answers",
    metadata,
    Column("principal", StorableString(255), primary_key=True),
    Column("key", StorableString(255), primary_key=True),
    Column("fingerprint", StorableString(64), nullable=False),
    Column("answer", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_idempotent_answers_created_at", "created_at"),
)


# What the judge said of calls.


# Written when the judge has answered, which is before the call is planned: no foreign key to calls.
judgements = Table(
    "judgements",
    metadata,
    Column("run_id", StorableString(64), primary_key=True),
    Column("tool_call_id", StorableString(255), primary_key=True),
    # JSON of a Judgement.
    Column("judgement", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_judgements_created_at", "created_at"),
)
