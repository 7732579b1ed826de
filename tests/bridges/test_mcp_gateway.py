"""``turngate mcp-gateway`` between a real MCP client and a real server, with a person who decides."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from mcp import Client, MCPError
from mcp.types import Tool, ToolAnnotations
from support.api.api_server import Api, api_on
from support.api.gate_client import Sender, sender_on
from support.engine.stack import Stack, until
from support.mcp.calls import McpBench, started_here
from support.mcp.gateway_client import (
    GIT_SERVER,
    Front,
    Held,
    connect_to,
    environment,
    kill,
    on_http,
    on_stdio,
    repository_in,
    text_of,
)
from support.servers.black_hole import black_hole
from temporalio.client import Client as TemporalClient

from turngate import Toolkit
from turngate import worker as composition
from turngate.approvals_api.gateway.client import Gateway
from turngate.bridges.external_calls import ExternalCalls, GatedCall
from turngate.bridges.mcp_gateway.gateway import McpGateway
from turngate.bridges.mcp_gateway.results import acceptable, external_tool
from turngate.bridges.reports import ok_of
from turngate.cli.commands.frontends.mcp_gateway import project_here
from turngate.client import Retries, TurngateClient
from turngate.domain.tools.external import ExternalTool
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.app_loader import load_app, publish_agents
from turngate.store.database import Database
from turngate.toolkits.confinement import machine
from turngate.toolkits.confinement.machine import Confinement
from turngate.toolkits.confinement.sandbox import Backend
from turngate.toolkits.mcp import StdioServer
from turngate.wire.external_calls import RunOrder
from turngate.wire.orders import ExternalCallOrder

EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp_gateway"


@asynccontextmanager
async def inside(client: TurngateClient, name: str, server: StdioServer) -> AsyncIterator[Client]:
    """A client of a gateway in this process."""
    gateway = McpGateway(client, connect_to(server), name=name)
    async with gateway.serving(), Client(gateway.server, cache=None) as session:
        yield session


@pytest.fixture(scope="session")
async def front(gate_api: Api, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    """A client of a gateway in this process, in front of the published git server."""
    directory = tmp_path_factory.mktemp("front")
    sender = await sender_on(gate_api)
    server = StdioServer(command=GIT_SERVER, writable=[directory])
    held = Held(inside(sender.client, sender.source, server))
    yield Front(await held.client(), sender, repository_in(directory / "repository"))
    await held.close()
    await sender.client.aclose()


async def test_i3_a_gated_call_waits_for_a_person_and_runs_once(front: Front) -> None:
    """The client gets signs of life; nothing runs before the approval; then the client gets the server's own answer."""
    calling = front.calling("git_create_branch", branch_name="approved")
    (request,) = await front.sender.pending()
    assert (request["agent"], request["manifest"]["effect"]) == (f"external-{front.sender.source}", "once")
    await until(lambda: asyncio.sleep(0, bool(front.progress)), "progress")
    assert not calling.done()
    assert "approved" not in front.branches
    await front.sender.decide()
    result = await calling
    assert not result.is_error, text_of(result)
    assert "approved" in front.branches
    assert "Created branch" in text_of(result)
    assert (await front.sender.call(request)).state == "done"


async def test_i6_an_edited_call_runs_as_it_was_edited(front: Front) -> None:
    """The result says what ran instead of the client's arguments."""
    calling = front.calling("git_create_branch", branch_name="mine")
    arguments = {"repo_path": str(front.repository), "branch_name": "theirs"}
    await front.sender.decide("edit", args=arguments)
    result = await calling
    assert front.branches & {"mine", "theirs"} == {"theirs"}
    assert "An operator edited this call" in text_of(result)


async def test_i12_a_rejected_call_says_who_refused_and_is_not_asked_again(front: Front) -> None:
    """The client's model reads the reason; the same call again is closed without a request, also through another gateway."""
    before = front.branches
    calling = front.calling("git_create_branch", branch_name="rejected")
    await front.sender.decide("reject", message="Not on a Friday.")
    result = await calling
    assert result.is_error
    assert "An operator rejected this call. They said: Not on a Friday." in text_of(result)
    server = StdioServer(command=GIT_SERVER, writable=[front.repository])
    async with inside(front.sender.client, front.sender.source, server) as another:
        for client in (front.client, another):
            again = await replace(front, client=client).call("git_create_branch", branch_name="rejected")
            assert again.is_error
            assert "no one was asked again" in text_of(again)
    assert await front.sender.none_pending()
    assert front.branches == before


@pytest.mark.exhaustive
async def test_rules_answer_before_any_person(front: Front) -> None:
    """A call that a rule allows runs at once, one that a rule denies never runs, and neither reaches the inbox."""
    status = await front.call("git_status")
    assert not status.is_error
    assert "On branch" in text_of(status)
    denied = await front.call("git_reset")
    assert (denied.is_error, (denied.meta or {})["turngate/error"]) == (True, {"kind": "denied"})
    assert "Shops stay." in text_of(denied)
    wrong = await front.call("git_create_branch", branch_name=5)
    assert (wrong.meta or {})["turngate/error"] == {"kind": "input_validation_error"}
    unknown = await front.call("git_push")
    assert (unknown.meta or {})["turngate/error"] == {"kind": "unknown_tool"}
    assert await front.sender.none_pending()


async def test_a_client_that_cancels_takes_its_request_back(front: Front) -> None:
    """The request leaves the inbox, and nothing runs."""
    before = front.branches
    calling = front.calling("git_create_branch", branch_name="never")
    (request,) = await front.sender.pending()
    calling.cancel()

    async def cancelled() -> bool:
        return (await front.sender.call(request)).state == "done"

    await until(cancelled, "end of the call")
    assert await front.sender.none_pending()
    assert front.branches == before


@pytest.mark.parametrize("over_http", [False, True])
async def test_i5_a_call_outlives_its_gateway(gate_api: Api, tmp_path: Path, over_http: bool) -> None:
    """After a ``kill -9`` the same calls again, by id or by content, get their requests back; each runs once."""
    sender = await sender_on(gate_api)
    repository = repository_in(tmp_path / "repository")
    ids: dict[str, str | None] = {"by-id": "call-1", "by-content": None}
    held = Held(on_stdio(sender, tmp_path))
    first = Front(await held.client(), sender, repository)
    lost = [
        asyncio.create_task(first.call("git_create_branch", call_id=call_id, branch_name=branch))
        for branch, call_id in ids.items()
    ]
    requests = await sender.pending(2)
    kill(sender)
    assert all(isinstance(each, MCPError) for each in await asyncio.gather(*lost, return_exceptions=True))
    await held.close()
    assert [each["id"] for each in await sender.pending(2)] == [each["id"] for each in requests]
    for request in requests:  # while no gateway is there
        assert (await gate_api.decide(request)).status_code == 200
    server = StdioServer(command=GIT_SERVER, writable=[tmp_path])
    another = on_http(sender, tmp_path) if over_http else inside(sender.client, sender.source, server)
    async with another as client:
        second = Front(client, sender, repository)
        for branch, call_id in ids.items():
            result = await second.call("git_create_branch", call_id=call_id, branch_name=branch)
            assert not result.is_error, text_of(result)
        again = await second.call("git_create_branch", call_id="call-1", branch_name="by-id")
        assert "Created branch" in text_of(again)
    assert second.branches == {"by-content", "by-id"}
    assert await sender.none_pending()


@pytest.mark.exhaustive
async def test_what_waits_is_left_for_the_next_gateway(gate_api: Api, tmp_path: Path) -> None:
    """A gateway whose client leaves without cancelling withdraws no request."""
    sender = await sender_on(gate_api)
    held = Held(on_stdio(sender, tmp_path))
    calling = Front(await held.client(), sender, tmp_path).calling("git_create_branch", branch_name="later")
    requests = await sender.pending()
    await held.close()
    await asyncio.gather(calling, return_exceptions=True)
    assert await sender.pending() == requests


@pytest.mark.exhaustive
async def test_a_server_that_dies_in_a_call_leaves_the_question_to_a_person(gate_api: Api, tmp_path: Path) -> None:
    """The client reads that the call may have happened, a person is asked at once, and the next call gets a new server."""
    sender = await sender_on(gate_api)
    async with inside(sender.client, sender.source, started_here(tmp_path)) as client:
        calling = asyncio.create_task(client.session.call_tool("die", {}))
        await sender.decide()
        result = await calling
        assert (result.meta or {})["turngate/error"] == {"kind": "unknown"}
        (request,) = await sender.pending()
        assert request["kind"] == "outcome"
        calling = asyncio.create_task(client.session.call_tool("note", {"text": "hi"}))
        (_, note) = await sender.pending(2)
        assert (await gate_api.decide(note)).status_code == 200
        assert text_of(await calling) == "noted hi"
    assert [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()] == ["die", "note"]


async def test_i6_a_tool_that_changed_since_it_was_asked_for_does_not_run(gate_api: Api, tmp_path: Path) -> None:
    """What was displayed runs, or nothing does; a call of a changed tool isn't the same call, even if name and arguments are."""
    sender = await sender_on(gate_api)
    older = ExternalTool(name="note", description="Burn a note.")
    order = ExternalCallOrder(source=sender.source, tool_call_id="old", tool=older, input='{"text": "hi"}')
    await sender.client.send_external_call(order)
    async with inside(sender.client, sender.source, started_here(tmp_path)) as client:
        calling = asyncio.create_task(client.session.call_tool("note", {"text": "hi"}))
        _old, request = await sender.pending(2)
        (tmp_path / "changed").touch()
        assert (await gate_api.decide(request)).status_code == 200
        result = await calling
    assert (result.meta or {})["turngate/error"] == {"kind": "tool_changed"}
    assert not (tmp_path / "calls").exists()


async def test_i2_nothing_runs_while_turngate_or_the_server_is_away(sender: Sender, tmp_path: Path) -> None:
    """The client's model reads what is wrong; listing the tools is an error too while no server can list them."""
    nowhere = TurngateClient("http://127.0.0.1:1", token="none", retries=Retries(attempts=1))
    async with nowhere, inside(nowhere, "nowhere", started_here(tmp_path)) as client:
        result = await client.session.call_tool("note", {"text": "hi"})
        assert (result.is_error, (result.meta or {})["turngate/error"]) == (True, {"kind": "unavailable"})
        assert not (tmp_path / "calls").exists()
    async with inside(
        sender.client, sender.source, StdioServer(command=[sys.executable, "-c", "raise SystemExit(1)"])
    ) as client:
        result = await client.session.call_tool("note", {"text": "hi"})
        assert (result.is_error, (result.meta or {})["turngate/error"]) == (True, {"kind": "unavailable"})
        with pytest.raises(MCPError, match="cannot reach its MCP server"):
            await client.session.list_tools()
    assert await sender.none_pending()


async def test_waits_and_reports_notice_that_their_connection_is_dead(sender: Sender, tmp_path: Path) -> None:
    """No one closed it, and it carries nothing: gateway and adapters ask again, and a report arrives. Each call runs once."""
    ran: list[str] = []
    token = sender.client._http.headers["Authorization"].removeprefix("Bearer ")
    async with (
        black_hole(sender.api.url) as hole,
        TurngateClient(hole.url, token=token, timeout=2.0) as client,  # instead of 15 seconds
        inside(client, sender.source, started_here(tmp_path)) as session,
    ):
        outside = ExternalCalls(client, source=sender.source)
        records = [
            await outside.ask(GatedCall(tool_call_id=name, name="refund", input=f'{{"order": "{name}"}}'))
            for name in ("runs", "waits")
        ]

        async def handler(order: RunOrder) -> str:
            if "runs" in order.input:
                await sender.pending(2)
                hole.swallow()
                hole.release()
            ran.append(order.input)
            return "paid"

        waiting = [
            asyncio.create_task(session.session.call_tool("note", {"text": "hi"})),
            *(asyncio.create_task(outside.run(record, handler, to_report=ok_of)) for record in records),
        ]
        (first, *others) = sorted(await sender.pending(3), key=lambda each: "runs" not in each["input"])
        assert (await sender.api.decide(first)).status_code == 200
        await until(lambda: asyncio.sleep(0, bool(ran)), "call that runs as the connection dies")
        for each in others:
            assert (await sender.api.decide(each)).status_code == 200
        async with asyncio.timeout(120):
            await asyncio.gather(*waiting)

        async def all_done() -> bool:
            return all([(await sender.client.get_external_call(record)).state == "done" for record in records])

        await until(all_done, "reports")
    assert len(ran) == 2
    assert (tmp_path / "calls").read_text().count("note") == 1


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
async def test_i13_the_server_reads_no_credential_and_reaches_no_way_to_decide(
    gate_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    """I13: neither the gateway's token, in its environment, nor the owner's, in the data directory, nor the API."""
    secret, data, marks = secrets.token_hex(8), tmp_path / "data", tmp_path / "marks"
    data.mkdir()
    marks.mkdir()
    (data / "token").write_text(secret)
    for name in ("TURNGATE_TOKEN", "FOR_THE_CLIENT", "FOR_THE_SERVER"):
        monkeypatch.setenv(name, secret if name != "FOR_THE_SERVER" else "yes")
    monkeypatch.setattr(machine, "_chosen", [Confinement(backend=backend, hidden=(data,))])
    sender = await sender_on(gate_api)
    server = replace(started_here(marks), env={"FOR_THE_SERVER": "yes"})
    async with inside(sender.client, sender.source, server) as client:
        arguments = {"directory": str(data), "port": httpx.URL(gate_api.url).port}
        calling = asyncio.create_task(client.session.call_tool("environment", arguments))
        await sender.decide()
        seen = (await calling).structured_content or {}
    assert "FOR_THE_SERVER" in seen["names"]
    assert not {"TURNGATE_TOKEN", "FOR_THE_CLIENT"}.intersection(seen["names"])
    assert str(marks) in seen["seen"]  # its own command line
    assert secret not in seen["seen"]
    assert "reached" not in seen["seen"]


def test_the_servers_directory_is_never_the_users_whole_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --directory the server works where the client starts the gateway, if that is a project."""
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for place, expected in ((home / "project", home / "project"), (home, None), (tmp_path, None), (Path("/"), None)):
        monkeypatch.chdir(place)
        assert project_here() == expected


def test_i13_before_a_gateway_reads_a_token(tmp_path: Path) -> None:
    """I13: no process can read its memory (prctl(2)), and it knows what its server may change: it starts no program from there.

    It holds what the server runs from. It ends here because there is no token.
    """
    program = (
        "import ctypes, sys\n"
        "from turngate.cli.main import app\n"
        "from turngate.toolkits.confinement import machine\n"
        "try:\n    app(['mcp-gateway', '--', *sys.argv[1:]], standalone_mode=False)\n"
        "except BaseException:\n    pass\n"
        "print('dumpable:', ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *machine.current().loaded)\n"
    )
    project, data = tmp_path / "project", tmp_path / "data"
    (project / "bin").mkdir(parents=True)
    (project / "server.py").touch()
    (project / "bin/python").symlink_to(sys.executable)
    (project / "bin/bwrap").write_text(f"#!/bin/sh\necho started > {project}/started\n")
    (project / "bin/bwrap").chmod(0o755)
    variables = {"PATH": str(project / "bin"), "TURNGATE_DATA_DIR": str(data)}
    command = [sys.executable, "-c", program, "bin/python", "server.py"]
    done = subprocess.run(command, env=variables, cwd=project, capture_output=True, text=True, check=True)
    assert "start one with `turngate up`" in done.stderr
    assert "dumpable: 0" in done.stdout
    assert {str(project / "bin"), str(project / "server.py")} <= set(done.stdout.split())
    assert not (project / "started").exists()


@pytest.mark.parametrize(
    ("hints", "trusted", "effect", "ask"),
    [
        (None, True, "once", None),
        (ToolAnnotations(read_only_hint=True), False, "read", None),
        (ToolAnnotations(read_only_hint=True), True, "read", False),
        (ToolAnnotations(idempotent_hint=True), True, "idempotent", None),
        (ToolAnnotations(idempotent_hint=True, destructive_hint=True), True, "once", None),
        (ToolAnnotations(read_only_hint=False), True, "once", None),
    ],
)
def test_annotations_switch_no_gate_off_by_themselves(
    hints: ToolAnnotations | None, trusted: bool, effect: str, ask: bool | None
) -> None:
    """Annotations say whether a repeat is safe; only a trusted server's may say that a call needs no request."""
    tool = Tool(name="t", input_schema={"type": "object"}, annotations=hints)
    tool_options = external_tool(tool, trusted=trusted, timeout_seconds=5)
    assert (tool_options.effect, tool_options.ask) == (effect, ask)


def test_no_two_names_become_one() -> None:
    """A name that no rule could have is changed, and marked with what it was."""
    names = ["a.b", "a/b", "a_b", "9x", "y" * 80, "y" * 81]
    accepted = [acceptable(name) for name in names]
    assert len(set(accepted)) == len(names)
    assert max(map(len, accepted)) <= 64
    assert accepted[2] == "a_b"


@pytest.mark.exhaustive
async def test_the_example(
    client: TemporalClient, sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client reads without a request, and its branch is created when a person approves, by the example's own policy."""
    monkeypatch.chdir(EXAMPLE)
    loaded = load_app("gateway_app:app")
    task_queue = f"test-{secrets.token_hex(4)}"
    await publish_agents(loaded, sqlite, task_queue=task_queue)
    engine = Stack(
        client,
        sqlite,
        composition.build_engine(loaded, sqlite, Models(ModelSettings(script_base=loaded.base))),
        task_queue,
    )
    repository = repository_in(tmp_path / "repository")
    async with engine.worker(), api_on(engine, Gateway(client)) as api:
        sender = replace(await sender_on(api), source="git")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        words = [sys.executable, "client.py", str(repository), "made-here"]
        process = await asyncio.create_subprocess_exec(
            *words, env={**environment(sender), "PATH": path}, cwd=EXAMPLE, stdout=asyncio.subprocess.PIPE
        )
        await sender.decide()
        output, _ = await process.communicate()
    assert process.returncode == 0
    assert "On branch main" in output.decode()
    assert "Created branch 'made-here'" in output.decode()


@pytest.mark.exhaustive
async def test_a_result_that_breaks_its_tools_schema_has_happened(sender: Sender, tmp_path: Path) -> None:
    """The result reaches the client, which may judge it; no one is asked whether the call happened."""
    async with inside(sender.client, sender.source, started_here(tmp_path)) as client:
        calling = asyncio.create_task(client.session.call_tool("wrong", {}))
        request = await sender.decide()
        assert (await calling).structured_content == {"sum": "many"}
        assert (await sender.call(request)).state == "done"
    assert await sender.none_pending()


@pytest.mark.exhaustive
async def test_a_call_out_of_time_leaves_the_server_to_the_others(sender: Sender, tmp_path: Path) -> None:
    """A call that isn't answered in time is lost; the connection stays, because other calls may use it."""
    gateway = McpGateway(sender.client, connect_to(started_here(tmp_path)), name=sender.source, timeout_seconds=1)
    async with gateway.serving(), Client(gateway.server, cache=None) as client:
        before = McpBench(tmp_path, Toolkit.of()).processes
        slow = await client.session.call_tool("slow", {})
        assert (slow.meta or {})["turngate/error"] == {"kind": "unknown"}
        await client.session.list_tools()
        assert McpBench(tmp_path, Toolkit.of()).processes == before != []
