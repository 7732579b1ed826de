"""The trace of a run: which ids its spans have. Every one is derived, so that any process can name a span at any time.

One of these spans may begin hours before it ends, in a process that is long gone. So no span is ever open: its id follows
from the run and from what it is about, children name their parent before that is exported, and whatever is exported
twice has the same id twice (ADR 0050). Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from turngate.domain.digest import framed_sha256

TRACE_ID_CHARS: Final = 32
SPAN_ID_CHARS: Final = 16
MOST_HEADER_CHARS: Final = 512
"""Of a ``traceparent`` header that is looked at. One of today's version has 55."""
_HEADER: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_SAMPLED: Final = 1


@dataclass(frozen=True, kw_only=True)
class SpanRef:
    """A span, as others name it: as their parent, or in a link."""

    trace_id: str
    span_id: str

    def traceparent(self, *, sampled: bool) -> str:
        """Return the header that makes it the parent of what another program does (W3C Trace Context)."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"


@dataclass(frozen=True, kw_only=True)
class RunTrace:
    """The trace of one run. ``parent``: the span that its own is below; None: it begins the trace.

    ``sampled``: what the caller that began the trace decided; None: no one has, so our own sampler does, by the trace's id.
    """

    run_id: str
    trace_id: str
    parent: SpanRef | None = None
    sampled: bool | None = None

    @classmethod
    def of(cls, run_id: str, stored: str | None) -> Self:
        """Return the trace of a run. ``stored``: its ``traceparent``; None, or unreadable: its id follows from the run's."""
        header = None if stored is None else _HEADER.fullmatch(stored)
        if header is not None:
            parent = SpanRef(trace_id=header["trace"], span_id=header["span"])
            return cls(run_id=run_id, trace_id=parent.trace_id, parent=parent, sampled=_is_sampled(header["flags"]))
        trace_id, dash, span_id = (stored or "").partition("-")
        if dash and len(trace_id) == TRACE_ID_CHARS and len(span_id) == SPAN_ID_CHARS:
            return cls(run_id=run_id, trace_id=trace_id, parent=SpanRef(trace_id=trace_id, span_id=span_id))
        return cls(run_id=run_id, trace_id=framed_sha256("trace", run_id)[:TRACE_ID_CHARS])

    @property
    def run(self) -> SpanRef:
        """The span of the run."""
        return self._span("run")

    def step(self, number: int) -> SpanRef:
        """Return the span of a step."""
        return self._span("step", str(number))

    def model_request(self, step: int) -> SpanRef:
        """Return the span of the request to the model whose response is the step's."""
        return self._span("model", str(step))

    def failed_model_request(self, event: int) -> SpanRef:
        """Return the span of a request to a model that failed. ``event``: the place of its event within the run."""
        return self._span("failed", str(event))

    def call(self, tool_call_id: str) -> SpanRef:
        """Return the span of a tool call's execution: one, however often its handler was started."""
        return self._span("call", tool_call_id)

    def request(self, request_id: str) -> SpanRef:
        """Return the span of the wait for the answer to a request."""
        return self._span("request", request_id)

    def stored_below(self, tool_call_id: str) -> str:
        """Return the ``traceparent`` to store with the run of the sub-agent that answers a call: the same trace, below it.

        While no caller has decided whether the trace is sampled, it says nothing of it: our sampler decides by the trace's id,
        so it decides the same for each of its runs.
        """
        parent = self.call(tool_call_id)
        if self.sampled is None:
            return f"{parent.trace_id}-{parent.span_id}"
        return parent.traceparent(sampled=self.sampled)

    def _span(self, kind: str, *about: str) -> SpanRef:
        digest = framed_sha256("span", kind, self.run_id, *about)
        return SpanRef(trace_id=self.trace_id, span_id=digest[:SPAN_ID_CHARS])


def read_traceparent(header: str | None) -> str | None:
    """Return a ``traceparent`` header as it is stored; None: there is none, or it is not one.

    What can't be read changes nothing, as the standard asks (https://www.w3.org/TR/trace-context/, 3.2 and 4.3): it may come from
    anyone. Of a later version, what this one knows of it counts.
    """
    if header is None or len(header) > MOST_HEADER_CHARS:
        return None
    match = _HEADER.fullmatch(header)
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return None
    span = SpanRef(trace_id=match["trace"], span_id=match["span"])
    if not int(span.trace_id, 16) or not int(span.span_id, 16):
        return None
    return span.traceparent(sampled=_is_sampled(match["flags"]))


def span_of(traceparent: str) -> SpanRef | None:
    """Return the span that a ``traceparent`` names; None: it names none."""
    match = _HEADER.fullmatch(traceparent)
    return None if match is None else SpanRef(trace_id=match["trace"], span_id=match["span"])


def _is_sampled(flags: str) -> bool:
    return bool(int(flags, 16) & _SAMPLED)
