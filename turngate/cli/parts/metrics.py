"""Metrics as a part of a process: what it counts, what it reads when someone scrapes, and the port where it shows both."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.task_queues import QueueLook
from turngate.cli.api_server import listen
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.tools.external import is_external
from turngate.http_environment import is_loopback
from turngate.notifications.configuration import Channel
from turngate.runtime.settings import Settings
from turngate.runtime.temporal_client import metered_runtime
from turngate.store import agents
from turngate.store.clock import now
from turngate.store.database import Database

if TYPE_CHECKING:
    from prometheus_client.core import Metric

QUEUES_LOOKED_AT: Final = 20
LAST_PORT: Final = 65_535
TEMPORAL_ANSWERS_IN: Final = timedelta(seconds=2)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What an API reads for a scraper, of all processes alike. ``channels``: of notifications. ``disk``: of the store.

    ``retention_every``: how often the retention rules are to be applied; None: not by themselves. ``since``: when this began.
    """

    database: Database
    temporal: Gateway
    channels: Sequence[str] = ()
    disk: Path | None = None
    retention_every: timedelta | None = None
    since: datetime = field(default_factory=now)


def watched_by_api(settings: Settings, client: Client, database: Database, channels: Sequence[Channel] = ()) -> Watched:
    """Return what an API with these settings watches."""
    return Watched(
        database=database,
        temporal=Gateway(client),
        channels=[each.name for each in channels],
        disk=next((file.parent for file in settings.database_files), None),
        retention_every=timedelta(seconds=settings.retention_every_seconds) if settings.retention else None,
    )


def metrics_listener(settings: Settings, *, after: int = 0) -> socket.socket | None:
    """Take the port of the metrics; None: there is none. Raises ConfigurationError when it can't be used.

    ``after``: how many ports after that of the settings: a program that starts another one takes the next port for it.
    """
    if settings.metrics_port is None:
        return None
    port = settings.metrics_port + after
    if port > LAST_PORT:
        raise ConfigurationError(
            f"metrics need {after + 1} ports from {settings.metrics_port}: take a lower one with --metrics-port PORT"
        )
    return listen(settings.metrics_host, port, option="--metrics-port", host_setting="TURNGATE_METRICS_HOST")


@asynccontextmanager
async def serving_metrics(
    listener: socket.socket | None,
    database: Database,
    settings: Settings,
    *,
    watched: Watched | None = None,
) -> AsyncIterator[None]:
    """Count what this process does while the block runs, and show it on ``listener``; None: nothing counts.

    ``watched``: None: this process shows its own numbers only.
    """
    if listener is None:
        yield
        return
    # Nothing of it is loaded in a process without metrics.
    from turngate.runtime.metrics.counted import Counted  # noqa: PLC0415
    from turngate.runtime.metrics.port import LOOPBACK, MetricsPort, read_sdk  # noqa: PLC0415
    from turngate.runtime.metrics.scraped import Scraped  # noqa: PLC0415

    counted, sdk_port = Counted(), metered_runtime()[1]

    async def read() -> Sequence[Metric]:
        return [] if watched is None else await read_watched(watched)

    counted.registry.register(Scraped(asyncio.get_running_loop(), read))

    def render() -> bytes:
        return counted.text() + read_sdk(sdk_port)

    database.meter = counted
    try:
        with MetricsPort(listener, render, names=LOOPBACK if is_loopback(settings.metrics_host) else None):
            yield
    finally:
        database.meter = None


async def read_watched(watched: Watched) -> list[Metric]:
    """Return what the store, Temporal and the disk show. What is away is missing, and its ``…_up`` is 0."""
    from turngate.runtime.metrics.scraped import gauge, read_store  # noqa: PLC0415

    store, temporal = await asyncio.gather(
        read_store(watched.database, watched.channels, retention=(watched.retention_every, watched.since)),
        watched.temporal.ready(TEMPORAL_ANSWERS_IN),
    )
    metrics = [*store, gauge("turngate_temporal_up", "Whether Temporal answers.", {(): float(temporal)})]
    if temporal:
        metrics += await _queues(watched)
    if watched.disk is not None:
        metrics += await read_disk(watched.disk)
    return metrics


async def read_disk(directory: Path) -> list[Metric]:
    """Return how much room there is; nothing when that can't be read."""
    from turngate.runtime.metrics.scraped import gauge  # noqa: PLC0415

    try:
        free = (await asyncio.to_thread(shutil.disk_usage, directory)).free
    except OSError:
        return []
    return [gauge("turngate_disk_free_bytes", "Free room where the store is.", {(): float(free)})]


async def _queues(watched: Watched) -> list[Metric]:
    from turngate.runtime.metrics.scraped import gauge  # noqa: PLC0415

    looks: dict[str, QueueLook] = {}
    with suppress(UnavailableError, TimeoutError):
        async with asyncio.timeout(TEMPORAL_ANSWERS_IN.total_seconds()):
            async with watched.database.glance() as conn:
                published = [each for each in await agents.current(conn) if not is_external(each.name)]
            names = sorted({each.task_queue for each in published})[:QUEUES_LOOKED_AT]
            looks = dict(
                zip(names, await asyncio.gather(*(watched.temporal.look_at_queue(name) for name in names)), strict=True)
            )
    at = now()
    workers = {
        (name,): float(len({each.identity for each in look.pollers if each.is_there(at)}))
        for name, look in looks.items()
    }
    waiting = {(name,): look.waiting / timedelta(seconds=1) for name, look in looks.items()}
    return [
        gauge(
            "turngate_task_queue_workers",
            "Workers that polled the queue within the last 70 seconds.",
            workers,
            ("task_queue",),
        ),
        gauge(
            "turngate_task_queue_oldest_task_seconds",
            "How long the oldest task has waited for a worker; 0: none waits.",
            waiting,
            ("task_queue",),
        ),
    ]
