"""Digests of rows, as events carry them (:data:`turngate.store.tables.evidence.DIGESTS` says of which columns)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from turngate.domain.digest import keyed_sha256
from turngate.store.connection import Connection
from turngate.store.storable import storable, stored_digest
from turngate.store.tables.evidence import DIGESTS

MARK_CHARS: Final = 4
DIGEST_CHARS: Final = 64

Row = Mapping[str, Any]


def row_digest(kind: str, row: Row, nonce: str = "") -> str:
    """Return the digest of a row's columns for the log. ``kind``: a key of ``DIGESTS``. ``nonce``: its key.

    After it come marks, one for each column, in their order: by them a reader knows which column was changed.
    """
    columns = DIGESTS[kind].columns
    if len(columns) == 1:
        return text_digest(str(row[columns[0]] or ""), nonce)
    values = {name: row[name] for name in columns}
    return stored_digest(values, nonce) + "".join(_mark(name, value, nonce) for name, value in values.items())


def text_digest(text: str, nonce: str) -> str:
    """Return the digest of a single text, such as a request's terms, or what a call asks of its run (both JSON)."""
    return keyed_sha256(nonce, storable(text))


def is_digest_of(values: Row, nonce: str, digest: object) -> bool:
    """Tell whether a digest in the log is over these values, which are all that it is over."""
    return isinstance(digest, str) and digest[:DIGEST_CHARS] == stored_digest(values, nonce)


def changed_column(kind: str, row: Row, nonces: Sequence[str], digest: str) -> str | None:
    """Return the first column of a row that isn't as a digest says; None: the row is. ``nonces``: those it may be keyed with."""
    digested, marks = DIGESTS[kind], digest[DIGEST_CHARS:]
    if len(digested.columns) == 1:
        text = str(row[digested.columns[0]] or "")
        return None if digest in {text_digest(text, nonce) for nonce in nonces} else digested.columns[0]
    columns = digested.columns[: len(marks) // MARK_CHARS]
    values = {name: row[name] for name in columns}
    if any(is_digest_of(values, nonce, digest) for nonce in nonces):
        return None
    by_nonce: list[list[str]] = [list(_changed(values, marks, nonce)) for nonce in nonces]
    fewest: list[str] = min(by_nonce, key=len)
    return next(iter(fewest), None) or f"one of {', '.join(columns)}"


def _changed(values: Row, marks: str, nonce: str) -> Iterable[str]:
    for place, (name, value) in enumerate(values.items()):
        if marks[place * MARK_CHARS :][:MARK_CHARS] not in {"", _mark(name, value, nonce)}:
            yield name


def _mark(name: str, value: object, nonce: str) -> str:
    text = storable(value) if isinstance(value, str) else repr(value)
    return keyed_sha256(nonce, name, text)[:MARK_CHARS]  # a row has some twenty, and JSON costs more than the digest


def secret_of(conn: Connection) -> str:
    """Return the key of digests of rows that belong to no run; "" in a store that isn't encrypted."""
    keys = getattr(conn, "keys", None)  # of an encrypted store; its class is slow to import
    return "" if keys is None else str(keys.secret_for(b"evidence").hex())
