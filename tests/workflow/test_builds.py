"""A deploy under waiting runs: builds keep them whole, `turngate replay-check` says beforehand what would break."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from support.engine.changed_turn import BrokenTurn, ChangedTurn, ImportingTurn
from support.engine.stack import Script, Stack, call, person, says, stack, until, with_short_tasks
from support.engine.tools import Bench
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.common import WorkflowIDReusePolicy

from turngate import worker as composition
from turngate.approvals_api import health
from turngate.approvals_api.gateway import task_queues
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.runs import explain
from turngate.approvals_api.runs.stalled import stuck_page
from turngate.cli.commands.serve import builds, replay_check
from turngate.cli.parts.worker import new_runs_note
from turngate.domain.contract import AgentTurnInput, RunLimits
from turngate.domain.errors import NotFoundError
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.settings import load_settings
from turngate.runtime.temporal_client import codec_of
from turngate.runtime.workflow_code import build_replayer, deployment
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.wire.explanation import Explanation
from turngate.workflows.agent_turn import AgentTurn


class Fleet:
    """Workers of one stack: of builds, and of none."""

    def __init__(self, engine: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.name = f"fleet-{secrets.token_hex(4)}"
        self._monkeypatch = monkeypatch

    @asynccontextmanager
    async def worker(self, build_id: str | None = None, code: type[AgentTurn] = AgentTurn) -> AsyncIterator[None]:
        """Run a worker with this code; one of a build becomes the current one."""
        with self._monkeypatch.context() as patch:
            patch.setattr(composition, "AgentTurn", code)
            workers = self.engine.worker(deployment=deployment(self.name, build_id))
        async with workers:
            if build_id is not None:
                await builds.make_current(self.engine.client, self.name, build_id)
            yield

    async def open_runs(self) -> dict[str, tuple[bool, int]]:
        """Build → is it the current one, how many runs it has."""
        known = await builds.known(self.engine.client, self.name)
        return {each.build_id: (each.current, each.open_runs) for each in known}

    async def history(self, run: runs.Run) -> WorkflowHistory:
        return await self.engine.workflow(run).fetch_history()

    async def builds_of(self, run: runs.Run) -> list[str]:
        """The builds that did the tasks of the run's newest execution, in order, each once."""
        done = [
            event.workflow_task_completed_event_attributes.deployment_version.build_id
            for event in (await self.history(run)).events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        return list(dict.fromkeys(done))


def timers(history: WorkflowHistory) -> int:
    """How many: only the changed code starts one."""
    return sum(event.event_type == EventType.EVENT_TYPE_TIMER_STARTED for event in history.events)


def paying(*more: int) -> Script:
    steps = [says(call("pay", f'{{"cents": {cents}}}')) for cents in (5, *more)]
    return Script(*steps, says("Done."))


@asynccontextmanager
async def fleet(
    client: Client, database: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch, model: Script
) -> AsyncIterator[Fleet]:
    async with stack(client, database, bench.pay, model=model, working=False) as engine:
        engine.services = replace(engine.services, gateway=Gateway(client))
        yield Fleet(engine, monkeypatch)


async def answered(engine: Stack, run: runs.Run) -> str:
    await engine.decide(await engine.request(run), "approve")
    return (await engine.ended(run)).status


@pytest.mark.unencrypted  # its commands run in a process that has no key
async def test_i11_a_deploy_leaves_a_waiting_run_with_its_build(
    client: Client,
    temporal: EmbeddedTemporal,
    sqlite: Database,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run continues with the code that started it, and a new run gets the new code; the check told the two apart."""
    async with fleet(client, sqlite, bench, monkeypatch, paying()) as those:
        engine = those.engine
        assert await those.open_runs() == {}
        async with those.worker("1"):
            old = await engine.start()
            await engine.request(old)
            await engine.idle(old)
            history = await those.history(old)
            checks = [await replay_check.check(history, build_replayer(code)) for code in (AgentTurn, ChangedTurn)]
            assert [each.failing and each.failing.kind for each in checks] == [None, "incompatible"]
            assert await by_new_release(temporal, old, capsys) == checks[1].for_programs()

            async with those.worker("2", ChangedTurn):
                new = await engine.start()
                await engine.request(new)

                async def counted() -> bool:
                    return await those.open_runs() == {"1": (False, 1), "2": (True, 1)}

                await until(counted, "count of each build's runs")
                assert await answered(engine, old) == "completed"
                assert await answered(engine, new) == "completed"
            assert (await those.builds_of(old), timers(await those.history(old))) == (["1"], 0)
            assert (await those.builds_of(new), timers(await those.history(new))) == (["2"], 1)
        assert bench.paid == [5, 5]


async def by_new_release(temporal: EmbeddedTemporal, run: runs.Run, capsys: pytest.CaptureFixture[str]) -> object:
    """Run `turngate replay-check` on this run alone, in a release whose workflow has changed."""
    settings = load_settings(temporal_address=temporal.address)
    choice = replay_check.HistoryChoice(run_ids=[run.id], files=[], every=False, limit=None)
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_check, "AgentTurn", ChangedTurn)
        with pytest.raises(typer.Exit) as ended:
            await asyncio.to_thread(replay_check.replay_and_report, settings, choice, save=None, as_json=True)
    assert ended.value.exit_code == 1
    [answer] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.exhaustive
async def test_a_run_that_continues_as_new_moves_to_the_newest_build(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may live for longer than any build: its next execution belongs to the build that is current then."""
    async with fleet(client, sqlite, bench, monkeypatch, paying(6)) as those:
        engine = those.engine
        run = await engine.start()
        await engine.workflow(run).terminate()
        limits = RunLimits(continue_as_new_after_steps=1)
        async with those.worker("1"):
            await client.start_workflow(
                "AgentTurn",
                AgentTurnInput(run_id=run.id, agent="agent", limits=limits),
                id=run.id,
                task_queue=engine.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            )
            first = await engine.request(run)
            await engine.idle(run)
            async with those.worker("2", ChangedTurn):
                await engine.decide(first, "approve")
                await engine.request(run)
                await engine.idle(run)
                assert (await those.builds_of(run), timers(await those.history(run))) == (["2"], 1)
                assert await answered(engine, run) == "completed"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ChangedTurn, "The workers' code no longer replays the run, attempt "),
        pytest.param(BrokenTurn, "The run's workflow task fails, attempt ", marks=pytest.mark.exhaustive),
        pytest.param(ImportingTurn, "The run's workflow task fails, attempt ", marks=pytest.mark.exhaustive),
    ],
)
async def test_i5_code_that_cannot_continue_a_run_is_named_with_what_continues_it(
    client: Client,
    sqlite: Database,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    code: type[ChangedTurn],
    says: str,
) -> None:
    """Explain, the stalled runs and health name the code that fails; the release that began the run continues it.

    It has a build by then: builds may be brought in while runs wait, but one that no worker came up with is never current.
    """
    async with fleet(with_short_tasks(client), sqlite, bench, monkeypatch, paying()) as those:
        engine = those.engine
        async with those.worker():
            run = await engine.start()
            request = await engine.request(run)
            await engine.idle(run)
            newer = await engine.start()
            await engine.request(newer)
            await engine.idle(newer)
        async with those.worker(code=code):
            await engine.decide(request, "approve")

            async def failing() -> Explanation | None:
                explained = await explain.explain(engine.services, person("ada"), run.id)
                return (
                    explained if explained.waits_for[:1] and explained.waits_for[0].kind == "workflow_fails" else None
                )

            explained = await until(failing, "workflow task that fails")
            assert explained.cause.startswith(says)
            assert code.SAYS in explained.cause
            assert explained.actions[0].command == "turngate worker APP --build-id OLD"
            [stuck] = (await stuck_page(engine.services, limit=10, before=None, still_for=timedelta(hours=1))).items
            assert (stuck.run.id, stuck.waits_for.kind) == (run.id, "workflow_fails")
            checks = (await health.examine(engine.services)).checks
            [of_run] = [each for each in checks if each.command == f"turngate explain {run.id}"]
            assert (of_run.name, of_run.state) == ("runs", "wrong")

            with monkeypatch.context() as patch:
                patch.setattr(health, "RUNS_LOOKED_AT", 1)
                assert await in_health(engine, run.id) == "workflow_fails"  # though it isn't the newest live run
        assert bench.paid == []
        async with those.worker("OLD"):
            await engine.ended(run)
            with pytest.raises(NotFoundError, match="no worker of build 2 has started"):
                await builds.make_current(client, those.name, "2", wait_seconds=0)
        assert await those.builds_of(run) == ["", "OLD"]
        assert bench.paid == [5]
        await builds.make_current(client, those.name, None)


async def in_health(engine: Stack, run_id: str) -> str | None:
    """What health says that a run waits for."""
    return next((each.kind for each in (await health.examine(engine.services)).waits if each.run_id == run_id), None)


async def test_a_build_without_workers_is_named_as_what_its_runs_wait_for(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of that build needs its workers back; a new run is also taken by a worker without a build, once none is current.

    A worker says at its start whether it gets new runs: else it would wait forever without a word while another build is current.
    """
    async with fleet(client, sqlite, bench, monkeypatch, paying()) as those:
        engine = those.engine

        async def note(own: str | None) -> str | None:
            return await new_runs_note(client, engine.task_queue, deployment(those.name, own))

        assert await note(None) is None
        assert await note("2") == (
            "its build is 2, and no build is current: it gets new runs after `turngate builds --set-current 2`"
        )
        async with those.worker("1"):
            old = await engine.start()
            await engine.request(old)
            await engine.idle(old)
            of_none = await until(lambda: note(None), "an answer of Temporal within the time of a worker's start")
            assert "this worker gets no new runs: build 1 is current, and this worker has no build" in of_none
            assert "`turngate builds --unset-current`" in of_none
            assert await note("1") == "its build 1 is current: it gets new runs"
            assert await note("2") == (
                "its build is 2, and build 1 is current: it gets new runs after `turngate builds --set-current 2`"
            )
        new = await engine.start()
        with monkeypatch.context() as patch:
            patch.setattr(task_queues, "POLL_LASTS", timedelta())  # the server remembers workers that are gone
            explained = await explain.explain(engine.services, person("ada"), old.id)
            assert explained.cause == f"No worker of build 1 polls the task queue '{engine.task_queue}'."
            assert [(each.build, each.pinned) for each in explained.waits_for[:1]] == [("1", True)]
            assert [each.command for each in explained.actions[:1]] == ["turngate worker APP --build-id 1"]
            explained = await explain.explain(engine.services, person("ada"), new.id)
            assert [(each.build, each.pinned) for each in explained.waits_for] == [("1", False)]
            assert "`turngate builds --unset-current`" in explained.actions[0].text
        await builds.make_current(client, those.name, None)
        async with those.worker():
            assert await answered(engine, new) == "completed"
            assert await those.open_runs() == {"1": (False, 1)}
            look = await engine.services.gateway.look(old.id)
            assert (look.build, None in look.others) == ("1", True)
        await builds.make_current(client, "never-there", None)
    refused = await Client.connect("127.0.0.1:1", lazy=True)
    assert await new_runs_note(refused, "any", None) is None


@pytest.mark.exhaustive
async def test_the_worker_command_brings_up_a_build_that_the_builds_command_makes_current(
    client: Client, temporal: EmbeddedTemporal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`turngate worker --build-id` and `turngate builds` with the same settings mean the same build."""
    name = f"fleet-{secrets.token_hex(4)}"
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": temporal.address,
        "TURNGATE_DEPLOYMENT_NAME": name,
        "TURNGATE_TASK_QUEUE": name,
    }
    words = ("worker", "--build-id", "v1.2+3", "--data-dir", str(tmp_path))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from turngate.cli.main import main; main()", *words), env=environment
    )
    settings = load_settings(temporal_address=temporal.address, deployment_name=name)
    try:
        await builds.list_builds(settings, "v1.2+3")
    finally:
        process.terminate()
        assert await process.wait() == 0
    assert capsys.readouterr().out == "v1.2+3\tcurrent\t0\n"


async def test_the_check_finds_the_open_runs(client: Client, sqlite: Database, bench: Bench) -> None:
    """Without a name, waiting runs are checked, including one that no worker has begun; ended runs are not."""
    async with stack(client, sqlite, bench.pay, model=Script(says("Done.")), working=False) as engine:
        not_begun, ended = await engine.start(), await engine.start()
        await engine.workflow(ended).terminate()

        async def is_listed(query: str) -> bool:
            mine = {not_begun.id: "", ended.id: ""}
            query = f"{query} AND TaskQueue = '{engine.task_queue}'"
            seen = [each async for each in replay_check.listed_histories(client, query, limit=9)]
            return {each.workflow_id for each in seen} == (set(mine) if "Running" not in query else {not_begun.id})

        await until(lambda: is_listed(replay_check.OPEN), "the open run")
        await until(lambda: is_listed(replay_check.EVERY), "both runs")
        [history] = [each async for each in replay_check.named_histories(client, [not_begun.id])]
        replayer = build_replayer(ChangedTurn, codec=codec_of(sqlite))
        assert (await replay_check.check(history, replayer)).failing is None
        with pytest.raises(NotFoundError, match="no workflow of run missing"):
            _ = [each async for each in replay_check.named_histories(client, ["missing"])]
        await engine.workflow(not_begun).terminate()
