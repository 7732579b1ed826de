"""The Python client against the real API: every call, every refusal, streams that break."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest
from support.api.api_server import Api, serving, token_for
from support.engine.stack import until

from turngate.approvals_api.app import create_api_app
from turngate.approvals_api.settings import ApiSettings
from turngate.client import Retries, SyncTurngateClient, TurngateClient
from turngate.domain.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from turngate.domain.tools.results import Ok
from turngate.store.events import events
from turngate.wire.events import EventView
from turngate.wire.orders import DecisionOrder, ForkOrder

ONCE = Retries(attempts=1)


async def token(api: Api, name: str = "client", scopes: tuple[str, ...] = ("admin",)) -> str:
    headers = await token_for(api.stack.database, f"{name}-{api.name}", *scopes)
    return headers["Authorization"].removeprefix("Bearer ")


@pytest.mark.exhaustive
async def test_a_gated_run_from_start_to_end(api: Api) -> None:
    """Start, follow, list the request, decide with exact arguments, read the end, send a message, fork, interrupt."""
    async with TurngateClient(api.url, token=await token(api)) as client:
        run = await client.start_run(agent="agent", text="pay 5", idempotency_key=f"client-{api.name}")
        again = await client.start_run(agent="agent", text="pay 5", idempotency_key=f"client-{api.name}")
        assert again.id == run.id
        seen: list[EventView] = []
        async for event in client.follow_events(run.id):
            assert isinstance(event, EventView)
            seen.append(event)
            if event.type == "request.opened":
                (item,) = (await client.list_requests(run_id=run.id)).items
                request = await client.get_request(item.id)
                answer = await client.decide(
                    request.id, DecisionOrder(verb="edit", digest=request.digest, args='{"cents":  6}')
                )
                assert answer.status == "approved"
        assert [event.run_seq for event in seen] == list(range(1, len(seen) + 1))
        assert [event async for event in client.follow_events(run.id, after=seen[-1].seq)] == []
        done = await client.get_run(run.id)
        (call,) = done.steps[0].calls
        assert (done.status, call.edited_input) == ("completed", '{"cents":  6}')
        assert (await client.get_result(run.id, call.tool_call_id)).result == Ok(value={"paid": 6})
        assert json.loads(await client.get_result_text(run.id, call.tool_call_id))["result"]["value"] == {"paid": 6}
        assert [message.role for message in await client.list_messages(run.conversation_id)][-1] == "assistant"
        assert [agent.name for agent in await client.list_agents()] == ["agent"]
        assert "scripted:test" in {each.name for each in await client.list_models()}

        following = await client.send_message(run.id, "pay 1")
        async with aclosing(client.follow_events(following.id)) as stream:
            async for event in stream:
                if event.type == "request.opened":
                    break
        assert (await client.count_requests()).count >= 1
        assert (await client.interrupt(following.id, reason="enough")).id == following.id
        assert [event.type async for event in client.follow_events(following.id)][-1] == "run.ended"
        fork = await client.fork_run(run.id, ForkOrder(text="hello", step=1))
        assert (fork.forked_from_run_id, fork.forked_from_step) == (run.id, 1)


@pytest.mark.exhaustive
async def test_every_item_of_a_list_page_by_page(api: Api) -> None:
    """Iterating fetches page after page by cursor: each item once, in the list's order, from both clients."""
    started = {(await api.start(f"hello {number}"))["id"] for number in range(5)}
    secret = await token(api)
    async with TurngateClient(api.url, token=secret) as client:
        runs = [run.id async for run in client.iter_runs(limit=2)]
        assert len(runs) == len(set(runs))
        assert started <= set(runs)
        assert (await client.list_runs(limit=2)).next_cursor
        requests = [item.id async for item in client.iter_requests(status="all", limit=3)]

    def each() -> list[str]:
        with SyncTurngateClient(api.url, token=secret) as client:
            return [item.id for item in client.iter_requests(status="all", limit=3)]

    assert await asyncio.to_thread(each) == requests


@pytest.mark.exhaustive
async def test_refusals_come_back_as_our_own_errors(api: Api) -> None:
    """The class, the code and the details of the problem document."""
    request, over = await api.gated(), await api.gated()
    assert (await api.decide(request, "reject")).status_code == 200
    weak_token = await token(api, "weak", ("runs:write", "requests:read"))
    async with (
        TurngateClient(api.url, token=await token(api)) as client,
        TurngateClient(api.url, token=weak_token) as weak,
        TurngateClient(api.url) as stranger,
    ):
        with pytest.raises(NotFoundError):
            await client.get_run("run_none")
        with pytest.raises(ConflictError) as lost:
            await client.decide(request["id"], DecisionOrder(verb="approve", digest=request["digest"]))
        assert lost.value.error_code == "already_decided"
        assert lost.value.details["decided_by"].startswith("ada-")
        with pytest.raises(InvalidInputError) as wrong:
            await client.start_run(agent="missing", text="x")
        assert wrong.value.details["errors"][0]["pointer"] == "/agent"
        for bad_args in ("{", '{"a": ' * 100_000):
            with pytest.raises(InvalidInputError):
                await client.decide(request["id"], DecisionOrder(verb="edit", digest=request["digest"], args=bad_args))
        with pytest.raises(ForbiddenError):
            await weak.decide(request["id"], DecisionOrder(verb="approve", digest=request["digest"]))
        with pytest.raises(UnauthenticatedError):
            await stranger.list_runs()
        with pytest.raises(NotFoundError):
            await anext(aiter(client.follow_events("run_none")))
        await client.interrupt(over["run_id"])
        assert [event.type async for event in client.follow_events(over["run_id"])][-1] == "run.ended"
        with pytest.raises(GoneError):
            await client.decide(over["id"], DecisionOrder(verb="approve", digest=over["digest"]))
        for no_id in ("", "..", "."):
            with pytest.raises(InvalidInputError):
                await client.get_run(no_id)
        with pytest.raises(InvalidInputError):
            await client.send_message(over["run_id"], "x", idempotency_key="ключ")


async def test_an_unreachable_address_is_reported_with_the_fix() -> None:
    """UnavailableError naming the address and the command, for calls and for streams."""

    def calls() -> None:
        with SyncTurngateClient("http://127.0.0.1:1", retries=ONCE) as client:
            for attempt in (client.list_runs, lambda: next(client.follow_events("run_1"))):
                with pytest.raises(UnavailableError) as refused:
                    attempt()
                assert "turngate up" in refused.value.message
                assert "http://127.0.0.1:1" in refused.value.message

    await asyncio.to_thread(calls)
    async with TurngateClient("http://127.0.0.1:1", retries=ONCE) as client:
        with pytest.raises(UnavailableError):
            await client.list_runs()


@pytest.mark.exhaustive
@pytest.mark.parametrize("whose", ["one run", "all runs"])
async def test_a_stream_outlives_a_restart_of_the_server(api: Api, whose: str) -> None:
    """I5 for watchers: after the server went away and came back, the rest arrives, each event once.

    This holds too for a client that watches all runs from now on, and had seen no event when the server went.
    """
    request = await api.gated()
    run_id = request["run_id"] if whose == "one run" else None
    seen: list[int] = []
    ready = asyncio.Event()

    def app():
        return create_api_app(database=api.stack.database, gateway=api.stack.services.gateway, settings=ApiSettings())

    async def watch(url: str) -> None:
        async with TurngateClient(url, token=secret) as client:
            async for event in client.follow_events(run_id):
                if isinstance(event, EventView) and event.run_id == request["run_id"]:
                    seen.append(event.run_seq)
                    if event.type == "request.opened":
                        ready.set()
                    if event.type == "run.ended":
                        return

    secret = await token(api, "watcher", ("requests:read",))
    started = app()
    async with serving(started) as url:
        watching = asyncio.create_task(watch(url))
        if run_id is None:
            feed = started.state.services.feed
            await until(lambda: asyncio.sleep(0, bool(feed._watchers)), "watcher of all runs")
        else:
            await asyncio.wait_for(ready.wait(), 60)
    async with api.stack.database.read() as conn:
        before = await events.after(conn, 0, run_id=request["run_id"], limit=100)
    assert (await api.decide(request)).status_code == 200
    async with serving(app(), port=int(url.rpartition(":")[2])):
        await asyncio.wait_for(watching, 60)
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert seen[0] == (before[-1].run_seq + 1 if run_id is None else 1)
    assert len(seen) > 3
