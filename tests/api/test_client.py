"""The command line's client against the real API."""

from __future__ import annotations

import asyncio
import json

import pytest
from api_server import Api, serving, token_for

from approvals_api.api_app import create_api_app
from approvals_api.settings import ApiSettings
from turngate.cli.client import ApiClient
from turngate.domain.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)


async def connected(api: Api, *, may_decide: bool = True) -> ApiClient:
    scopes = ("runs:write", "requests:read", *(("requests:decide",) if may_decide else ()))
    headers = await token_for(api.stack.database, "cli", *scopes)
    return ApiClient(api.url, token=headers["Authorization"].removeprefix("Bearer "))


async def test_a_gated_run_from_start_to_end(api: Api) -> None:
    """Start, follow, find the request, decide with exact arguments, read the end, talk on, interrupt."""
    client = await connected(api)

    def session() -> None:
        run = client.start_run(agent="agent", text="pay 5", idempotency_key="cli-1")
        assert client.start_run(agent="agent", text="pay 5", idempotency_key="cli-1").id == run.id
        seen = []
        for event in client.follow_events(run.id):
            seen.append(event)
            if event.type == "request.opened":
                item = client.list_requests(run_id=run.id).items[0]
                request = client.get_request(item.id)
                answer = client.decide(request.id, verb="edit", digest=request.digest, args='{"cents":  6}')
                assert answer.status == "approved"
        assert [event.run_seq for event in seen] == list(range(1, len(seen) + 1))
        assert list(client.follow_events(run.id, after=seen[-1].seq)) == []
        done = client.get_run(run.id)
        assert done.status == "completed"
        assert done.steps[0].calls[0].edited_input == '{"cents":  6}'
        assert run.id in {each.id for each in client.list_runs(status="completed", limit=200).items}
        following = client.send_message(run.id, "pay 1")
        next(event for event in client.follow_events(following.id) if event.type == "request.opened")
        assert client.interrupt(following.id, reason="enough").id == following.id
        assert [event.type for event in client.follow_events(following.id)][-1] == "run.ended"
        assert [agent.name for agent in client.list_agents()] == ["agent"]

    with client:
        await asyncio.to_thread(session)


async def test_refusals_come_back_as_our_own_errors(api: Api) -> None:
    """The class, the code and the details of the problem document."""
    request = await api.gated()
    assert (await api.decide(request, "reject")).status_code == 200

    def refusals(client: ApiClient, weak: ApiClient) -> None:
        with pytest.raises(NotFoundError):
            client.get_run("run_none")
        with pytest.raises(ConflictError) as lost:
            client.decide(request["id"], verb="approve", digest=request["digest"])
        assert lost.value.error_code == "already_decided"
        assert lost.value.details["decided_by"].startswith("ada-")
        with pytest.raises(InvalidInputError) as wrong:
            client.start_run(agent="nobody", text="x")
        assert wrong.value.details["errors"][0]["pointer"] == "/agent"
        with pytest.raises(InvalidInputError):
            client.decide(request["id"], verb="edit", digest=request["digest"], args="{")
        with pytest.raises(ForbiddenError):
            weak.decide(request["id"], verb="approve", digest=request["digest"])
        with pytest.raises(UnauthenticatedError):
            ApiClient(api.url).list_runs()
        with pytest.raises(NotFoundError):
            next(client.follow_events("run_none"))

    with await connected(api) as client, await connected(api, may_decide=False) as weak:
        await asyncio.to_thread(refusals, client, weak)


async def test_nobody_at_the_address_is_told_with_the_fix() -> None:
    """UnavailableError naming the address and the command, for calls and for streams."""

    def calls() -> None:
        with ApiClient("http://127.0.0.1:1") as client:
            for attempt in (client.list_runs, lambda: next(client.follow_events("run_1"))):
                with pytest.raises(UnavailableError) as refused:
                    attempt()
                assert "turngate up" in refused.value.message
                assert "http://127.0.0.1:1" in refused.value.message

    await asyncio.to_thread(calls)


async def test_a_stream_outlives_a_restart_of_the_server(api: Api) -> None:
    """I5 for watchers: after the server went away and came back, the rest arrives, each event once."""
    request = await api.gated()
    headers = await token_for(api.stack.database, "watcher", "requests:read")
    token = headers["Authorization"].removeprefix("Bearer ")
    seen: list[int] = []
    opened = asyncio.Event()
    loop = asyncio.get_running_loop()

    def app():
        return create_api_app(database=api.stack.database, gateway=api.stack.services.gateway, settings=ApiSettings())

    def watch(url: str) -> None:
        with ApiClient(url, token=token) as client:
            for event in client.follow_events(request["run_id"]):
                seen.append(event.run_seq)
                if event.type == "request.opened":
                    loop.call_soon_threadsafe(opened.set)

    async with serving(app()) as url:
        watching = asyncio.create_task(asyncio.to_thread(watch, url))
        await asyncio.wait_for(opened.wait(), 20)
    assert (await api.decide(request)).status_code == 200
    async with serving(app(), port=int(url.rpartition(":")[2])):
        await asyncio.wait_for(watching, 20)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 3
    assert json.dumps(seen)
