"""What models say in the streams: live and late, each word once, by client and command line; never to a client without deltas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from httpx_sse import ServerSentEvent
from structlog.testing import capture_logs
from support.api.api_server import Api, api_on, serving, token_for
from support.api.sse_client import watching
from support.engine.stack import says, stack, until
from temporalio.client import Client

from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.api_link import ApiLink
from turngate.cli.follow.run import Watch
from turngate.client import SyncTurngateClient, TurngateClient
from turngate.domain.conversation.messages import Delta, ModelResponse
from turngate.domain.errors import ModelError
from turngate.models.port import ModelRequest, OnDelta
from turngate.store.database import Database
from turngate.store.live import deltas
from turngate.wire.events import DeltaView

SECRET = "it is sk-" + "proj-aB3xY9kLm2Qw8Rt5Zu1"


@dataclass
class Talk:
    """An API whose agent's model says what the test queues, word by word. ``say[who]``: None ends the answer, an error fails."""

    api: Api
    say: dict[str, asyncio.Queue[Any]] = field(default_factory=dict)

    async def start(self, who: str) -> str:
        self.say[who] = asyncio.Queue()
        return str((await self.api.start(who))["id"])

    async def stored(self, run_id: str, text: str) -> None:
        """Wait until these words are in the store, as the last ones."""

        async def look() -> bool:
            async with self.api.stack.database.read() as conn:
                rows = await deltas.after(conn, 0, ended_from=0, run_ids=[run_id])
            return "".join(each.text for row in rows for each in row.deltas).endswith(text)

        await until(look, f"stored words {text!r}")


class Obedient:
    """Says the words of the queue that the user's message names; they are its answer."""

    name = "scripted:test"

    def __init__(self, say: dict[str, asyncio.Queue[Any]]) -> None:
        self._say = say

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return await self.stream(request, lambda _delta: None)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        words: list[str] = []
        while (word := await self._say[request.messages[-1].text].get()) is not None:
            if isinstance(word, Exception):
                raise word
            words.append(word)
            on_delta(Delta(kind="text", part=0, text=word))
        return says("".join(words))

    async def aclose(self) -> None:
        return None


@pytest.fixture
async def talk(client: Client, sqlite: Database) -> AsyncIterator[Talk]:
    say: dict[str, asyncio.Queue[Any]] = {}
    async with (
        stack(client, sqlite, model=Obedient(say)) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield Talk(api, say)
        for queue in say.values():
            queue.put_nowait(None)


async def up_to(stream: AsyncIterator[ServerSentEvent], end: str) -> list[ServerSentEvent]:
    """The events up to the first one with this name, or up to these words."""
    collected = []
    async for sent in stream:
        collected.append(sent)
        if sent.event == end or words_of(collected).endswith(end):
            break
    return collected


async def until_ended(talk: Talk, run_id: str) -> None:
    async def look() -> bool:
        return bool((await talk.api.operator.get(f"/api/v1/runs/{run_id}")).json()["status"] == "completed")

    await until(look, "the run's end")


def words_of(collected: list[ServerSentEvent]) -> str:
    payloads = [json.loads(sent.data) for sent in collected if sent.event == "delta"]
    return "".join(delta["text"] for each in payloads for delta in each["deltas"])


async def test_a_late_or_returning_watcher_gets_each_word_once(talk: Talk) -> None:
    """Each connection gets the words so far, then the rest, without ids; after the end nothing but the message."""
    run_id = await talk.start("x")
    path = f"/api/v1/runs/{run_id}/events"
    async with watching(talk.api, path) as first, watching(talk.api, f"{path}?deltas=false") as quiet:
        talk.say["x"].put_nowait("one ")
        live = await up_to(first, "one ")
        (event,) = [sent for sent in live if sent.event == "delta"]
        assert event.id == live[live.index(event) - 1].id  # unchanged: no id of its own
        payload = json.loads(event.data)
        assert payload == {
            "type": "response.delta",
            "run_id": run_id,
            "step": 1,
            "attempt": payload["attempt"],
            "n": 1,
            "deltas": [{"kind": "text", "part": 0, "text": "one ", "tool_name": ""}],
            "reset": None,
            "dropped": 0,
            "created_at": payload["created_at"],
        }
        talk.say["x"].put_nowait("two ")
        await talk.stored(run_id, "two ")
        async with watching(talk.api, path, **{"Last-Event-ID": event.id}) as late:
            assert words_of(await up_to(late, "two ")) == "one two "
            talk.say["x"].put_nowait("three")
            assert words_of(await up_to(late, "three")) == "three"
        async with watching(talk.api, f"/api/v1/events?deltas={run_id}") as all_of_it:
            assert words_of(await up_to(all_of_it, "three")) == "one two three"
            assert words_of(await up_to(first, "three")) == "two three"
            for word in (" is OK", None):  # what may begin a credential comes with the end
                talk.say["x"].put_nowait(word)
            last = await up_to(all_of_it, "run.ended")
            assert [sent.event for sent in last[-3:]] == ["delta", "step.responded", "run.ended"]
            assert words_of(last) == words_of(await up_to(first, "run.ended")) == " is OK"
        assert "delta" not in {sent.event for sent in await up_to(quiet, "run.ended")}
    async with watching(talk.api, path) as after:
        assert words_of(await up_to(after, "run.ended")) == ""


async def test_the_words_of_a_step_add_up_to_its_answer(talk: Talk) -> None:
    """Also of an answer that comes at once, or ends with what may be a credential or is one: masked, as it is stored."""
    run_ids = {who: await talk.start(who) for who in ("OK", "The train leaves at 9:15", "try sk-proj-aB3", SECRET)}
    async with watching(talk.api, "/api/v1/events?deltas=all") as watcher:
        for who, run_id in run_ids.items():
            for word in (who, None):
                talk.say[who].put_nowait(word)
            live = words_of(await up_to(watcher, "run.ended"))
            run = (await talk.api.operator.get(f"/api/v1/runs/{run_id}")).json()
            assert live == run["final_text"]
            assert live == ("it is ⟦secret⟧" if who is SECRET else who)


async def test_the_stream_of_everything_may_choose_whose_words(talk: Talk) -> None:
    """By default no one's; everyone's, or one run's by its id."""
    first, second = await talk.start("x"), await talk.start("y")
    for who, run_id in (("x", first), ("y", second)):
        talk.say[who].put_nowait(f"{who}.")
        await talk.stored(run_id, f"{who}.")
    async with (
        watching(talk.api, "/api/v1/events") as none,
        watching(talk.api, "/api/v1/events?deltas=all") as every,
        watching(talk.api, f"/api/v1/events?deltas={second}") as one,
    ):
        assert words_of(await up_to(every, "y.")) == "x.y."
        for who in ("x", "y"):
            talk.say[who].put_nowait(None)
            await up_to(every, "run.ended")
        assert words_of(await up_to(one, "run.ended") + await up_to(one, "run.ended")) == "y."
        assert words_of(await up_to(none, "run.ended") + await up_to(none, "run.ended")) == ""


@pytest.mark.exhaustive
async def test_the_client_returns_each_word_once(talk: Talk) -> None:
    """Over a stream that breaks and is resumed; without the option it returns no words."""
    run_id = await talk.start("x")
    headers = await token_for(talk.api.stack.database, "cli", "requests:read")
    token = headers["Authorization"].removeprefix("Bearer ")
    services = talk.api.stack.services
    seen: list[str] = []

    def follow(url: str) -> list[str]:
        with SyncTurngateClient(url, token=token) as api_client:
            for event in api_client.follow_events(run_id, with_deltas=True):
                if isinstance(event, DeltaView):
                    seen.extend(delta.text for delta in event.deltas)
            return [event.type for event in api_client.follow_events(run_id)]

    async def seen_up_to(words: str) -> None:
        await until(lambda: asyncio.sleep(0, "".join(seen) == words), words)

    def app() -> Any:
        return create_api_app(database=services.database, gateway=services.gateway, settings=ApiSettings())

    talk.say["x"].put_nowait("one ")
    async with serving(app()) as url:
        following = asyncio.create_task(asyncio.to_thread(follow, url))
        await seen_up_to("one ")
    talk.say["x"].put_nowait("two ")
    async with serving(app(), port=int(url.rpartition(":")[2])):
        await seen_up_to("one two ")
        talk.say["x"].put_nowait(None)
        types = await asyncio.wait_for(following, 60)
    assert seen == ["one ", "two "]
    assert types == ["run.started", "step.responded", "run.ended"]


PROGRAM = Path(__file__).parents[2] / "docs/howto/watch-a-run.md"


async def test_the_program_of_the_guide_prints_the_whole_answer(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    """To its last word, which may begin a credential; also where the connection breaks before it."""
    program: dict[str, Any] = {}
    exec(PROGRAM.read_text().partition("```python\n")[2].partition("```")[0], program)  # noqa: S102 - our own page
    run_id = await talk.start("x")
    headers = await token_for(talk.api.stack.database, "cli", "requests:read")
    token = headers["Authorization"].removeprefix("Bearer ")
    services = talk.api.stack.services
    printed = ""

    async def look() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "leaves" in printed

    def app() -> Any:
        return create_api_app(database=services.database, gateway=services.gateway, settings=ApiSettings())

    talk.say["x"].put_nowait("The train leaves ")
    async with serving(app()) as url:
        client = TurngateClient(url, token=token)
        watching_it = asyncio.create_task(program["watch"](client, run_id))
        await until(look, "the first words")
    for word in ("at ", "9:15", None):
        talk.say["x"].put_nowait(word)
    await until_ended(talk, run_id)
    async with serving(app(), port=int(url.rpartition(":")[2])):
        await asyncio.wait_for(watching_it, 60)
    await client.aclose()
    assert printed + capsys.readouterr().out == "The train leaves at 9:15"


BROKEN = ModelError("it broke off", error_class="server_error", retryable=True, retry_after_seconds=0.05)
STREAMED = """
step 1
  │ Half a
  ! the words so far are void: it broke off
  ! an unfinished answer, of which nothing ran: Half a
  ! the model failed (server_error, attempt 1); its words so far are void, again in 0.05 s: it broke off
  │ Hello⟨U+001B⟩[2K
  │ all the rest

completed after 1 step
"""
PLAIN = """  ! an unfinished answer, of which nothing ran: Half a
  ! the model failed (server_error, attempt 1); its words so far are void, again in 0.05 s: it broke off

completed after 1 step
  │ Hello⟨U+001B⟩[2K
  │ all the rest
"""


@pytest.fixture
def quiet_worker() -> Iterator[None]:
    """The worker runs in this process: its log would be printed between the command line's own lines."""
    with capture_logs():
        yield


@pytest.mark.usefixtures("quiet_worker")
@pytest.mark.parametrize("live", [True, False])
async def test_the_command_line_prints_words_as_they_come(
    talk: Talk, capsys: pytest.CaptureFixture[str], *, live: bool
) -> None:
    """On a terminal each line once, after the agent's margin; elsewhere complete messages only."""
    run_id = await talk.start("x")
    headers = await token_for(talk.api.stack.database, "cli", "requests:read", "runs:write", "runs:all")
    link = ApiLink(url=talk.api.url, token=headers["Authorization"].removeprefix("Bearer "), data_dir=None)
    printed = ""

    def watch() -> None:
        with link.client() as api_client:
            Watch(link, api_client, run_id, live=live).to_the_end()

    async def wait_for(text: str) -> None:
        async def look() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            return text in printed

        await until(look, f"printed {text!r}")

    watcher = asyncio.create_task(asyncio.to_thread(watch))
    await wait_for("model scripted:test\n")
    for words in ("Half a ", BROKEN, "\n\nHello\x1b[2K", "\nall "):
        if words is BROKEN and live:
            await wait_for("Half a")
        elif words is BROKEN:
            await talk.stored(run_id, "Half a ")
        talk.say["x"].put_nowait(words)
        await asyncio.sleep(0)
    if live:
        await wait_for("all")  # its line is open
    else:
        await talk.stored(run_id, "all ")
    for last in ("the rest\n", None):  # what comes with the end need not be sent before it
        talk.say["x"].put_nowait(last)
    await asyncio.wait_for(watcher, 60)
    printed += capsys.readouterr().out
    assert printed.partition("model scripted:test\n")[2] == (STREAMED if live else PLAIN)
