"""I3, I5: worker, API and Temporal are separate processes here, and each of them is killed while it is needed.

Every story has its own data directory and processes. The stories mostly wait, so all that are selected are told at the
same time, and each test waits for the end of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from processes import NAMES
from scene import Scene, order, scene

from turngate.domain.errors import ConflictError

Story = Callable[[Path], Awaitable[None]]
HELD = ("paid", "unpaid", "posted", "reserved", "looked")
ONCE = ("paid", "unpaid", "posted")


async def killed(directory: Path, targets: tuple[str, ...]) -> None:
    """Kill the targets at once while one run waits at a gate and others are inside tools; start them again; go on."""
    async with scene(directory) as on:
        runs = {
            "gate": await on.start("gate", [order("pay", "gate")], [order("look", "after-gate")]),
            "paid": await on.start("paid", [order("pay", "paid", hold=True)]),
            "unpaid": await on.start("unpaid", [order("pay", "unpaid", hold=True)]),
            "posted": await on.start("posted", [order("post", "posted", hold=True)]),
            "reserved": await on.start("reserved", [order("reserve", "reserved", hold=True)]),
            "looked": await on.start("looked", [order("look", "looked", hold=True)]),
        }
        waiting = await on.request(runs["gate"])
        for name in ("paid", "unpaid", "reserved"):
            await on.approve(runs[name])
        for name in HELD:
            await on.started(name)

        await on.processes.kill(*targets)
        on.processes.start(*targets)

        await asyncio.gather(
            on.decide(waiting, "approve"),
            *((answer_for_the_lost(on, runs),) if "worker" in targets else ()),
        )
        on.go(*HELD)
        for run in runs.values():
            await on.completed(run)
        lost = "worker" in targets
        assert len(on.starts("gate")) == 1
        assert [len(on.starts(name)) for name in ONCE] == [1, 3 if lost else 1, 1]
        assert len(on.starts("reserved")) >= (2 if lost else 1)
        assert len(on.starts("looked")) >= (2 if lost else 1)
        await on.audit(runs.values())


async def answer_for_the_lost(on: Scene, runs: dict[str, str]) -> None:
    """Say of each lost ``once`` call what became of it; the one that is sent again is lost again, and asks again."""
    lost = {name: await on.request(runs[name], "outcome") for name in ONCE}
    assert [len(on.starts(name)) for name in ONCE] == [1, 1, 1]
    assert [(await on.detail(request.id)).execution for request in lost.values()] == ["unknown"] * 3
    await asyncio.gather(
        on.decide(lost["paid"], "respond", outcome="happened", args='{"done": "by the lost worker"}'),
        on.decide(lost["posted"], "respond", outcome="tell_model"),
        on.decide(lost["unpaid"], "respond", outcome="did_not_happen"),
    )
    await on.started("unpaid", 2)
    await on.processes.kill("worker")
    on.processes.start("worker")
    again = await on.request(runs["unpaid"], "outcome")
    assert again.id != lost["unpaid"].id
    assert len(on.starts("unpaid")) == 2
    on.go("unpaid")
    await on.decide(again, "respond", outcome="did_not_happen")


async def served(directory: Path) -> None:
    """What operators and deploys do to the processes: the same decision twice, SIGTERM, no worker at all."""
    async with scene(directory) as on:
        await api_killed_between_identical_decisions(on)
        await worker_stopped_inside_tools(on)
        await decided_without_a_worker(on)


async def api_killed_between_identical_decisions(on: Scene) -> None:
    run = await on.start("edited", [order("pay", "draft")])
    request = await on.request(run)
    edit = '{"name": "edited", "seconds": 0.0}'
    first = await on.decide(request, "edit", args=edit, key="edit-it")
    assert first.status == "approved"
    await on.processes.kill("api")
    on.processes.start("api")
    assert await on.decide(request, "edit", args=edit, key="edit-it") == first
    with pytest.raises(ConflictError) as refused:
        await on.decide(request, "reject", key="another")
    assert refused.value.details["decision_id"] == "edit-it"
    await on.completed(run)
    assert (len(on.starts("draft")), len(on.starts("edited"))) == (0, 1)
    await on.audit([run])


async def worker_stopped_inside_tools(on: Scene) -> None:
    """SIGTERM: a tool that ends in time is drained; a ``read`` that does not is repeated, a ``once`` asks a person."""
    runs = {
        "drained": await on.start("drained", [order("look", "drained", hold=True)]),
        "repeated": await on.start("repeated", [order("look", "repeated", hold=True)]),
        "stopped": await on.start("stopped", [order("pay", "stopped", hold=True)]),
    }
    await on.approve(runs["stopped"])
    for name in runs:
        await on.started(name)
    stopping = asyncio.create_task(on.processes.terminate("worker"))
    on.go("drained")
    assert await stopping == 0
    on.go("repeated", "stopped")
    on.processes.start("worker")
    request = await on.request(runs["stopped"], "outcome")
    await on.decide(request, "respond", outcome="happened")
    for run in runs.values():
        await on.completed(run)
    assert [len(on.starts(name)) for name in runs] == [1, 2, 1]
    await on.audit(runs.values())


async def decided_without_a_worker(on: Scene) -> None:
    run = await on.start("absent", [order("pay", "absent")])
    request = await on.request(run)
    await on.processes.kill("worker")
    answers = await asyncio.gather(*(on.decide(request, "approve", key="thrice") for _ in range(3)))
    assert [answer.status for answer in answers] == [None] * 3, "decided, and no worker runs"
    assert on.starts("absent") == []
    on.processes.start("worker")
    await on.completed(run)
    assert (await on.decide(request, "approve", key="thrice")).status == "approved"
    assert len(on.starts("absent")) == 1
    await on.audit([run])


STORIES: dict[str, Story] = {
    "worker": partial(killed, targets=("worker",)),
    "api": partial(killed, targets=("api",)),
    "temporal": partial(killed, targets=("temporal",)),
    "all": partial(killed, targets=NAMES),
    "served": served,
}


@pytest.fixture(scope="module")
async def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """Name → story that is being told; those that no selected test waits for are left out."""
    selected = [item.name for item in request.session.items if item.path == request.path]
    tasks = {
        name: asyncio.create_task(story(tmp_path_factory.mktemp(name)))
        for name, story in STORIES.items()
        if any(name in test for test in selected)
    }
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("target", ["worker", "api", "temporal", "all"])
async def test_i3_i5_kill_dash_nine(told: dict[str, asyncio.Task[None]], target: str) -> None:
    """I3, I5: after ``kill -9`` at a gate and inside tools, runs complete, and no ``once`` call ran but by a person's word."""
    await told[target]


async def test_i3_i4_decisions_are_served_once(told: dict[str, asyncio.Task[None]]) -> None:
    """I3, I4: one decision id has one answer, across a killed API and an absent worker; a stopped worker hands over."""
    await told["served"]
