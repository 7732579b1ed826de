"""What is read when someone scrapes: numbers of the store and of Temporal, at most every few seconds, however many scrapers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from turngate.domain.errors import UnavailableError
from turngate.runtime.metrics.labels import NAME, OTHER
from turngate.store.clock import from_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import deliveries
from turngate.store.live import gauges
from turngate.store.retention import erasures, retention_runs

FRESH_SECONDS: Final = 5.0
"""How long numbers are used again. Prometheus asks every 15 s or so."""
READ_SECONDS: Final = 3.0
"""How long a scraper waits for the event loop, and for what it reads."""
MOST_TOOLS: Final = 50
"""With requests that wait, by their number; the others are one series."""
RETENTION_RUNS: Final = 20
"""Looked at for the last one that did all it had to."""
FAILED_WITHIN: Final = timedelta(hours=24)

Key = TypeVar("Key", bound=tuple[str, ...])
Read = Callable[[], Awaitable[Sequence[Metric]]]


class Scraped:
    """A collector for a registry whose metrics are read on the event loop, while a thread answers a scraper.

    ``turngate_event_loop_delay_seconds`` says how long the loop took to begin. If it doesn't answer in time, the other
    metrics are missing, and that one grows.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, read: Read) -> None:
        self._loop, self._read = loop, read
        self._one_at_a_time = threading.Lock()
        self._pending: tuple[float, Future[_Answer]] | None = None
        self._metrics: Sequence[Metric] = ()
        self._fresh_until = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return nothing: a registry would otherwise read everything as soon as this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, read now or some seconds ago. Callable from any thread but the loop's own."""
        with self._one_at_a_time:
            if time.monotonic() >= self._fresh_until:
                self._metrics = self._ask()
            return self._metrics

    def _ask(self) -> Sequence[Metric]:
        if self._pending is None:
            self._pending = time.monotonic(), asyncio.run_coroutine_threadsafe(self._answer(), self._loop)
        since, answer = self._pending
        try:
            read = answer.result(timeout=READ_SECONDS + 1)
        except NotInTimeError:
            return [_delay(time.monotonic() - since)]
        except Exception:
            self._pending = None
            raise
        self._pending, self._fresh_until = None, time.monotonic() + FRESH_SECONDS
        return [_delay(read.began_at - since), *read.metrics]

    async def _answer(self) -> _Answer:
        return _Answer(time.monotonic(), await self._read())


@dataclass(frozen=True)
class _Answer:
    began_at: float
    metrics: Sequence[Metric]


def _delay(seconds: float) -> Metric:
    return gauge(
        "turngate_event_loop_delay_seconds",
        "How long the event loop of this process took to begin with something, at the latest scrape.",
        {(): max(0.0, seconds)},
    )


def gauge(name: str, says: str, values: Mapping[Key, float], labels: Sequence[str] = ()) -> Metric:
    """Return a gauge. ``values``: the labels' values → the number; of those that are no names, the largest counts."""
    named: dict[tuple[str, ...], float] = {}
    for of_labels, value in values.items():
        key = tuple(each if NAME.fullmatch(each) else OTHER for each in of_labels)
        named[key] = max(value, named.get(key, value))
    family = GaugeMetricFamily(name, says, labels=labels)
    for key, value in named.items():
        family.add_metric(key, value)
    return family


async def read_store(
    database: Database, channels: Collection[str] = (), *, retention: tuple[timedelta | None, datetime]
) -> list[Metric]:
    """Return what the store shows.

    ``channels``: those that are in use; what others have read up to doesn't count. ``retention``: how often its rules are to be
    applied, None: not by themselves; and since when anyone looks.
    """
    try:
        async with asyncio.timeout(READ_SECONDS), database.glance() as conn:
            at = now()
            metrics = [
                *_requests(await gauges.pending_requests(conn, at), at),
                *_runs(await gauges.live_runs(conn), at),
                *await _outbox(conn, at, channels),
                *await _retention(conn, at, *retention),
            ]
    except (UnavailableError, TimeoutError):
        return [_store_up(answers=False)]
    return [_store_up(answers=True), *metrics]


def _store_up(*, answers: bool) -> Metric:
    return gauge("turngate_store_up", "Whether the store answers.", {(): float(answers)})


def _requests(groups: Sequence[gauges.PendingRequests], at: datetime) -> Iterable[Metric]:
    by_tool: dict[str, int] = {}
    for each in groups:
        by_tool[each.tool] = by_tool.get(each.tool, 0) + each.count
    named = set(sorted(by_tool, key=lambda tool: -by_tool[tool])[:MOST_TOOLS])
    counts: dict[tuple[str, ...], float] = {}
    oldest: dict[tuple[str, ...], float] = {(kind,): 0.0 for kind in ("approval", "question", "outcome")}
    for each in groups:
        tool = each.tool if each.tool in named and NAME.fullmatch(each.tool) else OTHER
        key = (each.kind, tool, each.risk, each.age)
        counts[key] = counts.get(key, 0) + each.count
        oldest[(each.kind,)] = max(oldest.get((each.kind,), 0.0), _seconds(at, each.oldest_at))
    yield gauge(
        "turngate_requests_pending",
        "Requests that wait for a person, by the age that they have not reached.",
        counts,
        ("kind", "tool", "risk", "age"),
    )
    yield gauge(
        "turngate_requests_oldest_pending_seconds", "Age of the oldest request that waits; 0: none.", oldest, ("kind",)
    )


def _runs(groups: Sequence[gauges.LiveRuns], at: datetime) -> Iterable[Metric]:
    counts: dict[tuple[str, ...], float] = dict.fromkeys(((each,) for each in gauges.CAUSES), 0.0)
    silent = dict(counts)
    for each in groups:
        counts[(each.waits_for,)], silent[(each.waits_for,)] = each.count, _seconds(at, each.silent_since)
    yield gauge("turngate_runs_live", "Runs that have not ended, by what they wait for.", counts, ("waits_for",))
    yield gauge(
        "turngate_runs_longest_silence_seconds",
        "Time since the last event of the live run that has been silent the longest; 0: no such run.",
        silent,
        ("waits_for",),
    )


async def _outbox(conn: Connection, at: datetime, channels: Collection[str]) -> list[Metric]:
    backlogs = {each.channel: each for each in await deliveries.backlogs(conn, failed_since=at - FAILED_WITHIN)}
    newest, read_to = await gauges.newest_event(conn), await gauges.cursors(conn)
    names = [*channels, *backlogs][: gauges.MOST_CHANNELS]
    none = deliveries.Backlog(channel="", retried=0, failed=0, oldest_at=None, due_since=None)
    by_name = {name: backlogs.get(name, none) for name in names}
    by = ("channel",)
    retried = {(name,): float(each.retried) for name, each in by_name.items()}
    failed = {(name,): float(each.failed) for name, each in by_name.items()}
    oldest = {(name,): _seconds(at, each.oldest_at) for name, each in by_name.items()}
    due = {(name,): _seconds(at, each.due_since) for name, each in by_name.items()}
    unread = {(name,): float(newest - seq) for name, seq in read_to.items() if name in channels}
    return [
        gauge("turngate_events_stored", "Events in the log, which only grows.", {(): float(newest)}),
        gauge("turngate_outbox_retrying", "Messages that were tried in vain and will be tried again.", retried, by),
        gauge("turngate_outbox_failed", "Messages of the last 24 hours that were given up.", failed, by),
        gauge(
            "turngate_outbox_oldest_seconds", "Age of the oldest message that is not delivered; 0: none.", oldest, by
        ),
        gauge("turngate_outbox_due_seconds", "How long a message has been due without being sent; 0: none.", due, by),
        gauge("turngate_outbox_unread_events", "Events that the channel has not read yet.", unread, by),
    ]


async def _retention(conn: Connection, at: datetime, every: timedelta | None, since: datetime) -> list[Metric]:
    newest = await retention_runs.newest(conn, limit=RETENTION_RUNS)
    good = next((each for each in newest if each.ended_at is not None and not each.problem), None)
    late = timedelta()
    if every:
        late = at - (since if good is None else from_text(good.started_at) + every)
    holds, oldest = await erasures.count_holds(conn)
    erased = {} if good is None else {(name,): float(many) for name, many in good.counted.items()}
    return [
        gauge(
            "turngate_retention_late_seconds",
            "How long the retention rules have been due without being applied as a whole; 0: they are not, or never are.",
            {(): max(0.0, late / timedelta(seconds=1))},
        ),
        gauge("turngate_retention_erased", "What each retention rule erased the last time.", erased, ("rule",)),
        gauge("turngate_legal_holds", "Legal holds that keep content.", {(): float(holds)}),
        gauge(
            "turngate_legal_holds_oldest_seconds",
            "How long the oldest legal hold has kept content; 0: there is none.",
            {(): _seconds(at, oldest)},
        ),
    ]


def _seconds(at: datetime, since: str | None) -> float:
    return 0.0 if since is None else max(0.0, (at - from_text(since)) / timedelta(seconds=1))
