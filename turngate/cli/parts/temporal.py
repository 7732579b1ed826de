"""The embedded Temporal server as a part of the stack, or alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from turngate.cli.parts.stop import bounded
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.settings import Settings

TEMPORAL_STOP_SECONDS: Final = 1.5
"""An orderly stop takes 1.1 s. A killed server loses nothing, so there is no point in waiting longer."""


@asynccontextmanager
async def embedded_temporal(
    settings: Settings, port: int | None, *, ui: bool, kill: bool = False
) -> AsyncIterator[EmbeddedTemporal]:
    """Run the embedded Temporal server from the data directory. ``kill``: without an orderly stop at the end."""
    server = EmbeddedTemporal(settings.data_dir, port, ui=ui, workspaces=settings.workspaces or ())
    await server.start()
    try:
        yield server
    finally:
        await bounded(
            server.stop(kill=kill),
            TEMPORAL_STOP_SECONDS,
            "Temporal was killed, which loses nothing, because it did not stop",
        )
