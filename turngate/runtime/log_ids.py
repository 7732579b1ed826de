"""Ids on log lines: each line that belongs to a run, a call, a request or a trace has their ids, so that one grep finds all.

Nothing is looked up unless a line is written: an activity and an HTTP request each leave one object in a context variable, and
a processor of the log's pipeline reads the ids from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from structlog.types import EventDict, WrappedLogger
from temporalio import activity, workflow
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from turngate.domain import contract
from turngate.store.runs import known_traces

FIELDS: Final = {
    "run_id": "run_id",
    "call": "tool_call_id",
    "tool_call_id": "tool_call_id",
    "request_id": "request_id",
    "step": "step",
}
"""How an order or a path names an id → how the log does."""

PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
"""A path is whatever a client sends; anything else in it is no id, and stays out of the log's fields."""

_subject: ContextVar[object] = ContextVar("subject", default=None)


def belongs_to(subject: object) -> None:
    """Let the lines of the current task from here on belong to this: an activity's order, an HTTP scope, or ids by name."""
    _subject.set(subject)


def add_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the ids that a line belongs to (structlog processor). What the line says itself stays."""
    for name, value in _ids_of(_subject.get()):
        event.setdefault(name, value)
    if activity.in_activity():
        event.setdefault("attempt", activity.info().attempt)
    elif workflow.in_workflow() and workflow.info().workflow_type == contract.AGENT_TURN:
        event.setdefault("run_id", workflow.info().workflow_id)
    _add_trace(event)
    return event


def _ids_of(subject: object) -> list[tuple[str, Any]]:
    if isinstance(subject, Mapping):
        named = subject.get("path_params", {}) if "path" in subject else subject  # known once its route is
        plain = {name: value for name, value in named.items() if value is not None and PLAIN.fullmatch(str(value))}
        return [(field, plain[name]) for name, field in FIELDS.items() if name in plain]
    pairs = ((field, getattr(subject, name, None)) for name, field in FIELDS.items())
    return [(field, value) for field, value in pairs if value is not None]


def _add_trace(event: EventDict) -> None:
    """Add the ids of the current span, else that of the run's trace, where traces are on and this process has read the run."""
    traces = sys.modules.get("opentelemetry.trace")
    span = None if traces is None else traces.get_current_span().get_span_context()
    if span is not None and span.is_valid:
        event.setdefault("trace_id", f"{span.trace_id:032x}")
        event.setdefault("span_id", f"{span.span_id:016x}")
    elif (trace_id := known_traces.trace_id_of(str(event.get("run_id")))) is not None:
        event.setdefault("trace_id", trace_id)


class LogIds(Interceptor):
    """Lets the lines of each activity belong to the activity's order."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Return the layer around our activities."""
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's name
        if input.args:
            belongs_to(input.args[0])
        return await super().execute_activity(input)
