"""Progress in the streams: beside the durable sequence, live, stored for late watchers, with sub-agents' runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from httpx_sse import ServerSentEvent
from pydantic import BaseModel
from support.api.api_server import Api, api_on, serving, token_for
from support.api.sse_client import watching
from support.engine.stack import call, says, stack, until
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.api_link import ApiLink
from turngate.cli.follow.run import RunAsJson, Watch
from turngate.client import SyncTurngateClient
from turngate.domain.conversation.messages import ModelResponse
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.live import progress
from turngate.store.tables import runs as runs_table

HOSTILE = "\x1b[2Kall good\u202e\nsecond"


class Who(BaseModel):
    who: str


class Obedient:
    """Calls ``talk`` with what the user says, then ends."""

    name = "scripted:test"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        return says(call("talk", json.dumps({"who": last.text}), "c1")) if last.role == "user" else says("Done.")

    async def aclose(self) -> None:
        return None


@dataclass
class Talk:
    """An API whose agent's tool says what the test queues. ``say[who]``: None ends the call."""

    api: Api
    say: dict[str, asyncio.Queue[Any]] = field(default_factory=dict)

    async def start(self, who: str) -> str:
        self.say[who] = asyncio.Queue()
        return str((await self.api.start(who))["id"])

    async def stored(self, run_id: str, count: int) -> list[progress.Progress]:
        """The run's stored progress, once there is this much."""

        async def look() -> list[progress.Progress] | None:
            async with self.api.stack.database.read() as conn:
                rows = await progress.after(conn, 0, finished_from=0, run_ids=[run_id])
            return rows if len(rows) >= count else None

        return await until(look, f"{count} rows of progress")

    async def adopt(self, child: str, parent: str) -> None:
        """Make one run the other's sub-agent's, as far as watchers can see."""
        await self.api.stack.change(runs_table, {"id": child}, parent_run_id=parent, path="agent/helper")


@pytest.fixture
async def talk(client: Client, sqlite: Database) -> AsyncIterator[Talk]:
    say: dict[str, asyncio.Queue[Any]] = {}

    @tool(effect="read", ask=False, name="talk")
    async def talking(params: Who, ctx: ToolContext) -> str:
        """Say what the test queues."""
        while (word := await say[params.who].get()) is not None:
            ctx.emit(word)
        return "said it all"

    async with (
        stack(client, sqlite, talking, model=Obedient()) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield Talk(api, say)
        for queue in say.values():
            queue.put_nowait(None)


async def up_to(stream: AsyncIterator[ServerSentEvent], kind: str, payload: object = ...) -> list[ServerSentEvent]:
    """The events up to the first one with this name (and payload)."""
    collected = []
    async for sent in stream:
        collected.append(sent)
        if sent.event == kind and (payload is ... or json.loads(sent.data)["payload"] == payload):
            break
    return collected


def progress_of(collected: list[ServerSentEvent]) -> list[object]:
    return [json.loads(sent.data)["payload"] for sent in collected if sent.event == "progress"]


async def test_progress_has_no_id_and_leaves_the_sequence_alone(talk: Talk) -> None:
    """Live, as ``event: progress``, between events whose ids and order are the same as without it."""
    run_id = await talk.start("x")
    async with watching(talk.api, f"/api/v1/runs/{run_id}/events") as stream:
        story = await up_to(stream, "execution.started")
        talk.say["x"].put_nowait("live")
        story += await up_to(stream, "progress")
        talk.say["x"].put_nowait({"done": 1, "of": 2})
        talk.say["x"].put_nowait(None)
        story += await up_to(stream, "never")
    progress_events = [sent for sent in story if sent.event == "progress"]
    # httpx-sse, like a browser, continues to report the last id that it saw, which progress must not change.
    at = story.index(progress_events[0])
    assert progress_events[0].id == story[at - 1].id
    assert json.loads(progress_events[0].data) == {
        "type": "call.progress",
        "run_id": run_id,
        "tool_call_id": "c1",
        "n": 1,
        "payload": "live",
        "dropped": 0,
        "created_at": json.loads(progress_events[0].data)["created_at"],
    }
    assert progress_of(story) == ["live", {"done": 1, "of": 2}]
    assert [sent.event for sent in story[at:]][:3] == ["progress", "progress", "execution.finished"]
    durable = [json.loads(sent.data) for sent in story if sent.event not in {"progress", "delta"}]
    assert [event["run_seq"] for event in durable] == list(range(1, len(durable) + 1))
    assert durable[-1]["type"] == "run.ended"


async def test_a_late_or_returning_watcher_gets_what_is_stored(talk: Talk) -> None:
    """While the call runs, stored progress is sent once per connection; after its end it is not sent at all."""
    run_id = await talk.start("x")
    for word in ("one", "two"):
        talk.say["x"].put_nowait(word)
    await talk.stored(run_id, 2)
    path = f"/api/v1/runs/{run_id}/events"
    async with watching(talk.api, path) as stream:
        late = await up_to(stream, "progress", "two")
    assert progress_of(late) == ["one", "two"]
    seen = max(int(sent.id) for sent in late)
    async with watching(talk.api, path, **{"Last-Event-ID": str(seen)}) as stream:
        again = await up_to(stream, "progress", "two")
        talk.say["x"].put_nowait("three")
        again += await up_to(stream, "progress")
    assert progress_of(again) == ["one", "two", "three"]
    assert [sent.event for sent in again] == ["progress"] * 3
    assert [json.loads(sent.data)["n"] for sent in again] == [1, 2, 3]
    talk.say["x"].put_nowait(None)
    async with watching(talk.api, path, **{"Last-Event-ID": str(seen)}) as stream:
        rest = await up_to(stream, "run.ended")
    assert progress_of(rest) in ([], ["one", "two", "three"])  # whether it had ended when we came
    async with watching(talk.api, path) as stream:
        whole = await up_to(stream, "run.ended")
    assert progress_of(whole) == []


async def test_the_stream_of_everything_may_choose_whose_progress(talk: Talk) -> None:
    """By default everyone's; one run's by its id; or none at all, while events continue."""
    first, second = await talk.start("x"), await talk.start("y")
    for who, run_id in (("x", first), ("y", second)):
        talk.say[who].put_nowait(who)
        await talk.stored(run_id, 1)
    async with (
        watching(talk.api, "/api/v1/events") as all_of_it,
        watching(talk.api, f"/api/v1/events?progress={second}") as one,
        watching(talk.api, "/api/v1/events?progress=none") as none,
    ):
        assert progress_of(await up_to(all_of_it, "progress", "y")) == ["x", "y"]
        for who in ("x", "y"):
            talk.say[who].put_nowait(f"{who} again")
            talk.say[who].put_nowait(None)
            await up_to(all_of_it, "run.ended")
        collected = await up_to(one, "run.ended") + await up_to(one, "run.ended")
        assert progress_of(collected) == ["y", "y again"]
        quiet = await up_to(none, "run.ended") + await up_to(none, "run.ended")
        assert progress_of(quiet) == []
        assert [sent.event for sent in quiet] == [sent.event for sent in collected if sent.event != "progress"]


async def test_a_run_is_watched_with_its_sub_agents_runs(talk: Talk) -> None:
    """A child that starts while one watches is included, each event under its own run; the parent's end ends the stream."""
    parent = await talk.start("parent")
    async with watching(talk.api, f"/api/v1/runs/{parent}/events") as stream:
        story = await up_to(stream, "execution.started")
        child = await talk.start("child")
        await talk.adopt(child, parent)
        talk.say["child"].put_nowait("from below")
        story += await up_to(stream, "progress", "from below")
        talk.say["child"].put_nowait(None)
        story += await up_to(stream, "run.ended")
        assert json.loads(story[-1].data)["run_id"] == child
        talk.say["parent"].put_nowait("still here")
        talk.say["parent"].put_nowait(None)
        story += await up_to(stream, "never")
    ids = [int(sent.id) for sent in story if sent.event not in {"progress", "delta"}]
    assert ids == sorted(set(ids))
    assert progress_of(story) == ["from below", "still here"]
    assert (story[-1].event, json.loads(story[-1].data)["run_id"]) == ("run.ended", parent)


async def test_the_client_returns_each_word_once(talk: Talk) -> None:
    """After a broken stream, stored progress is sent again: the client recognises it by its number."""
    run_id = await talk.start("x")
    headers = await token_for(talk.api.stack.database, "cli", "requests:read")
    token = headers["Authorization"].removeprefix("Bearer ")
    seen: list[Any] = []

    def app() -> FastAPI:
        services = talk.api.stack.services
        return create_api_app(database=services.database, gateway=services.gateway, settings=ApiSettings())

    def receive(event: Any) -> None:
        if event.type == "call.progress":
            seen.append(event.payload)

    def follow(url: str) -> None:
        with SyncTurngateClient(url, token=token) as client:
            for event in client.follow_events(run_id):
                receive(event)

    async def seen_up_to(word: str) -> None:
        await until(lambda: asyncio.sleep(0, word in seen), word)

    talk.say["x"].put_nowait("one")
    talk.say["x"].put_nowait("two")
    async with serving(app()) as url:
        following = asyncio.create_task(asyncio.to_thread(follow, url))
        await seen_up_to("two")
    talk.say["x"].put_nowait("three")
    async with serving(app(), port=int(url.rpartition(":")[2])):
        await seen_up_to("three")
        talk.say["x"].put_nowait(None)
        await asyncio.wait_for(following, 60)
    assert seen == ["one", "two", "three"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("as_json", [False, True])
async def test_the_command_line_shows_it_under_the_call(
    talk: Talk, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """In lines of their own that no character can leave; a sub-agent's after its path; with --json as lines of JSON."""
    parent, child = await talk.start("parent"), await talk.start("child")
    await talk.adopt(child, parent)
    headers = await token_for(talk.api.stack.database, "cli", "requests:read", "runs:write", "runs:all")
    link = ApiLink(url=talk.api.url, token=headers["Authorization"].removeprefix("Bearer "), data_dir=None)

    def watch() -> None:
        with link.client() as api_client:
            Watch(link, api_client, parent, on_item=RunAsJson().show if as_json else None).to_the_end()

    watcher = asyncio.create_task(asyncio.to_thread(watch))
    talk.say["child"].put_nowait(HOSTILE)
    talk.say["parent"].put_nowait({"done": 1})
    for run_id in (parent, child):
        await talk.stored(run_id, 1)

    async def is_printed() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "all good" in printed and "done" in printed

    printed = ""
    await until(is_printed, "line of progress")
    for who in ("child", "parent"):
        talk.say[who].put_nowait(None)
    await asyncio.wait_for(watcher, 60)
    printed += capsys.readouterr().out
    lines = printed.splitlines()
    if as_json:
        progress_lines = [line for line in map(json.loads, lines) if line.get("type") == "call.progress"]
        assert {line["run_id"]: line["payload"] for line in progress_lines} == {parent: {"done": 1}, child: HOSTILE}
        return
    assert '    talk: {"done": 1}' in lines
    assert "agent \u203a helper │     talk: ⟨U+001B⟩[2Kall good⟨U+202E⟩ ⏎ second" in lines
    below = [line for line in lines if line.startswith("agent \u203a helper │ ")]
    assert any("→ talk" in line for line in below)
    assert "\x1b" not in printed
