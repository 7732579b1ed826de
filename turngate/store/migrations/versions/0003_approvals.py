"""Policy terms, quorum, claims, grants, users, notifications, saved views. Revision 0003."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables; what is there already gets the defaults."""
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("channel", sa.String(length=100), nullable=False),
        sa.Column("first_seq", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index("ix_deliveries_created_at_id", "deliveries", ["created_at", "id"], unique=False)
    op.create_index("ix_deliveries_status_next_attempt_at", "deliveries", ["status", "next_attempt_at"], unique=False)
    op.create_table(
        "event_chains",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("event_hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event_chains")),
    )
    op.create_table(
        "grants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=True),
        sa.Column("agent", sa.String(length=64), nullable=True),
        sa.Column("expires_at", sa.Text(), nullable=False),
        sa.Column("max_uses", sa.Integer(), nullable=False),
        sa.Column("uses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_by_role", sa.String(length=16), server_default="operator", nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("revoked_at", sa.Text(), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    op.create_index("ix_grants_tool_name", "grants", ["tool_name", "expires_at"], unique=False)
    op.create_table(
        "idempotent_answers",
        sa.Column("principal", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_idempotent_answers")),
    )
    op.create_table(
        "notification_cursors",
        sa.Column("channel", sa.String(length=100), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("gathering_since", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("channel", name=op.f("pk_notification_cursors")),
    )
    op.create_table(
        "policy_versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policy_versions")),
    )
    op.create_table(
        "published_policies",
        sa.Column("task_queue", sa.String(length=255), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.Column("published_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_queue", name=op.f("pk_published_policies")),
    )
    op.create_table(
        "saved_views",
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", name=op.f("pk_saved_views")),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("email", sa.Text(), server_default="", nullable=False),
        sa.Column("oidc_issuer", sa.String(length=255), nullable=True),
        sa.Column("oidc_subject", sa.String(length=255), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("disabled_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
        sa.UniqueConstraint("oidc_issuer", "oidc_subject", name="uq_users_oidc"),
    )
    op.create_table(
        "delivery_attempts",
        sa.Column("delivery_id", sa.String(length=64), nullable=False),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", sa.Text(), nullable=False),
        sa.Column("milliseconds", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["delivery_id"], ["deliveries.id"], name=op.f("fk_delivery_attempts_delivery_id")),
        sa.PrimaryKeyConstraint("delivery_id", "n", name=op.f("pk_delivery_attempts")),
    )
    op.create_table(
        "grant_uses",
        sa.Column("grant_id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("tool_call_id", sa.String(length=255), nullable=False),
        sa.Column("used_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["grant_id"], ["grants.id"], name=op.f("fk_grant_uses_grant_id")),
        sa.PrimaryKeyConstraint("grant_id", "run_id", "tool_call_id", name=op.f("pk_grant_uses")),
    )
    op.create_table(
        "approvals",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("decided_by", sa.String(length=255), nullable=False),
        sa.Column("decision_id", sa.String(length=255), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name=op.f("fk_approvals_request_id")),
        sa.PrimaryKeyConstraint("request_id", "decided_by", name=op.f("pk_approvals")),
        sa.UniqueConstraint("decision_id", name=op.f("uq_approvals_decision_id")),
    )
    op.create_table(
        "comments",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name=op.f("fk_comments_request_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comments")),
    )
    op.create_index("ix_comments_request_id", "comments", ["request_id", "created_at"], unique=False)
    op.create_table(
        "views",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("viewer", sa.String(length=255), nullable=False),
        sa.Column("first_at", sa.Text(), nullable=False),
        sa.Column("last_at", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name=op.f("fk_views_request_id")),
        sa.PrimaryKeyConstraint("request_id", "viewer", name=op.f("pk_views")),
    )
    op.add_column("api_tokens", sa.Column("owner", sa.String(length=255), nullable=True))
    op.add_column("api_tokens", sa.Column("expires_at", sa.Text(), nullable=True))
    op.add_column("api_tokens", sa.Column("last_used_at", sa.Text(), nullable=True))
    op.add_column("decisions", sa.Column("grant_wanted", sa.Text(), nullable=True))
    op.add_column("login_links", sa.Column("role", sa.String(length=16), server_default="operator", nullable=False))
    op.add_column("requests", sa.Column("terms", sa.Text(), server_default="", nullable=False))
    op.add_column("requests", sa.Column("rungs_climbed", sa.Integer(), server_default="0", nullable=False))
    op.add_column("requests", sa.Column("quorum", sa.Integer(), server_default="1", nullable=False))
    op.add_column("requests", sa.Column("approvals", sa.Integer(), server_default="0", nullable=False))
    op.add_column("requests", sa.Column("parked_at", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("claimed_by", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("claimed_until", sa.Text(), nullable=True))
    op.drop_index("ix_requests_status_created_at_id", table_name="requests")
    op.create_index("ix_requests_created_at_id", "requests", ["created_at", "id"], unique=False)
    pending, ended = sa.text("status = 'pending'"), sa.text("status != 'pending'")
    filters = ["kind", "agent", "tool_name", "risk", "rule"]
    op.create_index(
        "ix_requests_pending",
        "requests",
        ["created_at", "id", *filters, "claimed_by", "claimed_until", "parked_at", "status"],
        unique=False,
        sqlite_where=pending,
        postgresql_where=pending,
    )
    op.create_index(
        "ix_requests_ended",
        "requests",
        ["decided_at", "id", "status", *filters],
        unique=False,
        sqlite_where=ended,
        postgresql_where=ended,
    )
    op.add_column("runs", sa.Column("attended", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("runs", sa.Column("unattended_asks", sa.String(length=16), server_default="park", nullable=False))
    op.add_column("sessions", sa.Column("id", sa.String(length=32), server_default="", nullable=False))
    op.add_column("sessions", sa.Column("role", sa.String(length=16), server_default="operator", nullable=False))
    op.add_column("sessions", sa.Column("via", sa.String(length=16), server_default="link", nullable=False))
    op.add_column("sessions", sa.Column("last_seen_at", sa.Text(), server_default="", nullable=False))
    op.add_column("sessions", sa.Column("user_agent", sa.Text(), server_default="", nullable=False))
    op.execute("INSERT INTO event_chains (id, event_count, event_hash) VALUES ('system', 0, '')")
    # Runs that never started were removed and their events stay: from now on the heads of such chains are kept.
    op.execute(
        "INSERT INTO event_chains (id, event_count, event_hash) "
        "SELECT run_id, run_seq, hash FROM events AS newest "
        "WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = newest.run_id) AND run_seq = "
        "(SELECT max(run_seq) FROM events WHERE events.run_id = newest.run_id)"
    )
    _make_events_append_only()


def downgrade() -> None:
    """Take them away again; what they held is lost."""
    _make_events_ordinary()
    for name in ("ix_requests_pending", "ix_requests_ended", "ix_requests_created_at_id"):
        op.drop_index(name, table_name="requests")
    op.create_index("ix_requests_status_created_at_id", "requests", ["status", "created_at", "id"], unique=False)
    with op.batch_alter_table("api_tokens") as batch:
        for name in ("last_used_at", "expires_at", "owner"):
            batch.drop_column(name)
    with op.batch_alter_table("decisions") as batch:
        for name in ("grant_wanted",):
            batch.drop_column(name)
    with op.batch_alter_table("login_links") as batch:
        for name in ("role",):
            batch.drop_column(name)
    with op.batch_alter_table("requests") as batch:
        for name in ("claimed_until", "claimed_by", "parked_at", "approvals", "quorum", "rungs_climbed", "terms"):
            batch.drop_column(name)
    with op.batch_alter_table("runs") as batch:
        for name in ("unattended_asks", "attended"):
            batch.drop_column(name)
    with op.batch_alter_table("sessions") as batch:
        for name in ("user_agent", "last_seen_at", "via", "role", "id"):
            batch.drop_column(name)
    for name in (
        "views",
        "comments",
        "approvals",
        "grant_uses",
        "delivery_attempts",
        "users",
        "saved_views",
        "published_policies",
        "policy_versions",
        "notification_cursors",
        "idempotent_answers",
        "grants",
        "event_chains",
        "deliveries",
    ):
        op.drop_table(name)


def _make_events_append_only() -> None:
    """Let the database itself refuse to change or remove an event, whoever asks.

    A later migration that rebuilds the table on SQLite (``batch_alter_table``) drops the triggers with it: make them anew.
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
    for what in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_no_{what.lower()} BEFORE {what} ON events "
            "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
        )
    # INSERT OR REPLACE removes the row in its way, and SQLite runs no DELETE trigger for that.
    op.execute(
        "CREATE TRIGGER events_no_replace BEFORE INSERT ON events WHEN EXISTS "
        "(SELECT 1 FROM events WHERE seq = NEW.seq OR (run_id = NEW.run_id AND run_seq = NEW.run_seq)) "
        "BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"
    )


def _make_events_ordinary() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP TRIGGER events_append_only ON events")
        op.execute("DROP FUNCTION turngate_events_are_append_only()")
        return
    for name in ("events_no_update", "events_no_delete", "events_no_replace"):
        op.execute(f"DROP TRIGGER {name}")
