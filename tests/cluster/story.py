"""The main story on the cluster, over its two APIs and the command line: each thing that Turngate asks of Temporal, once."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable

from cluster.stage import command
from processes import until
from scene import Scene, order

from turngate.wire.requests import RequestItem
from turngate.wire.runs import RunDetail

EVERY: str = "10s"
"""The schedule's: Temporal's own worker fires it."""


async def story(on: Scene) -> list[str]:
    """Live through it; returns a line for each part. Any failure is an AssertionError."""
    parts: list[tuple[str, Callable[[Scene], Awaitable[str]]]] = [
        ("a gated call, from start to reply", _gated_call),
        ("an interrupt inside a tool", _interrupted),
        ("a sub-agent's gate", _sub_agent),
        ("a schedule", _schedule),
        ("turngate replay-check", _replay_check),
        ("turngate reconcile", _reconcile),
        ("turngate status", _status),
        ("turngate doctor", _doctor),
    ]
    lines = []
    for name, part in parts:
        began = time.monotonic()
        came = await part(on)
        lines.append(f"- {name} ({time.monotonic() - began:.1f} s): {came}")
        print(lines[-1], flush=True)
    return lines


async def _gated_call(on: Scene) -> str:
    """Run → gate → decision → tool → reply. The two APIs answer in turns, so each sees what the other one did."""
    run_id = await on.start("story", [order("pay", "story")])
    request = await on.request(run_id)
    sent = time.time()
    answer = await on.decide(request, "approve")
    assert (answer.http, answer.status) == (200, "approved"), answer
    await on.completed(run_id)
    [start] = on.starts("story")
    late = await on.decide(request, "reject", by="bob", key="story-late")
    assert (late.http, late.code) == (409, "already_decided"), late
    return (
        f"approved, one start {(start.at - sent) * 1000:.0f} ms after the decision was sent; a second decision got 409"
    )


async def _interrupted(on: Scene) -> str:
    run_id = await on.start("halted", [order("pay", "halted", hold=True)], may_be_interrupted=True)
    await on.approve(run_id)
    await on.started("halted")
    began = time.monotonic()
    await on.insist(lambda client: client.interrupt(run_id, reason="story"), by="owner")
    run = await _ended(on, run_id)
    assert run.status == "interrupted", run.status
    return f"the run ended {(time.monotonic() - began) * 1000:.0f} ms after the order"


async def _sub_agent(on: Scene) -> str:
    run_id = await on.start("delegated", [{"tool": "helper", "input": {"task": "Help."}}])

    async def below() -> list[RequestItem]:
        return [each for each in await on.requests() if each.run_id != run_id]

    [request] = await until(below, "the sub-agent's request")
    await on.decide(request, "approve")
    await on.completed(run_id)
    return f"its call was approved in run {request.run_id}, and the run above it completed"


async def _schedule(on: Scene) -> str:
    """Temporal's service for its own workflows fires it; without that process no schedule ever fires."""
    name = "tick"
    await command(on, "schedule", "create", name, "Look.", "--agent", "clerk", "--every", EVERY)
    began = time.monotonic()

    async def fired() -> bool:
        return (await on.insist(lambda client: client.get_schedule(name), by="owner")).opened > 0

    await until(fired, "a fire of the schedule")
    seconds = time.monotonic() - began
    await command(on, "schedule", "delete", name)
    return f"every {EVERY}: fired after {seconds:.1f} s"


async def _replay_check(on: Scene) -> str:
    async def listed() -> str:
        printed = await command(on, "replay-check", "--status", "all")
        return printed if "0 " not in printed[:2] else ""

    return _last_line(await until(listed, "histories in Temporal's list"))


async def _reconcile(on: Scene) -> str:
    return _last_line(await command(on, "reconcile"))


async def _status(on: Scene) -> str:
    """Two workers, seen by each API."""
    health = json.loads(await command(on, "status", "--json"))
    wrong = [check["says"] for check in health["checks"] if check["state"] == "wrong"]
    assert not wrong, wrong
    warnings = [check["says"] for check in health["checks"] if check["state"] == "warning"]
    return f"{health['state']}; {len(health['workers'])} lines of workers; warnings: {warnings or 'none'}"


async def _doctor(on: Scene) -> str:
    printed = await command(on, "doctor")
    return " · ".join(line for line in printed.splitlines() if "Temporal" in line or line.startswith(("!", "✗")))


async def _ended(on: Scene, run_id: str) -> RunDetail:
    async def look() -> RunDetail | None:
        run = await on.run(run_id)
        return run if run.status != "running" else None

    return await until(look, f"end of run {run_id}")


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing printed")
