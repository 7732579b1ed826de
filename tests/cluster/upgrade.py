"""A rolling upgrade: workers of an old build, then also of a new one, then only these, while runs begin, wait and are decided.

The new build's workflow differs from the old one's from its first command on, so a run that a worker of the other build
continued would fail as not deterministic. Half of the runs continue as new on their way, which moves them to the new build.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cluster.stage import cluster_stage, command
from cluster.temporal_services import TemporalCluster
from evidence import Evidence
from processes import APP, until
from scene import Scene, order
from support.engine.changed_turn import ChangedTurn

from turngate.wire.requests import RequestItem
from turngate.workflows.agent_turn import AgentTurn

OLD: Final = "1.0"
NEW: Final = "1.1"
OLD_WORKERS: Final = ("worker", "worker2")
NEW_WORKERS: Final = ("worker3", "worker4")
CHANGED_APP: Final = "changed_here"
STEPS: Final = (1, 3)
"""Of a run: a single one, or so many that it continues as new after two."""


async def upgrade(server: Path, directory: Path, *, runs: int) -> list[str]:
    """Upgrade under so many runs of each build; returns what happened. Any failure is an AssertionError."""
    (directory / f"{CHANGED_APP}.py").write_text(
        f"import sys\nsys.path[:0] = {[str(Path(__file__).parents[1])]!r}\n"
        "import worker\nfrom support.engine.changed_turn import ChangedTurn\n"
        "worker.AgentTurn = ChangedTurn\nfrom chaos_app import app as app\n"
    )
    async with cluster_stage(server, directory, durable=True, change=_with_builds) as (on, _postgres):
        on.code = lambda builds: ChangedTurn if NEW in builds else AgentTurn
        await command(on, "builds", "--set-current", OLD)
        began_old = await _begin(on, "old", runs)
        waiting = await _waiting(on, began_old)
        began_new = await _both_at_work(on, runs)
        # One of the old build's is lost meanwhile: its runs go to the other one of that build, and to no one else.
        await on.processes.kill(OLD_WORKERS[0])
        on.processes.start(OLD_WORKERS[0])
        waiting += await _waiting(on, began_new)
        await _approve_to_the_end(on, waiting, [*began_old, *began_new])
        emptied = await until(lambda: _emptied(on), f"end of the open runs of build {OLD}")
        for name in OLD_WORKERS:
            await on.processes.terminate(name)
        on.processes.layout.workers = NEW_WORKERS
        last = await _begin(on, "last", 2)
        await _approve_to_the_end(on, await _waiting(on, last), last)
        status = await command(on, "status", good=(0, 1))
        evidence = await on.audit()
        return [
            *_facts(evidence, began_old, [*began_new, *last]),
            f"- `turngate builds` at the end: {emptied}",
            _first(status),
        ]


def _with_builds(layout: TemporalCluster) -> None:
    layout.workers = OLD_WORKERS
    layout.builds = {**dict.fromkeys(OLD_WORKERS, OLD), **dict.fromkeys(NEW_WORKERS, NEW)}
    layout.apps = dict.fromkeys(NEW_WORKERS, APP.replace("app_here", CHANGED_APP))


async def _both_at_work(on: Scene, runs: int) -> list[str]:
    """Start the new build's workers beside the old one's, make it current, and begin runs."""
    on.processes.layout.workers = (*OLD_WORKERS, *NEW_WORKERS)
    on.processes.start(*NEW_WORKERS)
    await on.processes.ready(*NEW_WORKERS)
    await command(on, "builds", "--set-current", NEW)
    return await _begin(on, "new", runs)


async def _begin(on: Scene, name: str, runs: int) -> list[str]:
    """Begin runs, every second one with several steps."""
    begun = []
    for number in range(runs):
        steps = STEPS[number % len(STEPS)]
        calls = [[order("pay", f"{name}-{number}-{step}")] for step in range(steps)]
        begun.append(await on.start(f"{name}-{number}", *calls))
    return begun


async def _waiting(on: Scene, runs: Sequence[str]) -> list[RequestItem]:
    return [await on.request(run_id) for run_id in runs]


async def _approve_to_the_end(on: Scene, waiting: Sequence[RequestItem], runs: Sequence[str]) -> None:
    """Approve these, and what follows them, until all of the runs are completed."""

    async def approve() -> None:
        for request in waiting:
            await on.decide(request, "approve")
        while True:
            for request in await on.requests():
                if request.run_id in runs and not on.knows_decision(request.id):
                    outcome = "happened" if on.starts_of(request) else "did_not_happen"
                    lost = request.kind == "outcome"
                    await on.decide(request, "respond" if lost else "approve", outcome=outcome if lost else None)
            await asyncio.sleep(0.2)

    approving = asyncio.create_task(approve())
    try:
        for run_id in runs:

            async def ended(run_id: str = run_id) -> bool:
                run = await on.run(run_id)
                assert run.status in {"running", "completed"}, f"{run_id}: {run.status}, {run.reason}"
                return run.status == "completed"

            await until(ended, f"end of run {run_id}")
    finally:
        approving.cancel()


async def _emptied(on: Scene) -> str:
    """Return what `turngate builds` prints once the old build has no open run; empty before."""
    printed = await command(on, "builds")
    lines = [line.split() for line in printed.splitlines()]
    return "; ".join(map(" ".join, lines)) if [OLD, "0"] in [[words[0], words[-1]] for words in lines if words] else ""


def _facts(evidence: Evidence, old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Check which build did what, and say so."""

    def executions(runs: Sequence[str]) -> Counter[str]:
        return Counter(
            f"{'first' if place == len(evidence.workflows[run_id].builds) - 1 else 'later'} on {' and '.join(sorted(builds))}"
            for run_id in runs
            for place, builds in enumerate(evidence.workflows[run_id].builds)
        )

    of_old, of_new = executions(old), executions(new)
    moved = len([run_id for run_id in old if evidence.workflows[run_id].executions > 1])
    assert of_old == Counter({f"first on {OLD}": len(old), f"later on {NEW}": moved}), of_old
    assert set(of_new) <= {f"first on {NEW}", f"later on {NEW}"}, of_new
    failed = sum(bool(workflow.task_failures) for workflow in evidence.workflows.values())
    starts = Counter(line.of for line in evidence.ledger)
    calls = sum(len(recorded.calls) for recorded in evidence.runs.values())
    lost, twice = calls - len(starts), sum(times > 1 for times in starts.values())
    stayed = f"all completed; their first executions did every task on {OLD}, and the {moved} that continued as new went to {NEW}"
    return [
        f"- {len(old)} runs began on build {OLD} and waited there while build {NEW} became current: {stayed}",
        f"- {len(new)} runs began on build {NEW}; one worker of {OLD} was killed (`kill -9`) meanwhile",
        f"- {calls} gated `once` calls: {lost} lost, {twice} started twice, 0 unapproved",
        f"- runs with a workflow task that failed: {failed}",
    ]


def _first(status: str) -> str:
    line = next((line for line in status.splitlines() if line.strip()), "nothing")
    return f"- `turngate status` after the old workers were stopped: {line.strip()}"
