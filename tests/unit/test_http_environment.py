"""An environment that HTTP clients can't use is named with its variable, and a proxy is not for this machine's own servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from turngate.cli.errors import EXIT_USAGE, reported
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.http_environment import BUNDLES, PROXIES, client_for, is_local, problem_of
from turngate.models.port import ModelRequest
from turngate.models.pydantic_ai.providers import make


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what this machine has set."""
    for name in (*PROXIES, *BUNDLES, "SSL_CERT_DIR", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks5://u:hunter2@127.0.0.1:9", "httpx[socks]"),
        ("https_proxy", "ftp://u:hunter2@proxy:3128", "write http://HOST:PORT or socks5://HOST:PORT"),
        ("HTTP_PROXY", "http://u:hunter2@proxy:port", "write http://HOST:PORT"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem", "there is no such file"),
        ("SSL_CERT_FILE", __file__, "it holds no certificates"),
        ("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem", "there is no such file"),
        ("SSL_CERT_DIR", "/nowhere/certs", "there is no such directory"),
        ("NO_PROXY", "[::1", "can't be read"),
    ],
)
def test_a_variable_that_cannot_work_is_named(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a client is made, with what to do, and without a password; never as a bug of Turngate's."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        client_for("https://api.example.com/v1")
    assert refused.value.message.startswith(name)
    assert says in refused.value.message
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"HTTPS_PROXY": "proxy.example:3128", "NO_PROXY": "localhost,127.0.0.0/8,.corp"},
        {"ALL_PROXY": "", "SSL_CERT_DIR": f"/nowhere:{Path(__file__).parent}"},
        {"all_proxy": "http://u:p@proxy:3128", "ALL_PROXY": "ftp://unread"},
    ],
)
def test_what_can_work_is_no_problem(environment: dict[str, str]) -> None:
    """An address without a scheme is HTTP; the lower case counts first; one directory of several is enough."""
    assert problem_of(environment) is None


@dataclass
class SilentProxy:
    url: str = ""
    requests: int = 0


@asynccontextmanager
async def silent_proxy() -> AsyncIterator[SilentProxy]:
    """A proxy on loopback that counts who asks it, and hangs up."""
    proxy = SilentProxy()

    async def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.requests += 1
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy


async def test_a_proxy_is_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's server here is asked directly, whatever the proxies are."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    for url in ("http://127.0.0.1:11434/v1", "http://[::1]:1", "http://localhost:8000"):
        assert is_local(url)
        await client_for(url).aclose()
    assert not is_local("http://ollama.example:11434")


async def test_a_providers_client_asks_this_machine_directly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an address here in our variable or the client's own, no proxy is asked, whichever library makes the client."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("NO_PROXY", "models.example")
    monkeypatch.setenv("no_proxy", "")  # what is added goes when the test ends
    async with silent_proxy() as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        for name, variable in (("anthropic", "TURNGATE_ANTHROPIC_BASE_URL"), ("ollama", "OLLAMA_BASE_URL")):
            monkeypatch.setenv(variable, "http://127.0.0.1:1/v1")
            with pytest.raises(ModelError, match="no whole answer"):
                await make(name, "small", timeout=5).generate(ModelRequest(messages=(user_message("hello"),)))
        assert proxy.requests == 0
    assert os.environ["no_proxy"] == "models.example,127.0.0.1"


def test_a_library_that_fails_on_the_environment_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client that another library makes fails with its own error: the variable is named beside it."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(typer.Exit) as left, reported():
        raise FileNotFoundError(2, "No such file or directory")
    printed = capsys.readouterr().err
    assert left.value.exit_code == EXIT_USAGE
    assert "SSL_CERT_FILE=/nowhere/ca.pem" in printed
    assert "bug" not in printed
