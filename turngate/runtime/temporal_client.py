"""The connection to Temporal: the same converter, encryption, TLS and errors for worker, gateway, tests and replayer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    EncodingPayloadConverter,
    PayloadCodec,
    PayloadConverter,
)
from temporalio.exceptions import ApplicationError
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.text.bounds import head, tail
from turngate.runtime.payload_codec import ENCRYPTED, KEY_ID, SealedPayloads, missing_key
from turngate.runtime.settings import Settings
from turngate.store.storable import storable

if TYPE_CHECKING:
    from turngate.store.database import Database

CONNECT_SECONDS: Final = 5.0
MOST_FAILURE_BYTES: Final = 3_500
MOST_MESSAGE_BYTES: Final = 2_200
MOST_SEALED_BYTES: Final = 3_900
"""Of a failure with its payloads encrypted; :data:`MOST_FAILURE_BYTES` leaves more room, for what Temporal adds."""
SEALED_MORE_BYTES: Final = 130
"""What encryption adds to one payload."""

ENCODED_FAILURE: Final = "Encoded failure"
"""What Temporal's SDKs write in place of a message that is encoded."""


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


class EncodedFailures(BoundedFailures):
    """Moves messages and stacks into payloads, which a codec encrypts. What remains is bounded, too."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write the failure of an exception; see the base class. Causes are encoded on their own, by a call of this method."""
        super().to_failure(exception, payload_converter, failure)
        if failure.message == ENCODED_FAILURE and failure.HasField("encoded_attributes"):
            return  # a failure that came from Temporal is passed on
        message, stack = failure.message, failure.stack_trace
        failure.message, failure.stack_trace = ENCODED_FAILURE, ""
        room = MOST_FAILURE_BYTES
        while True:
            attributes = {"message": message, "stack_trace": stack}
            failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
            size = failure.ByteSize() + SEALED_MORE_BYTES * _count_payloads(failure)
            if size <= MOST_SEALED_BYTES or not (message or stack):
                return
            # JSON writes a control character as six, so only the result says how long it is.
            failure.ClearField("cause")
            room //= 2
            message, stack = head(message, min(room, MOST_MESSAGE_BYTES)), tail(stack, room // 2)


def _count_payloads(failure: Failure) -> int:
    own = failure.HasField("encoded_attributes") + len(failure.application_failure_info.details.payloads)
    return own + (_count_payloads(failure.cause) if failure.HasField("cause") else 0)


class _MissingKey(EncodingPayloadConverter):
    """Says of an encrypted payload, in a process without keys, which key is missing."""

    @property
    def encoding(self) -> str:
        return ENCRYPTED.decode("ascii")

    def to_payload(self, value: Any) -> Payload | None:  # noqa: ARG002 - the SDK's signature
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:  # noqa: ARG002 - as above
        name = payload.metadata.get(KEY_ID, b"").decode("ascii", errors="replace")
        raise missing_key(name.partition(".")[0], has=None)


class _Payloads(PydanticPayloadConverter):
    """Pydantic's JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.converters = {**self.converters, ENCRYPTED: _MissingKey()}


def data_converter(codec: PayloadCodec | None = None) -> DataConverter:
    """Return the converter of payloads: pydantic's JSON. All code that reads or writes a run must use it.

    ``codec``: encrypts payloads, and with them the messages and stacks of failures; None: nothing does.
    """
    failures = BoundedFailures if codec is None else EncodedFailures
    return DataConverter(payload_converter_class=_Payloads, payload_codec=codec, failure_converter_class=failures)


def codec_of(database: Database) -> PayloadCodec | None:
    """Return what encrypts payloads with an opened database's keys; None: it isn't encrypted."""
    if database.ring is None:
        return None
    return SealedPayloads(database.ring)


def with_keys_of(client: Client, database: Database) -> Client:
    """Return a client that encrypts what it sends, and reads what others have encrypted, if the database is encrypted."""
    codec = codec_of(database)
    if codec is None:
        return client
    config = client.config()
    config["data_converter"] = data_converter(codec)
    return Client(**config)


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
