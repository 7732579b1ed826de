"""Lines of the log that belong to a run have its id, and those of its calls, requests and steps: one grep finds them all."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog
from starlette.testclient import TestClient
from support.engine.stack import STARTER, Script, call, says, stack
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate.approvals_api.http.guards import Guards
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.errors import ModelError
from turngate.domain.runs.trace import RunTrace
from turngate.models.port import ModelRequest
from turngate.runtime import log_ids, telemetry
from turngate.store.database import Database
from turngate.store.runs import known_traces

log = structlog.get_logger("of.the.test")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The JSON lines of this process's log, each added when it is written."""
    stream = io.StringIO()
    root, before = logging.getLogger(), list(logging.getLogger().handlers)
    level = root.level
    monkeypatch.setattr("sys.stderr", stream)
    telemetry.configure_logging("info", "json")
    written: list[dict[str, Any]] = []
    yield written
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


@asynccontextmanager
async def logged(lines: list[dict[str, Any]]):
    """Fill ``lines`` at the end of the block."""
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    yield
    lines += [json.loads(line) for line in handler.stream.getvalue().splitlines()]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that exports traces."""
    monkeypatch.setattr(known_traces, "_stored", {})
    monkeypatch.setattr(known_traces, "_is_kept", False)
    known_traces.keep()


@pytest.mark.usefixtures("traced")
async def test_each_line_of_a_run_has_its_ids(client: Client, sqlite: Database, lines: list[dict[str, Any]]) -> None:
    """A tool, a model and the engine log by either library; two runs at once keep their lines apart."""
    plain = logging.getLogger("a.library")

    @tool(effect="read", ask=False)
    async def look(ctx: ToolContext) -> str:
        """Look."""
        plain.warning("a library in the tool")
        log.info("the tool")
        return ctx.run_id

    @tool(effect="read", ask=False)
    async def count() -> int:
        """Count, in a thread."""
        await asyncio.to_thread(plain.warning, "a thread")
        return 1

    async def asks(request: ModelRequest):
        log.info("the model")
        return says(call("look", "{}", "c1"), call("count", "{}", "c2"))

    async def ends(request: ModelRequest):
        log.info("the model again")
        if "fails" in str(request.messages):
            raise ModelError("no", error_class="not_found", retryable=False)
        return says("Done.")

    async with logged(lines), stack(client, sqlite, look, count, model=Script(asks, ends)) as engine:
        caller = replace(STARTER, traceparent=f"00-{12:032x}-{13:016x}-01")
        runs = [await engine.start(by=caller), await engine.start("it fails")]
        for run in runs:
            await engine.ended(run)
    for run in runs:
        mine = [line for line in lines if line.get("run_id") == run.id]
        by_event = {line["event"]: line for line in mine}
        assert {"the model", "a library in the tool", "the tool", "a thread", "the model again"} <= set(by_event)
        assert by_event["the tool"]["tool_call_id"] == by_event["a library in the tool"]["tool_call_id"] == "c1"
        assert by_event["a thread"]["tool_call_id"] == "c2"
        assert by_event["the model"]["step"] == 1
        assert by_event["the model again"]["step"] == 2
        assert "tool_call_id" not in by_event["the model again"]
        assert by_event["the model"]["attempt"] == 1
        own = RunTrace.of(run.id, run.traceparent).trace_id
        assert [line for line in mine if line.get("trace_id") != own] == []
    assert mine[0]["trace_id"] != f"{12:032x}"
    about = [line for line in lines if any(run.id in json.dumps(line) for run in runs)]
    assert all(line.get("run_id") in {run.id for run in runs} for line in about)
    ours = [line for line in lines if line["logger"].startswith(("activities.", "of.the.test", "a.library"))]
    assert ours
    assert all("run_id" in line for line in ours)


async def test_lines_of_a_request_over_http_have_the_ids_of_its_path(lines: list[dict[str, Any]]) -> None:
    """What an endpoint logs belongs to the run or request in its path; what a client made up is no id."""

    async def endpoint(scope, receive, send) -> None:
        scope["path_params"] = {"request_id": scope["path"].rpartition("/")[2]}
        logging.getLogger("an.endpoint").warning("answering")
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    endpoint.state = type("State", (), {"draining": False})()
    app = Guards(endpoint, settings=ApiSettings())

    async def with_app(scope, receive, send) -> None:
        scope["app"] = endpoint
        await app(scope, receive, send)

    async with logged(lines):
        client = TestClient(with_app, base_url="http://127.0.0.1")
        client.get("/requests/rq_1")
        client.get("/requests/a%0Ab%20c")
    answers = [line for line in lines if line["event"] == "answering"]
    assert [line.get("request_id") for line in answers] == ["rq_1", None]


@pytest.mark.usefixtures("traced")
async def test_a_line_has_the_ids_of_its_trace(lines: list[dict[str, Any]]) -> None:
    """Where OpenTelemetry has a current span, its ids are on the line; without one there are none."""
    trace = pytest.importorskip("opentelemetry.trace")
    span = trace.NonRecordingSpan(trace.SpanContext(trace_id=10, span_id=11, is_remote=False))
    async with logged(lines):
        with trace.use_span(span):
            log.info("inside")
        log.info("outside")
    known_traces.note("run_1", f"00-{12:032x}-{13:016x}-01")
    log_ids.belongs_to({"run_id": "run_1", "step": 1})
    async with logged(lines):
        log.info("between")
    log_ids.belongs_to(None)
    assert lines[-1]["trace_id"] == f"{12:032x}"
    inside, outside, *_again = (line for line in lines if line["event"] in {"inside", "outside"})
    assert (inside["trace_id"], inside["span_id"]) == (f"{10:032x}", f"{11:016x}")
    assert "trace_id" not in outside


def test_no_id_is_kept_from_an_order_that_has_none() -> None:
    """An activity's order without a run adds nothing."""
    log_ids.belongs_to(object())
    assert log_ids.add_ids(None, "info", {"event": "x"}) == {"event": "x"}
    log_ids.belongs_to(None)


def test_traces_of_many_runs_fit_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were read first are forgotten first; without traces nothing is kept."""
    monkeypatch.setattr(known_traces, "_stored", {})
    monkeypatch.setattr(known_traces, "_is_kept", False)
    known_traces.note("run_1", None)
    assert known_traces.trace_id_of("run_1") is None
    monkeypatch.setattr(known_traces, "_is_kept", True)
    monkeypatch.setattr(known_traces, "MOST", 2)
    for run_id in ("run_1", "run_2", "run_2", "run_3"):
        known_traces.note(run_id, None)
    assert known_traces.trace_id_of("run_1") is None
    assert known_traces.trace_id_of("run_2") == RunTrace.of("run_2", None).trace_id
