"""People, users, sessions, login links and API tokens."""

from __future__ import annotations

from sqlalchemy import Column, Integer, Table, UniqueConstraint

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import metadata

people = Table(
    "people",
    metadata,
    # What every other table and the log call the person, forever (docs/adr/0056).
    Column("id", StorableString(255), primary_key=True),
    # NULL: erased.
    Column("name", StorableText),
    Column("created_at", StorableText, nullable=False),
    Column("erased_at", StorableText),
)

people_version = Table(
    "people_version",
    metadata,
    # One row, 1.
    Column("id", Integer, primary_key=True, autoincrement=False),
    # Grows with each change of ``people``: a process that has read it has read the names.
    Column("version", Integer, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("name", StorableString(255), primary_key=True),
    Column("role", StorableString(16), nullable=False),
    # NULL: they log in by OIDC or by a link only.
    Column("password_hash", StorableText),
    Column("email", StorableText, nullable=False, server_default=""),
    Column("oidc_issuer", StorableString(255)),
    Column("oidc_subject", StorableString(255)),
    Column("created_at", StorableText, nullable=False),
    Column("disabled_at", StorableText),
    # The key of the digest that the log has of their identity, erased with it.
    Column("nonce", StorableText, nullable=False, server_default=""),
    UniqueConstraint("oidc_issuer", "oidc_subject", name="uq_users_oidc"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", StorableString(64), primary_key=True),
    Column("operator", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("expires_at", StorableText, nullable=False),
    # Names the session in lists, where its secret must not appear.
    Column("id", StorableString(32), nullable=False, server_default=""),
    # Of a person who is no stored user; a user's own role is looked up again each time.
    Column("role", StorableString(16), nullable=False, server_default="operator"),
    Column("via", StorableString(16), nullable=False, server_default="link"),
    Column("last_seen_at", StorableText, nullable=False, server_default=""),
    Column("user_agent", StorableText, nullable=False, server_default=""),
)

login_links = Table(
    "login_links",
    metadata,
    Column("token_hash", StorableString(64), primary_key=True),
    Column("operator", StorableText, nullable=False),
    Column("expires_at", StorableText, nullable=False),
    Column("used_at", StorableText),
    Column("role", StorableString(16), nullable=False, server_default="operator"),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("token_hash", StorableString(64), primary_key=True),
    Column("name", StorableText, nullable=False),
    Column("scopes", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("revoked_at", StorableText),
    # The person whose token it is, under whose name it acts; NULL: a machine under its own.
    Column("owner", StorableString(255)),
    Column("expires_at", StorableText),
    Column("last_used_at", StorableText),
    # JSON of TokenBounds; NULL: it is bound to nothing.
    Column("bounds", StorableText),
)
