"""Grace: an approved call starts some time after its approval, and until then the approval can be taken back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from support.engine.stack import OPERATOR, ListModel, Script, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from support.planted.precedents import caught_up
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Policy, Rule
from turngate.activities.run_tool import RunTool
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.recovery.redelivery import redeliver_earlier
from turngate.approvals_api.requests import decide
from turngate.approvals_api.requests.views import request_detail
from turngate.domain.contract import RunToolInput
from turngate.domain.errors import ConflictError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.tools.results import Failure
from turngate.runtime.temporal_client import codec_of
from turngate.store.clock import from_text, now
from turngate.store.database import Database
from turngate.store.policy import grants
from turngate.store.requests import precedents, requests
from turngate.store.requests.requests import Request
from turngate.store.runs import runs
from turngate.wire.orders import DecisionOrder

LONG = 3600
"""Seconds that no test lasts: a call with this grace doesn't start in it."""
ANN, BOB = person("ann"), person("bob")


def paying(*calls: tuple[str, int]) -> ListModel:
    every = calls or (("c1", 5),)
    return ListModel(says("I pay.", *(call("pay", json.dumps({"cents": c}), name) for name, c in every)), says("Done."))


def with_grace(seconds: int, **terms: Any) -> Policy:
    return Policy(rule=[Rule(name="slow", verdict="ask", tools=["pay"], grace_seconds=seconds, **terms)])


async def asked_again(engine: Stack, run: runs.Run, first: Request) -> Request:
    async def look() -> Request | None:
        async with engine.database.read() as conn:
            return await requests.get(conn, requests.again_id(first))

    return await until(look, f"request in place of {first.id} in {run.id}")


async def waits_at_timer(engine: Stack, run: runs.Run) -> None:
    """Wait until the run's workflow holds the timer of a grace."""

    async def look() -> bool:
        history = await engine.workflow(run).fetch_history()
        summaries = [event.user_metadata.summary for event in history.events if event.HasField("user_metadata")]
        codec = codec_of(engine.database)
        read = summaries if codec is None else await codec.decode(summaries)
        return b'"grace"' in [each.data for each in read]

    await until(look, f"timer of a grace in {run.id}")


async def test_i3_a_forged_order_starts_nothing_before_the_grace_is_over(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2, I3, I13: the door compares with the store, so neither a stray activity nor forged news start the call early.

    I1: an interrupt closes the call, with its one result, and the approval can't be taken back any more.
    """
    async with stack(client, sqlite, bench.pay, model=paying(), policy=with_grace(LONG)) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await engine.decide(request, "approve")
        await waits_at_timer(engine, run)
        stray = RunToolInput(run_id=run.id, call="c1")
        early = await ActivityEnvironment().run(RunTool(engine.engine).run_tool, stray)
        assert early.state == "waits"
        assert early.wait is not None
        assert 0 < (early.wait.seconds or 0) <= LONG
        for forged in (request.id, requests.again_id(request), requests.again_id(request)):
            await engine.workflow(run).signal("decided", forged)
        await engine.idle(run)
        assert (bench.paid, await engine.executions(run)) == ([], {})
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        with pytest.raises(ConflictError) as late:
            await decide.withdraw_approval(engine.services, OPERATOR, request.id)
        assert late.value.error_code == "already_started"
        assert (bench.paid, list(await engine.results(run))) == ([], ["c1"])


@pytest.mark.parametrize("second", ["approve", "reject"])
async def test_i4_an_approval_that_was_taken_back_is_never_redeemed(
    client: Client, sqlite: Database, bench: Bench, second: str
) -> None:
    """I3, I4: a new request asks again, the old decision stays as it was and runs nothing, and a repeat gets its answer."""
    policy = with_grace(LONG)
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        first = await engine.request(run)
        answer = await engine.decide(first, "approve", by=ANN, decision_id="d-ann")
        await caught_up(sqlite)
        with pytest.raises(ConflictError) as not_theirs:
            await decide.withdraw_approval(engine.services, BOB, first.id)
        assert not_theirs.value.details["decided_by"] == "ann"
        again = await decide.withdraw_approval(engine.services, ANN, first.id)
        async with sqlite.read() as conn:  # at once: it must not speak for the call that is asked about again
            assert await precedents.newest_of_tool(conn, first.tool_name, limit=5, max_chars=10) == []
        assert await decide.withdraw_approval(engine.services, ANN, first.id) == again
        opened = await asked_again(engine, run, first)
        assert (opened.id, opened.status, opened.digest, opened.input) == (again, "pending", first.digest, first.input)
        assert opened.reason == f"ann took an approval of this call back. {first.reason}".strip()
        assert await engine.decide(first, "approve", by=ANN, decision_id="d-ann") == answer
        with pytest.raises(ConflictError):
            await engine.decide(first, "approve", by=ANN)
        stray = RunToolInput(run_id=run.id, call="c1")
        late = await ActivityEnvironment().run(RunTool(engine.engine).run_tool, stray)
        assert (late.state, late.again and late.again.request_id) == ("asks", again)
        async with sqlite.read() as conn:
            old = await request_detail(conn, first.id)
        assert (old.status, old.replaced_by, old.can_be_taken_back("ann")) == ("approved", again, False)
        await engine.decide(opened, second, by=BOB, decision_id="d-bob")
        if second == "reject":
            assert (await engine.ended(run)).status == "completed"
            result = (await engine.results(run))["c1"]
            assert isinstance(result, Failure)
            assert result.kind == "rejected"
        else:
            await waits_at_timer(engine, run)
            await engine.interrupt(run)
            await engine.ended(run)
        assert (bench.paid, await engine.executions(run)) == ([], {})
        withdrawn = await engine.event(run, "request.approval_withdrawn")
        assert (withdrawn.payload["by"], withdrawn.payload["decision_id"]) == ("ann", "d-ann")


async def test_i2_i5_i6_an_approved_call_starts_after_its_grace_and_a_stop(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2: it runs once, and not before the instant that the answer to the decision names, though a worker stops meanwhile.

    I5, I6: with no worker an edit can be taken back; the next worker asks again about what was shown, and runs what is approved.
    """
    async with stack(client, sqlite, bench.pay, model=paying(), policy=with_grace(1), working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            first = await engine.request(run)
            await engine.idle(run)
        await engine.decide(first, "edit", args='{"cents": 7}', decision_id="first")
        again = await decide.withdraw_approval(engine.services, OPERATOR, first.id)
        async with engine.worker():
            opened = await engine.request(run)
            assert (opened.id, opened.input) == (again, '{"cents": 5}')
            answer = await engine.decide(opened, "approve", decision_id="second")
            assert answer.starts_at is not None
            assert await engine.decide(opened, "approve", decision_id="second") == answer
            async with sqlite.read() as conn:
                assert (await request_detail(conn, opened.id)).starts_at == answer.starts_at
            await waits_at_timer(engine, run)
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        execution = (await engine.executions(run))["c1"]
        assert from_text(execution.started_at) >= from_text(answer.starts_at)
        assert (bench.paid, execution.decision_id) == ([5], "second")


async def test_i5_runs_that_missed_a_take_back_get_news_of_it(client: Client, sqlite: Database, bench: Bench) -> None:
    """I5: the API dies before it tells a run that the approval was taken back and the call rejected; the next API does.

    Another run never learned of the approval either, nor that there is another request, so that one's rejection alone would tell
    it nothing, ever.
    """
    script = Script(says("I pay.", call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(client, sqlite, bench.pay, model=script, policy=with_grace(LONG)) as engine:
        nowhere = await Client.connect("127.0.0.1:1", lazy=True)
        dying = replace(engine.services, gateway=Gateway(nowhere))
        waiting, ignorant = await engine.start(), await engine.start()
        for run in (waiting, ignorant):
            first = await engine.request(run)
            services = engine.services if run is waiting else dying
            await decide.submit(services, OPERATOR, first.id, DecisionOrder(verb="approve", digest=first.digest))
            if run is waiting:
                await waits_at_timer(engine, run)
            again = await decide.withdraw_approval(dying, OPERATOR, first.id)
            await decide.submit(dying, OPERATOR, again, DecisionOrder(verb="reject", digest=first.digest))
        await redeliver_earlier(engine.services)
        for run in (waiting, ignorant):
            assert (await engine.ended(run)).status == "completed"
            assert (bench.paid, await engine.executions(run)) == ([], {})


async def test_i3_a_start_and_a_take_back_at_the_same_moment(client: Client, database: Database, bench: Bench) -> None:
    """I3: either the call has started and the approval stays, or the approval is taken back and nothing has started."""
    every = [(f"c{cents}", cents) for cents in range(6)]
    policy = with_grace(1)
    async with stack(client, database, bench.pay, model=paying(*every), policy=policy) as engine:
        run = await engine.start()
        await engine.request(run)
        async with database.read() as conn:
            opened = await requests.of_run(conn, run.id)
        assert len(opened) == len(every)

        async def take_back(request: Request, starts_at: str) -> str | None:
            await asyncio.sleep(max(0.0, (from_text(starts_at) - now()).total_seconds()))
            with suppress(ConflictError):
                return await decide.withdraw_approval(engine.services, OPERATOR, request.id)
            return None

        answers = [await engine.decide(each, "approve") for each in opened]
        taken = await asyncio.gather(
            *(take_back(each, answer.starts_at or "") for each, answer in zip(opened, answers, strict=True))
        )
        for request_id in [each for each in taken if each is not None]:
            async with database.read() as conn:
                again = await requests.get(conn, request_id)
            assert again is not None
            await engine.decide(again, "reject")
        await engine.ended(run)
        started = await engine.executions(run)
        stayed = {each.tool_call_id for each, again in zip(opened, taken, strict=True) if again is None}
        assert set(started) == stayed
        assert len(bench.paid) == len(stayed)


async def test_i4_any_approver_of_several_takes_it_back(client: Client, sqlite: Database, bench: Bench) -> None:
    """I4: after the last approval each of them can; then all have to approve again."""
    policy = with_grace(LONG, quorum=2)
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        first = await engine.request(run)
        assert (await engine.decide(first, "approve", by=ANN)).starts_at is None
        assert (await engine.decide(first, "approve", by=BOB)).starts_at is not None
        with pytest.raises(ConflictError):
            await decide.withdraw_approval(engine.services, OPERATOR, first.id)
        await decide.withdraw_approval(engine.services, ANN, first.id)
        opened = await asked_again(engine, run, first)
        assert (opened.quorum, opened.approvals) == (2, 0)
        assert (await engine.decide(opened, "approve", by=BOB)).status == "pending"
        await engine.decide(opened, "reject", by=ANN)
        await engine.ended(run)
        assert bench.paid == []


async def test_a_grant_ends_with_the_approval_it_came_with(client: Client, sqlite: Database, bench: Bench) -> None:
    """Calls that the grant answers have no grace, because no one has just approved them; after the take-back it answers none."""
    policy = with_grace(LONG, grantable=True)
    model = Script(says("I pay.", call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, policy=policy) as engine:
        run = await engine.start()
        first = await engine.request(run)
        pattern = GrantPattern(tool="pay", fixed={"cents": 5})
        wanted = WantedGrant(pattern=pattern, scope="everyone", expires_after_seconds=LONG, max_uses=5)
        await engine.decide(first, "approve", by=person("ada", "admin"), decision_id="granting", grant=wanted)
        other = await engine.start()
        assert (await engine.ended(other)).status == "completed"
        assert bench.paid == [5]
        await decide.withdraw_approval(engine.services, person("ada", "admin"), first.id)
        async with sqlite.read() as conn:
            grant = await grants.of_decision(conn, "granting")
        assert grant is not None
        assert (grant.revoked_by, grant.uses) == ("ada", 1)
        await engine.decide(await asked_again(engine, run, first), "reject")
        await engine.ended(run)
        assert bench.paid == [5]


async def test_a_rule_of_high_risk_has_a_grace_by_default(client: Client, sqlite: Database, bench: Bench) -> None:
    """Five seconds, unless the rule says otherwise; what has no rule of high risk starts at once."""
    policy = Policy(rule=[Rule(name="risky", verdict="ask", tools=["pay"], risk="high")])
    async with stack(client, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        answer = await engine.decide(request, "approve")
        async with sqlite.read() as conn:
            decided = await requests.get(conn, request.id)
        assert decided is not None
        assert decided.decided_at is not None
        assert answer.starts_at is not None
        assert (from_text(answer.starts_at) - from_text(decided.decided_at)).total_seconds() == 5
        await decide.withdraw_approval(engine.services, OPERATOR, request.id)
        await engine.decide(await asked_again(engine, run, request), "reject")
        await engine.ended(run)
    plain = Policy(rule=[Rule(name="risky", verdict="ask", tools=["pay"], risk="high", grace_seconds=0)])
    async with stack(client, sqlite, bench.pay, model=paying(), policy=plain) as engine:
        run = await engine.start()
        assert (await engine.decide(await engine.request(run), "approve")).starts_at is None
        await engine.ended(run)
        assert bench.paid == [5]
