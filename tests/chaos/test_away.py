"""I3, I4, I5: a run waits and people decide while every process is killed. One trace has all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from http import HTTPStatus
from pathlib import Path

import pytest
from evidence import text_of
from processes import until
from scene import Scene, asked_after_the_effect, order, scene
from support.servers.otlp_collector import Collector, collecting
from support.stores.postgres_server import PostgresServer

from turngate.store.clock import now
from turngate.store.events import traces
from turngate.wire.requests import RequestItem

CALLS = ("first", "second", "third")
PLANTED = "planted-argument"
EDIT = text_of(order("pay", "edited", amount=7)["input"])
EVERYTHING = ("worker", "api", "temporal")


@pytest.fixture
async def on(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    """Processes that export traces; each workflow continues as new after two steps."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    url = None
    if store == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.fresh_url(template=request.getfixturevalue("postgres_template"))
    async with scene(tmp_path, heartbeat_seconds=2, database_url=url) as staged:
        yield staged


@pytest.fixture
def collector() -> AsyncIterator[Collector]:
    with collecting() as running:
        yield running


@pytest.mark.exhaustive
@pytest.mark.parametrize(("store", "api_too"), [("postgres", True), ("sqlite", False)])
async def test_waits_and_decisions_outlive_every_process(on: Scene, collector: Collector, *, api_too: bool) -> None:
    """I3, I4, I5: decisions that no worker and no Temporal saw are final, and each takes effect once, after both are back.

    A run that waits meanwhile, and again when all are killed right after its decision, continues, and is one trace. Then a worker
    is killed after an effect that its tool never reported, right after the question about it: nothing runs again.

    ``api_too``: the API that took the decisions is killed before it could signal the runs.
    """
    trip = await on.start("trip", *([order("pay", f"{PLANTED}-{name}")] for name in CALLS))
    waiting = await on.request(trip)
    names = ("approved", "changed", "rejected", "raced")
    runs = {name: await on.start(name, [order("pay", name)]) for name in names}
    requests = {name: await on.request(run) for name, run in runs.items()}

    killed_at = now()
    await killed(on, *(EVERYTHING if api_too else ("worker", "temporal")), decide=requests)
    await asyncio.gather(*(on.completed(run) for run in runs.values()))
    edited = next(answer for answer in on.answers if answer.verb == "edit")
    assert await on.decide(requests["changed"], "edit", args=EDIT) == edited, "one decision id has two answers"
    raced = (await on.detail(requests["raced"].id)).status == "approved"
    effects = [len(on.starts(name)) for name in ("approved", "edited", "changed", "rejected", "raced")]
    assert effects == [1, 1, 0, 0, raced]

    back_at = now()
    await on.approve(trip)
    await killed(on, *EVERYTHING)
    for _call in CALLS[1:]:
        await on.approve(trip)
    await on.completed(trip)
    await asked_after_the_effect(on, "debit", "asked-not-reported")
    await is_one_trace(on, collector, trip, waiting, killed_at, back_at)
    await on.audit()


async def killed(on: Scene, *names: str, decide: dict[str, RequestItem] | None = None) -> None:
    """Kill these and start them again, the API last; ``decide``: what is decided while there are a last API and nothing else."""
    await on.processes.kill(*(name for name in names if name != "api"))
    if decide is not None:
        await decide_for_good(on, decide)
    if "api" in names:
        await on.processes.kill("api")
    async with on.store.write() as conn:
        place = await traces.export(conn)
        if place is not None:  # the killed process would hold the export for another minute
            await traces.hold(conn, place.held_by, at=now(), until=now())
    on.processes.start(*names)


async def decide_for_good(on: Scene, requests: dict[str, RequestItem]) -> None:
    """200 for an approval, an edit and a rejection; 409, which names the winner, for who comes later, or is slower."""
    answers = [
        await on.decide(requests["approved"], "approve"),
        await on.decide(requests["changed"], "edit", args=EDIT),
        await on.decide(requests["rejected"], "reject"),
        await on.decide(requests["approved"], "approve"),
    ]
    assert [answer.http for answer in answers] == [HTTPStatus.OK] * 4
    assert answers[0] == answers[3], "one decision id has two answers"
    late = await on.decide(requests["approved"], "reject", key="late", by="bob")
    assert (late.http, late.code, late.winner) == (HTTPStatus.CONFLICT, "already_decided", answers[0].decision_id)

    sent = [("thrice", "approve", "ann")] * 3 + [("never", "reject", "bob")]
    raced = await asyncio.gather(*(on.decide(requests["raced"], verb, key=key, by=by) for key, verb, by in sent))
    won, lost = [HTTPStatus.OK], [HTTPStatus.CONFLICT]
    approved = raced[0].http == HTTPStatus.OK
    assert [answer.http for answer in raced] == (won * 3 + lost if approved else lost * 3 + won)

    statuses = [(await on.detail(each.id)).status for each in requests.values()]
    assert statuses == ["approved", "approved", "rejected", "approved" if approved else "rejected"]
    assert [on.starts(name) for name in requests] == [[]] * 4, "a tool ran without a worker"


async def is_one_trace(
    on: Scene, collector: Collector, trip: str, waiting: RequestItem, killed_at: datetime, back_at: datetime
) -> None:
    """One trace id, every parent there, the wait as long as it was, each handler once, no arguments anywhere."""
    whole = await collector.one("invoke_agent clerk", trip)
    decided = await on.detail(waiting.id)
    executions = [each async for each in (await on.temporal()).list_workflows(f"WorkflowId = '{trip}'")]
    assert len(executions) > 1, "it never continued as new"
    spans = [span for span in collector.spans.values() if span.attributes.get("turngate.run.id") == trip]
    assert {span.trace_id for span in spans} == {whole.trace_id}
    assert [span for span in collector.spans.values() if span.trace_id == whole.trace_id and span not in spans] == []
    await until(lambda: asyncio.sleep(0, collector.orphans() == []), "parents of all spans, which other processes send")
    waits, paid = (collector.named(name, trip) for name in ("wait for approval", "execute_tool pay"))
    steps = (collector.named(name, trip) for name in ("step", "chat"))
    assert (len(waits), len(paid), *map(len, steps)) == (3, 3, 4, 4)
    assert waits[0].attributes["turngate.request.id"] == waiting.id
    assert waits[0].attributes["turngate.request.decided_by"].startswith("person-")
    assert decided.decided_at is not None
    assert (waits[0].began, waits[0].ended) == (nanoseconds(decided.created_at), nanoseconds(decided.decided_at))
    assert waits[0].began < nanoseconds(killed_at) < nanoseconds(back_at) < waits[0].ended
    assert all(wait.ended <= tool.began for wait, tool in zip(waits, paid, strict=True))
    assert all(whole.began <= span.began <= span.ended <= whole.ended for span in spans)
    logs = [on.processes.log(name).read_bytes() for name in on.processes.names]
    for sent in (*collector.bodies, *logs):
        assert PLANTED.encode() not in sent


def nanoseconds(at: datetime | str) -> int:
    instant = datetime.fromisoformat(at) if isinstance(at, str) else at
    return round(instant.timestamp() * 1e6) * 1000
