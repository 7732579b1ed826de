"""What this process has done, as counters and histograms: each fact that the store or an activity reports, counted once.

Events are counted by the process that committed them, so the sum over all processes is what the log has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from turngate import __version__
from turngate.domain.errors import ModelErrorClass
from turngate.domain.requests import RequestStatus, RunStatus
from turngate.runtime.metrics.labels import BoundedLabel
from turngate.store.connection import Fact, TransactionKind

logger = logging.getLogger(__name__)

MOST_TOOLS: Final = 100
MOST_MODELS: Final = 40
MOST_KINDS: Final = 40
"""Of failures: Turngate's own, and those that authors name."""

ANSWER_SECONDS: Final = (5, 15, 30, 60, 120, 300, 900, 1_800, 3_600, 14_400, 43_200, 86_400, 259_200, 604_800)
"""Upper bounds of the time that people take."""
MODEL_SECONDS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
STORE_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SEEN_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
MICROS: Final = 1_000_000

AVOIDED_BY: Final = {"tool:ask": "tool", "judge": "judge"}
"""The rule of a verdict → what spared a person the question. A grant is known by its id; the rest are rules of the policy."""

OUTCOMES: Final = ("succeeded", "failed", "unknown")
KNOWN: Final[Mapping[str, Sequence[str]]] = {
    "turngate_requests_ended_total": [each for each in get_args(RequestStatus) if each != "pending"],
    "turngate_asks_avoided_total": ["grant", "rule", "tool", "judge"],
    "turngate_runs_ended_total": [each for each in get_args(RunStatus) if each != "running"],
    "turngate_model_retries_total": get_args(ModelErrorClass),
    "turngate_model_fallbacks_total": get_args(ModelErrorClass),
    "turngate_store_failures_total": get_args(TransactionKind),
}
"""Counters with one label whose values are known beforehand."""

Payload = Mapping[str, Any]


class Counted:
    """The counters of one process: a :class:`turngate.store.connection.Meter`. Its methods may be called from any thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # half of all series, which none of our rules and dashboards reads
        self.registry = CollectorRegistry()
        self._tools, self._models = BoundedLabel(MOST_TOOLS), BoundedLabel(MOST_MODELS)
        self._kinds = BoundedLabel(MOST_KINDS)
        self._has_failed = False
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        release = Gauge("turngate_build_info", "Turngate's release, as a label.", ["version"], registry=self.registry)
        release.labels(__version__).set(1)
        self._handlers = self._of_requests() | self._of_calls() | self._of_runs() | self._of_models()
        store = self._histogram(
            "turngate_store_transaction_seconds",
            "Time of a transaction of the store, with its wait for a lock or a connection.",
            "kind",
            buckets=STORE_SECONDS,
        )
        # Looked up once: a gated turn has some twenty transactions.
        self._store = {kind: store.labels(kind) for kind in get_args(TransactionKind)}
        self._store_failures = self._counter(
            "turngate_store_failures_total", "Transactions that failed because the store was away or busy.", "kind"
        )

    def text(self) -> bytes:
        """Return all metrics of the registry in Prometheus' text format. Callable from any thread but the event loop's."""
        return generate_latest(self.registry)

    def expect(self, *, tools: Iterable[str] = (), models: Iterable[str] = ()) -> None:
        """Keep labels for these names, whatever other names come first, and show them at once, as 0."""
        for tool in map(self._tools.of, tools):
            self._started.labels(tool)
            for outcome in OUTCOMES:
                self._finished.labels(tool, outcome)
        for model in map(self._models.of, models):
            for ended in ("answered", "failed"):
                self._model_requests.labels(model, ended)

    def count(self, facts: Sequence[Fact]) -> None:
        """Count facts that are certain. Never raises: what is counted has happened, and must not fail because of it."""
        try:
            for name, what in facts:
                handler = self._handlers.get(name)
                if handler is not None:
                    handler(what)
        except Exception:
            if not self._has_failed:
                logger.exception("a metric was not counted; further failures are not logged")
            self._has_failed = True

    def transaction(self, kind: TransactionKind, seconds: float, *, failed: bool) -> None:
        """Count a transaction of the store."""
        self._store[kind].observe(seconds)
        if failed:
            self._store_failures.labels(kind).inc()

    def _of_requests(self) -> dict[str, Callable[[Payload], None]]:
        opened = self._counter("turngate_requests_opened_total", "Requests for a person.", "kind", "tool")
        ended = self._counter("turngate_requests_ended_total", "Requests that ended, by their status.", "status")
        decisions = self._counter(
            "turngate_decisions_total", "Decisions of people that ended a request.", "kind", "verb"
        )
        answered = self._histogram(
            "turngate_request_answer_seconds",
            "Time from a request's opening to its decision.",
            "kind",
            "verb",
            buckets=ANSWER_SECONDS,
        )
        avoided = self._counter("turngate_asks_avoided_total", "Calls that ran without asking a person.", "by")

        def answer(of: Payload) -> None:
            decisions.labels(of["kind"], of["verb"]).inc()
            answered.labels(of["kind"], of["verb"]).observe(of["seconds"])

        def avoid(of: Payload) -> None:
            avoided.labels("grant" if of["grant"] is not None else AVOIDED_BY.get(of["rule"], "rule")).inc()

        return {
            "request.opened": lambda of: opened.labels(of["kind"], self._tools.of(of["tool"])).inc(),
            "request.decided": lambda of: ended.labels(of["status"]).inc(),
            "request.expired": lambda _of: ended.labels("expired").inc(),
            "request.cancelled": lambda _of: ended.labels("cancelled").inc(),
            "request.superseded": lambda _of: ended.labels("superseded").inc(),
            "request.answered": answer,
            "ask.avoided": avoid,
        }

    def _of_calls(self) -> dict[str, Callable[[Payload], None]]:
        started = self._counter("turngate_executions_started_total", "Starts of tool calls, repeats included.", "tool")
        finished = self._finished = self._counter(
            "turngate_executions_finished_total",
            "Tool calls that ended; unknown: no one knows whether the call took effect.",
            "tool",
            "outcome",
        )
        self._started = started
        failures = self._counter("turngate_execution_failures_total", "Tool calls that failed, by kind.", "kind")
        closed = self._counter(
            "turngate_calls_closed_total", "Calls that were closed without running, by kind.", "kind"
        )

        def finish(of: Payload) -> None:
            finished.labels(self._tools.of(of["tool"]), "succeeded" if of["ok"] else "failed").inc()
            if not of["ok"]:
                failures.labels(self._kinds.of(of["kind"])).inc()

        return {
            "execution.started": lambda of: started.labels(self._tools.of(of["tool"])).inc(),
            "execution.finished": finish,
            "execution.unknown": lambda of: finished.labels(self._tools.of(of["tool"]), "unknown").inc(),
            "call.closed": lambda of: closed.labels(self._kinds.of(of["kind"] or "recorded")).inc(),
        }

    def _of_runs(self) -> dict[str, Callable[[Payload], None]]:
        started = self._counter("turngate_runs_started_total", "Runs that were started.")
        ended = self._counter("turngate_runs_ended_total", "Runs that ended, by their status.", "status")
        failures = self._counter(
            "turngate_run_failures_total", "Runs that failed, by the class of the error.", "error_class"
        )
        seen = self._histogram(
            "turngate_event_delivery_seconds",
            "Age of an event when this API handed it to those who watch.",
            buckets=SEEN_SECONDS,
        )

        def end(of: Payload) -> None:
            ended.labels(of["status"]).inc()
            if of["status"] == "failed":
                failures.labels(self._kinds.of(of.get("error_class") or "")).inc()

        return {
            "run.started": lambda _of: started.inc(),
            "run.ended": end,
            "events.seen": lambda of: seen.observe(of["seconds"]),
        }

    def _of_models(self) -> dict[str, Callable[[Payload], None]]:
        requests = self._counter("turngate_model_requests_total", "Requests to models.", "model", "outcome")
        self._model_requests = requests
        times = self._histogram(
            "turngate_model_request_seconds", "Time of a request to a model.", "model", buckets=MODEL_SECONDS
        )
        tokens = self._counter(
            "turngate_model_tokens_total", "Tokens of answers that were stored.", "model", "direction"
        )
        cost = self._counter(
            "turngate_model_cost_total", "Cost of stored answers, in the currency of the prices.", "model"
        )
        retries = self._counter(
            "turngate_model_retries_total", "Requests to models that will be sent again.", "error_class"
        )
        fallbacks = self._counter(
            "turngate_model_fallbacks_total", "Changes to the next model of a list.", "error_class"
        )

        def request(of: Payload) -> None:
            model = self._models.of(of["model"])
            requests.labels(model, of["outcome"]).inc()
            times.labels(model).observe(of["seconds"])

        def use(of: Payload) -> None:
            model, usage = self._models.of(of["model"]), of["usage"]
            tokens.labels(model, "input").inc(usage.input_tokens)
            tokens.labels(model, "output").inc(usage.output_tokens)
            cost.labels(model).inc(of["cost_micros"] / MICROS)

        return {
            "model.requested": request,
            "model.used": use,
            "model.retrying": lambda of: retries.labels(self._kinds.of(of["error_class"])).inc(),
            "run.model_fell_back": lambda of: fallbacks.labels(self._kinds.of(of["error_class"])).inc(),
        }

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        """Return a counter. Values that :data:`KNOWN` has are shown as 0 from the start, or a rate misses the first."""
        counter = Counter(name, says, labels, registry=self.registry)
        for value in KNOWN.get(name, ()):
            counter.labels(value)
        return counter

    def _histogram(self, name: str, says: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, says, labels, registry=self.registry, buckets=buckets)
