"""I3, I5 at random instants: processes are killed for as long as runs ask, decide and pay."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import time
from pathlib import Path

from processes import NAMES
from scene import Scene, order, scene

from turngate.domain.results import Failure, Ok
from turngate.wire.requests import RequestItem

SEED = "CHAOS_SEED"
CHAOS_SECONDS = 18.0
RUNS = 6
STEPS = (2, 1, 2)
"""Calls in each step of each run: 30 calls in all."""
SERVER = "the server under `turngate temporal`"


async def test_i3_i5_random_kills(tmp_path: Path) -> None:
    """I3, I5: 30 gated ``once`` calls under random ``kill -9``: none lost, none started twice, none without its approval.

    The environment variable CHAOS_SEED repeats what a failed test printed, as far as processes can be repeated.
    """
    seed = int(os.environ.get(SEED) or secrets.randbelow(1_000_000))
    print(f"{SEED}={seed}")
    fate = [random.Random(f"{seed}-{whose}") for whose in ("killer", "operator")]  # noqa: S311 - chance, not secrecy
    async with scene(tmp_path) as on:
        async with asyncio.TaskGroup() as everybody:
            killing = everybody.create_task(_kill_at_random(on, fate[0]))
            deciding = everybody.create_task(_decide_all(on, fate[1]))
            runs = await asyncio.gather(*(on.start(f"run{number}", *_script(number)) for number in range(RUNS)))
            await killing
            await asyncio.gather(*(on.completed(run, outcome="tell_model") for run in runs))
            deciding.cancel()
        await _check(on, runs)


def _script(number: int) -> list[list[dict[str, object]]]:
    """Orders are named ``RUN-STEP-PLACE``."""
    return [
        [order("pay", f"{number}-{step}-{place}", seconds=0.3) for place in range(calls)]
        for step, calls in enumerate(STEPS)
    ]


def _is_rejected(name: str) -> bool:
    return sum(int(digit) for digit in name.split("-")) % 5 == 0


async def _kill_at_random(on: Scene, fate: random.Random) -> None:
    """Kill one process after the other, and start it again at once, ready or not."""
    end = time.monotonic() + CHAOS_SECONDS
    while time.monotonic() < end:
        await asyncio.sleep(fate.uniform(0.5, 2.0))
        target = fate.choice((*NAMES, SERVER))
        if target == SERVER:
            await on.processes.kill_temporal_server()
        else:
            await on.processes.kill(target)
            on.processes.start(target)
    await on.processes.ready(*NAMES)


async def _decide_all(on: Scene, fate: random.Random) -> None:
    """Approve or reject what is pending, like a person with a client that tries again; every answer is asked for twice."""
    taken: set[str] = set()
    async with asyncio.TaskGroup() as deciding:
        while True:
            for request in await on.requests():
                if request.kind == "approval" and request.id not in taken:
                    taken.add(request.id)
                    deciding.create_task(_decide(on, request, fate.uniform(0.0, 2.0)))
            await asyncio.sleep(0.2)


async def _decide(on: Scene, request: RequestItem, seconds: float) -> None:
    await asyncio.sleep(seconds)
    verb = "reject" if _is_rejected(json.loads(request.input)["name"]) else "approve"
    first = await on.decide(request, verb)
    second = await on.decide(request, verb)
    assert first.status in {None, second.status}, "a decision that was taken is not taken back"


async def _check(on: Scene, runs: list[str]) -> None:
    """Hold every call's result against the ledger."""
    await on.audit(runs)
    ended = [call for run in runs for step in (await on.run(run)).steps for call in step.calls]
    assert len(ended) == RUNS * sum(STEPS)
    unknown = 0
    for call in ended:
        name = json.loads(call.input)["name"]
        starts = len(on.starts(name))
        match call.result:
            case Ok():
                assert starts == 1, f"{name} succeeded after {starts} starts"
            case Failure(kind="rejected"):
                assert (_is_rejected(name), starts) == (True, 0), f"{name} was rejected after {starts} starts"
            case Failure(kind="unknown"):
                unknown += 1
                assert starts <= 1, f"{name} was started {starts} times"
            case other:
                raise AssertionError(f"{name} ended as {other}")
    print(f"{on.processes.kills} kills, {len(ended)} calls, {unknown} of them lost with their worker and told so")
    assert on.processes.kills >= CHAOS_SECONDS / 4
