"""The loop that exports traces: what is new in the log becomes spans, and the place moves on when the collector has them.

Nothing waits for it, and it keeps nothing in memory: while the collector is away, the place stays where it is. So spans are
neither lost when a process is killed nor collected somewhere until it is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar, cast

from sqlalchemy.exc import IntegrityError

from turngate.domain.errors import UnavailableError
from turngate.domain.runs.trace import RunTrace, SpanRef
from turngate.runtime.traces.switch import TraceSettings
from turngate.store.clock import from_text, now
from turngate.store.database import Database
from turngate.store.events import events, traces
from turngate.store.runs import known_traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from turngate.runtime.traces.spans import Spans, TraceSampler

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH: Final = 200
"""Events read at once."""
HOLD_FOR: Final = timedelta(seconds=60)
"""Longer than a batch may take, so that the hold is over only when its process is dead."""
SEND_WITHIN: Final = timedelta(seconds=30)
"""Of one batch; the exporter's own limit (``OTEL_EXPORTER_OTLP_TIMEOUT``) is 10 s."""
MOST_PAUSE: Final = timedelta(seconds=60)
"""Between two attempts while the collector is away."""
GIVE_UP_AFTER: Final = timedelta(minutes=30)
"""Of trying in vain, a batch is dropped: the next one may be taken, and the log doesn't wait forever."""
RELEASE_WITHIN: Final = 1.0


async def keep_tracing(database: Database, settings: TraceSettings | None) -> None:
    """Export traces until cancelled. Returns at once when ``settings`` is None."""
    if settings is None:
        return
    known_traces.keep()
    # Its libraries are slow to import, and may be missing.
    export = await in_thread(lambda: SpanExport.begin(database, settings))
    try:
        while True:
            pause = await export.next_pause()
            await asyncio.sleep(pause.total_seconds())
    finally:
        await export.end()


@lru_cache(1)
def _sampler() -> TraceSampler:
    from turngate.runtime.traces.spans import TraceSampler, provider  # noqa: PLC0415 - needs the extra

    return TraceSampler(provider().sampler)


def name_span(trace: RunTrace, span: SpanRef) -> str:
    """Return the ``traceparent`` of a span, for another program. Only where traces are exported: it needs the extra."""
    return span.traceparent(sampled=_sampler().takes(trace))


@dataclass(kw_only=True)
class SpanExport:
    """The export of this process. ``failing_since``: since when the collector has refused the batch that is next."""

    database: Database
    settings: TraceSettings
    exporter: SpanExporter
    sampler: TraceSampler
    make_spans: Callable[[str], Spans]
    own_id: str
    failing_since: datetime | None = None
    failures: int = 0

    @classmethod
    def begin(cls, database: Database, settings: TraceSettings) -> SpanExport:
        """Set up the exporter as OpenTelemetry's variables say."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra

        from turngate.runtime.traces.spans import Spans, TraceSampler, provider  # noqa: PLC0415 - needs the extra

        # Its lines say the same for every batch, with the URL.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        of_variables = provider()
        sampler, resource = TraceSampler(of_variables.sampler), of_variables.resource
        return cls(
            database=database,
            settings=settings,
            exporter=OTLPSpanExporter(),
            sampler=sampler,
            make_spans=lambda salt: Spans(settings, salt, sampler=sampler, resource=resource),
            own_id=secrets.token_hex(8),
        )

    async def next_pause(self) -> timedelta:
        """Export what is next, and return how long to wait before the following batch."""
        try:
            return await self._export_next()
        except UnavailableError as error:
            logger.warning("traces wait for the store: %s", error)
        except Exception:
            logger.exception("a batch of traces was not exported, and is tried again")
        return self._back_off()

    async def end(self) -> None:
        """Let another process export. Bounded: whatever is not exported yet is in the log."""
        self.exporter.shutdown()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(RELEASE_WITHIN), self.database.write() as conn:
                await traces.release(conn, self.own_id)

    async def _export_next(self) -> timedelta:
        async with self.database.read() as conn:
            place = await traces.export(conn)
            batch = [] if place is None else await events.after(conn, place.last_seq, limit=BATCH)
        if place is None:
            await self._begin()
            return timedelta()
        if not batch or not await self._hold(place):
            return self.settings.every
        async with self.database.read() as conn:
            happened = await traces.happened(conn, batch, with_content=self.settings.with_content)
        if not await self._send(happened, place.salt) and not self._has_given_up(len(batch)):
            return self._back_off()
        if self.failures:
            logger.info("the collector takes traces again")
        self.failures, self.failing_since = 0, None
        async with self.database.write() as conn:
            await traces.move(conn, self.own_id, seen=place.last_seq, last_seq=batch[-1].seq, until=now() + HOLD_FOR)
        return timedelta() if len(batch) == BATCH else self.settings.every

    async def _begin(self) -> None:
        """Begin with what happens from now on."""
        with contextlib.suppress(IntegrityError):  # another process did so at the same moment
            async with self.database.write() as conn:
                await traces.begin(conn, await events.last_seq(conn))

    async def _hold(self, place: traces.Export) -> bool:
        at = now()
        if place.held_by == self.own_id and from_text(place.held_until) > at + SEND_WITHIN:
            return True
        async with self.database.write() as conn:
            return await traces.hold(conn, self.own_id, at=at, until=at + HOLD_FOR)

    async def _send(self, happened: traces.Happened, salt: str) -> bool:
        """Make the spans and send them, in a thread of their own; False if the collector has not taken them."""
        from opentelemetry import context  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        def send() -> bool:
            spans = self.make_spans(salt).of(happened)
            # No span of the request that sends spans, where an app instruments its HTTP library.
            token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: SLF001
            try:
                return not spans or bool(self.exporter.export(spans) is SpanExportResult.SUCCESS)
            finally:
                context.detach(token)

        try:
            async with asyncio.timeout(SEND_WITHIN.total_seconds()):
                return await in_thread(send)
        except TimeoutError:
            return False

    def _back_off(self) -> timedelta:
        if not self.failures:
            self.failing_since = now()
            logger.warning("the collector of traces takes none; they wait in the log, and nothing else waits for them")
        self.failures += 1
        return min(timedelta(seconds=2 ** min(self.failures - 1, 10)), MOST_PAUSE)

    def _has_given_up(self, count: int) -> bool:
        if self.failing_since is None or now() - self.failing_since < GIVE_UP_AFTER:
            return False
        self.failing_since = now()
        logger.warning("the spans of %d events were dropped: the collector refused them for %s", count, GIVE_UP_AFTER)
        return True


async def in_thread(work: Callable[[], T]) -> T:
    """Return what ``work`` returns, from a thread that no shutdown waits for: not the loop's, nor the interpreter's."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(cast("T", result))
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - it is raised where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="export-traces", daemon=True).start()
    return await done
