"""Progress of a running tool: a bounded buffer between a handler, which it never holds up, and the store.

Progress is for watchers only. It goes to the store, never into workflow history, and is the first thing to be lost when
the store is away: a tool must neither wait for it nor fail because of it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from pydantic import JsonValue

from turngate.activities.engine.bounded_flush import end_or_abandon
from turngate.domain.tools.results import is_deeper
from turngate.domain.tools.secrets import mask_text, masked_strings
from turngate.store.database import Database
from turngate.store.live import progress
from turngate.store.live.progress import NewProgress
from turngate.store.storable import storable

log = structlog.get_logger(__name__)

MAX_EVENT_BYTES = 4 * 1024
MAX_DEPTH = 32
"""Deeper than anyone reads, and far from where readers' JSON parsers give up."""
BUFFERED = 256
INTERVAL_SECONDS = 0.1
MAX_MASKED_CHARS = 64 * 1024
"""Of a text of which the beginning is shown: what is after it is not looked at."""
ELLIPSIS = "…"

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class ProgressBuffer:
    """What waits to be written: the newest events, and how many were left out. Safe from any thread."""

    def __init__(self, size: int = BUFFERED) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._writing = False
        self._closed = False

    def put(self, text: str) -> bool:
        """Keep one event, in place of the oldest when full. True: no writer runs at the moment, so one must start."""
        with self._lock:
            if self._closed:
                return False
            if len(self._waiting) == self._size:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(text)
            idle, self._writing = not self._writing, True
            return idle

    def take(self) -> list[NewProgress]:
        """Return what waits, in order, and forget it; when nothing does, the writer must end."""
        with self._lock:
            if not self._waiting:
                self._writing = False
                return []
            taken = [NewProgress(text, 0) for text in self._waiting]
            taken[0] = NewProgress(taken[0].text, self._dropped)
            self._waiting.clear()
            self._dropped = 0
            return taken

    def lost(self, taken: list[NewProgress]) -> None:
        """Count events that were taken and could not be written as left out."""
        with self._lock:
            self._dropped += len(taken) + taken[0].dropped

    def close(self) -> bool:
        """Keep nothing more. True: a writer is (or must be) at work on what was kept."""
        with self._lock:
            self._closed = True
            return self._writing


@asynccontextmanager
async def reporting(
    database: Database, *, run_id: str, tool_call_id: str, values: frozenset[str] = frozenset()
) -> AsyncIterator[Callable[[JsonValue], None]]:
    """Give the ``emit`` of one call while the block runs; afterwards it does nothing.

    Leaving the block, by cancellation too, waits up to a second until what was emitted is stored: store the call's result
    only then, and watchers get its progress first. The call's execution row must say ``executing`` until then. Nothing
    emitted: no task, no statement. ``values``: secret texts that no watcher may see.
    """
    reporter = _Reporter(database, run_id, tool_call_id, values)
    try:
        yield reporter.emit
    finally:
        await reporter.close()


class _Reporter:
    def __init__(self, database: Database, run_id: str, tool_call_id: str, values: frozenset[str]) -> None:
        self._database = database
        self._values = values
        self._run_id = run_id
        self._tool_call_id = tool_call_id
        self._buffer = ProgressBuffer()
        self._loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._swept = False
        self._failed = False

    def emit(self, event: JsonValue) -> None:
        """Pass an event on to watchers, from any thread; see :class:`ToolContext`."""
        with suppress(Exception):  # a closed loop, for one: whatever it is, it is not the tool's business
            if self._buffer.put(event_text(event, self._values)):
                self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> asyncio.Task[None]:
        if self._writer is None or self._writer.done():
            self._writer = self._loop.create_task(self._write_all(), name=f"progress-{self._tool_call_id}")
        return self._writer

    async def close(self) -> None:
        if not self._buffer.close():
            return
        self._leaving.set()
        await end_or_abandon(self._start(), self._warn_once)

    async def _write_all(self) -> None:
        while batch := self._buffer.take():
            try:
                await self._write(batch)
            except Exception as error:  # noqa: BLE001 - whatever the store raises, the tool continues
                self._buffer.lost(batch)
                self._warn_once(f"{type(error).__name__}: {error}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), INTERVAL_SECONDS)

    async def _write(self, batch: list[NewProgress]) -> None:
        visible = [NewProgress(visible_event(each.text, self._values), each.dropped) for each in batch]
        async with self._database.write() as conn:
            if not self._swept:
                await progress.sweep(conn)
            await progress.append(conn, self._run_id, self._tool_call_id, visible)
        self._swept = True

    def _warn_once(self, why: str) -> None:
        if not self._failed:
            log.warning("progress of a call is lost", run_id=self._run_id, call=self._tool_call_id, why=why)
        self._failed = True


def event_text(event: Any, values: frozenset[str] = frozenset()) -> str:
    """Return an event as JSON text of at most 4 KiB; what is not JSON becomes its ``repr``, what is too long its beginning.

    Made at once, not by the writer: the handler may keep changing what it emitted. Raises nothing. ``values``: secrets; they and
    credentials are masked here only in what is shortened, so that no part of one remains; :func:`visible_event` masks the rest.
    """
    try:
        if isinstance(event, str):
            return _clipped(event, values)
        text = _encoded(event)
        if len(text) > MAX_EVENT_BYTES or len(text.encode()) > MAX_EVENT_BYTES or is_deeper(event, MAX_DEPTH):
            return _clipped(text, values)
    except Exception:  # noqa: BLE001 - not JSON in one of many ways: types, NaN, cycles, thousands of levels
        return _clipped(_repr(event), values)
    return text


def visible_event(text: str, values: frozenset[str]) -> str:
    """Return an event's JSON text without secrets and credentials. Left to the writer: a busy handler is not to wait for it."""
    event = json.loads(text)
    masked = masked_strings(event, values)
    return text if masked == event else event_text(masked, values)


def _clipped(text: str, values: frozenset[str]) -> str:
    """Return the JSON of a string, shortened until it fits."""
    if len(text) > MAX_EVENT_BYTES // 4:
        text = mask_text(text[:MAX_MASKED_CHARS], values)
    beginning = text[:MAX_EVENT_BYTES]
    encoded = _encoded(text if len(text) == len(beginning) else beginning + ELLIPSIS)
    while (size := len(encoded.encode())) > MAX_EVENT_BYTES:
        beginning = beginning[: min(len(beginning) - 1, len(beginning) * (MAX_EVENT_BYTES - 8) // size)]
        encoded = _encoded(beginning + ELLIPSIS)
    return encoded


def _encoded(event: Any) -> str:
    return storable(_JSON.encode(event))


def _repr(event: object) -> str:
    try:
        return repr(event)
    except Exception:  # noqa: BLE001 - a class of the tool's author
        return f"<{type(event).__name__}>"
