"""One trace across everything: a run that waits for a person while every process is killed, and continues as new."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest
from scene import order, scene
from support.otlp_collector import collecting
from temporalio.client import Client

from turngate.runtime.locations import TEMPORAL_PORT
from turngate.runtime.temporal_client import data_converter

CALLS = ("first", "second", "third")
PLANTED = "planted-argument"


def nanoseconds(at: datetime | str) -> int:
    instant = datetime.fromisoformat(at) if isinstance(at, str) else at
    return round(instant.timestamp() * 1e6) * 1000


async def test_i5_one_trace_spans_a_wait_across_the_death_of_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: one trace id, every parent there, the wait as long as it was, each handler once, no arguments anywhere.

    The worker, the API and Temporal are killed while the run waits, and again right after the decision; each workflow
    continues as new after two steps.
    """
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        async with scene(tmp_path, heartbeat_seconds=2) as on:
            steps = [[order("pay", f"{PLANTED}-{name}")] for name in CALLS]
            run = await on.start("trip", *steps)
            waiting = await on.request(run)
            everything = ("worker", "api", "temporal")
            await on.processes.kill(*everything)
            await asyncio.sleep(1)
            on.processes.start(*everything)
            await on.approve(run)
            await on.processes.kill(*everything)
            on.processes.start(*everything)
            for _call in CALLS[1:]:
                await on.approve(run)
            await on.completed(run)
            whole = await collector.one("invoke_agent clerk")
            decided = await on.detail(waiting.id)
            port = int((on.processes.data_dir / TEMPORAL_PORT).read_text())
            client = await Client.connect(f"127.0.0.1:{port}", data_converter=data_converter())
            executions = [each async for each in client.list_workflows(f"WorkflowId = '{run}'")]
            await on.audit()
        logs = b"".join(on.processes.log(name).read_bytes() for name in on.processes.names)
    assert len(executions) > 1, "it never continued as new"
    assert {span.trace_id for span in collector.received} == {whole.trace_id}
    assert collector.orphans() == []
    waits, paid = collector.named("wait for approval"), collector.named("execute_tool pay")
    assert (len(waits), len(paid), len(collector.named("step")), len(collector.named("chat"))) == (3, 3, 4, 4)
    assert waits[0].attributes["turngate.request.id"] == waiting.id
    assert waits[0].attributes["turngate.request.decided_by"].startswith("person-")
    assert decided.decided_at is not None
    assert (waits[0].began, waits[0].ended) == (nanoseconds(decided.created_at), nanoseconds(decided.decided_at))
    assert waits[0].seconds > 1
    assert all(wait.ended <= tool.began for wait, tool in zip(waits, paid, strict=True))
    assert all(whole.began <= span.began <= span.ended <= whole.ended for span in collector.spans.values())
    for sent in (b"".join(collector.bodies), logs):
        assert PLANTED.encode() not in sent
