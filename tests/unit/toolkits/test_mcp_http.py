"""MCP servers over streamable HTTP: a real server on a port, killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from support.mcp.calls import HEADERS, WebServer, on_http

from turngate import Ok, Toolkit
from turngate.domain.errors import ConfigurationError
from turngate.toolkits.mcp import HttpServer, close_sessions, mcp_toolkit


@pytest.fixture(scope="module", params=[(), ("--old",)], ids=["new", "old"])
def web(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with on_http(tmp_path_factory.mktemp("mcp"), *request.param) as server:
        yield server


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_sessions()


async def test_calls(web: WebServer) -> None:
    """Calls reach the server once each; failures and invalid results are as over stdio."""
    bench = web.bench()
    assert await bench("note", text="milk") == Ok(value={"text": "noted milk"})
    assert (await bench.failed("refuse")).kind == "mcp_tool_error"
    assert (await bench.failed("fail")).kind == "mcp_tool_error"
    assert "do not repeat it" in (await bench.failed("wrong")).reason
    assert bench.calls[-4:] == ["note", "refuse", "fail", "wrong"]


async def test_progress_and_cancellation(web: WebServer) -> None:
    """Progress arrives while the call runs; cancelling it stops the server's work."""
    bench = web.bench(allow=["slow", "note"])
    call = asyncio.create_task(bench("slow"))
    await bench.until(lambda: bench.emitted)
    await bench.mark("started")
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    await bench.mark("cancelled")
    assert isinstance(await bench("note", text="after"), Ok)


@pytest.mark.exhaustive
async def test_a_server_that_is_away_and_comes_back(web: WebServer) -> None:
    """While the server is away nothing is sent; when it is back, without the old session, calls work again."""
    bench = web.bench(allow=["note"])
    await bench("note", text="a")
    before = len(bench.calls)
    web.kill()
    assert (await bench.failed("note", text="b")).kind == "mcp_unavailable"
    web.start()
    assert isinstance(await bench("note", text="c"), Ok)
    web.kill()
    web.start()
    assert isinstance(await bench("note", text="d"), Ok)
    assert bench.calls[before:] == ["note", "note"]


@pytest.mark.exhaustive
async def test_a_lost_answer(web: WebServer) -> None:
    """A server that dies in the middle of a call got it once, and the outcome is unknown."""
    bench = web.bench(allow=["die"])
    assert (await bench.failed("die")).kind == "unknown"
    assert bench.calls.count("die") == 1
    web.kill()
    web.start()
    assert bench.calls.count("die") == 1


def test_addresses_that_do_not_answer(web: WebServer) -> None:
    """A missing token, a wrong path and a closed port each say what to do, and show no secret."""
    cases = {
        (web.url, ""): "answered 401: pass what it wants",
        (f"{web.url}/wrong", "Bearer sesame"): "is the path right",
        ("http://ann:secret@127.0.0.1:9/mcp?key=secret", "secret"): "http://127.0.0.1:9/mcp cannot be reached",
    }
    for (url, token), says in cases.items():
        with pytest.raises(ConfigurationError, match=r"^MCP server 'web': ") as refused:
            mcp_toolkit(HttpServer(url=url, headers={"Authorization": token}), name="web")
        assert says in str(refused.value)
        assert "secret" not in str(refused.value)


def test_invalid_addresses() -> None:
    """An invalid address is refused; secrets are hidden where servers are printed."""
    with pytest.raises(ConfigurationError, match="begins with http"):
        HttpServer(url="localhost:8000/mcp")
    assert "sesame" not in repr(HttpServer(url="http://a/mcp", headers=HEADERS))


def test_two_servers_side_by_side(web: WebServer) -> None:
    """Two servers with a tool of one name live under prefixes."""
    kit = web.bench(allow=["note"]).kit
    both = Toolkit.compose(Toolkit.namespace("left", kit), Toolkit.namespace("right", kit))
    assert both.names == ["left__note", "right__note"]
