"""An environment that HTTP clients can't use is named with its variable, and a proxy is not for this machine's own servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from turngate.cli.errors import EXIT_USAGE, reported
from turngate.domain.errors import ConfigurationError
from turngate.http_environment import BUNDLES, PROXIES, client_for, is_local, problem_of


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


async def test_a_proxy_is_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's server here is asked directly, whatever the proxies are."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    for url in ("http://127.0.0.1:11434/v1", "http://[::1]:1", "http://localhost:8000"):
        assert is_local(url)
        await client_for(url).aclose()
    assert not is_local("http://ollama.example:11434")


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
