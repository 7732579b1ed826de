"""The checks at the door, one at a time: what each lets pass, and its result otherwise."""

from __future__ import annotations

import inspect
import itertools
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model
from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError
from support.engine.call_at_door import ALLOWED, ASK_ALL, CallAtDoor
from temporalio.exceptions import ApplicationError

from turngate import ControlCall, Hooks, Policy, Preview, Rule, ToolContext, control_call_tool, tool
from turngate.activities.execution import checks, lost_calls
from turngate.activities.execution.checks import redeem
from turngate.activities.execution.door import Door, Permission
from turngate.activities.execution.external_calls import UNWANTED
from turngate.activities.execution.preflight import Findings, Inspection
from turngate.activities.execution.redemption import AskAgain, Redeemed, Settled
from turngate.domain.contract import RunToolInput
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.policy.policy import Verdict
from turngate.domain.policy.terms import AskTerms, Rung
from turngate.domain.policy.totals import UNITS, Share, Total
from turngate.domain.tools.defaults import Default, read_stored, stored
from turngate.domain.tools.external import ExternalTool
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import ProcessConfinement, Tool
from turngate.runtime.workspaces import Workspaces
from turngate.store.database import Connection, Database
from turngate.store.events import audit, events
from turngate.store.policy import grants, totals
from turngate.store.requests import requests
from turngate.store.runs import calls, external_calls
from turngate.store.tables import external_calls as external_calls_table
from turngate.store.tables import grants as grants_table

ASK_GRANTABLE = Policy(rule=[Rule(name="each", verdict="ask", tools=["*"], grantable=True)])
DENY_ALL = Policy(rule=[Rule(name="never", verdict="deny", tools=["*"])])
DAY = timedelta(days=1)


@tool(effect="once", ask=True)
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    return ctx.run_id


@tool(effect="read", ask=False)
async def look(ctx: ToolContext) -> str:
    """Look."""
    return ctx.run_id


def balance() -> dict[str, int]:
    return {"balance": 1}


@tool(effect="once", ask=True, precondition=balance)
async def transfer(ctx: ToolContext) -> str:
    """Transfer."""
    return ctx.run_id


@pytest.fixture
def door_of(sqlite: Database) -> type[CallAtDoor]:
    """Creates calls at the door of this test's database."""

    class Here(CallAtDoor):
        def __init__(self, at: Tool, **options: object) -> None:
            super().__init__(sqlite, at, **options)  # type: ignore[arg-type]

    return Here


async def authorized(door: Door) -> Door:
    """Return the door after the check that precedes all that use the permission."""
    assert await checks.require_permission(door) is None
    return door


async def test_i13_a_workspace_that_leads_elsewhere_by_now_is_refused(door_of, tmp_path: Path) -> None:
    """The path was below a listed directory when the run started, and a symlink has taken its place since."""
    (tmp_path / "srv" / "shop").mkdir(parents=True)
    workspace = tmp_path / "srv" / "work"
    workspace.mkdir()
    at = door_of(look)
    at.engine = replace(at.engine, workspaces=Workspaces(roots=(tmp_path / "srv",)))
    await at.plan(workspace=str(workspace))
    async with at.door() as door:
        assert await checks.keep_to_workspaces(door) is None
    workspace.rmdir()
    workspace.symlink_to("/etc")
    async with at.door() as door:
        assert await checks.keep_to_workspaces(door) == Settled()
        call = await calls.get(door.conn, at.run.id, "c1")
        assert call is not None
        assert "TURNGATE_WORKSPACES" in str(call.settled_result)


async def test_a_call_with_a_result_keeps_it(door_of) -> None:
    """An earlier attempt settled the call: its result stays, and no execution begins."""
    at = door_of(look)
    await at.plan()
    async with at.door() as door:
        assert await checks.keep_result(door) is None
        await calls.settle(door.conn, at.run.id, "c1", Ok(value={"value": 1}), nonce=at.run.nonce)
    async with at.door() as door:
        assert await redeem(at.engine, door.conn, door.order) == Settled()
    assert (await at.stored()).settled_result == Ok(value={"value": 1})
    assert await at.execution() is None


async def test_i3_nothing_of_a_dry_run_starts(door_of) -> None:
    """I3: a call of a dry run is refused as diverged, although a rule allows it."""
    at = door_of(look)
    await at.plan(replay_of_run_id="run_0")
    async with at.door() as door:
        assert await redeem(at.engine, door.conn, door.order) == Settled()
    result = (await at.stored()).settled_result
    assert isinstance(result, Failure)
    assert result.kind == "diverged"
    assert await at.execution() is None


async def test_a_started_call_is_resumed(door_of) -> None:
    """A ``read`` call that was started before starts again, as the second start of one execution."""
    at = door_of(look)
    await at.plan()
    async with at.door() as door:
        assert await checks.resume_start(door) is None
    await at.begin()
    async with at.door() as door:
        resumed = await checks.resume_start(door)
    assert isinstance(resumed, Redeemed)
    assert (resumed.attempt, resumed.idempotency_key) == (2, "key")


async def test_a_stopped_call_of_a_recovered_run_counts_as_lost(door_of) -> None:
    """No one knows how far a stopped handler came: its execution is reopened, and then treated like a lost one."""
    at = door_of(look)
    await at.plan()
    await at.begin("failed")
    async with at.door() as door:
        assert isinstance(await checks.resume_start(door), Redeemed)
    execution = await at.execution()
    assert execution is not None
    assert (execution.state, execution.attempts) == ("executing", 2)


async def test_an_external_call_waits_for_its_sender(door_of) -> None:
    """Until the sender starts the call, nothing is redeemed; a local call never waits."""
    at = door_of(look)
    await at.plan(agent="external-ci")
    declared = ExternalTool(name="look", effect="read").model_dump_json()
    sent = external_calls.ExternalCall(run_id=at.run.id, tool_call_id="c1", tool=declared, input="{}", context="")
    async with at.database.write() as conn:
        await conn.execute(insert(external_calls_table), [vars(sent)])
    async with at.door() as door:
        assert await checks.wait_for_sender(door) == UNWANTED
        await external_calls.want(door.conn, at.run.id, attempt="a1")
        assert await checks.wait_for_sender(door) is None


async def test_a_local_call_waits_for_no_sender(door_of) -> None:
    """A call that a local handler runs has no sender."""
    at = door_of(look)
    await at.plan()
    async with at.door() as door:
        assert await checks.wait_for_sender(door) is None


async def test_a_request_whose_activity_result_was_lost_is_returned_again(door_of) -> None:
    """The door opened a request instead of starting the call; the next attempt gets the same one, not a second."""
    at = door_of(look, policy=ASK_ALL)
    await at.plan()
    async with at.door() as door:
        assert await checks.wait_for_decision(door) is None
        first = await redeem(at.engine, door.conn, door.order)
    assert isinstance(first, AskAgain)
    async with at.door() as door:
        waiting = await checks.wait_for_decision(door)
    assert isinstance(waiting, AskAgain)
    assert waiting.again.request_id == first.again.request_id
    assert (await at.event_types()).count("request.opened") == 1


async def test_i6_a_rung_that_let_someone_decide_does_not_let_them_edit_past_a_rule(door_of) -> None:
    """I6: vic, to whom the ladder delegated a call, edits it into one that only operators may decide: they are asked."""
    at = door_of(pay, policy=ASK_ALL)
    planned = AskTerms(ladder=[Rung(after_seconds=5, do="delegate", people=["vic"])])
    await at.plan(disposition="ask", verdict=Verdict(answer="ask", rule="first", reason="", risk="low", terms=planned))
    await at.approve(people=["vic"])
    async with at.door() as door:
        request = door.request
        assert request is not None
        door.request = replace(request, verb="edit")
        door._permission = Permission(
            at.call.digest, door.request, Verdict(answer="ask", rule="all", reason="", risk="low")
        )
        assert door.stricter_terms() == "other people decide it"
        door._permission = Permission(
            at.call.digest, door.request, Verdict(answer="ask", rule="first", reason="", risk="low", terms=planned)
        )
        assert door.stricter_terms() is None


class Reach(BaseModel):
    network: bool = False
    roots: str = "/srv"
    key: str = ""


def reach_of(params: Reach) -> ProcessConfinement:
    return ProcessConfinement(
        confined=params.key != "none", text=f"It reads {params.roots}.", network_asked=params.network
    )


@tool(effect="once", ask=True, confinement=reach_of, secret=["/key"], references=["bank", "mail"])
async def work(params: Reach, ctx: ToolContext) -> str:
    """Work."""
    return f"{params.roots}{ctx.run_id}"


PLANNED = {"network": False, "roots": "/srv", "key": 'secret("bank")'}


@pytest.mark.parametrize("answer", ["ask", "allow"])
@pytest.mark.parametrize(
    ("was", "edit", "wider"),
    [
        ({}, {"network": True}, "it gets the network"),
        ({}, {"roots": "/"}, "its processes are confined otherwise than was shown"),
        ({}, {"key": "none"}, "it runs unconfined"),
        ({}, {"key": 'secret("mail")'}, "it gets the secret 'mail'"),
        ({}, {"key": ""}, None),
        ({"network": True}, {"network": False}, None),
        ({"network": True}, {"key": "none"}, "it runs unconfined"),
    ],
)
async def test_i6_an_edit_that_reaches_more_is_asked_about_with_that_shown(
    door_of, answer: Any, was: dict[str, Any], edit: dict[str, Any], wider: str | None
) -> None:
    """I6: under a rule that asks on the same terms, and one that allows; the second request shows where the edited call runs."""
    terms = {"grace_seconds": 0} if answer == "ask" else {}
    at = door_of(work, policy=Policy(rule=[Rule(name="all", verdict=answer, tools=["*"], risk="high", **terms)]))
    rule = Verdict(answer="ask", rule="all", reason="", risk="high", terms=AskTerms(**terms))
    planned = PLANNED | was
    await at.plan(json.dumps(planned), disposition="ask", verdict=rule)
    confinement = reach_of(Reach(**planned)).model_dump_json()
    await at.approve(columns={"input": json.dumps(planned), "confinement": confinement})
    async with at.door() as door:
        await calls.set_edited_input(door.conn, at.run.id, "c1", json.dumps(planned | edit), defaults=None)
    async with at.door() as door:
        request = door.request = replace(door.request, verb="edit")
        digest = door.call.digest_with(work)
        door._permission = Permission(digest, request, await door.judge(digest, decided=True))
        assert door.wider_by_edit(request) == wider
        again = await checks.require_same_terms(door)
        assert isinstance(again, AskAgain) == (wider is not None or door.verdict.rule == "network")
        question = await requests.get(door.conn, requests.again_id(request))
    if wider is not None:
        assert question is not None
        assert wider in question.reason
        assert question.process_confinement == reach_of(Reach(**(planned | edit)))


@pytest.mark.parametrize("lacking", ["approval", "digest", "tool", "policy"])
async def test_i2_a_call_without_permission_is_refused(door_of, lacking: str) -> None:
    """I2, I6: no approval, other bytes than shown, a missing tool, or a deny rule: the call does not run."""
    at = door_of(pay, policy=DENY_ALL if lacking == "policy" else Policy())
    await at.plan(disposition="ask")
    if lacking != "approval":
        await at.approve()
    async with at.door() as door:
        if lacking == "digest":
            await calls.set_edited_input(door.conn, at.run.id, "c1", '{"more": 1}', defaults=None)
    async with at.door() as door:
        if lacking == "tool":
            door.known_tool = None
        assert await checks.require_permission(door) == Settled()
        with pytest.raises(LookupError):
            _ = door.permission
    result = (await at.stored()).settled_result
    assert isinstance(result, Failure)
    assert result.kind == ("denied" if lacking == "policy" else "execution_error")
    types = await at.event_types()
    assert (types[-1], "execution.started" in types) == ("call.closed", False)


async def test_i6_an_approval_permits_what_was_shown(door_of) -> None:
    """I6: the permission has the digest that the approved request showed, and names who approved it."""
    at = door_of(pay)
    await at.plan(disposition="ask")
    request = await at.approve()
    async with at.door() as door:
        permission = (await authorized(door)).permission
    assert permission.digest == at.call.digest == request.digest
    assert permission.approval is not None
    assert permission.approval.decided_by == "vic"


async def test_an_approval_of_another_call_permits_nothing(door_of) -> None:
    """A decision counts for the call that its request is about, and for no other."""
    at = door_of(pay)
    await at.plan(disposition="ask")
    await at.approve()
    async with at.door() as door:
        door.call = calls.Call(**{**vars(door.call), "tool_call_id": "c2"})
        assert await door.authorize() is not None


async def test_a_call_that_a_hook_refuses_does_not_run(door_of) -> None:
    """The hook's refusal becomes the call's result."""
    at = door_of(look)
    await at.plan()
    no = Failure(kind="denied", reason="not on Fridays")
    async with at.door() as door:
        assert await checks.obey_hooks(door) is None
    async with at.door(Findings(refusal=no)) as door:
        assert await checks.obey_hooks(door) == Settled()
    assert (await at.stored()).settled_result == no


async def test_i3_a_replaced_approval_leads_to_the_request_that_replaced_it(door_of) -> None:
    """I3: after a new request the old approval is never redeemed, even if everything has changed back."""
    at = door_of(transfer)
    await at.plan(disposition="ask")
    await at.approve(precondition='{"balance": 1}')
    async with at.door() as door:
        assert await checks.wait_for_decision(door) is None
    async with at.door(Findings(precondition='{"balance": 2}', changed=True)) as door:
        outcome = await checks.require_same_precondition(await authorized(door))
    assert isinstance(outcome, AskAgain)
    async with at.door(Findings(precondition='{"balance": 1}')) as door:
        waiting = await checks.wait_for_decision(door)
    assert isinstance(waiting, AskAgain)
    assert waiting.again.request_id == outcome.again.request_id


@pytest.mark.parametrize(
    ("of", "hooks", "precondition", "purpose"),
    [
        pytest.param(pay, [], None, None, id="nothing to ask"),
        pytest.param(pay, [Hooks()], None, "start", id="hooks"),
        pytest.param(transfer, [], '{"balance": 1}', "start", id="precondition"),
    ],
)
async def test_authors_code_runs_before_a_start(door_of, of, hooks, precondition, purpose) -> None:
    """Hooks and an approved call's precondition run once; with their findings the call continues."""
    at = door_of(of, hooks=hooks)
    await at.plan(disposition="ask")
    await at.approve(precondition=precondition)
    async with at.door() as door:
        inspection = await checks.inspect_first(await authorized(door))
    assert (inspection and inspection.purpose) == purpose
    assert inspection is None or inspection.approved_with == precondition
    async with at.door(Findings()) as door:
        assert await checks.inspect_first(await authorized(door)) is None


async def test_a_stale_approval_leads_to_a_request_with_the_changes(door_of) -> None:
    """It is too old for its rule and has no precondition: the tool's is taken for the request first."""
    at = door_of(transfer)
    await at.plan(disposition="ask")
    await at.approve(ago=DAY, fresh_for_seconds=60)
    async with at.door() as door:
        inspection = await checks.inspect_first(await authorized(door))
    assert isinstance(inspection, Inspection)
    assert inspection.purpose == "question"
    findings = Findings(precondition='{"balance": 1}', for_question=True)
    async with at.door(findings) as door:
        assert await checks.inspect_first(await authorized(door)) is None
        assert isinstance(await checks.require_fresh_approval(door), AskAgain)
    assert (await at.stored()).result is None


@pytest.mark.parametrize(
    ("ago", "terms", "precondition"),
    [
        pytest.param(DAY, {}, None, id="its rule sets no age"),
        pytest.param(timedelta(0), {"fresh_for_seconds": 60}, None, id="young enough"),
        pytest.param(DAY, {"fresh_for_seconds": 60}, "{}", id="a precondition says whether it still counts"),
    ],
)
async def test_a_fresh_approval_passes(door_of, ago, terms, precondition) -> None:
    """An approval counts as long as its rule says, and longer with a precondition that is checked."""
    at = door_of(pay)
    await at.plan(disposition="ask")
    await at.approve(ago=ago, precondition=precondition, **terms)
    async with at.door() as door:
        assert await checks.require_fresh_approval(await authorized(door)) is None


async def test_a_changed_precondition_is_asked_about(door_of) -> None:
    """The new request has the current preview and the precondition's change; the same precondition passes."""
    at = door_of(transfer)
    await at.plan(disposition="ask")
    await at.approve(precondition='{"balance": 1}')
    async with at.door(Findings(precondition='{"balance": 1}')) as door:
        assert await checks.require_same_precondition(await authorized(door)) is None
    changed = Findings(precondition='{"balance": 2}', changed=True, preview=Preview(kind="text", text="2"))
    async with at.door(changed) as door:
        outcome = await checks.require_same_precondition(await authorized(door))
        assert isinstance(outcome, AskAgain)
        request = await requests.get(door.conn, outcome.again.request_id or "")
    assert request is not None
    assert (request.preview, request.precondition, request.agent_words) == ("2", '{"balance": 2}', "I will pay.")
    assert '{"balance": 1}' in request.reason


async def grant(at: CallAtDoor, *, max_uses: int = 1) -> str:
    """Store a grant for the call's tool; return its id."""
    wanted = WantedGrant(pattern=GrantPattern(tool=at.tool.name), max_uses=max_uses)
    async with at.database.write() as conn:
        stored = await grants.create(
            conn, wanted, grants.Origin(created_by="vic", run_id=at.run.id, agent="agent"), key="k"
        )
    return stored.id


async def test_a_granted_call_takes_a_use_of_its_grant(door_of) -> None:
    """A use is counted in the transaction that opens the door, and its event names the grant."""
    at = door_of(pay, policy=Policy())
    await at.plan()
    grant_id = await grant(at)
    async with at.door() as door:
        assert await checks.take_allowance(await authorized(door)) is None
        assert await checks.require_allow(door) is None
        stored = await grants.get(door.conn, grant_id)
    assert stored is not None
    assert stored.uses == 1
    assert await at.event_types() == ["grant.used"]


async def test_a_grant_that_another_call_used_up_allows_nothing(door_of) -> None:
    """Its last use was taken after the grants were read: policy judges the call without it, and a request opens."""
    at = door_of(pay, policy=Policy())
    await at.plan()
    grant_id = await grant(at)
    async with at.door() as door:
        await authorized(door)
        assert door.verdict.grant_id == grant_id
        assert await grants.take_use(door.conn, grant_id, run_id=at.run.id, tool_call_id="another")
        assert await checks.take_allowance(door) is None
        assert door.verdict.grant_id is None
        assert isinstance(await checks.require_allow(door), AskAgain)


async def test_an_approved_call_takes_no_use_of_a_grant(door_of) -> None:
    """A person approved the call: the grant that would allow it keeps its uses."""
    at = door_of(pay, policy=Policy())
    await at.plan(disposition="ask")
    grant_id = await grant(at)
    await at.approve()
    async with at.door() as door:
        assert await checks.take_allowance(await authorized(door)) is None
        stored = await grants.get(door.conn, grant_id)
    assert stored is not None
    assert stored.uses == 0


class Cents(BaseModel):
    cents: int


@tool(effect="read", ask=False)
async def charge(params: Cents) -> str:
    """Charge."""
    return str(params.cents)


TOTAL = Total(at="/cents", most=10, per="day")
WITH_TOTAL = Policy(rule=[Rule(name="small", verdict="allow", tools=["charge"], total=TOTAL)])


async def counted(at: CallAtDoor) -> int:
    """What the rule's calls have come to."""
    meter = TOTAL.meter("rule:small")
    async with at.database.read() as conn:
        sums = await totals.sums(conn, [meter])
    return sums[meter].used // UNITS if sums else 0


async def test_i3_a_call_counts_once_for_a_total_however_often_it_starts(door_of) -> None:
    """I3: its share is taken in the transaction that writes its execution; a retry of a lost start takes none."""
    at = door_of(charge, policy=WITH_TOTAL)
    await at.plan('{"cents": 7}')
    for start in (1, 2):
        async with at.door() as door:
            redeemed = await redeem(at.engine, door.conn, door.order)
        assert isinstance(redeemed, Redeemed)
        assert (redeemed.attempt, await counted(at)) == (start, 7)
    assert (await at.event_types()).count("total.counted") == 1


async def test_i2_a_call_that_no_longer_fits_into_a_total_is_asked_about(door_of) -> None:
    """I2: other calls took the rest since it was planned: nothing is counted, and a request opens that says why."""
    at = door_of(charge, policy=WITH_TOTAL)
    await at.plan('{"cents": 7}')
    async with at.database.write() as conn:
        taken = Share(meter=TOTAL.meter("rule:small"), total=TOTAL, units=4 * UNITS)
        assert await totals.take(conn, taken)
    async with at.door() as door:
        outcome = await redeem(at.engine, door.conn, door.order)
        assert isinstance(outcome, AskAgain)
        request = await requests.get(door.conn, outcome.again.request_id or "")
    assert request is not None
    assert "With this call it would be more" in request.reason
    assert (await counted(at), await at.execution()) == (4, None)


async def test_i2_a_grants_total_and_its_uses_are_taken_together_or_not_at_all(door_of) -> None:
    """I2: without room in the total no use is taken; without a use left nothing is counted; with both, both are."""
    at = door_of(charge, policy=ASK_GRANTABLE)
    await at.plan('{"cents": 7}')
    wanted = WantedGrant(pattern=GrantPattern(tool="charge", open=["cents"], total=TOTAL), scope="everyone", max_uses=2)
    async with at.database.write() as conn:
        stored = await grants.create(conn, wanted, grants.Origin(created_by="vic"), key="k")
    grant_id = stored.id
    share = Share(meter=TOTAL.meter(f"grant:{grant_id}"), total=TOTAL, units=4 * UNITS)

    async def used(conn: Connection) -> tuple[int, int]:
        sums = await totals.sums(conn, [share.meter])
        stored = await grants.get(conn, grant_id)
        assert stored is not None
        return sums[share.meter].used // UNITS if sums else 0, stored.uses

    async with at.door() as door:
        await authorized(door)
        assert await totals.take(door.conn, share)
        assert await checks.take_allowance(door) is None
        assert (door.verdict.grant_id, await used(door.conn)) == (None, (4, 0))
        await totals.give_back(door.conn, share)
    async with at.door() as door:
        await authorized(door)
        for number in range(2):
            assert await grants.take_use(door.conn, grant_id, run_id=at.run.id, tool_call_id=f"other {number}")
        assert await checks.take_allowance(door) is None
        assert (door.verdict.grant_id, await used(door.conn)) == (None, (0, 2))
        await door.conn.execute(update(grants_table).values(uses=1))
    async with at.door() as door:
        assert await checks.take_allowance(await authorized(door)) is None
        assert await used(door.conn) == (7, 2)
    assert (await at.event_types()) == ["grant.used"]


async def test_an_approved_call_does_not_count_for_a_total(door_of) -> None:
    """A person approved the call: the total is as it was."""
    at = door_of(charge, policy=WITH_TOTAL)
    await at.plan('{"cents": 7}', disposition="ask")
    await at.approve()
    async with at.door() as door:
        assert await checks.take_allowance(await authorized(door)) is None
    assert await counted(at) == 0


@pytest.mark.parametrize("of", [look, transfer])
async def test_i2_a_call_that_policy_no_longer_allows_is_asked_about(door_of, of: Tool) -> None:
    """I2: a rule asks now: what the request shows besides the arguments is taken first, and the row's verdict is ``ask``."""
    at = door_of(of, policy=ASK_ALL)
    await at.plan(verdict=ALLOWED)
    async with at.door() as door:
        first = await checks.require_allow(await authorized(door))
    if of is transfer:
        assert isinstance(first, Inspection)
        assert first.purpose == "question"
        async with at.door(Findings(precondition="{}", for_question=True)) as door:
            first = await checks.require_allow(await authorized(door))
    assert isinstance(first, AskAgain)
    stored = await at.stored()
    assert stored.disposition == "ask"
    assert Verdict.model_validate_json(stored.verdict).overruled == "all"
    assert await at.execution() is None


@pytest.mark.parametrize("approved", [False, True])
async def test_what_is_still_allowed_or_approved_passes(door_of, approved: bool) -> None:
    """Policy still allows it; or policy asks now, and a person has approved it."""
    at = door_of(pay, policy=ASK_ALL) if approved else door_of(pay)
    await at.plan(disposition="ask" if approved else "run")
    if approved:
        await at.approve()
    async with at.door() as door:
        assert await checks.require_allow(await authorized(door)) is None


async def test_i3_a_call_that_passes_every_check_starts_once(door_of) -> None:
    """I3: the execution row has the digest and the decision; the same decision opens no second door."""
    at = door_of(pay)
    await at.plan(disposition="ask")
    await at.approve()
    async with at.door() as door:
        redeemed = await redeem(at.engine, door.conn, door.order)
    assert isinstance(redeemed, Redeemed)
    assert (redeemed.raw_input, redeemed.attempt) == ("{}", 1)
    execution = await at.execution()
    assert execution is not None
    assert (execution.state, execution.digest, execution.decision_id) == ("executing", at.call.digest, "d1")
    assert execution.idempotency_key == redeemed.idempotency_key
    with pytest.raises(IntegrityError):
        async with at.door() as door:
            await checks.let_through(await authorized(door))


def not_now(params: object) -> ControlCall:
    raise ValueError("only on weekdays")


async def test_a_control_call_that_its_tool_no_longer_accepts_orders_nothing(door_of) -> None:
    """Its tool accepted it when it was planned: the model gets the reason, and its approval is spent."""
    no_params = create_model("NoParams")
    declared = control_call_tool(name="pass_on", description="Pass on.", params=no_params, interpret=not_now, ask=True)
    at = door_of(declared)
    await at.plan(disposition="ask")
    await at.approve()
    async with at.door() as door:
        assert isinstance(await redeem(at.engine, door.conn, door.order), Settled)
    call, execution = await at.stored(), await at.execution()
    assert execution is not None
    assert (call.settled_result.reason, call.signal, execution.state) == ("only on weekdays", None, "failed")


async def test_i15_an_answer_is_compared_with_the_events_of_its_step_alone(door_of) -> None:
    """I15: what is read doesn't grow with the run; an answer of an earlier step agrees too, and a changed one doesn't."""
    at = door_of(look)
    await at.plan(disposition="ask")
    request = await at.approve()
    async with at.database.write() as conn:
        of_newest = [each.type for each in (await audit.naming_in_newest_step(conn, [request.id], run_id=at.run.id))[0]]
        await events.append(conn, at.run.id, [("step.responded", {"step": 2}), ("note.of", {"request_id": request.id})])
        later, _nonces = await audit.naming_in_newest_step(conn, [request.id], run_id=at.run.id)
    assert of_newest == ["request.opened", "request.decided"]
    assert [each.type for each in later] == ["note.of"]
    async with at.door() as door:
        assert await checks.require_logged_answer(door) is None
        door.request = replace(door.request, decided_by="eve")
        with pytest.raises(ApplicationError, match=r"it is 'eve'; request\.decided says 'vic'"):
            await checks.require_logged_answer(door)


async def test_a_call_that_was_never_planned_has_no_door(door_of) -> None:
    """An order for a call that the store does not have is an error, not a refusal: nothing is written."""
    at = door_of(look)
    await at.plan()
    async with at.database.write() as conn:
        with pytest.raises(LookupError, match="no planned call"):
            await redeem(at.engine, conn, RunToolInput(run_id=at.run.id, call="c9"))


def test_every_check_is_in_the_one_order() -> None:
    """No check is left out of the chain; dry runs come first, and nothing is written to a grant before the approval counts."""
    written = [
        function
        for name, function in inspect.getmembers(checks, inspect.iscoroutinefunction)
        if function.__module__ == checks.__name__ and name not in {"redeem", "let_through"}
    ]
    assert set(checks.CHECKS) == {*written, lost_calls.stop_here}
    names = [check.__name__ for check in checks.CHECKS]
    assert names == [
        "keep_result",
        "refuse_dry_run",
        "require_logged_answer",
        "resume_start",
        "stop_here",
        "wait_for_decision",
        "wait_out_grace",
        "show_what_an_edit_leaves_out",
        "ask_about_edit",
        "wait_for_sender",
        "take_answer",
        "require_permission",
        "keep_to_workspaces",
        "obey_hooks",
        "require_same_terms",
        "inspect_first",
        "require_fresh_approval",
        "require_same_confinement",
        "require_same_precondition",
        "ask_about_scripts",
        "take_allowance",
        "require_allow",
    ]


class Removal(BaseModel):
    path: str
    recursive: bool = True
    number: int = Field(default_factory=lambda: next(_NUMBERS))


_NUMBERS = itertools.count()


@tool(effect="once", ask=True)
async def remove(params: Removal, ctx: ToolContext) -> str:
    """Remove."""
    return f"{params.path}{ctx.run_id}"


REMOVE = '{"path": "x"}'


async def test_i6_the_door_recomputes_what_a_call_leaves_out(door_of) -> None:
    """I6: an approval permits the call with the values that were shown; with others, on record or now, nothing runs."""
    at = door_of(remove)
    left_out = stored(remove.decode_new(REMOVE)[1])
    await at.plan(REMOVE, disposition="ask", defaults=left_out)
    await at.approve()
    async with at.door() as door:
        assert await checks.require_permission(door) is None
    async with at.door() as door:
        door.call = replace(door.call, defaults=str(left_out).replace("true", "false"))
        assert isinstance(await door.authorize(), Failure)
    async with at.door() as door:  # as if the tool had been declared again without a change in its schema
        door.call = replace(door.call, defaults=stored((*read_stored(left_out), Default(at="/gone", value=1))))
        assert isinstance(await door.judge(door.call.digest_with(remove), decided=True), Failure)


async def test_i6_an_edited_call_is_asked_about_again_with_what_its_tool_fills_in(door_of) -> None:
    """I6: the API can't run the tool's code; where that fills in what the person who edited wasn't shown, it is asked again."""
    at = door_of(remove)
    await at.plan(REMOVE, disposition="ask", defaults=stored(remove.decode_new(REMOVE)[1]))
    await at.approve()
    edited = '{"path": "y"}'
    by_schema = stored(remove.manifest.defaults_of_edit(edited, "{}", ()))
    async with at.door() as door:
        await calls.set_edited_input(door.conn, at.run.id, "c1", edited, defaults=by_schema)
    async with at.door() as door:
        door.request = replace(door.request, verb="edit")
        assert isinstance(await checks.show_what_an_edit_leaves_out(door), AskAgain)
        again = await requests.get(door.conn, requests.again_id(door.request))
    assert again is not None
    assert (again.input, [each.at for each in again.left_out]) == (edited, ["/recursive", "/number"])
    async with at.door() as door:
        assert await checks.show_what_an_edit_leaves_out(door) is None
