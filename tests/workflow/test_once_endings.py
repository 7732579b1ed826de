"""I3: a ``once`` call whose end says nothing may have happened, whatever ends it: its probe or a person says what did."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from support.engine.stack import ListModel, Stack, call, killed, says, stack, until
from support.engine.tools import Amount, Bench
from temporalio.client import Client

from turngate import (
    DidNotHappen,
    Happened,
    Limits,
    NothingHappened,
    OutcomeUnknown,
    ProbeAnswer,
    ToolContext,
    ToolFailure,
    tool,
)
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.runs import retry as retry_run
from turngate.domain.conversation.messages import ToolCallPart
from turngate.domain.errors import ConflictError
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs

BRIEF = timedelta(seconds=1)
PERSON = Principal(name="ada", via="session", scopes=frozenset({"runs:write", "requests:read", "requests:decide"}))


class Refused(ToolFailure):
    reason: str


class Unpaid:
    """A service that no one can make."""


@dataclass
class Bank:
    """What was booked, by tool; ``probes``: tool → what its probe answers."""

    booked: dict[str, list[str]] = field(default_factory=dict)
    probes: dict[str, ProbeAnswer] = field(default_factory=dict)

    def tool(self, ends: Any, **options: Any) -> Tool:
        """A ``once`` tool that books and then ends so."""
        name = ends.__name__

        async def pay(ctx: ToolContext) -> dict[str, str]:
            """Pay."""
            self.booked.setdefault(name, []).append(ctx.idempotency_key)
            return await ends(ctx, len(self.booked[name]))

        probing = name in self.probes
        probe = self._probe(name) if probing else None
        failures = [Refused]
        arguments = {"ask": False, "timeout": BRIEF, "failures": failures, "probe": probe, **options}
        return tool(name=name, effect="once", check_with="Look for {idempotency_key} at the bank", **arguments)(pay)

    def _probe(self, name: str) -> Any:
        def probe(key: str) -> ProbeAnswer:
            assert key in self.booked[name]
            return self.probes[name]

        return probe


async def books(_ctx: ToolContext, _start: int) -> dict[str, str]:
    return {"paid": "yes"}


async def refuses(_ctx: ToolContext, _start: int) -> Any:
    raise Refused(reason="no such account")


async def says_nothing_happened(_ctx: ToolContext, _start: int) -> Any:
    raise NothingHappened("the connection was refused")


async def times_out(ctx: ToolContext, _start: int) -> Any:
    ctx.partial("sent")
    await asyncio.sleep(60)


async def loses_its_connection(_ctx: ToolContext, _start: int) -> Any:
    raise ConnectionResetError("hunter2")


async def says_unknown(_ctx: ToolContext, _start: int) -> Any:
    raise OutcomeUnknown("the bank never answered")


async def returns_another(_ctx: ToolContext, _start: int) -> Any:
    return ["not", "declared"]


async def cancels_itself(_ctx: ToolContext, _start: int) -> Any:
    raise asyncio.CancelledError


async def probed_as_done(_ctx: ToolContext, _start: int) -> Any:
    raise TimeoutError


async def probed_as_undone(_ctx: ToolContext, start: int) -> Any:
    if start == 1:
        raise TimeoutError
    return {"paid": "the second time"}


async def probed_in_vain(_ctx: ToolContext, _start: int) -> Any:
    raise TimeoutError


KNOWN = {books: "ok", refuses: "refused", says_nothing_happened: "nothing_happened"}
UNKNOWN = (
    times_out,
    loses_its_connection,
    says_unknown,
    returns_another,
    cancels_itself,
    probed_in_vain,
)


@pytest.fixture
def bank() -> Bank:
    answers = {
        "probed_as_done": Happened({"paid": "found"}),
        "probed_as_undone": DidNotHappen(),
        "probed_in_vain": None,
    }
    return Bank(probes=answers)


async def requests_of(engine: Stack, run: runs.Run) -> dict[str, requests.Request]:
    return {each.tool_name: each for each in await engine.requests_of(run)}


async def test_i3_every_ending_of_a_once_call(client: Client, sqlite: Database, bank: Bank) -> None:
    """I3: known ends are results; of any other a person is asked, with what the tool says, and nothing starts by itself.

    ``did_not_happen`` starts it again, under the same key and in their name; another end without news asks again.
    """
    handlers = [*KNOWN, *UNKNOWN, probed_as_done, probed_as_undone]
    names = [each.__name__ for each in handlers]
    model = ListModel(says(*(call(name, "{}", name) for name in names)), says("Done."))
    limits = Limits(concurrency=len(names))
    tools = [bank.tool(each) for each in handlers]
    async with stack(client, sqlite, *tools, model=model, limits=limits) as engine:
        run, request_ids = await engine.start(), dict[str, str]()
        for each in UNKNOWN:
            request = await engine.request(run, kind="outcome", tool=each.__name__)
            request_ids[each.__name__] = request.id
            assert request.reason.endswith("It may or may not have taken effect: which?")
            assert request.rule == "engine:unknown-outcome"
            assert "hunter2" not in request.reason
            start = request.start_that_was_lost
            assert start is not None
            assert start.check_with == f"Look for {bank.booked[each.__name__][0]} at the bank"
            assert (await engine.executions(run))[each.__name__].state == "unknown"
            assert (await engine.results(run))[each.__name__] is None
            if each is times_out:
                async with sqlite.read() as conn:
                    assert (await request_detail(conn, request.id)).partial_output == "sent"
            answer = "did_not_happen" if each is says_unknown else "tell_model"
            await engine.decide(request, "respond", outcome=answer)
        asked_again = await engine.request(run, kind="outcome")
        assert (asked_again.tool_name, asked_again.id == request_ids["says_unknown"]) == ("says_unknown", False)
        assert (await engine.executions(run))["says_unknown"].decision_id is not None
        await engine.decide(asked_again, "respond", outcome="happened", args='{"paid": "yes"}')
        assert (await engine.ended(run)).status == "completed"
        results, states = await engine.results(run), await engine.executions(run)
        opened = await requests_of(engine, run)
    assert set(opened) == {each.__name__ for each in UNKNOWN}
    started_again = {"probed_as_undone": 2, "says_unknown": 2}
    assert {name: len(keys) for name, keys in bank.booked.items()} == {**dict.fromkeys(names, 1), **started_again}
    assert len(set(bank.booked["says_unknown"])) == 1
    for each, kind in KNOWN.items():
        result = results[each.__name__]
        assert (result.kind if isinstance(result, Failure) else "ok") == kind
        assert states[each.__name__].state == ("succeeded" if kind == "ok" else "failed")
    assert results["probed_as_done"] == Ok(value={"paid": "found"})
    assert results["probed_as_undone"] == Ok(value={"paid": "the second time"})
    assert states["probed_as_undone"].attempts == 2
    assert states["says_unknown"].state == "succeeded"
    assert results["says_unknown"] == Ok(value={"paid": "yes"})
    for each in UNKNOWN:
        if each is not says_unknown:
            result = results[each.__name__]
            assert (result.kind, states[each.__name__].state) == ("unknown", "unknown")
            assert "It may have taken effect: do not repeat it" in result.reason
    assert "did not finish within 1 s" in results["times_out"].reason
    assert results["times_out"].fields == {"partial_output": "sent"}


async def test_i1_i3_an_interrupted_once_call_may_have_happened(client: Client, sqlite: Database, bank: Bank) -> None:
    """I1, I3: the run ends at once, the call says that it may have happened, and the question outlives the run.

    A probe that answers in time makes it known. A retry of the run that makes the call again asks about it, though its
    tool asks no one.
    """
    at_work = asyncio.Event()

    async def hangs(ctx: ToolContext, _start: int) -> Any:
        ctx.partial("half")
        if sum(map(len, bank.booked.values())) == 3:
            at_work.set()
        await asyncio.sleep(60)

    async def undone(ctx: ToolContext, start: int) -> Any:
        return await hangs(ctx, start)

    async def done(ctx: ToolContext, start: int) -> Any:
        return await hangs(ctx, start)

    bank.probes |= {"hangs": None, "undone": DidNotHappen(), "done": Happened({"paid": "found"})}
    tools = [bank.tool(each, timeout=timedelta(minutes=5)) for each in (hangs, undone, done)]
    step = says(*(call(each.name, "{}", each.name) for each in tools))
    model = ListModel(step, says(call("hangs", "{}", "again")), says("Done."))
    async with stack(client, sqlite, *tools, model=model) as engine:
        run = await engine.start()
        await asyncio.wait_for(at_work.wait(), 60)
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        results, states = await engine.results(run), await engine.executions(run)
        assert (results["done"], states["done"].state) == (Ok(value={"paid": "found"}), "succeeded")
        assert (results["undone"].kind, states["undone"].state) == ("nothing_happened", "failed")
        assert (results["hangs"].kind, states["hangs"].state) == ("interrupted", "unknown")
        assert "may have taken effect: do not repeat it" in results["hangs"].reason
        assert results["hangs"].fields["partial_output"] == "half"
        opened = await requests_of(engine, run)
        assert {name: (each.kind, each.status) for name, each in opened.items()} == {"hangs": ("outcome", "pending")}

        again = await retry_run.retry(engine.services, PERSON, run.id)
        repeat = await engine.request(again, kind="approval")
        assert (repeat.tool_call_id, repeat.rule, repeat.risk) == ("again", "may-have-happened", "high")
        await engine.decide(repeat, "reject", message="look first")
        assert (await engine.ended(again)).status == "completed"

        await engine.decide(opened["hangs"], "respond", outcome="did_not_happen")
        assert (await engine.executions(run))["hangs"].state == "failed"
        assert (await engine.results(run))["hangs"] == results["hangs"]
    assert {name: len(keys) for name, keys in bank.booked.items()} == {"hangs": 1, "undone": 1, "done": 1}


async def test_i3_a_dead_worker_in_an_interrupted_run_still_asks(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I3: no one reported back before the run ended: its call may have happened, and a person can say so afterwards."""

    @tool(effect="once", ask=False)
    async def pay() -> str:
        """Pay."""
        bench.paid.append(1)
        await asyncio.sleep(60)
        return ""

    async def started() -> bool:
        return bool(bench.paid)

    model = ListModel(says(call("pay", "{}", "c1")), says("Done."))
    async with stack(client, sqlite, pay, model=model, working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await until(started, "start of the handler")
        await killed(engine)
        await engine.interrupt(run)
        async with engine.worker():
            assert (await engine.ended(run)).status == "interrupted"
        request = (await requests_of(engine, run))["pay"]
        assert (request.kind, request.status) == ("outcome", "pending")
        await engine.decide(request, "respond", outcome="happened")
        assert (await engine.executions(run))["c1"].state == "succeeded"
    assert bench.paid == [1]


async def test_i3_no_one_repeats_what_may_have_happened(client: Client, sqlite: Database, bench: Bench) -> None:
    """I3: what a rule or the tool allows is asked about if the same call may have happened; a call that differs is not.

    The same call may be planned before that was so, be of a later step, or of another conversation. Once a person has
    approved it, it is as allowed as before.
    """

    @tool(effect="once", ask=False)
    async def pay(params: Amount) -> str:
        """Pay."""
        bench.paid.append(params.cents)
        if params.cents != 2 and bench.paid.count(params.cents) == 1:
            raise ConnectionResetError
        return "paid"

    def paying(cents: int, call_id: str) -> ToolCallPart:
        return call("pay", f'{{"cents": {cents}}}', call_id)

    model = ListModel(
        says(paying(1, "first"), paying(1, "beside"), paying(3, "third")),
        says(paying(3, "again"), paying(2, "another")),
        says("Done."),
        *[says(paying(1, "other")), says("Done.")] * 2,
    )
    async with stack(client, sqlite, pay, model=model, limits=Limits(concurrency=1)) as engine:
        run = await engine.start()
        beside = await engine.request(run, kind="approval")
        for call_id in ("first", "third"):
            await engine.decide(await engine.request_about(run, call_id), "respond", outcome="tell_model")
        await engine.decide(beside, "reject", message="look first")
        again = await engine.request_about(run, "again")
        for request, call_id in ((beside, "beside"), (again, "again")):
            assert (request.tool_call_id, request.kind) == (call_id, "approval")
            assert (request.rule, request.risk) == ("may-have-happened", "high")
            assert "no one knows whether it took effect" in request.reason
        await engine.decide(again, "reject", message="look first")
        assert (await engine.ended(run)).status == "completed"
        assert sorted(bench.paid) == [1, 2, 3]
        assert {(await engine.results(run))[each].kind for each in ("beside", "again")} == {"rejected"}
        elsewhere = await engine.start()
        repeat = await engine.request(elsewhere)
        assert repeat.rule == "may-have-happened"
        assert bench.paid.count(1) == 1
        await engine.decide(repeat, "approve")
        assert (await engine.ended(elsewhere)).status == "completed"
        assert bench.paid.count(1) == 2
        assert (await engine.ended(await engine.start())).status == "completed"
    assert bench.paid.count(1) == 3


@pytest.mark.parametrize("edited", ["after the first has ended", "while the first runs"])
async def test_i3_i6_an_edit_that_repeats_what_may_have_happened_is_asked_about(
    client: Client, sqlite: Database, bench: Bench, edited: str
) -> None:
    """I3, I6: an edit into a call that may have happened already doesn't run before a person has seen it marked as such."""

    @tool(effect="once", ask=True)
    async def pay(params: Amount) -> str:
        """Pay."""
        bench.paid.append(params.cents)
        if len(bench.paid) > 1:
            return "paid"
        bench.started.set()
        await bench.release.wait()
        raise ConnectionResetError

    both = [call("pay", f'{{"cents": {cents}}}', f"c{cents}") for cents in (1, 2)]
    model, limits = ListModel(says(*both), says("Done.")), Limits(concurrency=1)
    async with stack(client, sqlite, pay, model=model, limits=limits) as engine:
        run = await engine.start()
        first, second = [await engine.request_about(run, each.tool_call_id) for each in both]
        await engine.decide(first, "approve")
        await bench.started.wait()
        if edited == "while the first runs":
            await engine.decide(second, "edit", args='{ "cents": 1 }')
            bench.release.set()
        else:
            bench.release.set()
            await engine.request(run, kind="outcome")
            with pytest.raises(ConflictError, match="it may have happened already"):
                await engine.decide(second, "edit", args='{ "cents": 1 }')
        repeat = await engine.request(run, kind="approval")
        assert (repeat.input, repeat.rule, repeat.risk) == ('{ "cents": 1 }', "may-have-happened", "high")
        assert bench.paid == [1]
        await engine.decide(repeat, "edit", args='{"cents": 1}')  # it is marked for the person who edits it now
        await engine.decide(await engine.request(run, kind="outcome"), "respond", outcome="tell_model")
        assert (await engine.ended(run)).status == "completed"
    assert bench.paid == [1, 1]
