"""Server-sent events: order, resuming, ending, heartbeats, many watchers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from httpx_sse import ServerSentEvent
from support.api.api_server import Api
from support.api.sse_client import watching
from support.engine.stack import until

from turngate.approvals_api.events.feed import EventFeed
from turngate.store.events import events


async def collected(api: Api, path: str, *, until: str = "run.ended", headers: Any = None) -> list[dict[str, Any]]:
    """Read a stream up to the first event of this type, or to its end; words of the model between them have no id."""
    collected: list[dict[str, Any]] = []
    async with watching(api, path, **(headers or {})) as stream:
        async for sent in stream:
            event = json.loads(sent.data)
            if sent.event == "delta":  # httpx-sse, like a browser, continues to report the last id that it saw
                assert sent.id == (str(collected[-1]["seq"]) if collected else "")
                continue
            assert (sent.id, sent.event) == (str(event["seq"]), event["type"])
            collected.append(event)
            if sent.event == until:
                break
    return collected


async def test_a_runs_stream_sends_its_events_live_and_ends(api: Api) -> None:
    """Every event of the run once, in order without gaps; the server closes the stream after run.ended."""
    request = await api.gated()
    watcher = asyncio.create_task(collected(api, f"/api/v1/runs/{request['run_id']}/events", until="never"))
    assert (await api.decide(request)).status_code == 200
    story = await watcher
    assert [event["type"] for event in story][:3] == ["run.started", "step.responded", "request.opened"]
    assert story[-1]["type"] == "run.ended"
    assert [event["run_seq"] for event in story] == list(range(1, len(story) + 1))
    assert {event["run_id"] for event in story} == {request["run_id"]}
    assert set(story[0]) == {"seq", "run_seq", "run_id", "type", "payload", "created_at"}


@pytest.mark.exhaustive
async def test_a_stream_is_resumed_by_last_event_id(api: Api) -> None:
    """From the header (before ``after``), exclusive: events that were seen are not sent again, the rest are, once."""
    request = await api.gated()
    await api.decide(request)
    path = f"/api/v1/runs/{request['run_id']}/events"
    story = await collected(api, path)
    for cut in range(len(story) - 1):
        seen = story[cut]["seq"]
        assert await collected(api, path, headers={"Last-Event-ID": str(seen)}) == story[cut + 1 :]
        assert await collected(api, f"{path}?after={seen}") == story[cut + 1 :]
    both = await collected(api, f"{path}?after=0", headers={"Last-Event-ID": str(story[1]["seq"])})
    assert both == story[2:]


async def test_a_finished_stream_is_not_resumed(api: Api) -> None:
    """204 after the last event: a browser stops reconnecting."""
    run = await api.start("hello")
    path = f"/api/v1/runs/{run['id']}/events"
    last = (await collected(api, path))[-1]
    assert (await api.operator.get(path, headers={"Last-Event-ID": str(last["seq"])})).status_code == 204


async def test_bad_positions_are_refused(api: Api) -> None:
    """422 for an id that was never ours."""
    for headers, query in (
        ({"Last-Event-ID": "x"}, ""),
        ({"Last-Event-ID": "-1"}, ""),
        ({}, "?after=-1"),
        ({}, "?after=x"),
    ):
        answer = await api.operator.get(f"/api/v1/events{query}", headers=headers)
        assert answer.status_code == 422, answer.text


async def test_the_stream_of_everything_starts_now_or_where_it_was_left(api: Api) -> None:
    """Without a position it has only what happens from now on; with one, everything after it, in any run."""
    before = await api.stack.services.feed.last_seq()
    async with watching(api, "/api/v1/events") as stream:
        first, second = await api.start("hello"), await api.start("hello")
        ended = set()
        seen = []
        async for sent in stream:
            event = json.loads(sent.data)
            seen.append(event)
            if event["type"] == "run.ended":
                ended.add(event["run_id"])
            if {first["id"], second["id"]} <= ended:
                break
    assert seen[0]["seq"] > before
    assert [event["seq"] for event in seen] == list(range(seen[0]["seq"], seen[-1]["seq"] + 1))
    again = []
    async with watching(api, "/api/v1/events", **{"Last-Event-ID": str(before)}) as stream:
        async for sent in stream:
            again.append(json.loads(sent.data))
            if again[-1]["seq"] == seen[-1]["seq"]:
                break
    assert again[-len(seen) :] == seen


async def test_a_quiet_stream_sends_heartbeats(api: Api) -> None:
    """A comment at each interval tells proxies and clients that the connection is alive."""
    async with asyncio.timeout(60), api.operator.stream("GET", "/api/v1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith(": ping"):
                break


async def test_heartbeats_can_be_events(api: Api) -> None:
    """At once and then in each pause, with the seconds to the next one: the page of a browser can't see a comment."""
    beats: list[ServerSentEvent] = []
    end = await EventFeed(api.stack.database).last_seq()
    async with watching(api, f"/api/v1/events?after={end + 1_000_000}&progress=none&heartbeats=true") as stream:
        while len(beats) < 3:
            beats.append(await anext(stream))
    assert [(each.event, each.data) for each in beats] == [("heartbeat", "0.3")] * 3


async def test_each_watcher_gets_each_event_once_and_polling_stops(api: Api) -> None:
    """Five watchers of one feed see the same sequence; when the last one leaves, polling stops."""
    feed = EventFeed(api.stack.database)
    start = await feed.last_seq()

    async def watch(run_id: str | None) -> list[events.Event]:
        followed_events = []
        followed: AsyncIterator[events.Event] = feed.follow(start, run_id)
        async for event in followed:
            followed_events.append(event)
            if event.type == "run.ended":
                break
        await followed.aclose()
        return followed_events

    watchers = [asyncio.create_task(watch(None)) for _ in range(5)]
    run = await api.start("hello")
    async with asyncio.timeout(60):
        stories = await asyncio.gather(*watchers)
    assert all(story == stories[0] for story in stories)
    assert {event.run_id for event in stories[0]} == {run["id"]}
    assert feed._poller is None
    assert not feed._watchers


async def test_closing_the_feed_ends_its_watchers(api: Api) -> None:
    """A watcher that waits for an event learns that there are no more, instead of keeping the server up."""
    feed = EventFeed(api.stack.database)
    end = await feed.last_seq() + 1_000_000

    async def watch() -> list[events.Event]:
        return [event async for event in feed.follow(end)]

    watcher = asyncio.create_task(watch())
    await until(lambda: asyncio.sleep(0, bool(feed._watchers)), "watcher")
    await feed.close()
    assert await asyncio.wait_for(watcher, 60) == []
    assert feed._poller is None
