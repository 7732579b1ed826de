"""What a scraper gets from a process's metrics port, read by Prometheus' own parser."""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from prometheus_client.parser import text_string_to_metric_families
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.cli.api_server import listen
from turngate.cli.parts.metrics import Watched, serving_metrics
from turngate.runtime.settings import Settings
from turngate.runtime.temporal_client import data_converter, metered_runtime
from turngate.store.database import Database

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Scrape:
    """One scrape. ``samples``: (name, labels) → value."""

    text: str
    samples: Mapping[tuple[str, Labels], float]

    @classmethod
    def of(cls, text: str) -> Scrape:
        samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in samples, f"the same series twice: {key}"
                samples[key] = sample.value
        return cls(text, samples)

    @property
    def names(self) -> set[str]:
        return {name for name, _labels in self.samples}

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series of this name that have these labels."""
        wanted = set(labels.items())
        return sum(value for (each, has), value in self.samples.items() if each == name and wanted <= has)

    def moved(self, after: Scrape) -> set[str]:
        """Return the names whose series differ afterwards."""
        keys = {key for key in {*self.samples, *after.samples} if self.samples.get(key) != after.samples.get(key)}
        return {name for name, _labels in keys}

    def series(self, instance: str = "test:1") -> dict[str, float]:
        """Each series as PromQL writes it, with the labels that Prometheus adds → its value."""
        added = {"instance": instance, "job": "turngate"}
        return {_series(name, {**dict(has), **added}): value for (name, has), value in self.samples.items()}


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    """Return status and body of a ``GET``."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        return answer.status, answer.read().decode()


@dataclass
class Port:
    number: int

    async def scrape(self) -> Scrape:
        """Scrape from a thread: the event loop has to answer meanwhile, as it does for Prometheus."""
        _status, text = await anyio.to_thread.run_sync(get, self.number)
        return Scrape.of(text)


@asynccontextmanager
async def metered(client: Client, database: Database, **watched: Any) -> AsyncIterator[tuple[Client, Port]]:
    """Serve metrics as a process with API and worker does. Yields a client whose SDK is counted, too, and the port."""
    runtime, _sdk = metered_runtime()
    own = await Client.connect(
        client.service_client.config.target_host, runtime=runtime, data_converter=data_converter()
    )
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    watch = Watched(database=database, temporal=Gateway(own), **watched)
    async with serving_metrics(listener, database, Settings(metrics_port=1), watched=watch):
        yield own, Port(port)
