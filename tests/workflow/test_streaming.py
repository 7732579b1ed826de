"""Deltas of a model's response: delivered live, each word once, void if their attempt fails, never in the history."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.engine.stack import Stack, call, says, stack, until
from support.servers.fake_provider import chunk, serving_provider
from temporalio.client import Client

from turngate import Agent, tool
from turngate.activities.model.streaming import MAX_UNFINISHED_CHARS
from turngate.domain.conversation.messages import Delta, ModelResponse
from turngate.domain.errors import ModelError
from turngate.domain.tools.toolkit import Toolkit
from turngate.models import ModelRequest, OnDelta, OpenAICompatibleModel, ScriptedModel
from turngate.store.database import Database
from turngate.store.events.events import Event
from turngate.store.live import deltas
from turngate.store.live.deltas import Deltas
from turngate.store.live.watch import EVERY_RUN, StreamItem
from turngate.store.runs import runs

SECRET = "a word that is nowhere else 9c1e"
Line = Callable[[OnDelta], Awaitable[ModelResponse]]


class Talker:
    """Answers the n-th request with its n-th line, which may stream before it returns; the last one repeats."""

    name = "scripted:test"

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return await self.stream(request, lambda _delta: None)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        self.requests.append(request)
        return await self.lines[min(len(self.requests), len(self.lines)) - 1](on_delta)

    async def aclose(self) -> None:
        return None


def word(text: str, part: int = 0) -> Delta:
    return Delta(kind="text", part=part, text=text)


def silent(response: ModelResponse) -> Line:
    async def line(_on_delta: OnDelta) -> ModelResponse:
        return response

    return line


async def follow(
    engine: Stack, run: runs.Run, hear: Callable[[StreamItem], None], *, after: int = 0, ends: str = "run.ended"
) -> list[StreamItem]:
    """Follow a run as a stream does, up to an event of this type."""
    items: list[StreamItem] = []
    async with asyncio.timeout(60):
        async for item in engine.services.feed.follow(after, run.id, deltas_of=EVERY_RUN):
            items.append(item)
            hear(item)
            if isinstance(item, Event) and item.type == ends:
                break
    return items


def words(items: Sequence[StreamItem]) -> str:
    return "".join(delta.text for each in items if isinstance(each, Deltas) for delta in each.deltas)


async def stored_deltas(database: Database, run: runs.Run) -> list[Deltas]:
    async with database.read() as conn:
        return await deltas.after(conn, 0, ended_from=0, run_ids=[run.id])


async def until_stored(database: Database, run: runs.Run, text: str) -> None:
    async def look() -> bool:
        return text in words(await stored_deltas(database, run))

    await until(look, f"stored words {text!r}")


async def test_words_come_live_once_and_make_way_for_the_message(client: Client, database: Database) -> None:
    """A watcher gets each word once and before the response, a late one the words so far; the deltas are deleted afterwards."""
    received, late = asyncio.Event(), asyncio.Event()

    async def line(on_delta: OnDelta) -> ModelResponse:
        on_delta(word("One "))
        await asyncio.wait_for(received.wait(), 60)
        for each in ("two ", SECRET):
            on_delta(word(each))
        await asyncio.wait_for(late.wait(), 60)
        return says(f"One two {SECRET}")

    async with stack(client, database, model=Talker(line)) as engine:
        run = await engine.start()
        ears: set[str] = set()

        def hear(ear: str, item: StreamItem) -> None:
            if isinstance(item, Deltas):
                received.set()
            if SECRET in words([item]):
                ears.add(ear)
            if len(ears) == 2:  # the response comes once both received it all: it deletes what was not read yet
                late.set()

        first = asyncio.create_task(follow(engine, run, partial(hear, "first")))
        await until_stored(database, run, SECRET)
        second = asyncio.create_task(follow(engine, run, partial(hear, "second"), ends="step.responded"))
        story = await first
        late_story = await second
        assert words(story) == words(late_story) == f"One two {SECRET}"
        assert [item.type if isinstance(item, Event) else "words" for item in story] == [
            "run.started",
            "words",
            "words",
            "step.responded",
            "run.ended",
        ]
        assert [item.n for item in story if isinstance(item, Deltas)] == [1, 2]
        assert await stored_deltas(database, run) == []
        # I8: the words are watchers' alone.
        history = await engine.workflow(run).fetch_history()
        assert SECRET.encode() not in b"".join(event.SerializeToString() for event in history.events)
        assert SECRET not in str([event.payload for event in await engine.events(run)])
        assert not words(await follow(engine, run, lambda _item: None))


async def test_a_failed_attempt_takes_its_words_back(client: Client, sqlite: Database) -> None:
    """No silent retry: a reset with its reason, the event says that words were shown, and attempts never mix."""
    half, void, whole = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def hear(item: StreamItem) -> None:
        if isinstance(item, Deltas):
            {"Half a sen": half, "": void, "A whole sentence.": whole}[words([item])].set()

    async def breaks(on_delta: OnDelta) -> ModelResponse:
        on_delta(word("Half a sen"))
        await asyncio.wait_for(half.wait(), 60)
        raise ModelError("the stream broke off", error_class="bad_response", retryable=True, retry_after_seconds=0.05)

    async def mute(_on_delta: OnDelta) -> ModelResponse:
        raise ModelError("no", error_class="server_error", retryable=True, retry_after_seconds=0.05)

    async def works(on_delta: OnDelta) -> ModelResponse:
        await asyncio.wait_for(void.wait(), 60)
        on_delta(word("A whole sentence."))
        await asyncio.wait_for(whole.wait(), 60)
        return says("A whole sentence.")

    async with stack(client, sqlite, model=Talker(breaks, mute, works)) as engine:
        run = await engine.start()
        story = await follow(engine, run, hear)
        assert [part.text for part in (await engine.history(run))[-1].parts] == ["A whole sentence."]  # type: ignore[union-attr]
    spoken = [item for item in story if isinstance(item, Deltas)]
    assert [(item.reset, words([item])) for item in spoken] == [
        (None, "Half a sen"),
        ("the stream broke off", ""),
        (None, "A whole sentence."),
    ]
    assert spoken[0].attempt == spoken[1].attempt < spoken[2].attempt
    retrying = [item for item in story if isinstance(item, Event) and item.type == "model.retrying"]
    assert [item.payload.get("shown") for item in retrying] == [True, None]
    at = story.index(retrying[0])
    assert story.index(spoken[1]) < at < story.index(spoken[2])
    assert await stored_deltas(sqlite, run) == []


async def test_what_a_failed_attempt_had_shown_is_kept_for_people(client: Client, sqlite: Database) -> None:
    """The event of the failure has it, clipped and masked; it is no message, and the model never sees it again."""
    secret = "AKIAIOSFODNN7EXAMPLE"

    def breaking(*texts: str, retryable: bool = True) -> Line:
        async def breaks(on_delta: OnDelta) -> ModelResponse:
            is_visible.clear()
            for text in texts:
                on_delta(word(text))
            on_delta(Delta(kind="tool-call", part=1, tool_name="pay", text="{}"))
            await asyncio.wait_for(is_visible.wait(), 60)
            raise ModelError("it broke", error_class="bad_response", retryable=retryable, retry_after_seconds=0.05)

        return breaks

    is_visible = asyncio.Event()

    def hear(item: StreamItem) -> None:
        if isinstance(item, Deltas) and item.deltas:
            is_visible.set()

    model = Talker(breaking("Half ", f"a key {secret} and "), breaking("x" * 5_000, retryable=False))
    async with stack(client, sqlite, model=model) as engine:
        run = await engine.start()
        story = await follow(engine, run, hear)
        failed = await engine.ended(run)
        history = await engine.history(run)
    assert failed.status == "failed"
    first, second = (item.payload for item in story if isinstance(item, Event) and item.type == "model.broke_off")
    assert first["text"].startswith("Half a key ")
    assert secret not in str([item.payload for item in story if isinstance(item, Event)])
    assert second["text"] == "x" * MAX_UNFINISHED_CHARS + "…"
    assert [(each["step"], each["attempt"]) for each in (first, second)] == [(1, 1), (1, 2)]
    assert [message.role for message in history] == ["user"]
    assert [message.role for message in model.requests[-1].messages] == ["system", "user"]
    assert not [item for item in story if isinstance(item, Event) and item.type.startswith("execution.")]


async def test_an_interrupt_cuts_the_stream_at_once(client: Client, sqlite: Database) -> None:
    """The provider's connection is closed long before its response ends, and watchers learn that the words are void."""
    with serving_provider() as provider:
        provider.stream(chunk({"content": "Let me "}), chunk({"content": "think"}), hang=True)
        model = OpenAICompatibleModel(provider.base_url, None, "m", timeout=3_600)
        async with stack(client, sqlite, model=model) as engine:
            run = await engine.start()
            await until_stored(sqlite, run, "think")
            await engine.interrupt(run)
            assert await asyncio.to_thread(provider.client_left.wait, 300), "the model's own time is an hour"
            assert (await engine.ended(run)).status == "interrupted"
            assert len(await engine.history(run)) == 1
            left = await stored_deltas(sqlite, run)
            assert (words(left), [each.reset for each in left]) == ("", ["it was stopped"])
            assert not [item for item in await follow(engine, run, lambda _item: None) if isinstance(item, Deltas)]
        await model.aclose()


async def test_a_store_that_is_locked_does_not_hold_up_the_answer(
    client: Client, sqlite: Database, tmp_path: Path
) -> None:
    """While the store is locked, the model continues and completes its response; it is stored when the lock is free."""
    holder = sqlite3.connect(tmp_path / "turngate.db", isolation_level=None, check_same_thread=False)
    talked = asyncio.Event()

    async def line(on_delta: OnDelta) -> ModelResponse:
        holder.execute("BEGIN IMMEDIATE")
        for _ in range(1_000):
            on_delta(word("word "))
        talked.set()
        return says("Done.")

    try:
        async with stack(client, sqlite, model=Talker(line)) as engine:
            run = await engine.start()
            await asyncio.wait_for(talked.wait(), 60)
            holder.execute("ROLLBACK")
            assert (await engine.ended(run)).status == "completed"
    finally:
        holder.close()


@pytest.mark.parametrize("streaming", [True, False])
async def test_streamed_or_not_the_same_is_stored(client: Client, sqlite: Database, *, streaming: bool) -> None:
    """A script that streams leaves the same messages; with streaming off, no delta is sent."""

    @tool(effect="read", ask=False)
    async def look() -> str:
        """Look."""
        return "seen"

    text = (
        '{"responses": [{"text": "I look at it.", "reasoning": "Where?", "stream_seconds": 0.1, '
        '"calls": [{"tool": "look"}]}, {"text": "It is there."}]}'
    )
    async with stack(client, sqlite, look, model=ScriptedModel.from_text(text, "test"), working=False) as engine:
        engine.engine = replace(engine.engine, streaming=streaming)
        async with engine.worker():
            run = await engine.start()
            story = await follow(engine, run, lambda _item: None)
            history = await engine.history(run)
    assert [[part.type for part in message.parts] for message in history] == [
        ["text"],
        ["reasoning", "text", "tool-call"],
        ["tool-result"],
        ["text"],
    ]
    assert history[1].text == "I look at it."
    streamed = words(story)
    assert streamed.startswith("Where?") if streaming else streamed == ""


class Verdict(BaseModel):
    guilty: bool
    years: int = 0


async def test_i9_an_answer_that_does_not_fit_its_schema_is_made_again(client: Client, sqlite: Database) -> None:
    """The model gets the schema and a correction of its answer, and the run ends with one that fits."""
    model = Talker(*(silent(says(text)) for text in ("Guilty!", '{"guilty": "perhaps"}', '{"guilty": true}')))
    judge = Agent(name="judge", instructions="Judge.", toolkit=Toolkit.of(), model="scripted:test", output=Verdict)
    async with stack(client, sqlite, model=model, agents=[judge]) as engine:
        run = await engine.ended(await engine.start(agent="judge"))
        history = await engine.history(run)
    assert (run.status, history[-1].text) == ("completed", '{"guilty": true}')
    assert {request.output == Verdict.model_json_schema() for request in model.requests} == {True}
    corrections = [message.text for message in history if message.role == "user"][1:]
    assert [("Invalid JSON" in each, "guilty: Input should be" in each) for each in corrections] == [
        (True, False),
        (False, True),
    ]
    assert all("final answer as one JSON object that fits its schema" in each for each in corrections)
    assert "perhaps" not in corrections[1]


async def test_i9_a_model_that_never_fits_ends_its_run(client: Client, sqlite: Database) -> None:
    """After three in a row, for a reason that quotes nothing; a call in between is no answer and needs to fit nothing."""
    model = Talker(silent(says("Surely not.", call("nothing", "{}", "c1"))), silent(says('{"guilty": "SECRETLY"}')))
    judge = Agent(name="judge", instructions="Judge.", toolkit=Toolkit.of(), model="scripted:test", output=Verdict)
    async with stack(client, sqlite, model=model, agents=[judge]) as engine:
        run = await engine.ended(await engine.start(agent="judge"))
    assert run.status == "failed"
    assert "does not fit its schema" in run.reason
    assert "SECRETLY" not in run.reason
