"""External calls across Turngate's crashes: what was handed out stays handed out, and what was reported counts (I3, I5)."""

from __future__ import annotations

import asyncio
import secrets

from support.engine.stack import STARTER, Script, Stack, says, stack, until
from temporalio.client import Client

from turngate.approvals_api.external_calls import service as external_service
from turngate.approvals_api.recovery import recover
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import Ok
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs
from turngate.wire.external_calls import ExternalCallView
from turngate.wire.orders import ExternalCallOrder, ReportOrder

POLICY = Policy(rule=[Rule(name="looks", verdict="allow", tools=["look"])])
DONE = Ok(value={"seen": 1})
REPORT = ReportOrder(attempt="attempt-1", result=DONE)


async def sent(engine: Stack) -> ExternalCallView:
    look = ExternalTool(name="look")
    order = ExternalCallOrder(source="shop", tool_call_id=secrets.token_hex(4), tool=look, input="{}")
    return await external_service.send(engine.services, STARTER, order, wait_seconds=20)


async def run_of(engine: Stack, call: ExternalCallView) -> runs.Run:
    async with engine.database.read() as conn:
        run = await runs.get(conn, call.id)
    assert run is not None
    return run


async def starts(engine: Stack, call: ExternalCallView) -> int:
    async with engine.database.read() as conn:
        assert await events.chain_break(conn, call.id) is None
        run_events = await events.after(conn, 0, run_id=call.id)
    return sum(event.type == "execution.started" for event in run_events)


async def test_i5_a_lost_worker_says_nothing_about_a_call_that_runs_elsewhere(client: Client, sqlite: Database) -> None:
    """Handed out under one worker, reported while none runs, settled by the next: started once, and no one was asked."""
    async with stack(client, sqlite, model=Script(says("Done.")), policy=POLICY, working=False) as engine:
        async with engine.worker():
            call = await sent(engine)
            started = await external_service.start(engine.services, STARTER, call.id, attempt="attempt-1")
            assert started.run is not None
            await engine.idle(await run_of(engine, call))
        reporting = asyncio.create_task(external_service.report(engine.services, STARTER, call.id, REPORT))
        async with engine.worker():
            assert (await reporting).result == DONE
            assert (await engine.ended(await run_of(engine, call))).status == "completed"
        assert await starts(engine, call) == 1


async def test_i5_a_report_survives_the_loss_of_its_workflow(client: Client, sqlite: Database) -> None:
    """The workflow is terminated while the call runs outside; the run is recovered, and what was reported settles it."""
    async with stack(client, sqlite, model=Script(says("Done.")), policy=POLICY) as engine:
        call = await sent(engine)
        await external_service.start(engine.services, STARTER, call.id, attempt="attempt-1")
        run = await run_of(engine, call)
        await engine.idle(run)
        await engine.workflow(run).terminate()
        unsettled = await external_service.report(engine.services, STARTER, call.id, REPORT, wait_seconds=0)
        assert unsettled.state == "running"
        (report,) = await recover.recover(engine.services, [run.id], by="tests")
        assert report.outcome == "recovered"
        assert (await engine.ended(run)).status == "completed"
        assert (await external_service.look(engine.services, call.id)).result == DONE
        assert await starts(engine, call) == 1


async def test_i5_an_approved_call_waits_for_its_sender_across_a_recovery(client: Client, sqlite: Database) -> None:
    """Nothing is redeemed while the sender is away; a new workflow waits for the sender like the lost one."""
    async with stack(client, sqlite, model=Script(says("Done.")), policy=POLICY) as engine:
        call = await sent(engine)
        run = await run_of(engine, call)
        await engine.idle(run)
        await engine.workflow(run).terminate()
        (report,) = await recover.recover(engine.services, [run.id], by="tests")
        assert report.outcome == "recovered"
        assert await starts(engine, call) == 0

        async def handed_out() -> bool:
            return (
                await external_service.start(engine.services, STARTER, call.id, attempt="attempt-1")
            ).run is not None

        await until(handed_out, "the call")
        done = await external_service.report(engine.services, STARTER, call.id, REPORT)
        assert done.result == DONE
        assert await starts(engine, call) == 1
