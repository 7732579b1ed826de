"""SIGTERM ends the server although a client watches."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from pathlib import Path

import httpx
from support.api_server import token_for

from turngate.runtime import embedded_temporal
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.store.database import Database

PROGRAM = textwrap.dedent("""
    import asyncio, sys, uvicorn
    from temporalio.client import Client
    from turngate.approvals_api.app import create_api_app
    from turngate.approvals_api.gateway.client import Gateway
    from turngate.approvals_api.settings import ApiSettings
    from turngate.store.database import Database

    async def main(url, address, port):
        client = await Client.connect(address, lazy=True)
        app = create_api_app(database=Database(url), gateway=Gateway(client), settings=ApiSettings())
        await uvicorn.Server(uvicorn.Config(app, port=int(port), log_level="warning")).serve()

    asyncio.run(main(*sys.argv[1:]))
""")


async def test_sigterm_ends_the_server_with_streams_open(temporal: EmbeddedTemporal, sqlite: Database) -> None:
    """The process is gone within 5 s of SIGTERM, with an SSE client connected; the client sees the stream end."""
    port = embedded_temporal.choose_port()
    headers = await token_for(sqlite, "watcher", "requests:read")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, sqlite.url, temporal.address, str(port),
        cwd=Path(__file__).parents[2], stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client:
            async with asyncio.timeout(60):
                while True:
                    try:
                        assert (await client.get("/livez")).status_code == 200
                        break
                    except httpx.TransportError:
                        await asyncio.sleep(0.05)
            async with client.stream("GET", "/api/v1/events") as response:
                assert response.status_code == 200
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(5):
                    async for _line in response.aiter_lines():
                        pass
                    await process.wait()
        assert process.returncode in {0, -signal.SIGTERM}
        assert process.stderr is not None
        assert await process.stderr.read() == b"", "the server had something to complain about"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
