"""Programs that follow runs on a connection that carries nothing any more, and that no one closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import Api
from support.api.frontend_app import inside, owner_token
from support.engine.stack import until
from support.programs.editor import desk_on, the_run
from support.programs.tui_person import person_at
from support.servers.black_hole import black_hole
from typer import Exit

from turngate.cli.api_link import ApiLink
from turngate.cli.follow.run import Follower, Output
from turngate.client import SyncTurngateClient, TurngateClient
from turngate.frontends.acp.agent import serve_acp
from turngate.text.link_words import CONNECTED_AGAIN
from turngate.wire.events import EventView

SILENCE = httpx.Timeout(15.0, read=3.0)
"""Ten heartbeats of the server under test, which sends one each 0.3 seconds."""


@dataclass(frozen=True, kw_only=True)
class Link(ApiLink):
    """An API's address whose clients have a ``patience``."""

    patience: dict[str, Any]

    def client(self) -> SyncTurngateClient:
        return SyncTurngateClient(self.url, token=self.token, **self.patience)


@pytest.mark.parametrize("patience", [{"timeout": SILENCE, "stream_timeout": SILENCE}, {}], ids=["short", "as it is"])
async def test_every_stream_notices_that_it_is_dead(
    driven_api: Api, tmp_path: Path, capfd: pytest.CaptureFixture[str], patience: dict[str, Any]
) -> None:
    """When several heartbeats are missed the client, command line, terminal UI and editor say so, reconnect and miss nothing."""
    token = await owner_token(driven_api)
    links: list[bool] = []
    seen: list[str] = []

    async def watch(client: TurngateClient, run_id: str) -> None:
        async for event in client.follow_events(on_link=links.append):
            if isinstance(event, EventView) and event.run_id == run_id:
                seen.append(event.type)
                if event.type == "run.ended":
                    return

    async with (
        black_hole(driven_api.url) as hole,
        TurngateClient(hole.url, token=token, **patience) as client,
        person_at(driven_api, url=hole.url, **patience) as person,
        inside(
            driven_api,
            token,
            partial(serve_acp, agent="agent", model=None, sessions=tmp_path),
            url=hole.url,
            **patience,
        ) as (reader, writer, _served),
        desk_on(reader, writer, tmp_path) as desk,
    ):
        await desk.fresh(held=True)
        prompted = asyncio.create_task(desk.prompt("pay 8181"))
        await desk.question()
        request = await driven_api.request(await the_run(driven_api))
        await person.sees("(8181 cents)")
        link = Link(url=hole.url, token=token, data_dir=None, url_is_option=True, patience=patience)
        follower = Follower(link, link.client(), Output.STORY, stream=False)
        commanded = asyncio.create_task(asyncio.to_thread(follower.follow, request["run_id"]))
        watching = asyncio.create_task(watch(client, request["run_id"]))
        output: list[str] = []

        async def all_follow() -> bool:
            output.append(capfd.readouterr().out)
            return request["id"] in "".join(output) and links == [True]

        await until(all_follow, "a command and a client that follow")
        hole.swallow()
        hole.release()
        assert (await driven_api.decide(request, "reject", message="no")).status_code == 200
        async with asyncio.timeout(60):
            assert await prompted == "end_turn"
            with pytest.raises(Exit):
                await commanded
            await watching
            await person.until(lambda: "(8181 cents)" not in person.screen, "request gone")
    assert links == [True, False, True]
    assert seen.count("request.decided") == 1
    for words in (desk.editor.text_of("agent_thought_chunk"), capfd.readouterr().err):
        assert "Not connected since" in words
        assert CONNECTED_AGAIN in words
