"""Errors of runs: what crashed or failed, with its whole text and traceback, under an id that a person can read out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, select, text

from turngate.domain.digest import framed_sha256
from turngate.store.database import Connection
from turngate.store.tables import errors

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: without the letters that people take for digits or for each other."""
_MISREAD: Final = str.maketrans({"o": "0", "i": "1", "l": "1"})
_ID_CHARS: Final = 10

# Both databases know this form, and SQLAlchemy has it only per dialect.
_KEEP = text(
    "INSERT INTO errors (id, run_id, step, tool_call_id, attempt, says, about, message, traceback, worker, build, created_at) "
    "VALUES (:id, :run_id, :step, :tool_call_id, :attempt, :says, :about, :message, :traceback, :worker, :build, :created_at) "
    "ON CONFLICT DO NOTHING"
).bindparams(
    *(bindparam(name, type_=errors.c[name].type) for name in ("tool_call_id", "says", "about", "message", "traceback"))
)


@dataclass(frozen=True, kw_only=True)
class StoredError:
    """One error. ``says``: what failed, in our words; ``about``: which tool, model or hook. ``message``: the error's own text.

    ``step``, ``tool_call_id``: where it happened; None: not known. ``attempt``: of the call or request, from 1. ``traceback``:
    empty for an error that is no crash. ``worker``, ``build``: the process that it happened in.
    """

    id: str
    run_id: str
    step: int | None
    tool_call_id: str | None
    attempt: int
    says: str
    about: str
    message: str
    traceback: str
    worker: str
    build: str
    created_at: str


def error_id(*fields: str) -> str:
    """Return the id of an error, such as ``err-4k7mp-2xq9t``: the same for the same fields."""
    number = int(framed_sha256(*fields)[:16], 16)
    letters = "".join(_ALPHABET[number >> 5 * place & 31] for place in range(_ID_CHARS))
    return f"err-{letters[:5]}-{letters[5:]}"


def read_id(typed: str) -> str | None:
    """Return the id that a person typed, or None if it is no error's: ``ERR 4K7MP 2XQ9T`` is one, and so is O in place of 0."""
    letters = "".join(typed.lower().removeprefix("err").replace("-", " ").split()).translate(_MISREAD)
    if len(letters) != _ID_CHARS or not set(letters) <= set(_ALPHABET):
        return None
    return f"err-{letters[:5]}-{letters[5:]}"


async def keep(conn: Connection, error: StoredError) -> None:
    """Store an error unless it is there already."""
    await conn.execute(_KEEP, vars(error))


async def get(conn: Connection, error_id: str) -> StoredError | None:
    """Return the error of this id, or None."""
    row = (await conn.execute(select(errors).where(errors.c.id == error_id))).mappings().one_or_none()
    return None if row is None else StoredError(**row)


async def of_call(conn: Connection, run_id: str, tool_call_id: str, *, limit: int) -> Sequence[StoredError]:
    """Return the oldest errors of a call, oldest first."""
    query = (
        select(errors)
        .where(errors.c.run_id == run_id, errors.c.tool_call_id == tool_call_id)
        .order_by(errors.c.created_at, errors.c.id)
        .limit(limit)
    )
    return [StoredError(**row) for row in (await conn.execute(query)).mappings()]


async def saying(conn: Connection, says: Collection[str], *, since: str, limit: int) -> Sequence[StoredError]:
    """Return the newest errors of every run that say one of these, no older than ``since``; the newest first."""
    query = (
        select(errors)
        .where(errors.c.created_at >= since, errors.c.says.in_(says))
        .order_by(errors.c.created_at.desc(), errors.c.id.desc())
        .limit(limit)
    )
    return [StoredError(**row) for row in (await conn.execute(query)).mappings()]


async def newest(conn: Connection, *, run_id: str | None = None, limit: int) -> Sequence[StoredError]:
    """Return the newest errors, the newest first. ``run_id`` None: of every run."""
    query = select(errors).order_by(errors.c.created_at.desc(), errors.c.id.desc()).limit(limit)
    if run_id is not None:
        query = query.where(errors.c.run_id == run_id)
    return [StoredError(**row) for row in (await conn.execute(query)).mappings()]
