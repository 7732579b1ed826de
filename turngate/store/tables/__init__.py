"""The tables. SQLAlchemy Core; the same on SQLite and PostgreSQL.

JSON is kept as text on purpose: PostgreSQL's ``jsonb`` re-orders keys and rewrites numbers, and opaque provider fields
and raw arguments must come back byte for byte. Instants are ISO 8601 UTC text with microseconds: they sort as text and
read the same on both databases.
"""

from __future__ import annotations

from turngate.store.tables.inbox import (
    approvals,
    comments,
    decisions,
    grant_uses,
    grants,
    idempotent_answers,
    judgements,
    policy_proposals,
    policy_versions,
    precedent_features,
    precedents,
    published_policies,
    requests,
    saved_views,
    totals,
    views,
)
from turngate.store.tables.log import (
    deliveries,
    delivery_attempts,
    deltas,
    event_chains,
    event_counter,
    events,
    notification_cursors,
    push_subscriptions,
)
from turngate.store.tables.metadata import metadata
from turngate.store.tables.people import api_tokens, login_links, sessions, users
from turngate.store.tables.runs import (
    agents,
    calls,
    conversations,
    executions,
    external_calls,
    messages,
    model_names,
    progress,
    queued_messages,
    runs,
    steps,
    summaries,
    summaries_wanted,
    used_below,
    whole_results,
    worlds,
)
from turngate.store.tables.schedules import schedule_fires, schedules

__all__ = [
    "agents",
    "api_tokens",
    "approvals",
    "calls",
    "comments",
    "conversations",
    "decisions",
    "deliveries",
    "delivery_attempts",
    "deltas",
    "event_chains",
    "event_counter",
    "events",
    "executions",
    "external_calls",
    "grant_uses",
    "grants",
    "idempotent_answers",
    "judgements",
    "login_links",
    "messages",
    "metadata",
    "model_names",
    "notification_cursors",
    "policy_proposals",
    "policy_versions",
    "precedent_features",
    "precedents",
    "progress",
    "published_policies",
    "push_subscriptions",
    "queued_messages",
    "requests",
    "runs",
    "saved_views",
    "schedule_fires",
    "schedules",
    "sessions",
    "steps",
    "summaries",
    "summaries_wanted",
    "totals",
    "used_below",
    "users",
    "views",
    "whole_results",
    "worlds",
]
