"""Errors of what runs for an agent: each is logged and stored with its whole text and traceback, under an id.

The id is in the log line, in ``turngate explain`` and on the run's page; ``turngate logs ID`` prints the rest. A model never
reads any of it. What Temporal carries is a beginning of the text: it cuts failures of more than 4 KiB.

An error is reported (:func:`report`) where no transaction is open. Within one, and deep inside the rules, a crash is kept until
the transaction is over (:func:`keeping_crashes`): what rolls back takes no error with it, and no writer waits for itself.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from turngate.activities.engine.engine import Engine
from turngate.domain.crashes import crashes_go_to
from turngate.domain.errors import TurngateError
from turngate.domain.text.bounds import ends, head, size
from turngate.runtime.telemetry import redact_text
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.runs import errors
from turngate.store.storable import storable

MOST_BYTES: Final = 64 * 1024
"""Of an error's text, and of its traceback."""
HEAD_BYTES: Final = 2_000
"""Of an error's text where it is quoted: in a run's reason, an event, a failure that Temporal carries."""

MOST_KEPT: Final = 50
"""Crashes between two writes that are stored; the log has all of them."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where an error happened. ``attempt``: of the call or the request to the model, from 1."""

    run_id: str
    step: int | None = None
    tool_call_id: str | None = None
    attempt: int = 1


async def report(engine: Engine, says: str, error: BaseException, where: Where, **names: str) -> str:
    """Log and store an error, and return its id: the same one for the same error at the same place.

    Args:
        engine: whose worker this is.
        says: what failed, such as ``tool crashed``.
        error: with its traceback.
        where: the run and what of it.
        names: what it is about, for the log line: ``tool="pay"``. The first one is stored.

    A store that is away is no reason to fail: then only the log has the error.
    """
    stored = _logged(engine, says, error, where, names)
    await _keep(engine, [stored])
    return stored.id


@asynccontextmanager
async def keeping_crashes(engine: Engine, where: Where) -> AsyncIterator[None]:
    """Log crashes of builders' code that are reported inside the block, and store them when it ends, however it ends.

    No transaction is open where the block ends. Nothing is written if nothing crashed. ``where``: unless :func:`at_call` says
    which call it is.
    """
    crashes = _Crashes(engine, where)
    try:
        with crashes_go_to(crashes.take):
            yield
    finally:
        if crashes.stored:
            await _keep(engine, crashes.stored)


@contextmanager
def at_call(tool_call_id: str, step: int) -> Iterator[None]:
    """Have crashes inside the block filed under this call."""
    token = _call.set((tool_call_id, step))
    try:
        yield
    finally:
        _call.reset(token)


_call: ContextVar[tuple[str, int] | None] = ContextVar("crashed_call", default=None)


@dataclass
class _Crashes:
    """The crashes of one block. Author's code may be given up and crash later, in its thread: then only the log has it."""

    engine: Engine
    where: Where
    stored: list[errors.StoredError] = field(default_factory=list)

    def take(self, says: str, error: BaseException, **names: str) -> None:
        call, where = _call.get(), self.where
        if call is not None:
            where = replace(where, tool_call_id=call[0], step=call[1])
        stored = _logged(self.engine, says, error, where, names)
        if len(self.stored) < MOST_KEPT and all(each.id != stored.id for each in self.stored):
            self.stored.append(stored)


def _logged(
    engine: Engine, says: str, error: BaseException, where: Where, names: Mapping[str, str]
) -> errors.StoredError:
    """Return an error as it is stored, once the log has it with its id."""
    trace = _traceback(error)
    stored = _stored(engine, says, _message(error), where, names, trace)
    call = {} if where.tool_call_id is None else {"call": where.tool_call_id}
    where_and_what = {"error": stored.id, "run_id": where.run_id, **call, **names}
    # Not its text: an error quotes what people and tools said, and no one erases that from a log.
    level = logging.ERROR if trace else logging.WARNING
    more = f"turngate logs {stored.id}"
    log.log(level, says, **where_and_what, kind=type(error).__name__, at=_place(error), more=more)
    return stored


async def _keep(engine: Engine, stored: Sequence[errors.StoredError]) -> None:
    try:
        async with engine.database.write() as conn:
            for each in stored:
                await errors.keep(conn, each)
    except Exception as away:  # noqa: BLE001 - whatever it is: the log has the errors
        for each in stored:
            log.error(each.says, error=each.id, why=each.message, exception=each.traceback)  # noqa: TRY400 - not of this one
        log.warning("errors could not be stored", errors=[each.id for each in stored], why=str(away))


async def note(
    conn: Connection,
    engine: Engine,
    says: str,
    message: str,
    where: Where,
    *,
    process: tuple[str, str] | None = None,
    **names: str,
) -> str:
    """Store an error that nothing raised, in the caller's transaction, and return its id. The rest is as of :func:`report`.

    ``process``: the worker and build that it happened in; None: this one.
    """
    stored = _stored(engine, says, message, where, names)
    if process is not None:
        stored = replace(stored, worker=process[0], build=process[1])
    await errors.keep(conn, stored)
    log.warning(says, error=stored.id, run_id=where.run_id, **names, more=f"turngate logs {stored.id}")
    return stored.id


def _place(error: BaseException) -> str:
    """Return the innermost line of code that an error passed; empty for one that nothing raised."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else ""


def quoted(message: str, error_id: str) -> str:
    """Return an error's text where it is quoted: all of a short one, else its beginning and where the rest is."""
    message = storable(message)
    if size(message) <= HEAD_BYTES:
        return message
    return f"{head(message, HEAD_BYTES)} (all of it: turngate logs {error_id})"


def _stored(
    engine: Engine, says: str, message: str, where: Where, names: Mapping[str, str], trace: str = ""
) -> errors.StoredError:
    about = next(iter(names.values()), "")
    place = (where.run_id, str(where.step), where.tool_call_id or "", str(where.attempt))
    return errors.StoredError(
        id=errors.error_id(*place, says, about, message),
        says=says,
        about=about,
        message=message,
        traceback=trace,
        worker=engine.worker,
        build=engine.build,
        created_at=as_text(now()),
        **vars(where),
    )


def _message(error: BaseException) -> str:
    if isinstance(error, TurngateError):
        return _clean(error.message)
    return _clean("".join(traceback.format_exception_only(error)).strip())


def _traceback(error: BaseException) -> str:
    """Return the traceback; empty for an error that we raised ourselves, not because of another one."""
    if isinstance(error, TurngateError) and error.__cause__ is None:
        return ""
    return _clean("".join(traceback.format_exception(error)))


def _clean(text: str) -> str:
    """Return a text without secrets, within the bound. It is cut before, too: no size of it may block the worker (I14)."""
    return ends(redact_text(ends(text, 2 * MOST_BYTES)), MOST_BYTES)
