"""Counts a database's statements, by the transaction and by the function that opened it."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import event
from sqlalchemy.engine import Engine

from turngate.store.database import Database

OURS = ("/activities/", "/approvals_api/", "/tests/")
"""Where a transaction's owner is looked for, from the innermost frame outwards."""


@dataclass
class Transaction:
    """One transaction. ``began_at``, ``ended_at``: ``time.perf_counter()``; ``commit_seconds``: of COMMIT or ROLLBACK."""

    owner: str
    write: bool
    began_at: float
    statements: list[str] = field(default_factory=list)
    sql_seconds: float = 0.0
    commit_seconds: float = 0.0
    ended_at: float = 0.0


class SqlCensus:
    """Listens to a SQLite database. Only there: its statements run under the caller's own frames."""

    def __init__(self, database: Database) -> None:
        self.transactions: list[Transaction] = []
        self._open: dict[int, Transaction] = {}
        self._engine: Engine = database._backend._engine
        self._listeners = [("before_cursor_execute", self._before), ("after_cursor_execute", self._after)]

    def __enter__(self) -> Self:
        for name, listener in self._listeners:
            event.listen(self._engine, name, listener)
        return self

    def __exit__(self, *_error: object) -> None:
        for name, listener in self._listeners:
            event.remove(self._engine, name, listener)

    def _before(self, conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("BEGIN"):
            write = "IMMEDIATE" in statement
            self._open[id(conn)] = Transaction(owner=_owner(), write=write, began_at=time.perf_counter())
        conn.info["statement_began_at"] = time.perf_counter()

    def _after(self, conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        now = time.perf_counter()
        seconds = now - conn.info["statement_began_at"]
        transaction = self._open.get(id(conn))
        if transaction is None:
            return
        if statement.startswith(("COMMIT", "ROLLBACK")):
            transaction.commit_seconds, transaction.ended_at = seconds, now
            self.transactions.append(self._open.pop(id(conn)))
        elif not statement.startswith("BEGIN"):
            transaction.statements.append(statement)
            transaction.sql_seconds += seconds

    def report(self, turns: int) -> str:
        """Return one line per owner: how often per turn, its statements, and how long it held its connection."""
        by_owner: dict[tuple[str, bool], list[Transaction]] = defaultdict(list)
        for transaction in self.transactions:
            by_owner[transaction.owner, transaction.write].append(transaction)
        lines = [
            "per turn  statements  held ms  sql ms  end ms  transaction  (statements: excl. BEGIN/COMMIT/ROLLBACK)"
        ]
        total: Counter[str] = Counter()
        for (owner, write), transactions in by_owner.items():
            statements = sum(len(each.statements) for each in transactions)
            kind = "write" if write else "read"
            if "/tests/" not in owner:
                total[kind] += len(transactions)
                total["statements"] += statements
            lines.append(
                f"{len(transactions) / turns:8.2f}  {statements / len(transactions):10.1f}"
                f"  {_mean_ms(each.ended_at - each.began_at for each in transactions):7.2f}"
                f"  {_mean_ms(each.sql_seconds for each in transactions):6.2f}"
                f"  {_mean_ms(each.commit_seconds for each in transactions):6.2f}  {kind:5} {owner}"
            )
        lines.append(
            f"sum per turn, the bench's own inbox polls left out: {total['statements'] / turns:.1f} statements in "
            f"{total['write'] / turns:.1f} write and {total['read'] / turns:.1f} read transactions"
        )
        return "\n".join(lines)


def _mean_ms(seconds: Any) -> float:
    values = list(seconds)
    return sum(values) / len(values) * 1000


def _owner() -> str:
    """Return ``file:function`` of the innermost caller that is not the store itself."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        for part in OURS:
            if part in path:
                return f"{part}{path.rsplit(part, 1)[1]}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
