"""SIGTERM ends the server although a client watches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from support.api.api_server import token_for
from support.programs.terminal_process import Background

from turngate.runtime import embedded_temporal
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.store.database import Database


async def test_sigterm_ends_the_server_with_streams_open(
    temporal: EmbeddedTemporal, sqlite: Database, tmp_path: Path
) -> None:
    """At SIGTERM an event stream ends in order, at once, and the process after it, with nothing to complain about."""
    port = embedded_temporal.choose_port()
    headers = await token_for(sqlite, "watcher", "requests:read")
    where = {"TURNGATE_DATABASE_URL": sqlite.url, "TURNGATE_TEMPORAL_ADDRESS": temporal.address}
    server = Background("api", "--port", str(port), "--data-dir", str(tmp_path), cwd=tmp_path, **where)
    await asyncio.to_thread(server.wait_for, "API serves")
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client,
        client.stream("GET", "/api/v1/events", timeout=60) as response,
    ):
        assert response.status_code == 200
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        async for _line in response.aiter_lines():
            pass  # a connection that is cut instead raises
        code, output = await stopping
    assert code == 0, output
    assert "ERROR" not in output, output
    assert "Traceback" not in output, output
