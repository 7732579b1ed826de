"""Spans of what happened: one function per kind of span, from an event that ends it and the rows that it is about.

Names follow the conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/); ours begin with
``turngate.``. Arguments, results, a model's words and a person's message are left out unless they are wanted, and a person's
name is a pseudonym: a collector has other readers than the inbox, and Turngate can't erase anything there.

They are not opened and ended by a tracer: each is complete when it is made, with the times that the store has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from sqlalchemy import Row

from turngate import __version__
from turngate.domain.runs.labels import pseudonym
from turngate.domain.runs.trace import RunTrace, SpanRef, span_of
from turngate.domain.tools.secrets import mask_json
from turngate.runtime.traces.switch import TraceSettings
from turngate.store.clock import from_text
from turngate.store.events.events import Event
from turngate.store.events.traces import ENDED, FAILED_REQUESTS, RESPONDED, RUN_ENDED, Happened, settled_calls

MOST_NAME_CHARS: Final = 200
"""Of a name that a tool, a rule's author or a provider chose."""
MOST_CONTENT_CHARS: Final = 8_192
"""Of arguments, a result or a model's words, where they are wanted."""
HIDDEN: Final = "[hidden: this tool has secrets]"
TRACES_REMEMBERED: Final = 10_000
"""Whose sampling was decided: it is asked again for each span."""
PROVIDERS: Final = {
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""What the conventions call a provider, where a spec names it otherwise."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCOPE: Final = InstrumentationScope("turngate", __version__)
_FAILED: Final = Status(StatusCode.ERROR)

Attributes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a span is: its own id and its parent's, and when it began and ended (as stored)."""

    own: SpanRef
    parent: SpanRef | None
    began: str
    ended: str


class TraceSampler:
    """Whether the trace of a run is exported, as ``OTEL_TRACES_SAMPLER`` says. Every process decides the same."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._decide = lru_cache(TRACES_REMEMBERED)(self._decision)

    def takes(self, trace: RunTrace) -> bool:
        """Tell whether the trace is exported."""
        return self._decide(trace.trace_id, trace.sampled)

    def _decision(self, trace_id: str, sampled: bool | None) -> bool:
        """``sampled``: as of :class:`RunTrace`; a caller's decision counts where the sampler asks for its parent's."""
        parent = None
        if sampled is not None:
            own = SpanRef(trace_id=trace_id, span_id=trace_id[:16] if int(trace_id[:16], 16) else trace_id[16:])
            parent = set_span_in_context(NonRecordingSpan(_context(own, is_remote=True, sampled=sampled)))
        result = self._sampler.should_sample(parent, int(trace_id, 16), "invoke_agent", SpanKind.INTERNAL, {}, [])
        return result.decision is Decision.RECORD_AND_SAMPLE


def provider() -> TracerProvider:
    """Return a provider as OpenTelemetry's variables say: its sampler and its resource, with our name as a default."""
    is_named = bool(os.environ.get("OTEL_SERVICE_NAME")) or f"{SERVICE_NAME}=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    named = {} if is_named else {SERVICE_NAME: "turngate"}
    return TracerProvider(resource=Resource.create({**named, "service.version": __version__}))


class Spans:
    """Makes the spans of a stretch of the log. ``salt``: as of :class:`turngate.store.events.traces.Export`."""

    def __init__(self, settings: TraceSettings, salt: str, *, sampler: TraceSampler, resource: Resource) -> None:
        self._settings = settings
        self._salt = salt
        self._sampler = sampler
        self._resource = resource
        self._makers: dict[str, Callable[[Happened, Event, RunTrace], Iterator[ReadableSpan]]] = {
            RESPONDED: self._of_response,
            RUN_ENDED: self._of_end,
            **dict.fromkeys(ENDED, self._of_request),
            **dict.fromkeys(FAILED_REQUESTS, self._of_failed_request),
        }

    def of(self, happened: Happened) -> list[ReadableSpan]:
        """Return the spans that ended with these events. The same events give the same spans."""
        spans: list[ReadableSpan] = []
        for event in happened.events:
            run = happened.runs.get(event.run_id)
            if run is None:  # an event of no run, or of one that was removed
                continue
            trace = RunTrace.of(run.id, run.traceparent)
            if not self._sampler.takes(trace):
                continue
            for call in settled_calls(event):
                spans += self._of_call(happened, event, trace, call)
            maker = self._makers.get(event.type)
            if maker is not None:
                spans += maker(happened, event, trace)
        return spans

    def _of_response(self, happened: Happened, event: Event, trace: RunTrace) -> Iterator[ReadableSpan]:
        """Yield the request to the model, and the step before this one, which has been closed."""
        number = int(event.payload["step"])
        before, step = happened.steps.get((trace.run_id, number - 1)), happened.steps.get((trace.run_id, number))
        if before is not None:
            yield self._step(happened, trace, before, before.closed_at or event.created_at)
        if step is not None and step.model_spec is not None:
            yield self._model_request(happened, trace, step)

    def _of_end(self, happened: Happened, event: Event, trace: RunTrace) -> Iterator[ReadableSpan]:
        """Yield the run, and its last step."""
        run = happened.runs[trace.run_id]
        last = happened.steps.get((trace.run_id, run.step))
        if last is not None:
            yield self._step(happened, trace, last, last.closed_at or event.created_at)
        place = _Place(own=trace.run, parent=trace.parent, began=run.created_at, ended=run.ended_at or event.created_at)
        spec = _request_model(run.model)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": spec.get("gen_ai.provider.name", "turngate"),
            **spec,
            "gen_ai.agent.version": run.agent_version,
            "turngate.run.status": run.status,
            "turngate.run.outcome": event.payload.get("outcome"),
            "turngate.run.tokens": run.tokens_used,
            "turngate.run.steps": run.step,
            "turngate.run.attended": run.attended,
            "turngate.run.dry": run.replay_of_run_id is not None,
            "turngate.run.parent": run.parent_run_id,
            "turngate.schedule.id": run.schedule_id,
            "error.type": (run.error_class or run.status) if run.status == "failed" else None,
        }
        yield self._span(happened, trace, f"invoke_agent {run.agent}", place, attributes, links=_past(happened, run))

    def _step(self, happened: Happened, trace: RunTrace, step: Row[Any], ended: str) -> ReadableSpan:
        place = _Place(own=trace.step(step.step), parent=trace.run, began=step.asked_at or step.created_at, ended=ended)
        return self._span(happened, trace, f"step {step.step}", place, {"turngate.step": step.step})

    def _model_request(self, happened: Happened, trace: RunTrace, step: Row[Any]) -> ReadableSpan:
        place = _Place(
            own=trace.model_request(step.step),
            parent=trace.step(step.step),
            began=step.asked_at or step.created_at,
            ended=step.created_at,
        )
        spec = _request_model(step.model_spec)
        attributes = {
            "gen_ai.operation.name": "chat",
            **spec,
            "gen_ai.response.model": _clipped(step.model),
            "gen_ai.response.finish_reasons": (step.finish_reason,),
            "gen_ai.usage.input_tokens": step.input_tokens,
            "gen_ai.usage.output_tokens": step.output_tokens,
            "turngate.step": step.step,
            "gen_ai.output.messages": _words(happened.message_parts.get(step.assistant_message_id), step.finish_reason),
        }
        name = f"chat {spec['gen_ai.request.model']}"
        return self._span(happened, trace, name, place, attributes, kind=SpanKind.CLIENT)

    def _of_failed_request(self, happened: Happened, event: Event, trace: RunTrace) -> Iterator[ReadableSpan]:
        """Yield a request to the model that failed. It is below the run: the step begins with the answer that counts."""
        run, payload = happened.runs[trace.run_id], event.payload
        asked_at = str(payload.get("asked_at") or event.created_at)
        own = trace.failed_model_request(event.run_seq)
        place = _Place(own=own, parent=trace.run, began=asked_at, ended=event.created_at)
        spec = _request_model(str(payload.get("model") or payload.get("from") or run.model))
        attributes = {
            "gen_ai.operation.name": "chat",
            **spec,
            "error.type": str(payload.get("error_class") or "unavailable"),
            "turngate.step": payload.get("step"),
            "turngate.model.attempt": payload.get("attempt"),
            "turngate.model.retry_in_seconds": payload.get("retry_in_seconds"),
        }
        name = f"chat {spec['gen_ai.request.model']}"
        yield self._span(happened, trace, name, place, attributes, kind=SpanKind.CLIENT)

    def _of_call(self, happened: Happened, event: Event, trace: RunTrace, call_id: str) -> Iterator[ReadableSpan]:
        """Yield the execution of a call that has its result now; nothing for one that never started."""
        call = happened.calls.get((trace.run_id, call_id))
        if call is None:
            return
        failure = event.payload.get("kind") if event.payload.get("tool_call_id") == call_id else None
        place = _Place(
            own=trace.call(call_id),
            parent=trace.step(call.step),
            began=call.started_at,
            ended=call.ended_at or event.created_at,
        )
        content = happened.call_content.get((trace.run_id, call_id))
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": _clipped(call.tool_name),
            "gen_ai.tool.call.id": _clipped(call_id),
            "gen_ai.tool.type": "agent" if call.child_run_id is not None else "function",
            "turngate.tool.effect": call.effect,
            "turngate.tool.starts": call.attempts,
            "turngate.tool.run_id": call.child_run_id,
            "error.type": None if failure is None else _clipped(str(failure)),
            "gen_ai.tool.call.arguments": None if content is None else _arguments(content),
            "gen_ai.tool.call.result": None if content is None else _result(content),
        }
        yield self._span(happened, trace, f"execute_tool {_clipped(call.tool_name)}", place, attributes)

    def _of_request(self, happened: Happened, event: Event, trace: RunTrace) -> Iterator[ReadableSpan]:
        """Yield the wait for a person, from the moment at which the request was opened to the one that ended it."""
        request = happened.requests.get(str(event.payload.get("request_id")))
        if request is None or request.status == "pending":
            return
        parent = trace.run if request.step is None else trace.step(request.step)
        ended = request.decided_at or event.created_at
        place = _Place(own=trace.request(request.id), parent=parent, began=request.created_at, ended=ended)
        payload, by = event.payload, request.decided_by
        attributes = {
            "turngate.request.id": request.id,
            "turngate.request.kind": request.kind,
            "turngate.request.status": request.status,
            "turngate.request.verb": request.verb,
            "turngate.request.rule": _clipped(request.rule),
            "turngate.request.risk": request.risk,
            "turngate.request.quorum": request.quorum,
            "turngate.request.rungs": request.rungs_climbed,
            "turngate.request.parked": request.parked_at is not None,
            "turngate.request.decision_id": request.decision_id,
            "turngate.request.decided_by": None if by is None else self._person(by),
            "turngate.request.role": payload.get("role"),
            "turngate.request.machine": payload.get("machine"),
            "gen_ai.tool.name": _clipped(request.tool_name),
            "gen_ai.tool.call.id": _clipped(request.tool_call_id),
        }
        decided_in = span_of(str(payload.get("traceparent") or ""))
        links = [] if decided_in is None else [_link(decided_in, "decided_in")]
        yield self._span(happened, trace, f"wait for {request.kind}", place, attributes, links=links)

    def _person(self, name: str) -> str:
        """Return a person's name, or what is always the same for them in this store, and means nothing outside it."""
        if self._settings.with_names:
            return _clipped(name)
        return pseudonym(self._salt, name)

    def _span(
        self,
        happened: Happened,
        trace: RunTrace,
        name: str,
        place: _Place,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> ReadableSpan:
        run = happened.runs[trace.run_id]
        common = {
            "turngate.run.id": run.id,
            "gen_ai.conversation.id": run.conversation_id,
            "gen_ai.agent.name": run.agent,
        }
        began = _nanoseconds(place.began)
        is_remote = place.parent is not None and place.parent == trace.parent
        return ReadableSpan(
            name,
            context=_context(place.own),
            parent=None if place.parent is None else _context(place.parent, is_remote=is_remote),
            resource=self._resource,
            attributes={**common, **{key: value for key, value in attributes.items() if value is not None}},
            links=links or (),
            kind=kind,
            status=_FAILED if attributes.get("error.type") else Status(),
            start_time=began,
            end_time=max(began, _nanoseconds(place.ended)),
            instrumentation_scope=_SCOPE,
        )


def _past(happened: Happened, run: Row[Any]) -> list[Link]:
    """Return the link to the run whose past a fork shares, or that a retry continues."""
    past = happened.runs.get(run.forked_from_run_id or "")
    if past is None:
        return []
    return [_link(RunTrace.of(past.id, past.traceparent).run, "retry_of" if run.is_retry else "forked_from")]


def _link(to: SpanRef, why: str) -> Link:
    return Link(_context(to, is_remote=True), {"turngate.link": why})


def _context(span: SpanRef, *, is_remote: bool = False, sampled: bool = True) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote=is_remote, trace_flags=flags)


def _request_model(spec: str) -> dict[str, str]:
    """Return the attributes of a model's spec: ``provider:name``, or a profile's name, whose provider isn't known here."""
    provider_name, colon, name = spec.partition(":")
    if not colon:
        return {"gen_ai.request.model": _clipped(spec)}
    return {"gen_ai.provider.name": PROVIDERS.get(provider_name, provider_name), "gen_ai.request.model": _clipped(name)}


def _arguments(content: Row[Any]) -> str:
    if content.manifest is not None:
        return HIDDEN
    return _clipped(mask_json(content.edited_input or content.input).text, MOST_CONTENT_CHARS)


def _result(content: Row[Any]) -> str | None:
    if content.result is None:
        return None
    return HIDDEN if content.manifest is not None else _clipped(mask_json(content.result).text, MOST_CONTENT_CHARS)


def _words(parts: str | None, finish_reason: str) -> str | None:
    """Return a model's text in the conventions' shape, without its calls: their arguments are with their execution."""
    if parts is None:
        return None
    texts = [each["text"] for each in json.loads(parts) if each.get("type") == "text"]
    words = {"type": "text", "content": _clipped("\n".join(texts), MOST_CONTENT_CHARS)}
    message = {"role": "assistant", "parts": [words], "finish_reason": finish_reason}
    return mask_json(json.dumps([message], ensure_ascii=False)).text


def _clipped(text: str, most: int = MOST_NAME_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _nanoseconds(stored: str) -> int:
    return (from_text(stored) - _EPOCH) // timedelta(microseconds=1) * 1_000
