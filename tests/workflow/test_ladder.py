"""The ladder of a request on durable timers: remind → escalate → delegate → expire, with days skipped."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from support.engine.stack import Cast, Clock, ListModel, Script, Stack, call, person, says, stack, until
from support.engine.tools import Bench
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from turngate import Agent, Limits, Policy, Rule, Toolkit, sub_agent
from turngate.activities.escalation import Escalation
from turngate.approvals_api.principal import Principal
from turngate.domain.contract import ClimbLadderInput
from turngate.domain.errors import ForbiddenError, GoneError, InvalidInputError
from turngate.domain.tools.results import Failure
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs

HOUR = 3600
LADDER = [
    {"after_seconds": HOUR, "do": "remind"},
    {"after_seconds": 2 * HOUR, "do": "escalate", "people": ["vic"]},
    {"after_seconds": 3 * HOUR, "do": "delegate", "roles": ["admin"]},
]
OPERATOR, VIC, ADMIN = person("operator"), person("vic"), person("zoe", "admin")
CLIMBED = ["request.reminded", "request.escalated", "request.delegated"]


def paying(cents: int = 5) -> ListModel:
    return ListModel(says("I will pay.", call("pay", json.dumps({"cents": cents}), "c1")), says("Done."))


def laddered(**terms: Any) -> Policy:
    """The operator decides; then Vic too; then admins."""
    rule = {"name": "ladder", "verdict": "ask", "tools": ["pay"], "people": ["operator"], "ladder": LADDER}
    return Policy(rule=[Rule.model_validate({**rule, "expires_after_seconds": 4 * HOUR, **terms})])


async def request_events(engine: Stack, run: runs.Run) -> list[str]:
    """The types of the log's request events, in order."""
    return [event.type for event in await engine.events(run) if event.type.startswith("request.")]


async def stored(engine: Stack, request: requests.Request) -> requests.Request:
    async with engine.database.read() as conn:
        row = await requests.get(conn, request.id)
    assert row is not None
    return row


async def climbed(engine: Stack, request: requests.Request, rungs: int) -> requests.Request:
    """The request, once the store knows of so many rungs."""

    async def look() -> requests.Request | None:
        row = await stored(engine, request)
        return row if row.rungs_climbed == rungs else None

    return await until(look, f"rung {rungs} of {request.id}")


@pytest.mark.exhaustive
async def test_a_request_without_a_decision_climbs_every_rung_and_then_refuses(
    clock: Clock, database: Database, bench: Bench
) -> None:
    """Remind, escalate, delegate, expire, each at its time and once, in the log in order; the call never ran."""
    async with stack(clock, database, bench.pay, model=paying(), policy=laddered()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        for rung, kind in enumerate(CLIMBED, 1):
            await clock.forward(run, minutes=59)
            assert (await stored(engine, request)).rungs_climbed == rung - 1
            await clock.forward(run, minutes=1, seconds=1)
            assert (await climbed(engine, request, rung)).status == "pending"
            event = await engine.event(run, kind)
            assert event.payload["rung"] == rung
            assert (event.payload["people"], event.payload["roles"]) == (
                LADDER[rung - 1].get("people", []),
                LADDER[rung - 1].get("roles", []),
            )
            await engine.idle(run)
        await clock.forward(run, hours=1)
        assert (await engine.ended(run)).status == "completed"
        assert await request_events(engine, run) == ["request.opened", *CLIMBED, "request.expired"]
        result = (await engine.results(run))["c1"]
        assert isinstance(result, Failure)
        assert result.kind == "expired"
        assert bench.paid == []
        with pytest.raises(GoneError):
            await engine.decide(request, "approve", by=ADMIN)


@pytest.mark.exhaustive
async def test_a_parked_request_waits_for_a_month_and_then_runs(clock: Clock, database: Database, bench: Bench) -> None:
    """Park: out of time it waits on without a clock; expiry has approved nothing; a person approves, and it runs."""
    policy = laddered(on_expiry="park", ladder=LADDER[:1])
    async with stack(clock, database, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await clock.forward(run, hours=5)
        await engine.event(run, "request.parked")
        parked = await stored(engine, request)
        assert (parked.status, parked.parked_at is None) == ("pending", False)
        await engine.idle(run)
        await clock.forward(run, days=31)
        assert bench.paid == []
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]
        assert await request_events(engine, run) == [
            "request.opened",
            "request.reminded",
            "request.parked",
            "request.decided",
        ]


@pytest.mark.exhaustive
async def test_a_decision_between_two_rungs_ends_the_ladder(clock: Clock, sqlite: Database, bench: Bench) -> None:
    """After a decision no rung is climbed and no one is notified, however long the run takes."""
    model = ListModel(
        says(call("pay", '{"cents": 5}', "c1"), call("pay", '{"cents": 6}', "c2")),
        says("Done."),
    )
    async with stack(clock, sqlite, bench.pay, model=model, policy=laddered(on_expiry="park")) as engine:
        run = await engine.start()
        request = await engine.request(run)
        await clock.forward(run, minutes=61)
        await climbed(engine, request, 1)
        await engine.decide(request, "approve")
        await clock.forward(run, hours=10)  # the other call keeps the step open, and climbs
        await engine.event(run, "request.parked")
        decided = await stored(engine, request)
        assert (decided.rungs_climbed, decided.parked_at) == (1, None)
        mine = [event.type for event in await engine.events(run) if event.payload.get("request_id") == request.id]
        assert mine == ["request.opened", "request.reminded", "request.decided"]
        await engine.interrupt(run)
        await engine.ended(run)
        assert bench.paid == [json.loads(request.input)["cents"]]


async def may_decide(engine: Stack, request: requests.Request, who: Principal) -> bool:
    """Whether they may decide, from the reason that a verb outside the rule is refused with."""
    with pytest.raises((ForbiddenError, InvalidInputError)) as refused:
        await engine.decide(request, "respond", by=who, message="x")
    assert refused.value.error_code in {"not_eligible", "verb_not_allowed"}
    return refused.value.error_code == "verb_not_allowed"


async def test_i10_who_may_decide_follows_the_rungs(clock: Clock, sqlite: Database, bench: Bench) -> None:
    """I10: who is escalated to may decide only after that rung; who it is delegated from may not any more."""
    policy = laddered(decisions=["approve", "reject"])
    async with stack(clock, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        allowed = []
        for rung in range(4):
            await climbed(engine, request, rung)
            allowed.append([who.name for who in (OPERATOR, VIC, ADMIN) if await may_decide(engine, request, who)])
            await engine.idle(run)
            if rung < 3:
                await clock.forward(run, minutes=61 - rung)
        assert allowed == [["operator"], ["operator"], ["operator", "vic"], ["zoe"]]
        await engine.decide(request, "approve", by=ADMIN)
        await engine.ended(run)
        assert bench.paid == [5]


@pytest.mark.exhaustive
async def test_rungs_and_quorum_count_together(clock: Clock, sqlite: Database, bench: Bench) -> None:
    """An approval from before the delegation still counts, and the delegate's completes the quorum."""
    policy = laddered(quorum=2, people=[], roles=["operator"])
    async with stack(clock, sqlite, bench.pay, model=paying(), policy=policy) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert (await engine.decide(request, "approve", by=OPERATOR)).status == "pending"
        await clock.forward(run, hours=3, minutes=1)
        await climbed(engine, request, 3)
        assert (await engine.decide(request, "approve", by=ADMIN)).status == "approved"
        await engine.ended(run)
        assert bench.paid == [5]
        assert await request_events(engine, run) == [
            "request.opened",
            "request.approved_once",
            *CLIMBED,
            "request.decided",
        ]


@pytest.mark.exhaustive
async def test_the_agents_limit_cuts_the_ladder_off(clock: Clock, sqlite: Database, bench: Bench) -> None:
    """A rule that leaves the expiry to the agent: the request expires by the agent's limit, above which no rung is climbed."""
    limits = Limits(request_expiry=timedelta(minutes=90))
    policy = laddered(expires_after_seconds=None)
    async with stack(clock, sqlite, bench.pay, model=paying(), policy=policy, limits=limits) as engine:
        run = await engine.start()
        await engine.request(run)
        await clock.forward(run, minutes=89)
        assert await request_events(engine, run) == ["request.opened", "request.reminded"]
        await engine.idle(run)
        await clock.forward(run, minutes=2)
        assert (await engine.ended(run)).status == "completed"
        assert await request_events(engine, run) == ["request.opened", "request.reminded", "request.expired"]


REFUSE_RUNGS = """
CREATE TRIGGER away BEFORE UPDATE OF rungs_climbed ON requests WHEN NEW.rungs_climbed != OLD.rungs_climbed
BEGIN SELECT RAISE(ABORT, 'the store is away'); END
"""


async def attempts_of_rung(engine: Stack, run: runs.Run) -> int:
    pending = (await engine.workflow(run).describe()).raw_description.pending_activities
    return max((each.attempt for each in pending if each.activity_type.name == "climb_ladder"), default=0)


@pytest.mark.exhaustive
async def test_a_rung_that_cannot_be_stored_is_tried_again_and_delays_no_one(
    clock: Clock, sqlite: Database, bench: Bench
) -> None:
    """The store refuses the rungs: they are tried again; a decision counts at once and the call runs meanwhile."""
    async with stack(clock, sqlite, bench.pay, model=paying(), policy=laddered()) as engine:
        async with sqlite.write() as conn:
            await conn.execute(text(REFUSE_RUNGS))
        run = await engine.start()
        request = await engine.request(run)
        await clock.forward(run, hours=1, seconds=1)

        async def tried_again() -> bool:
            return await attempts_of_rung(engine, run) >= 2

        await until(tried_again, "second attempt to store the rung")
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [5]
        assert await request_events(engine, run) == ["request.opened", "request.decided"]


async def test_a_rung_that_is_stored_late_records_those_below_it_in_order(
    client: Client, database: Database, bench: Bench
) -> None:
    """Rungs that arrive out of order after a store outage are written once each, the lower ones first; none before its time."""
    async with stack(client, database, bench.pay, model=paying(), policy=laddered()) as engine:
        run = await engine.start()
        request = await engine.request(run)
        order = ClimbLadderInput(run_id=run.id, request_id=request.id, rung=2, at=now())
        early = Escalation(engine.engine)
        for rung in (0, 2, 3, 99, -1):
            with suppress(ApplicationError):
                await early.climb_ladder(order.model_copy(update={"rung": rung}))
        assert (await stored(engine, request)).rungs_climbed == 0
        activities = Escalation(replace(engine.engine, clock=lambda: now() + timedelta(hours=3)))
        together = [activities.climb_ladder(order.model_copy(update={"rung": rung})) for rung in (1, 0, 2, 1, 0)]
        for answer in await asyncio.gather(*together, return_exceptions=True):
            assert answer is None or isinstance(answer, LookupError)  # which Temporal tries again
        for rung in (0, 2, 1):
            await activities.climb_ladder(order.model_copy(update={"rung": rung}))
        events = [event for event in await engine.events(run) if event.type in CLIMBED]
        assert [(event.type, event.payload["rung"]) for event in events] == list(zip(CLIMBED, (1, 2, 3), strict=True))
        row = await stored(engine, request)
        assert (row.rungs_climbed, row.ask_terms.people, row.ask_terms.roles) == (3, [], ["admin"])
        await engine.interrupt(run)
        await engine.ended(run)
        await activities.climb_ladder(order)
        assert (await stored(engine, request)).rungs_climbed == 3


@pytest.mark.exhaustive
async def test_a_sub_agents_request_climbs_its_own_ladder(clock: Clock, sqlite: Database, bench: Bench) -> None:
    """A request of a run below climbs and expires on that run's clock; the parent reads the result."""
    helper = Agent(name="helper", instructions="", toolkit=Toolkit.of(bench.pay), model="scripted:helper")
    parent = Script(says(call("helper", '{"task": "Pay."}', "d")), says("Done."))
    child = Script(says(call("pay", '{"cents": 5}', "p")), says("No one let me."))
    cast = Cast(test=parent, helper=child)
    async with stack(clock, sqlite, sub_agent(helper), model=cast, policy=laddered()) as engine:
        run = await engine.start()
        below = await engine.child(run, "d")
        request = await engine.request(below)
        for rung in range(3):
            await clock.forward(below, minutes=61 - rung)
            await climbed(engine, request, rung + 1)
            await engine.idle(below)
        await clock.forward(below, minutes=60)
        assert (await engine.ended(run)).status == "completed"
        assert await request_events(engine, below) == ["request.opened", *CLIMBED, "request.expired"]
        assert (await engine.results(run))["d"].value["answer"] == "No one let me."
        assert bench.paid == []
