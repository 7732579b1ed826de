"""The current span while a tool's handler or a model works, so that what they call is below it.

It is a name, not an open span: the loop of :mod:`turngate.runtime.traces.export` exports that one from the log.
An MCP server gets it as ``_meta.traceparent`` of each call (the MCP library puts it there), an app's own spans have it as parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, ProxyTracerProvider, SpanContext, TraceFlags

from turngate.domain.runs.trace import RunTrace, SpanRef
from turngate.runtime.traces.export import in_thread
from turngate.runtime.traces.spans import TraceSampler, provider
from turngate.store.runs.runs import Run

logger = logging.getLogger(__name__)

END_WITHIN = 2.0
"""Seconds for an app's own last spans."""


class CurrentSpans:
    """Names the current span of this process's runs. ``own``: what exports spans of the app; None: the app has its own."""

    def __init__(self, sampler: TraceSampler, own: TracerProvider | None = None) -> None:
        self._sampler = sampler
        self._own = own

    @classmethod
    def install(cls) -> CurrentSpans:
        """Return it; an app's own spans go where ours go, unless the app has set that up itself."""
        of_variables = provider()
        sampler = TraceSampler(of_variables.sampler)
        if not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
            return cls(sampler)
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        of_variables.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(of_variables)
        return cls(sampler, of_variables)

    def call(self, run: Run, tool_call_id: str) -> contextlib.AbstractContextManager[None]:
        """Make the execution of a call current."""
        of_run = RunTrace.of(run.id, run.traceparent)
        return self._current(of_run, of_run.call(tool_call_id))

    def model_request(self, run: Run, step: int) -> contextlib.AbstractContextManager[None]:
        """Make the request to the model of a step current."""
        of_run = RunTrace.of(run.id, run.traceparent)
        return self._current(of_run, of_run.model_request(step))

    async def end(self) -> None:
        """Send an app's own last spans, within a bound."""
        if self._own is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN):
                    await in_thread(self._own.shutdown)

    @contextlib.contextmanager
    def _current(self, of_run: RunTrace, span: SpanRef) -> Iterator[None]:
        flags = TraceFlags(TraceFlags.SAMPLED if self._sampler.takes(of_run) else TraceFlags.DEFAULT)
        named = SpanContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote=False, trace_flags=flags)
        with trace.use_span(NonRecordingSpan(named), end_on_exit=False):
            yield
