"""What store functions are given, whichever database it is of, and what it may be bound to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

import sqlalchemy
from sqlalchemy import Executable
from sqlalchemy.engine import URL, CursorResult, Dialect, make_url

from turngate.domain.errors import ConfigurationError

Result = TypeVar("Result")
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


TransactionKind = Literal["read", "glance", "write"]

Fact = tuple[str, Mapping[str, Any]]
"""Something that happened, for a meter: an event with its payload, or what no event says, under a name of its own."""


class Meter(Protocol):
    """Counts what a process does (:mod:`turngate.runtime.metrics`). It never raises and never waits."""

    def count(self, facts: Sequence[Fact]) -> None:
        """Count facts that are certain: committed, or about no transaction."""

    def transaction(self, kind: TransactionKind, seconds: float, *, failed: bool) -> None:
        """Count a transaction of the store. ``seconds``: with its wait for a lock or a connection. ``failed``: it was away."""

    def expect(self, *, tools: Iterable[str] = (), models: Iterable[str] = ()) -> None:
        """Keep labels for these names, whatever other names come first."""


class Connection(Protocol):
    """What store functions are given: one open transaction.

    ``facts``: what a meter counts once the transaction has committed; None: nothing counts.
    """

    facts: list[Fact] | None

    @property
    def dialect(self) -> Dialect:
        """The database's own language, for what has no common form."""

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement; the rows are there when it returns."""

    async def look(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement that reads and locks nothing. Before the first that writes, PostgreSQL needs no BEGIN for it."""

    async def execute_last(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run the last statement of a write transaction. If it is the only one but for looks, it is its own transaction.

        PostgreSQL then takes one trip in place of three. It is committed when this returns, so nothing may follow in the block
        unless it wrote nothing.
        """

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        """Run a synchronous function on the underlying connection (migrations)."""


def note(conn: Connection, name: str, **what: object) -> None:
    """Have a fact counted once the transaction has committed."""
    if conn.facts is not None:
        conn.facts.append((name, what))


COMMITS: Final = "turngate"
"""The channel on which a database announces commits. Channels are of the whole database."""
SHARES_SESSIONS: Final = (
    "TURNGATE_DATABASE_URL leads to a pooler (such as PgBouncer), which shares PostgreSQL's sessions"
)
"""What is wrong where something needs a session of its own."""
IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]{0,49}")
"""Names that need no quotes in SQL, in a connection's options or in a channel's name, whose limit is 63 bytes."""
_RESERVED: Final = ("pg_", "information_schema")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """One schema of a PostgreSQL database, and a role that may enter no other (docs/adr/0057).

    It is in the database's URL (``?schema=acme&role=acme``), so no caller that opens a store can forget it. The
    server applies it when a connection opens, before any statement: ``RESET``, ``DISCARD`` and a rolled-back transaction
    return to it. Statements name no schema, so they find the handle's tables; what names another schema's is refused by the
    server. ``role`` None: the login's own rights, which may reach other schemas.

    Raises ConfigurationError when a name needs quotes or is PostgreSQL's own.
    """

    schema: str
    role: str | None = None

    def __post_init__(self) -> None:
        for what, name in (("schema", self.schema), ("role", self.role)):
            if name is not None and (not IDENTIFIER.fullmatch(name) or name.startswith(_RESERVED)):
                raise ConfigurationError(
                    f"{name!r} can't be a {what}: use up to 50 lower-case letters, digits and underscores, a letter first, and "
                    "no name of PostgreSQL's own"
                )

    @property
    def channel(self) -> str:
        """Return the channel on which commits in the schema are announced: one store's wake no other store's watchers."""
        return f"{COMMITS}_{self.schema}"

    @property
    def announcing(self) -> str:
        """Return the statement that moves the announcements to the schema's own channel. Safe to repeat."""
        return (
            "CREATE OR REPLACE FUNCTION turngate_tell_of_commit() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_notify('{self.channel}', ''); RETURN NULL; END $$"
        )

    def connecting(self, url: URL) -> URL:
        """Return a URL whose connections PostgreSQL binds when it opens them."""
        options = [f"-c search_path={self.schema}"]
        if self.role is not None:
            options.append(f"-c role={self.role}")
        present = url.query.get("options", "")
        before = " ".join(present) if isinstance(present, tuple) else present
        plain = url.difference_update_query(["schema", "role"])
        return plain.update_query_dict({"options": " ".join([before, *options]).strip()})


def binding_of(url: str) -> Binding | None:
    """Return the binding in a PostgreSQL URL; None: there is none. Raises ConfigurationError when it is wrong."""
    query = make_url(url).query
    schema, role = query.get("schema"), query.get("role")
    if schema is None and role is None:
        return None
    if not isinstance(schema, str) or not isinstance(role, (str, type(None))):
        raise ConfigurationError("the database's URL has a role without a schema, or one of them twice: give each once")
    return Binding(schema=schema, role=role)


def unbound_url(url: str) -> str:
    """Return a PostgreSQL URL without a binding: what its login sees. It may contain a password."""
    return make_url(url).difference_update_query(["schema", "role"]).render_as_string(hide_password=False)
