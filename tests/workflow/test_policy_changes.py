"""Rules and grants that change while calls wait: policy is asked again at the door, and every doubt ends outside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import SQLAlchemyError
from support.engine.stack import Clock, ListModel, Stack, call, says, stack
from support.engine.tools import Amount, Bench
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from turngate import Deny, Hooks, Limits, Policy, Preview, Rule, tool
from turngate.activities.execution.redemption import AskAgain
from turngate.activities.run_tool import RunTool
from turngate.domain.contract import RunToolInput
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.store.policy import grants
from turngate.store.runs import calls, runs
from turngate.store.tables import calls as calls_table

PAY, LATER = call("pay", '{"cents": 5}', "p"), call("pay", '{"cents": 6}', "q")
SLOW = call("slow", "{}", "s")
ONE_AT_A_TIME = Limits(concurrency=1)
ALLOWING = Policy(rule=[Rule(name="ok", verdict="allow", tools=["pay", "slow"])])


def rule(name: str, verdict: str, tool_name: str = "pay", more: str = "") -> str:
    return (
        f'[[rule]]\nname = "{name}"\nverdict = "{verdict}"\ntools = ["{tool_name}"]\nreason = "Since noon."\n{more}\n'
    )


@asynccontextmanager
async def held_up(
    client: Client, database: Database, bench: Bench, *calls_made: Any, **options: Any
) -> AsyncIterator[tuple[Stack, runs.Run]]:
    """A run whose calls are planned and wait for the one slot that `slow` takes: time to change the rules."""
    tools = options.pop("tools", [bench.pay])
    start = options.pop("start", {})
    model = ListModel(says(SLOW, *calls_made), says("Done."))
    options.setdefault("policy", ALLOWING)
    async with stack(client, database, bench.slow, *tools, model=model, limits=ONE_AT_A_TIME, **options) as engine:
        run = await engine.start(**start)
        await bench.started.wait()
        yield engine, run
        bench.release.set()


async def test_another_policy_file_disturbs_no_pending_request(client: Client, sqlite: Database, bench: Bench) -> None:
    """A worker that comes back with other rules runs what was approved under the earlier ones, unless they deny it.

    So it is with stored rules about other tools, which change the policy's version.
    """
    model = ListModel(says(PAY, LATER), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            first = await engine.request(run)
            await engine.idle(run)
        over = [{"at": "/cents", "op": "eq", "value": 6}]
        rules = [Rule(name="new", verdict="ask", tools=["*"]), Rule.model_validate({**DENIES, "args": over})]
        engine.engine = replace(engine.engine, policy=Policy(rule=rules))
        async with engine.worker():
            for verdict in ("allow", "deny", "ask"):
                await engine.store_rules(rule("other", verdict, "look"))
            for request in await engine.requests_of(run):
                await engine.decide(request, "approve")
            await engine.ended(run)
        assert bench.paid == [5]
        assert (await engine.results(run))["q"].kind == "denied"
        assert first.digest in {each.digest for each in (await engine.executions(run)).values()}


DENIES = {"name": "no-sixes", "verdict": "deny", "tools": ["pay"]}


@dataclass
class Payment:
    """A payment with everything an author may add: the calls its hook saw, a precondition and a preview."""

    balance: int = 100
    hooks: list[str] = field(default_factory=list)
    paid: list[int] = field(default_factory=list)

    def pay(self, ask: Any = True) -> Tool:
        @tool(
            effect="once",
            ask=ask,
            precondition=self.look,
            preview=lambda params, _: Preview(kind="text", text=f"{params.cents} of {self.balance}"),
        )
        async def pay(params: Amount) -> int:
            """Pay."""
            self.paid.append(params.cents)
            return params.cents

        return pay

    async def look(self) -> int:
        return self.balance


class CallLog(Hooks):
    """Records the calls it saw."""

    def __init__(self, payment: Payment) -> None:
        self._payment = payment

    async def before_tool(self, _scope: Any, hooked: Any) -> Deny | None:
        self._payment.hooks.append(hooked.tool_name)
        return None


async def test_i2_i6_a_call_that_was_allowed_is_asked_after_all(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2, I6: a rule stored since planning asks; hooks run, preview and precondition are taken, and it runs once approved.

    If the precondition changes between the late request and its call's start, the call is asked again. A rejection closes
    it with the reason; the allowing rule it was planned by changes nothing.
    """
    payment = Payment()
    options = {"tools": [payment.pay()], "hooks": [CallLog(payment)]}
    async with held_up(client, sqlite, bench, PAY, LATER, **options) as (engine, run):
        await engine.store_rules(rule("closed", "ask", more='risk = "medium"\nquorum = 1'))
        payment.balance = 50
        bench.release.set()
        first = await engine.request(run)
        assert payment.paid == []
        assert "pay" in payment.hooks
        assert (first.rule, first.risk, first.input) == ("closed", "medium", '{"cents": 5}')
        assert "It was allowed by 'ok'" in first.reason
        assert "Since noon." in first.reason
        assert (first.preview, first.precondition) == ("5 of 50", "50")
        async with sqlite.read() as conn:
            stored = await calls.get(conn, run.id, "p")
        assert stored is not None
        verdict = Verdict.model_validate_json(stored.verdict)
        assert (stored.disposition, verdict.rule, verdict.overruled) == ("ask", "closed", "ok")
        other = await engine.request_about(run, "q")
        payment.balance = 3
        await engine.decide(first, "approve")
        second = await engine.request_about(run, "p")
        assert (second.id == first.id, second.preview) == (False, "5 of 3")
        await engine.decide(second, "approve")
        await engine.decide(other, "reject", message="Not since noon.")
        assert (await engine.ended(run)).status == "completed"
        assert payment.paid == [5]
        assert (await engine.results(run))["q"].kind == "rejected"
        execution = (await engine.executions(run))["p"]
        assert execution.digest == second.digest
        assert execution.decision_id is not None


async def test_i5_a_late_question_whose_answer_was_lost_is_asked_once(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I5: the worker that opened the request is lost; the next one finds it, and a decision that came between counts."""
    payment = Payment()
    async with held_up(client, sqlite, bench, PAY, tools=[payment.pay()]) as (engine, run):
        await engine.store_rules(rule("closed", "ask"))
        lost = await ActivityEnvironment().run(RunTool(engine.engine)._redeem, RunToolInput(run_id=run.id, call="p"))
        assert isinstance(lost, AskAgain)
        (request,) = await engine.requests_of(run)
        assert lost.again.request_id == request.id
        deciding = asyncio.create_task(engine.decide(request, "approve"))
        bench.release.set()
        assert (await deciding).status == "approved"
        assert (await engine.ended(run)).status == "completed"
        assert payment.paid == [5]
        opened = [event.payload["request_id"] for event in await engine.events(run) if event.type == "request.opened"]
        assert opened == [request.id]


@pytest.mark.exhaustive
async def test_a_late_question_has_the_terms_of_its_rule(clock: Clock, sqlite: Database, bench: Bench) -> None:
    """Expiry and ladder count from when it is asked, not from when it was planned."""
    more = 'expires_after_seconds = 600\n[[rule.ladder]]\nafter_seconds = 60\ndo = "remind"'
    async with held_up(clock, sqlite, bench, PAY) as (engine, run):
        await engine.store_rules(rule("closed", "ask", more=more))
        bench.release.set()
        await engine.request(run)
        await clock.forward(run, minutes=11)
        assert (await engine.ended(run)).status == "completed"
        event_types = [event.type for event in await engine.events(run) if event.type.startswith("request.")]
        assert event_types == ["request.opened", "request.reminded", "request.expired"]
        assert bench.paid == []


async def grant(database: Database, *, max_uses: int = 1) -> grants.StoredGrant:
    wanted = WantedGrant(pattern=GrantPattern(tool="pay", open=["cents"]), scope="everyone", max_uses=max_uses)
    async with database.write() as conn:
        return await grants.create(conn, wanted, grants.Origin(created_by="ann", run_id=None, agent=None), key="one")


async def test_i2_of_two_calls_that_one_use_of_a_grant_allowed_one_runs(
    client: Client, database: Database, bench: Bench
) -> None:
    """I2: both were planned on the grant; one takes the last use at the door, and a person is asked for the other."""
    await grant(database)
    async with stack(client, database, bench.pay, model=ListModel(says(PAY, LATER), says("Done."))) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert len(bench.paid) == 1
        used = await engine.event(run, "grant.used")
        assert used.payload["tool_call_id"] != request.tool_call_id
        await engine.decide(request, "approve")
        assert (await engine.ended(run)).status == "completed"
        assert sorted(bench.paid) == [5, 6]
        async with database.read() as conn:
            (standing,) = await grants.page(conn, limit=5)
            uses = await grants.uses_of(conn, standing.id)
        assert (standing.uses, [use.tool_call_id for use in uses]) == (1, [used.payload["tool_call_id"]])


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("[[rule]", id="no TOML"),
        pytest.param(rule("x", "wave-through"), id="an unknown verdict"),
        pytest.param(rule("x", "allow") + 'of_a_later_release = "yes"', id="a key of a later release"),
        pytest.param(rule("x", "allow") + rule("x", "allow"), id="two rules of one name"),
    ],
)
async def test_i2_stored_rules_that_cannot_be_read_ask_for_everything(
    client: Client, sqlite: Database, bench: Bench, source: str
) -> None:
    """I2: what the file allows is asked for, what it denies stays denied, and a grant lets nothing through."""
    await grant(sqlite)
    rules = [Rule(name="ok", verdict="allow", tools=["pay"]), Rule(name="never", verdict="deny", tools=["look"])]
    model = ListModel(says(PAY, call("look", '{"name": "x"}', "l")), says("Done."))
    async with stack(client, sqlite, bench.pay, bench.look, model=model, policy=Policy(rule=rules)) as engine:
        await engine.store_rules(source)
        run = await engine.start()
        request = await engine.request(run)
        assert (request.rule, request.tool_name) == ("stored-rules-unreadable", "pay")
        await engine.store_rules("")  # an admin fixes them
        await engine.decide(request, "approve")
        await engine.ended(run)
        assert (bench.paid, bench.looked) == ([5], [])
        assert (await engine.results(run))["l"].fields["rule"] == "never"


@pytest.mark.parametrize(
    ("place", "asks"),
    [
        pytest.param("workspace", True, id="in the workspace"),
        pytest.param("workspace/deep/er", True, id="below it"),
        pytest.param("link", True, id="in it, by a link"),
        pytest.param("elsewhere", False, id="elsewhere"),
    ],
)
async def test_i2_a_policy_file_that_the_agent_can_write_allows_nothing(
    client: Client, sqlite: Database, bench: Bench, tmp_path: Path, place: str, asks: bool
) -> None:
    """I2: for a run that can write the file, its allow rules are ignored with a reason; its deny rules apply."""
    (tmp_path / "workspace/deep/er").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "workspace")
    policy = tmp_path / place / "policy.toml"
    policy.write_text(rule("ok", "allow") + rule("never", "deny", "look"), encoding="utf-8")
    model = ListModel(says(PAY, call("look", '{"name": "x"}', "l")), says("Done."))
    async with stack(client, sqlite, bench.pay, bench.look, model=model, policy=policy) as engine:
        run = await engine.start(workspace=str(tmp_path / "workspace"))
        if asks:
            request = await engine.request(run)
            assert "its allow rules do not count" in request.reason
            await engine.decide(request, "approve")
        await engine.ended(run)
        assert (bench.paid, bench.looked) == ([5], [])
        assert len(await engine.requests_of(run)) == asks
        assert (await engine.results(run))["l"].fields["rule"] == "never"


async def test_i6_an_edit_is_judged_by_the_rules_as_they_are_then(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2, I6: rules stored since the request was opened apply to the edited call, and again when it starts.

    A call that was approved as it was, and is denied before it comes to run, doesn't start: the model reads which rule.
    """
    over = 'args = [{at = "/cents", op = "gt", value = %d}]'
    allowing = Policy(rule=[Rule(name="ok", verdict="allow", tools=["slow"])])
    denied = call("pay", '{"cents": 7}', "r")
    async with held_up(client, sqlite, bench, PAY, LATER, denied, policy=allowing) as (engine, run):
        first, second, third = [await engine.request_about(run, each) for each in ("p", "q", "r")]
        await engine.store_rules(rule("large", "deny", more=over % 100))
        with pytest.raises(InvalidInputError, match="large") as too_much:
            await engine.decide(first, "edit", args='{"cents": 101}')
        assert too_much.value.error_code == "invalid_edit"
        for request, cents in ((first, 100), (second, 20)):
            await engine.decide(request, "edit", args=f'{{"cents": {cents}}}')
        await engine.decide(third, "approve")
        seven = rule("closed", "deny", more='args = [{at = "/cents", op = "eq", value = 7}]')
        await engine.store_rules(rule("large", "deny", more=over % 50) + seven)
        bench.release.set()
        assert (await engine.ended(run)).status == "completed"
        assert bench.paid == [20]
        results = await engine.results(run)
        assert results["p"].fields["rule"] == "large"
        refused = results["r"]
        assert (refused.kind, refused.fields["rule"]) == ("denied", "closed")
        assert "Since noon." in refused.reason
        assert set(await engine.executions(run)) == {"s", "q"}, "a denied call started"


@dataclass
class Moody:
    """A tool's ``ask`` that works until it does not."""

    broken: bool = False

    def __call__(self, params: Amount) -> bool:
        if self.broken:
            raise RuntimeError("the predicate broke")
        return False


ASKS = Moody()


async def broken_predicate(engine: Stack, run: runs.Run) -> None:
    ASKS.broken = True


async def unclear_rule(engine: Stack, run: runs.Run) -> None:
    await engine.store_rules(rule("texts", "deny", more='args = [{at = "/cents", op = "eq", value = "much"}]'))


async def unreadable_rules(engine: Stack, run: runs.Run) -> None:
    await engine.store_rules("[[rule]")


async def other_bytes(engine: Stack, run: runs.Run) -> None:
    async with engine.database.write() as conn:
        await conn.execute(update(calls_table).where(calls_table.c.tool_call_id == "p").values(input='{"cents": 9}'))


async def other_version(engine: Stack, run: runs.Run) -> None:
    async with engine.database.write() as conn:
        await conn.execute(update(calls_table).where(calls_table.c.tool_call_id == "p").values(policy_version="other"))


async def rules_are_gone(engine: Stack, run: runs.Run) -> None:
    async with engine.database.write() as conn:
        await conn.execute(text("ALTER TABLE policy_versions RENAME TO policy_versions_away"))


async def rules_are_back(engine: Stack) -> None:
    async with engine.database.write() as conn:
        await conn.execute(text("ALTER TABLE policy_versions_away RENAME TO policy_versions"))


async def grants_cannot_be_read(engine: Stack, run: runs.Run) -> None:
    await grant(engine.database)
    async with engine.database.write() as conn:
        await conn.execute(text("UPDATE grants SET pattern = '{'"))


async def verdict_cannot_be_read(engine: Stack, run: runs.Run) -> None:
    await engine.store_rules(rule("closed", "ask"))
    async with engine.database.write() as conn:
        await conn.execute(update(calls_table).where(calls_table.c.tool_call_id == "p").values(verdict="{"))


@pytest.mark.parametrize(
    ("breaks", "becomes"),
    [
        pytest.param(broken_predicate, AskAgain, id="the tool's predicate raises"),
        pytest.param(unclear_rule, AskAgain, id="a deny rule cannot tell"),
        pytest.param(unreadable_rules, AskAgain, id="the stored rules cannot be read"),
        pytest.param(other_bytes, "execution_error", id="the arguments are not those that were allowed"),
        pytest.param(other_version, "execution_error", id="the policy is not the one it was judged by"),
        pytest.param(rules_are_gone, (SQLAlchemyError, TurngateError), id="the rules are gone"),
        pytest.param(grants_cannot_be_read, ValueError, id="a grant cannot be read"),
        pytest.param(verdict_cannot_be_read, ValueError, id="its verdict cannot be read"),
    ],
)
async def test_i2_every_error_at_the_door_ends_outside_it(
    client: Client, sqlite: Database, bench: Bench, breaks: Any, becomes: Any
) -> None:
    """I2: on any error of the second policy check the handler does not start: the call is asked, refused, or tried again."""

    @tool(effect="once", ask=ASKS)
    async def pay(params: Amount) -> int:
        """Pay."""
        bench.paid.append(params.cents)
        return params.cents

    ASKS.broken = False
    policy = Policy(rule=[Rule(name="ok", verdict="allow", tools=["slow"])])
    tampered = "a row is changed past the API" if breaks in {other_bytes, other_version, verdict_cannot_be_read} else ""
    async with held_up(client, sqlite, bench, PAY, tools=[pay], policy=policy, tampered=tampered) as (engine, run):
        async with sqlite.read() as conn:
            planned = await calls.get(conn, run.id, "p")
        assert planned is not None
        assert planned.disposition == "run"
        await breaks(engine, run)
        order = RunToolInput(run_id=run.id, call="p")
        if isinstance(becomes, str):
            await ActivityEnvironment().run(RunTool(engine.engine)._redeem, order)
            result = (await engine.results(run))["p"]
            assert isinstance(result, Failure)
            assert result.kind == becomes
        elif becomes is AskAgain:
            assert isinstance(await ActivityEnvironment().run(RunTool(engine.engine)._redeem, order), AskAgain)
        else:
            with pytest.raises(becomes):
                await ActivityEnvironment().run(RunTool(engine.engine)._redeem, order)
        assert set(await engine.executions(run)) == {"s"}
        assert bench.paid == []
        if breaks is rules_are_gone:  # a call whose heartbeat comes late on a busy machine looks at them before it ends
            await rules_are_back(engine)
        await engine.interrupt(run)
        await engine.ended(run)
        assert bench.paid == []
