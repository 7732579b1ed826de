"""``turngate rpc`` as a program uses it: a process that speaks JSON-RPC 2.0, one message a line."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.api_server import Api
from support.black_hole import black_hole
from support.engine import until
from support.frontend_app import GO, Driver, driver, environment, inside, owner_token, secret
from support.terminal_process import TURNGATE

from turngate.client import TurngateClient
from turngate.frontends.rpc.parameters import WatchRun
from turngate.frontends.rpc.server import serve_rpc
from turngate.frontends.rpc.watch import Watches

NO_PARAMS: dict[str, Any] = {}


def _event(kind: str, watch_id: str) -> Callable[[dict[str, Any]], bool]:
    def wanted(message: dict[str, Any]) -> bool:
        params = message.get("params", NO_PARAMS)
        return params.get("watch_id") == watch_id and params.get("event", NO_PARAMS).get("type") == kind

    return wanted


@pytest.fixture(scope="module")
async def rpc(driven_api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Driver]:
    """A connection of a person who may start runs and decide."""
    directory = tmp_path_factory.mktemp("rpc")
    env = environment(driven_api, await owner_token(driven_api), directory)
    async with driver("rpc", env=env, cwd=directory) as connection:
        yield connection


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("line", "code", "known"),
    [
        ('{"jsonrpc": "2.0", "id": 1, "method"', -32700, None),
        ('{"jsonrpc": "2.0", "id": NaN, "method": "agents.list"}', -32700, None),
        ('{"jsonrpc": "2.0", "id": 1, "id": 2, "method": "agents.list"}', -32700, None),
        ("[" * 100_000, -32700, None),
        ("3", -32600, None),
        ("[]", -32600, None),
        ('{"id": 1, "method": "agents.list"}', -32600, 1),
        ('{"jsonrpc": "2.0", "id": true, "method": "agents.list"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": {"a": 1}, "method": "agents.list"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": "x"}', -32600, "x"),
        ('{"jsonrpc": "2.0", "id": 2, "method": "agents.list", "params": 3}', -32600, 2),
        ('{"jsonrpc": "2.0", "id": 2.5, "method": "agents.list", "params": [3]}', -32602, 2.5),
        ('{"jsonrpc": "2.0", "id": null, "method": "runs.start"}', -32601, None),
        ('{"jsonrpc": "2.0", "id": "ü", "method": "agents.list", "params": {"all": true}}', -32602, "ü"),
        ('{"jsonrpc": "2.0", "id": 4, "method": "run.get"}', -32602, 4),
        ('{"jsonrpc": "2.0", "id": 4, "method": "run.get", "params": {"run_id": 5}}', -32602, 4),
    ],
)
async def test_an_invalid_request_has_its_error_and_its_id(rpc: Driver, line: str, code: int, known: Any) -> None:
    """Each kind of nonsense gets JSON-RPC's code for it, and the connection continues."""
    await rpc.send(line)
    refused = await rpc.until(lambda message: "error" in message)
    assert (refused["error"]["code"], refused["id"]) == (code, known)
    assert isinstance(known, bool) == isinstance(refused["id"], bool)
    assert (await rpc.ask("agents.list"))["result"][0]["name"] == "agent"


async def test_a_batch_is_answered_in_one_list(driven_api: Api) -> None:
    """As in the specification: a wrong entry is an error of its own; a notification has no answer, nor has a batch of them."""
    async with inside(driven_api, await owner_token(driven_api), serve_rpc) as (reader, writer, _served):
        listed = {"jsonrpc": "2.0", "method": "agents.list"}
        unknown = {"jsonrpc": "2.0", "method": "none"}
        for line in (
            [1, {**listed, "id": "a"}, listed, {**unknown, "id": "b"}],
            [listed, unknown],
            {"jsonrpc": "2.0", "id": "c", "method": "models.list"},
        ):
            writer.write(json.dumps(line).encode() + b"\n")
        first, second = [json.loads(await asyncio.wait_for(reader.readline(), 60)) for _ in range(2)]
        batch, single = (first, second) if isinstance(first, list) else (second, first)
    assert [(each["id"], each.get("error", {}).get("code")) for each in batch] == [
        (None, -32600), ("a", None), ("b", -32601),
    ]  # fmt: skip
    assert batch[1]["result"][0]["name"] == "agent"
    assert single["id"] == "c"
    assert "scripted:test" in {each["name"] for each in single["result"]}


@pytest.mark.exhaustive
async def test_a_reader_that_has_gone_ends_it_without_any_output(driven_api: Api, tmp_path: Path) -> None:
    """A program that dies while its run waits at a gate leaves no process, even though our stdin is still open."""
    run = await driven_api.start("pay 10")
    process = await asyncio.create_subprocess_exec(
        TURNGATE, "rpc", stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=tmp_path,
        env=environment(driven_api, await owner_token(driven_api), tmp_path),
    )  # fmt: skip
    watch_request = {"jsonrpc": "2.0", "id": 1, "method": "run.watch", "params": {"run_id": run["id"]}}
    process.stdin.write(json.dumps(watch_request).encode() + b"\n")
    while b"request.opened" not in await asyncio.wait_for(process.stdout.readline(), 60):
        pass
    process._transport.get_pipe_transport(1).close()
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert await process.stderr.read() == b""
    assert (await driven_api.request(run))["status"] == "pending"


async def test_wrong_params_are_named(rpc: Driver) -> None:
    """The error names a mistyped parameter as a JSON pointer."""
    refused = await rpc.ask("run.start", agent="agent", inpt="go")
    assert {each["pointer"] for each in refused["error"]["data"]["errors"]} == {"/input", "/inpt"}


async def test_a_gated_run_is_driven_to_its_end(rpc: Driver) -> None:
    """Started, watched with its live text, decided by the displayed digest, and read: all over one pipe."""
    run = (await rpc.ask("run.start", agent="agent", input="pay 5"))["result"]
    watch = (await rpc.ask("run.watch", run_id=run["id"]))["result"]
    await rpc.until(_event("request.opened", watch["watch_id"]))
    waiting = (await rpc.ask("requests.list", run_id=run["id"]))["result"]["items"]
    request = (await rpc.ask("requests.get", request_id=waiting[0]["id"]))["result"]
    assert request["input"] == '{"cents": 5}'
    other = await rpc.ask("requests.decide", request_id=request["id"], decision="approve", digest="0" * 64)
    assert other["error"]["code"] == -32009
    edited = await rpc.ask(
        "requests.decide", request_id=request["id"], decision="edit", digest=request["digest"], args='{"cents":  7}'
    )
    assert edited["result"]["status"] == "approved"
    ended = await rpc.until(lambda message: message.get("method") == "run.watch_ended")
    assert ended["params"]["error"] is None
    read = (await rpc.ask("run.get", run_id=run["id"]))["result"]
    assert (read["outcome"], read["final_text"]) == ("completed", "All done.")
    assert read["steps"][0]["calls"][0]["edited_input"] == '{"cents":  7}'
    at = rpc.messages.index
    begun = next(each for each in rpc.messages if each.get("result") == watch)
    assert at(begun) < at(
        next(each for each in rpc.messages if each.get("params", NO_PARAMS).get("watch_id") == watch["watch_id"])
    )


async def test_a_watcher_gets_the_models_words_as_they_come(rpc: Driver) -> None:
    """The first word arrives before the model says the second; the stored answer comes as always."""
    GO.clear()
    run = (await rpc.ask("run.start", agent="agent", input="hold on"))["result"]
    watch = (await rpc.ask("run.watch", run_id=run["id"], progress=False))["result"]
    delta = await rpc.until(
        lambda message: (
            message.get("method") == "run.delta" and "You" in json.dumps(message["params"]["delta"]["deltas"])
        )
    )
    assert delta["params"]["watch_id"] == watch["watch_id"]
    GO.set()
    await rpc.until(_event("run.ended", watch["watch_id"]))
    assert (await rpc.ask("run.get", run_id=run["id"]))["result"]["final_text"] == "You said: hold on"


async def test_a_watch_sends_nothing_before_its_client_knows_it(driven_api: Api) -> None:
    """However slowly the answer is read: an event of an unknown watch would be lost."""
    run = await driven_api.start("pay 4")
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    async with TurngateClient(driven_api.url, token=await owner_token(driven_api)) as client:
        watches = Watches(client, send)
        begun = await watches.watch(WatchRun(run_id=run["id"]))
        async for each in client.follow_events(run["id"]):  # longer than the watch would have needed
            if each.type == "request.opened":
                break
        await client.get_run(run["id"])
        assert messages == []
        watches.begin(begun.watch_id)
        await until(lambda: asyncio.sleep(0, messages), "event of the watch")
        await watches.close()


async def test_a_run_is_paused_gets_a_message_and_is_stopped(rpc: Driver) -> None:
    """Pause, resume, send and interrupt are the API's own, and so are their refusals: problem documents."""
    run = (await rpc.ask("run.start", agent="agent", input="pay 6"))["result"]
    watch = (await rpc.ask("run.watch", run_id=run["id"], deltas=False))["result"]
    # Else a paused run could read the message in place of "pay 6", and complete.
    await rpc.until(_event("request.opened", watch["watch_id"]))
    for method, params, event in [
        ("run.pause", {"reason": "tea"}, "run.paused"),
        ("run.resume", {}, "run.resumed"),
        ("run.switch_model", {"model": "scripted:other"}, "run.model_switched"),
        ("run.send", {"input": "and say hello", "while_running": "inject"}, "message.queued"),
        ("run.interrupt", {"reason": "enough"}, "run.ended"),
    ]:
        assert (await rpc.ask(method, run_id=run["id"], **params))["result"]["id"] == run["id"]
        await rpc.until(_event(event, watch["watch_id"]))
    assert not (await rpc.ask("run.unwatch", watch_id=watch["watch_id"] + "x"))["result"]["stopped"]
    listed = (await rpc.ask("run.list", status="interrupted", limit=1))["result"]["items"]
    assert [each["id"] for each in listed] == [run["id"]]
    late = (await rpc.ask("run.interrupt", run_id=run["id"]))["error"]
    assert late["code"] == -32009
    assert late["data"]["type"] == "urn:turngate:problem:run_ended"
    assert late["data"]["status"] == 409
    assert (await rpc.ask("run.watch", run_id="run_none"))["error"]["data"]["code"] == "not_found"


async def test_i10_a_token_that_may_not_decide_does_not_over_rpc_either(driven_api: Api) -> None:
    """An agent's credential starts runs, and its own gate stays shut: the API's refusal is passed on."""
    token = await secret(driven_api, "rpc-bot", "runs:write", "requests:read")
    async with inside(driven_api, token, serve_rpc) as (reader, writer, _served):
        bot = Driver(reader, writer)
        run = (await bot.ask("run.start", agent="agent", input="pay 8"))["result"]
        request = await driven_api.request(run)
        refused = await bot.ask(
            "requests.decide", request_id=request["id"], decision="approve", digest=request["digest"]
        )
        assert refused["error"]["code"] == -32003
        assert refused["error"]["data"]["status"] == 403
    assert (await driven_api.request(run))["status"] == "pending"


@pytest.mark.exhaustive
async def test_a_pipe_gets_every_answer_before_the_end(driven_api: Api, tmp_path: Path) -> None:
    """``… | turngate rpc`` as a shell user writes it: all but the notification is answered, then it exits 0."""
    lines = [
        {"jsonrpc": "2.0", "method": "agents.list"},
        {"jsonrpc": "2.0", "id": "run", "method": "run.start", "params": {"agent": "agent", "input": "pay 9"}},
        {"jsonrpc": "2.0", "id": "all", "method": "rpc.discover"},
    ]
    process = await asyncio.create_subprocess_exec(
        TURNGATE, "rpc", stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=tmp_path,
        env=environment(driven_api, await owner_token(driven_api), tmp_path),
    )  # fmt: skip
    out, err = await process.communicate("\n".join(map(json.dumps, lines)).encode())  # and no line feed at the end
    assert (process.returncode, err) == (0, b"")
    answers = {each["id"]: each["result"] for each in map(json.loads, out.splitlines())}
    assert answers.keys() == {"run", "all"}
    _check_description(answers["all"], answers["run"])
    assert (await driven_api.request(answers["run"]))["status"] == "pending"


def _check_description(document: dict[str, Any], run: dict[str, Any]) -> None:
    """It names every method and its version, and the answers fit its schemas."""
    assert document["info"]["x-protocol-version"] == 1
    methods = {each["name"]: each for each in document["methods"]}
    assert {"run.start", "run.watch", "requests.decide", "rpc.discover"} <= methods.keys()
    wanted = {each["name"]: each["required"] for each in methods["run.start"]["params"]}
    assert (wanted["input"], wanted["model"]) == (True, False)
    answer = {**methods["run.start"]["result"]["schema"], "components": document["components"]}
    Draft202012Validator.check_schema(answer)
    Draft202012Validator(answer).validate(run)
    assert [*Draft202012Validator(answer).iter_errors({})]


async def test_a_wrong_address_gets_the_fix(driven_api: Api) -> None:
    """A server that is down causes no stack trace: each request gets an answer that says what to do."""
    async with inside(driven_api, "none", serve_rpc, url="http://127.0.0.1:1") as (reader, writer, _served):
        lost = Driver(reader, writer)
        error = (await lost.ask("agents.list"))["error"]
        assert error["code"] == -32053
        assert "turngate up" in error["message"]


@pytest.mark.exhaustive
async def test_a_watch_outlives_a_dead_connection(driven_api: Api) -> None:
    """A connection that went silent without an end is noticed and said; no event is lost or comes twice."""
    run = await driven_api.start("pay 6")
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    async def is_sent(method: str, **params: Any) -> bool:
        return any(each["method"] == method and params.items() <= each["params"].items() for each in messages)

    async with (
        black_hole(driven_api.url) as hole,
        TurngateClient(hole.url, token=await owner_token(driven_api)) as client,
    ):
        watches = Watches(client, send)
        begun = await watches.watch(WatchRun(run_id=run["id"]))
        watches.begin(begun.watch_id)
        request = await driven_api.request(run)
        await until(partial(is_sent, "run.event"), "first event")
        hole.swallow()
        await driven_api.decide(request)
        await until(partial(is_sent, "run.connection", connected=False), "word of the lost connection")
        hole.release()
        await until(partial(is_sent, "run.connection", connected=True), "word of the new connection")
        await until(partial(is_sent, "run.watch_ended", error=None), "end of the watch")
    story = [each["params"]["event"] for each in messages if each["method"] == "run.event"]
    assert [each["run_seq"] for each in story] == list(range(1, len(story) + 1))
    assert story[-1]["type"] == "run.ended"
