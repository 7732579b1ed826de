"""The connection to Temporal: the same converter, TLS and errors for worker, gateway, tests and replayer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

from google.protobuf.duration_pb2 import Duration
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    ListOpenWorkflowExecutionsRequest,
    RegisterNamespaceRequest,
)
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError, RPCStatusCode, TLSConfig, WorkflowService

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.text.bounds import head, tail
from turngate.runtime.settings import Settings
from turngate.store.storable import storable

CONNECT_SECONDS: Final = 5.0
NAMESPACE_SECONDS: Final = 30.0
NAMESPACE_PAUSE_SECONDS: Final = 0.25
MOST_FAILURE_BYTES: Final = 3_500
MOST_MESSAGE_BYTES: Final = 2_200


class BoundedFailures(DefaultFailureConverter):
    """Keeps failures small enough for Temporal, which puts "Failure exceeds size limit." in place of one of more than 4 KiB.

    A long text is cut at a number of bytes, the causes are dropped, and of the stack the innermost frames are kept.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write the failure of an exception; see the base class."""
        try:
            super().to_failure(exception, payload_converter, failure)
        except UnicodeEncodeError:  # half a surrogate pair, which a provider or a tool may send
            super().to_failure(_without_halves(exception), payload_converter, failure)
        if failure.ByteSize() <= MOST_FAILURE_BYTES:
            return
        failure.ClearField("cause")
        failure.message = head(failure.message, MOST_MESSAGE_BYTES)
        stack = failure.stack_trace
        failure.stack_trace = ""
        failure.stack_trace = tail(stack, max(3, MOST_FAILURE_BYTES - failure.ByteSize()))


def _without_halves(exception: BaseException) -> ApplicationError:
    """Return an error of the same kind that protobuf can encode."""
    if not isinstance(exception, ApplicationError):
        return ApplicationError(storable(str(exception)), type=type(exception).__name__)
    return ApplicationError(
        storable(exception.message),
        *exception.details,
        type=exception.type,
        non_retryable=exception.non_retryable,
        next_retry_delay=exception.next_retry_delay,
    ).with_traceback(exception.__traceback__)


def data_converter() -> DataConverter:
    """Return the converter of payloads: pydantic's JSON. All code that reads or writes a run must use it."""
    return replace(pydantic_data_converter, failure_converter_class=BoundedFailures)


@cache
def sdk_runtime() -> Runtime:
    """Return this process's runtime of Temporal's SDK, which the first call creates.

    Its core is written in Rust and logs to stderr by itself. Its lines are forwarded to the common pipeline (logger
    ``temporalio.core``).
    """
    return _runtime(None)


@cache
def metered_runtime() -> tuple[Runtime, int]:
    """Return a runtime as :func:`sdk_runtime`, whose core counts, and the port on loopback where it shows that.

    Read by :func:`turngate.runtime.metrics.port.read_sdk`: users scrape one port of a process. The core can't be given a
    socket or be asked for its port, so a free one is looked for.
    """
    for last in (False, False, True):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        exporter = PrometheusConfig(
            bind_address=f"127.0.0.1:{port}", counters_total_suffix=True, unit_suffix=True, durations_as_seconds=True
        )
        try:
            return _runtime(exporter), port
        except ValueError:  # another program was faster
            if last:
                raise
    raise AssertionError("the loop returns or raises")


def _runtime(metrics: PrometheusConfig | None) -> Runtime:
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    filters = TelemetryFilter(core_level="WARN", other_level="ERROR")
    logs = LoggingConfig(filter=filters, forwarding=forwarding)
    return Runtime(telemetry=TelemetryConfig(logging=logs, metrics=metrics))


async def connect(
    settings: Settings, address: str | None = None, *, timeout_seconds: float = CONNECT_SECONDS
) -> Client:
    """Connect to ``address`` (None: ``settings.temporal_address``) and check that the namespace exists.

    The client reconnects by itself later on.

    Raises:
        ConfigurationError: no address, unreadable certificate, refused credentials, unknown namespace.
        UnavailableError: no one answers there now.
    """
    address = address or settings.temporal_address
    if address is None:
        raise ConfigurationError(
            "no Temporal server is configured: set TEMPORAL_ADDRESS to HOST:PORT, or use `turngate up`"
        )
    with _reported(address, settings.temporal_namespace, timeout_seconds):
        async with asyncio.timeout(timeout_seconds):
            client = await _client(settings, address)
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=settings.temporal_namespace)
            )
    return client


async def _client(settings: Settings, address: str) -> Client:
    return await Client.connect(
        address,
        namespace=settings.temporal_namespace,
        api_key=settings.temporal_api_key.get_secret_value() if settings.temporal_api_key else None,
        tls=_tls(settings),
        data_converter=data_converter(),
        lazy=False,
        runtime=sdk_runtime() if settings.metrics_port is None else metered_runtime()[0],
    )


@contextmanager
def _reported(address: str, namespace: str, timeout_seconds: float) -> Iterator[None]:
    """Say of a connection that fails what is wrong, and what to do."""
    try:
        yield
    except RPCError as error:
        raise _refused(error, address, namespace) from error
    except (RuntimeError, ValueError) as error:
        # The SDK has no type of its own for a connection that fails; its text names the cause.
        raise _failed(str(error), address) from error
    except TimeoutError:
        raise _failed(f"no answer within {timeout_seconds:g} s", address) from None


async def create_namespace(settings: Settings, address: str, retention: timedelta) -> bool:
    """Create the settings' namespace unless it is there; return whether it is new. Safe to repeat.

    ``retention``: how long the server keeps histories that have ended. Returns when workflows can be started in it. Raises as
    :func:`connect`; also where the server lets no client create one.
    """
    namespace = settings.temporal_namespace
    with _reported(address, namespace, NAMESPACE_SECONDS):
        async with asyncio.timeout(NAMESPACE_SECONDS):
            service = (await _client(settings, address)).workflow_service
            period = Duration()
            period.FromTimedelta(retention)
            is_new = True
            try:
                await service.register_namespace(
                    RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=period)
                )
            except RPCError as error:
                if error.status is not RPCStatusCode.ALREADY_EXISTS:
                    raise
                is_new = False
            while not await _is_known(service, namespace):  # noqa: ASYNC110 - another process has to change
                await asyncio.sleep(NAMESPACE_PAUSE_SECONDS)
    return is_new


async def _is_known(service: WorkflowService, namespace: str) -> bool:
    """Tell whether the server's parts know a namespace. They look for new ones every few seconds."""
    try:
        await service.list_open_workflow_executions(
            ListOpenWorkflowExecutionsRequest(namespace=namespace, maximum_page_size=1)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


def _tls(settings: Settings) -> bool | TLSConfig | None:
    certificate = _read(settings.temporal_tls_cert, "TEMPORAL_TLS_CERT")
    key = _read(settings.temporal_tls_key, "TEMPORAL_TLS_KEY")
    authority = _read(settings.temporal_tls_server_ca, "TEMPORAL_TLS_SERVER_CA")
    if certificate is None and authority is None:
        return settings.temporal_tls
    return TLSConfig(server_root_ca_cert=authority, client_cert=certificate, client_private_key=key)


def _read(path: Path | None, variable: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{variable}={path}: the file cannot be read ({error.strerror}); give the path of a PEM file"
        ) from error


def _refused(error: RPCError, address: str, namespace: str) -> ConfigurationError | UnavailableError:
    if error.status is RPCStatusCode.NOT_FOUND:
        return ConfigurationError(
            f"Temporal at {address} has no namespace {namespace!r}: create it "
            f"(`temporal operator namespace create {namespace}`) or set TEMPORAL_NAMESPACE"
        )
    if error.status in {RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED}:
        return _bad_credentials(address)
    return _failed(error.message, address)


def _failed(cause: str, address: str) -> ConfigurationError | UnavailableError:
    if "Unauthenticated" in cause or "PermissionDenied" in cause:
        return _bad_credentials(address)
    return UnavailableError(
        f"Temporal does not answer at {address}: {cause}. Check that it runs (`turngate up` starts one), that "
        "TEMPORAL_ADDRESS is right, and TEMPORAL_TLS if it speaks TLS"
    )


def _bad_credentials(address: str) -> ConfigurationError:
    return ConfigurationError(
        f"Temporal at {address} refuses our credentials: check TEMPORAL_API_KEY, or TEMPORAL_TLS_CERT and "
        "TEMPORAL_TLS_KEY, and that they may use the namespace in TEMPORAL_NAMESPACE"
    )
