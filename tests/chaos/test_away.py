"""I5: decisions, while neither a worker nor Temporal is there, in separate processes: final at once, in effect once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import pytest
from evidence import text_of
from run import cluster_for, migrated
from scene import Scene, order, scene


@pytest.fixture
async def on(tmp_path: Path, store: str) -> AsyncIterator[Scene]:
    with cluster_for(store) as cluster:
        url = None if cluster is None else await migrated(cluster)
        async with scene(tmp_path, heartbeat_seconds=2, database_url=url) as staged:
            yield staged


@pytest.mark.parametrize(
    ("store", "api_too"),
    [
        ("postgres", True),
        pytest.param("sqlite", False, marks=pytest.mark.exhaustive),
        pytest.param("sqlite", True, marks=pytest.mark.exhaustive),
        pytest.param("postgres", False, marks=pytest.mark.exhaustive),
    ],
)
async def test_i5_decisions_are_final_while_worker_and_temporal_are_killed(on: Scene, *, api_too: bool) -> None:
    """I4, I5: 200 for an approval, an edit and a rejection, 409 for who comes later; each takes effect once, after both are back.

    ``api_too``: the API that took them is killed before it could signal the runs.
    """
    names = ("approved", "changed", "rejected")
    runs = {name: await on.start(name, [order("pay", name)]) for name in names}
    waiting = {name: await on.request(run) for name, run in runs.items()}
    await on.processes.kill("worker", "temporal")

    edit = text_of(order("pay", "edited", amount=7)["input"])
    answers = [
        await on.decide(waiting["approved"], "approve"),
        await on.decide(waiting["changed"], "edit", args=edit),
        await on.decide(waiting["rejected"], "reject"),
        await on.decide(waiting["approved"], "approve"),
    ]
    assert [answer.http for answer in answers] == [HTTPStatus.OK] * 4
    assert answers[0] == answers[3]
    late = await on.decide(waiting["approved"], "reject", key="late", by="bob")
    assert (late.http, late.code, late.winner) == (HTTPStatus.CONFLICT, "already_decided", answers[0].decision_id)
    assert [(await on.detail(each.id)).status for each in waiting.values()] == ["approved", "approved", "rejected"]
    if api_too:
        await on.processes.kill("api")
        on.processes.start("api")
    on.processes.start("temporal", "worker")
    await asyncio.gather(*(on.completed(run) for run in runs.values()))
    assert [len(on.starts(name)) for name in ("approved", "edited", "changed", "rejected")] == [1, 1, 0, 0]
    await on.audit()
