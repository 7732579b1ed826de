"""A process that serves the metrics of a disk. Run by tests: ``small_disk.py DIRECTORY``; prints its port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from turngate.cli.api_server import listen
from turngate.cli.parts.metrics import read_disk
from turngate.runtime.metrics.port import MetricsPort
from turngate.runtime.metrics.scraped import Metric, Scraped


async def serve(directory: Path) -> None:
    async def read() -> Sequence[Metric]:
        return await read_disk(directory)

    registry = CollectorRegistry()
    registry.register(Scraped(asyncio.get_running_loop(), read))
    listener = listen("127.0.0.1", 0)
    with MetricsPort(listener, lambda: generate_latest(registry)):
        print(listener.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
