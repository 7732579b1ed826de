"""``turngate codec-server`` with Temporal's own command line and web pages: they read what only they may read."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from support.api.api_server import token_for
from support.engine.stack import ListModel, stack
from support.programs.terminal_process import Background
from support.stores.encryption import encrypted
from temporalio.client import Client

from turngate.cli.api_server import ApiServer, listen
from turngate.cli.commands.serve.codec_server import Door, create_codec_app
from turngate.domain.errors import ModelError
from turngate.runtime.embedded_temporal import EmbeddedTemporal, choose_port, temporal_binary
from turngate.runtime.temporal_client import codec_of, data_converter
from turngate.store.database import Database

pytestmark = pytest.mark.exhaustive  # tests/unit/cli/test_codec_server.py covers the protocol

PLANTED = "Ximena-4711"


@dataclass(frozen=True)
class Scene:
    """A run of an encrypted store that failed with a planted word, Temporal with its pages, and the codec server."""

    run_id: str
    temporal: EmbeddedTemporal
    codec_url: str

    async def show(self, *more: str) -> str:
        """What Temporal's command line prints of the run."""
        words = [
            "workflow",
            "show",
            "--address",
            self.temporal.address,
            "--workflow-id",
            self.run_id,
            "--output",
            "json",
        ]
        process = await asyncio.create_subprocess_exec(
            str(temporal_binary()), *words, *more, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, error = await process.communicate()
        return (out + error).decode()


@pytest.fixture
async def scene(sqlite: Database, tmp_path: Path) -> AsyncIterator[Scene]:
    port = choose_port()
    await encrypted(sqlite)
    async with EmbeddedTemporal(tmp_path / "temporal", ui=True, lasting=False) as temporal:
        client = await Client.connect(temporal.address, data_converter=data_converter())
        error = ModelError(f"the prompt about {PLANTED} is too long", error_class="context_length", retryable=False)
        async with stack(client, sqlite, model=ListModel(error)) as engine:
            run = await engine.start(f"Write about {PLANTED}.")
            assert (await engine.ended(run)).status == "failed"
            await engine.closed(run)
        environment = {
            "TURNGATE_DATABASE_URL": sqlite.url,
            "TURNGATE_DATA_DIR": str(tmp_path / "data"),
            "TURNGATE_KEY": os.environ["OWN_KEY_OF_TESTS"],
        }
        words = ("codec-server", "--port", str(port), "--origin", temporal.ui_url or "")
        server = Background(*words, cwd=tmp_path, **environment)
        try:
            server.wait_for(str(port))
            yield Scene(run.id, temporal, f"http://127.0.0.1:{port}")
        finally:
            server.stop()


def decoded(history: str) -> str:
    """A history as Temporal's command line prints it, with each payload's text in place of its base64."""
    payloads = re.findall(r'"data": "([A-Za-z0-9+/=]+)"', history)
    return history + "".join(base64.b64decode(each).decode(errors="replace") for each in payloads)


async def test_temporals_command_line_reads_a_failure(scene: Scene) -> None:
    """It asks the codec server for each payload; without it, no one reads a word."""
    plain = decoded(await scene.show())
    assert base64.b64encode(b"binary/encrypted").decode() in plain
    assert PLANTED not in plain
    read = decoded(await scene.show("--codec-endpoint", scene.codec_url))
    assert f"the prompt about {PLANTED} is too long" in read


@asynccontextmanager
async def for_admins(sqlite: Database) -> AsyncIterator[str]:
    """A codec server as it is beyond loopback: it answers to admins' tokens only."""
    codec = codec_of(sqlite)
    assert codec is not None
    listener = listen("127.0.0.1", choose_port())
    server = ApiServer(create_codec_app(codec, Door(origin=None, database=sqlite)), listener)
    await server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.stop()


async def test_temporals_command_line_sends_its_token(scene: Scene, sqlite: Database) -> None:
    """An admin's token reads. With an agent's, Temporal asks again until its time is over."""
    agents = (await token_for(sqlite, "agent", "runs:write"))["Authorization"]
    admins = (await token_for(sqlite, "admin", "admin"))["Authorization"]
    async with for_admins(sqlite) as url:
        refused = decoded(await scene.show("--codec-endpoint", url, "--codec-auth", agents, "--command-timeout", "2s"))
        assert PLANTED not in refused
        assert "context deadline exceeded" in refused  # all that Temporal says of an answer that is none
        assert PLANTED in decoded(await scene.show("--codec-endpoint", url, "--codec-auth", admins))


async def test_temporals_pages_read_a_failure(scene: Scene, browser: Browser) -> None:
    """A person sets the codec server's address with the glasses, loads the page again, and reads words.

    The browser asks before it sends (CORS). A page of another origin asks in vain.
    """
    context = await browser.new_context(viewport={"width": 1400, "height": 1000})
    page = await context.new_page()
    await page.goto(f"{scene.temporal.ui_url}/namespaces/default/workflows/{scene.run_id}")
    await expect(page.get_by_text("Encoded failure").first).to_be_visible()
    await page.get_by_test_id("data-encoder-status").click()
    await page.get_by_test_id("use-local-endpoint-input").check()
    await page.get_by_test_id("data-encoder-endpoint-input").fill(scene.codec_url)
    await page.get_by_test_id("confirm-modal-button").first.click()
    await expect(page.get_by_test_id("data-encoder-endpoint-input")).to_be_hidden()
    await page.reload()  # what the page has already shown stays as it is
    await expect(page.get_by_text(f"the prompt about {PLANTED} is too long").first).to_be_visible()
    other = await context.new_page()
    await other.goto((scene.temporal.ui_url or "").replace("127.0.0.1", "localhost"))
    answer = await other.evaluate(
        """async (url) => {
            const init = {method: "POST", headers: {"content-type": "application/json"}, body: '{"payloads": []}'}
            try { return (await fetch(url + "/decode", init)).status } catch (error) { return String(error) }
        }""",
        scene.codec_url,
    )
    assert answer == "TypeError: Failed to fetch"
    await context.close()
