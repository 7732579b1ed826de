"""I3, I5: worker, API and Temporal are separate processes here, and each of them is killed while it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from processes import NAMES
from scene import order, scene

from turngate.domain.errors import ConflictError


async def together(*stories: Coroutine[Any, Any, None]) -> None:
    """Tell the stories at the same time, since each mostly waits; all of them are told to their end."""
    ends = await asyncio.gather(*stories, return_exceptions=True)
    if failures := [end for end in ends if isinstance(end, Exception)]:
        raise ExceptionGroup(f"{len(failures)} of {len(stories)} failed", failures)


async def killed(directory: Path, *targets: str) -> None:
    """Kill the targets at once while one run waits at a gate and others are inside tools; start them again; go on."""
    held = ("paid", "unpaid", "posted", "reserved", "looked")
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
        for name in held:
            await on.started(name)

        await on.processes.kill(*targets)
        on.processes.start(*targets)

        await on.decide(waiting, "approve")
        await on.completed(runs["gate"])
        assert len(on.starts("gate")) == 1
        if "worker" in targets:
            lost = {name: await on.request(runs[name], "outcome") for name in ("paid", "unpaid", "posted")}
            assert [len(on.starts(name)) for name in lost] == [1, 1, 1]
            assert [(await on.detail(request.id)).execution for request in lost.values()] == ["unknown"] * 3
            on.go(*held)
            await on.decide(lost["paid"], "respond", outcome="happened", args='{"done": "by the lost worker"}')
            await on.decide(lost["unpaid"], "respond", outcome="did_not_happen")
            await on.decide(lost["posted"], "respond", outcome="tell_model")
        on.go(*held)
        for name in held:
            # A Temporal that was away longer than the heartbeat timeout takes a living worker for a lost one.
            await on.completed(runs[name], outcome="happened")
        repeated = 2 if "worker" in targets else 1
        assert [len(on.starts(name)) for name in ("paid", "unpaid", "posted")] == [1, repeated, 1]
        assert len(on.starts("reserved")) >= repeated
        assert len(on.starts("looked")) >= repeated
        await on.audit(runs.values())


async def lost_twice(directory: Path) -> None:
    """A ``once`` call that a person sends again and that is lost again asks again, and goes by the second answer."""
    async with scene(directory) as on:
        run = await on.start("unlucky", [order("pay", "unlucky", hold=True)])
        await on.approve(run)
        answered = set()
        for times in (1, 2):
            await on.started("unlucky", times)
            await on.processes.kill("worker")
            on.processes.start("worker")
            request = await on.request(run, "outcome")
            assert len(on.starts("unlucky")) == times
            answered.add(request.id)
            if times == 2:
                on.go("unlucky")
            await on.decide(request, "respond", outcome="did_not_happen")
        await on.completed(run, outcome="happened")
        assert len(answered) == 2
        assert len(on.starts("unlucky")) == 3
        await on.audit([run])


async def test_i5_kill_dash_nine_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """I3, I5: after ``kill -9`` of any process, or all, gates can be decided, runs complete, and ``once`` ran once."""
    await together(
        *(killed(tmp_path / name, name) for name in NAMES),
        killed(tmp_path / "all", *NAMES),
        lost_twice(tmp_path / "twice"),
    )
