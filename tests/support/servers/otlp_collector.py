"""A collector of traces on loopback: takes OTLP over HTTP, keeps the spans and every byte that came with them."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.engine.stack import until


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span as it was received. ``links``: trace and span id of each. Times in nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9


@dataclass
class Collector:
    """``status``: what it answers. ``delay``: seconds before each answer. ``bodies``: whatever came.

    ``held_up``: how many answers were ever delayed.
    """

    port: int = 0
    status: int = 200
    delay: float = 0.0
    held_up: int = 0
    received: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    refused: int = 0
    resources: list[dict[str, Any]] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> dict[str, Span]:
        """Span id → span: one that came twice has to be the same."""
        known: dict[str, Span] = {}
        for span in self.received:
            assert known.setdefault(span.span_id, span) == span, f"two spans have the id of {span.name}"
        return known

    def named(self, name: str, run_id: str | None = None) -> list[Span]:
        """The spans whose name begins with this, of this run, oldest first."""
        spans = [span for span in self.spans.values() if span.name.startswith(name)]
        return sorted(
            (span for span in spans if run_id in {None, span.attributes.get("turngate.run.id")}),
            key=lambda span: span.began,
        )

    async def one(self, name: str, run_id: str | None = None) -> Span:
        """The only span with such a name, once it is there."""
        await until(self._look(name, run_id), f"span {name!r}")
        (span,) = self.named(name, run_id)
        return span

    def _look(self, name: str, run_id: str | None) -> Any:
        async def look() -> bool:
            return bool(self.named(name, run_id))

        return look

    def orphans(self, outside: Sequence[str] = ()) -> list[str]:
        """The names of spans whose parent never came. ``outside``: ids of spans that someone else exports."""
        known = {*self.spans, *outside, ""}
        return [span.name for span in self.spans.values() if span.parent_id not in known]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if collector.delay:
                collector.held_up += 1
                time.sleep(collector.delay)
            if collector.status == 200:
                collector.bodies.append(body)
                for resource, span in _read(body):
                    collector.received.append(span)
                    collector.resources.append(resource)
            else:
                collector.refused += 1
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def _read(body: bytes) -> Iterator[tuple[dict[str, Any], Span]]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield (
                    resource,
                    Span(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        began=span.start_time_unix_nano,
                        ended=span.end_time_unix_nano,
                        failed=span.status.code == span.status.STATUS_CODE_ERROR,
                        attributes=_values(span.attributes),
                        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    ),
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
