"""Find Temporal and wait for it, as a worker or an API does before it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from temporalio.client import Client

from turngate.domain.errors import UnavailableError
from turngate.runtime import temporal_client
from turngate.runtime.locations import TEMPORAL_PORT, RunningStack
from turngate.runtime.settings import Settings
from turngate.store.database import Database

WAIT_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.25


def find_address(settings: Settings) -> str | None:
    """Return where Temporal is: TEMPORAL_ADDRESS, else the data directory's own server, else None.

    The address of a server that is down now counts too: it takes the same port when it starts again.
    """
    if settings.temporal_address is not None:
        return settings.temporal_address
    note = RunningStack.read(settings.data_dir)
    if note is not None:
        return note.temporal_address
    try:
        port = int((settings.data_dir / TEMPORAL_PORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return f"127.0.0.1:{port}"


async def connect_when_there(
    settings: Settings,
    notify: Callable[[str], None],
    database: Database | None = None,
    *,
    wait_seconds: float = WAIT_SECONDS,
) -> Client:
    """Connect to Temporal, and wait for it to start. ``notify`` is called once when there is a wait.

    ``database``: opened; its keys encrypt what the client sends, if it is encrypted. None: the client sends no payloads.

    Raises:
        ConfigurationError: waiting would not help (credentials, namespace).
        UnavailableError: Temporal did not start within ``wait_seconds``.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    has_notified = False
    while True:
        address = find_address(settings)
        try:
            if address is not None:
                client = await temporal_client.connect(settings, address)
                return client if database is None else temporal_client.with_keys_of(client, database)
            away = UnavailableError(
                f"TEMPORAL_ADDRESS is not set, and no Temporal has run from {settings.data_dir}: "
                "start `turngate temporal` or `turngate up`, or set TEMPORAL_ADDRESS to HOST:PORT"
            )
        except UnavailableError as error:
            away = error
        if loop.time() > deadline:
            raise UnavailableError(f"waited {wait_seconds:g} s for Temporal: {away.message}")
        if not has_notified:
            where = f"at {address}" if address else f"to start from {settings.data_dir}"
            notify(f"waiting up to {wait_seconds:g} s for Temporal {where} …")
            has_notified = True
        await asyncio.sleep(PAUSE_SECONDS)
