"""I3, I4, I5: a run waits and people decide while every process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import pytest
from evidence import text_of
from scene import Scene, order, scene
from support.stores.postgres_server import PostgresServer

from turngate.wire.requests import RequestItem

CALLS = ("first", "second", "third")
EDIT = text_of(order("pay", "edited", amount=7)["input"])
EVERYTHING = ("worker", "api", "temporal")


@pytest.fixture
async def on(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> AsyncIterator[Scene]:
    """Processes over this store; each workflow continues as new after two steps."""
    url = None
    if store == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.fresh_url(template=request.getfixturevalue("postgres_template"))
    async with scene(tmp_path, heartbeat_seconds=2, database_url=url) as staged:
        yield staged


@pytest.mark.exhaustive
@pytest.mark.parametrize(("store", "api_too"), [("postgres", True), ("sqlite", False)])
async def test_waits_and_decisions_outlive_every_process(on: Scene, *, api_too: bool) -> None:
    """I3, I4, I5: decisions that no worker and no Temporal saw are final, and each takes effect once, after both are back.

    A run that waits meanwhile, and again when all are killed right after its decision, continues.

    ``api_too``: the API that took the decisions is killed before it could signal the runs.
    """
    trip = await on.start("trip", *([order("pay", name)] for name in CALLS))
    await on.request(trip)
    names = ("approved", "changed", "rejected", "raced")
    runs = {name: await on.start(name, [order("pay", name)]) for name in names}
    requests = {name: await on.request(run) for name, run in runs.items()}

    await killed(on, *(EVERYTHING if api_too else ("worker", "temporal")), decide=requests)
    await asyncio.gather(*(on.completed(run) for run in runs.values()))
    edited = next(answer for answer in on.answers if answer.verb == "edit")
    assert await on.decide(requests["changed"], "edit", args=EDIT) == edited, "one decision id has two answers"
    raced = (await on.detail(requests["raced"].id)).status == "approved"
    effects = [len(on.starts(name)) for name in ("approved", "edited", "changed", "rejected", "raced")]
    assert effects == [1, 1, 0, 0, raced]

    await on.approve(trip)
    await killed(on, *EVERYTHING)
    for _call in CALLS[1:]:
        await on.approve(trip)
    await on.completed(trip)
    await on.audit()


async def killed(on: Scene, *names: str, decide: dict[str, RequestItem] | None = None) -> None:
    """Kill these and start them again, the API last; ``decide``: what is decided while there are a last API and nothing else."""
    await on.processes.kill(*(name for name in names if name != "api"))
    if decide is not None:
        await decide_for_good(on, decide)
    if "api" in names:
        await on.processes.kill("api")
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
