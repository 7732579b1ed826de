"""The connection to Temporal, against a real server and against none."""

import socket
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import embedded_temporal
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.settings import load_settings
from turngate.runtime.temporal_client import connect, data_converter


class Stamped(BaseModel):
    at: datetime


async def test_connects_to_the_given_address_and_to_the_settings_address(server: EmbeddedTemporal):
    """Both ways give a client whose namespace is there."""
    explicit = await connect(load_settings(), server.address)
    from_settings = await connect(load_settings(temporal_address=server.address))
    assert explicit.namespace == from_settings.namespace == "default"
    assert await explicit.count_workflows("WorkflowId = 'none'") is not None


async def test_converter_writes_pydantic():
    """A pydantic value survives the round trip with its types."""
    value = Stamped(at=datetime(2026, 1, 2, tzinfo=UTC))
    [payload] = await data_converter().encode([value])
    assert payload.metadata["encoding"] == b"json/plain"
    assert await data_converter().decode([payload], [Stamped]) == [value]


def fail(error: ApplicationError, cause: ValueError) -> None:
    raise error from cause


@pytest.mark.parametrize("text", ["x" * 100_000, "汉" * 50_000, "🔥" * 5_000, "a\ud800" * 9_000])
def test_a_failure_stays_below_the_size_at_which_temporal_replaces_it(text: str):
    """Its beginning, its class and whether it is retried remain; a cause as long as it is left out. 4 KiB is the limit."""
    converter = data_converter()
    failure = Failure()
    cause = ValueError(text)
    try:
        fail(ApplicationError(text, "server_error", type="model_error", non_retryable=True), cause)
    except ApplicationError as error:
        converter.failure_converter.to_failure(error, converter.payload_converter, failure)
    assert failure.ByteSize() <= 3_600
    assert failure.message.startswith(text[:1])
    assert len(failure.message.encode()) > 2_000
    assert "in fail" in failure.stack_trace
    assert failure.application_failure_info.type == "model_error"


def test_a_short_failure_keeps_its_cause():
    """Only one that would be too long is cut."""
    converter = data_converter()
    failure = Failure()
    try:
        fail(ApplicationError("short"), ValueError("because"))
    except ApplicationError as error:
        converter.failure_converter.to_failure(error, converter.payload_converter, failure)
    assert (failure.message, failure.cause.message) == ("short", "because")


async def test_a_closed_port():
    """A server that is away is UnavailableError at once, naming address and setting."""
    address = f"127.0.0.1:{embedded_temporal.choose_port()}"
    with pytest.raises(UnavailableError, match=f"{address}.*TEMPORAL_ADDRESS"):
        await connect(load_settings(temporal_address=address))


async def test_a_silent_server():
    """A server that accepts and never answers gives an error within the time limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(UnavailableError, match=r"no answer within 0\.2 s"):
            await connect(load_settings(temporal_address=address), timeout_seconds=0.2)
        assert time.monotonic() - start < 20


async def test_a_wrong_setting_is_named(tmp_path: Path, server: EmbeddedTemporal):
    """A TLS mismatch, a namespace or certificate that isn't there, a file that is no certificate, and no address."""
    (tmp_path / "ca.pem").write_text("nonsense")
    absent = tmp_path / "none.pem"
    for address, settings, error, says in (
        (server.address, {"temporal_tls": True}, UnavailableError, "TEMPORAL_TLS"),
        (
            server.address,
            {"temporal_namespace": "elsewhere"},
            ConfigurationError,
            "no namespace 'elsewhere'.*TEMPORAL_NAMESPACE",
        ),
        ("127.0.0.1:1", {"temporal_tls_server_ca": absent}, ConfigurationError, r"TEMPORAL_TLS_SERVER_CA=.*none\.pem"),
        (
            server.address,
            {"temporal_tls_server_ca": tmp_path / "ca.pem"},
            (ConfigurationError, UnavailableError),
            "TEMPORAL_TLS",
        ),
        (None, {}, ConfigurationError, "TEMPORAL_ADDRESS"),
    ):
        with pytest.raises(error, match=says):
            await connect(load_settings(**settings), address)
