"""What is done to toolkits before a start, seen at work: names, middleware, swapped handlers, services, raw schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import svcs
from pydantic import JsonValue
from support.engine.stack import Cast, ListModel, Script, call, says, stack
from support.engine.tools import Amount, Bench, Name
from temporalio.client import Client

from turngate import (
    Agent,
    App,
    DidNotHappen,
    Invocation,
    Limits,
    Ok,
    Policy,
    ProbeAnswer,
    Proceed,
    Rule,
    ToolContext,
    ToolFailure,
    Toolkit,
    declare_tool,
    sub_agent,
    tool,
)
from turngate.domain.errors import MissingServicesError
from turngate.domain.tools.results import Failure, wire_text
from turngate.domain.tools.tool import Tool
from turngate.runtime.app_loader import check_app
from turngate.store.database import Database
from turngate.toolkits.control_calls import finish
from turngate.toolkits.files import list_directory, read_file, write_file
from turngate.toolkits.json_schema import json_schema_tool
from turngate.toolkits.search import grep


class Declined(ToolFailure):
    reason: str


def searching(place: str) -> Tool:
    @tool(effect="read", ask=False, failures=[Declined])
    async def search(params: Name) -> str:
        """Search."""
        return f"{place}:{params.name}"

    return search


def searches(*names: str) -> list[Any]:
    return [call(name, json.dumps({"name": "lisbon"}), f"c{at}") for at, name in enumerate(names)]


async def results_of(client: Client, database: Database, kit: Toolkit, *calls: Any, **options: Any) -> list[Any]:
    """Each call's result, in the model's order; the run completes."""
    model = ListModel(says(*calls), says("Done."))
    async with stack(client, database, model=model, toolkit=kit, **options) as engine:
        run = await engine.ended(await engine.start())
        assert run.status == "completed"
        by_id = await engine.results(run)
    assert [offered.name for offered in model.seen[0].tools] == kit.names
    return [by_id[each.tool_call_id] for each in calls]


# Names


async def test_a_tool_runs_under_its_name_only(client: Client, sqlite: Database) -> None:
    """Two kits that both say ``search`` live beside each other; the bare name is an unknown tool, and both are named.

    A server's list may repeat a name: the last tool counts, at the position of the first. A file tool in a run without a
    directory says to the model, and to people who open the run, how it gets one.
    """
    geo, web = [Toolkit.namespace(each, Toolkit.of(searching(each))) for each in ("geo", "web")]
    listed = Toolkit.from_list([searching("first").renamed("find"), read_file, searching("last").renamed("find")])
    assert listed.names == ["find", "read_file"]
    calls = [*searches("geo__search", "web__search", "find", "search"), call("read_file", '{"path": "a.txt"}', "a")]
    *results, bare, read = await results_of(client, sqlite, Toolkit.compose(geo, web, listed), *calls)
    assert results == [Ok(value={"value": f"{each}:lisbon"}) for each in ("geo", "web", "last")]
    assert bare.kind == "unknown_tool"
    assert "geo__search, web__search" in bare.reason
    assert isinstance(read, Failure)
    assert (read.kind, read.reason) == (
        "execution_error",
        "'read_file' did not run: this tool needs a workspace: start the run with one (`--workspace DIR`)",
    )


# Middleware


@dataclass
class Trace:
    """Middleware of several names, and what passed through in which order."""

    seen: list[Any] = field(default_factory=list)

    def named(self, name: str) -> Any:
        async def middleware(invocation: Invocation, proceed: Proceed) -> Any:
            self.seen.append((name, invocation.tool_name, invocation.params, invocation.ctx.tool_call_id))
            value = await proceed()
            self.seen.append((name, value))
            return value

        return middleware


async def test_the_last_wrap_is_the_outermost_and_only_local_tools_are_wrapped(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Outermost first on the way in, last on the way out; a control call passes by, and so does a call that never runs."""
    trace = Trace()
    kit = Toolkit.of(bench.look, finish).wrap(trace.named("inner")).wrap(trace.named("outer"))
    model = ListModel(
        says(
            call("look", '{"name": "x"}', "c1"),
            call("look", '{"nme": "x"}', "c2"),
            call("finish", '{"answer": "Bye."}', "c3"),
        )
    )
    async with stack(client, sqlite, model=model, toolkit=kit) as engine:
        run = await engine.ended(await engine.start())
        assert run.status == "completed"
    params = Name(name="x")
    assert trace.seen == [
        ("outer", "look", params, "c1"),
        ("inner", "look", params, "c1"),
        ("inner", "seen x"),
        ("outer", "seen x"),
    ]


async def test_i6_a_file_tool_opens_the_place_that_was_judged(client: Client, sqlite: Database, tmp_path: Path) -> None:
    """A link that takes a directory's place once the call is allowed leads no file tool anywhere."""
    (tmp_path / "src/d").mkdir(parents=True)
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".git/hooks/h").write_text("secret\n")

    async def swap(_invocation: Invocation, proceed: Proceed) -> Any:
        (tmp_path / "src/d").rename(tmp_path / "src/old")
        (tmp_path / "src/d").symlink_to("../.git/hooks")
        try:
            return await proceed()
        finally:
            (tmp_path / "src/d").unlink()
            (tmp_path / "src/old").rename(tmp_path / "src/d")

    tools = (write_file, read_file, list_directory, grep)
    rule = Rule(name="src", verdict="allow", tools=[each.name for each in tools], paths=["src/**"])
    kit = Toolkit.of(*tools).wrap(swap)
    calls = [
        call("write_file", '{"path": "src/d/new", "text": "evil"}', "w"),
        call("read_file", '{"path": "src/d/h"}', "r"),
        call("list_directory", '{"path": "src/d"}', "l"),
        call("grep", '{"path": "src/d", "pattern": "secret"}', "g"),
    ]
    model = ListModel(says(*calls), says("Done."))
    policy, limits = Policy(rule=[rule]), Limits(concurrency=1)
    async with stack(client, sqlite, model=model, toolkit=kit, policy=policy, limits=limits) as engine:
        run = await engine.start(workspace=str(tmp_path))
        assert (await engine.ended(run)).status == "completed"
        results = (await engine.results(run)).values()
    assert {(each.kind, "leads elsewhere" in each.reason) for each in results} == {("outside_workspace", True)}
    assert [path.name for path in (tmp_path / ".git/hooks").iterdir()] == ["h"]


async def answering(invocation: Invocation, proceed: Proceed) -> Any:
    """Answer in the handler's place, fail in its words, change its answer, answer nonsense, or break."""
    match invocation.params.name:
        case "cached":
            return "from the cache"
        case "declined":
            raise Declined(reason="not for you")
        case "undeclared":
            raise LookupError("secret")
        case "twice":
            await proceed()
            return await proceed()
        case "wrong":
            return {"not": "text"}
        case _:
            return f"<{await proceed()}>"


async def test_middleware_may_answer_fail_and_change(client: Client, sqlite: Database, bench: Bench) -> None:
    """Without proceeding, in a declared failure's words, or by changing the result, which must fit the type as ever."""

    @tool(effect="read", ask=False, failures=[Declined])
    async def look(params: Name) -> str:
        """Look."""
        bench.looked.append(params.name)
        return params.name

    names = ["cached", "declined", "undeclared", "twice", "wrong", "other"]
    calls = [call("look", json.dumps({"name": name}), name) for name in names]
    results = await results_of(client, sqlite, Toolkit.of(look).wrap(answering), *calls)
    cached, declined, undeclared, twice, wrong, other = results
    assert (cached, twice, other) == tuple(Ok(value={"value": each}) for each in ("from the cache", "twice", "<other>"))
    assert declined == Failure(kind="declined", reason="not for you", fields={"reason": "not for you"})
    assert undeclared.kind == "execution_error"
    assert "secret" not in wire_text(undeclared)
    assert "effects remain" in wrong.reason
    assert sorted(bench.looked) == ["other", "twice", "twice"]  # a ``read`` may be run again


async def test_i2_i3_middleware_is_inside_the_gate(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2: it sees nothing that no person approved: a rejected call reaches neither it nor the handler; both see an edited one.

    I3: a retry around a ``once`` tool is refused, and a person is asked what the first start did.
    """

    async def retrying(_invocation: Invocation, proceed: Proceed) -> Any:
        await proceed()
        return await proceed()

    trace = Trace()
    pay_again = replace(bench.pay, ask=False).renamed("pay_again")
    kit = Toolkit.compose(Toolkit.of(bench.pay).wrap(trace.named("audit")), Toolkit.of(pay_again).wrap(retrying))
    calls = [
        call("pay", '{"cents": 1}', "c1"),
        call("pay", '{"cents": 2}', "c2"),
        call("pay_again", '{"cents": 5}', "c3"),
    ]
    async with stack(client, sqlite, model=ListModel(says(*calls), says("Done.")), toolkit=kit) as engine:
        run = await engine.start()
        await engine.decide(await engine.request_about(run, "c1"), "reject")
        await engine.decide(await engine.request_about(run, "c2"), "edit", args='{"cents": 20}')
        await engine.decide(await engine.request(run, kind="outcome"), "respond", outcome="tell_model")
        await engine.ended(run)
        result = (await engine.results(run))["c3"]
    assert trace.seen == [("audit", "pay", Amount(cents=20), "c2"), ("audit", {"paid": 20})]
    assert (result.kind, sorted(bench.paid)) == ("unknown", [5, 20])


# Swapped and supplied handlers


async def test_handlers_supplied_and_swapped_later_run_inside_the_middleware(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """Split declaration, override by function and by tool: each runs wrapped, under what was declared."""
    trace = Trace()
    split = declare_tool(name="put", description="Put.", params=Name, success=str, effect="read", ask=False)
    kit = Toolkit.of(split, searching("real"), bench.look).wrap(trace.named("audit"))

    async def put(params: Name, ctx: ToolContext) -> str:
        return f"put {params.name} for {ctx.tool_call_id}"

    @tool(effect="once", ask=True, description="Quite another.")
    async def dry_run(params: Name) -> str:
        return f"dry {params.name}"

    async def glance(params: Name) -> str:
        return f"glanced {params.name}"

    swapped = kit.handlers(put=put).override("search", dry_run).override("look", glance)
    assert [each.manifest for each in swapped] == [each.manifest for each in kit]
    results = await results_of(client, sqlite, swapped, *searches("put", "search", "look"))
    assert [each.value["value"] for each in results] == ["put lisbon for c0", "dry lisbon", "glanced lisbon"]
    assert sorted(each[1] for each in trace.seen if len(each) == 4) == ["look", "put", "search"]


# Services


class Payments:
    """A service that is a value."""


class Ledger:
    """A service that is opened for a call and closed after it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log


class Unwell:
    """A service that cannot be made."""


@pytest.mark.exhaustive
async def test_services_come_by_type_from_values_and_async_factories(client: Client, sqlite: Database) -> None:
    """Each call gets its own from a factory, closed when the call is over, also when it fails; one that breaks is a crash."""
    log: list[str] = []
    payments = Payments()

    async def ledger() -> AsyncIterator[Ledger]:
        log.append("opened")
        yield Ledger(log)
        log.append("closed")

    async def unwell() -> Unwell:
        raise ConnectionError("secret")

    registry = svcs.Registry()
    registry.register_value(Payments, payments)
    registry.register_factory(Ledger, ledger)
    registry.register_factory(Unwell, unwell)

    @tool(effect="read", ask=False, failures=[Declined])
    async def book(params: Name, ledger: Ledger, by: Payments) -> bool:
        """Book."""
        ledger.log.append(params.name)
        if params.name == "fails":
            raise Declined(reason="no")
        return by is payments

    @tool(effect="read", ask=False)
    async def sick(unwell: Unwell) -> str:
        """Never run."""
        return ""

    calls = [call("book", '{"name": "a"}', "a"), call("book", '{"name": "fails"}', "b"), call("sick", "", "c")]
    kit = Toolkit.of(book, sick)
    booked, failed, crashed = await results_of(client, sqlite, kit, *calls, services=registry)
    assert booked == Ok(value={"value": True})
    assert (failed.kind, crashed.kind) == ("declined", "execution_error")
    assert "secret" not in crashed.reason
    assert [log.count(each) for each in ("opened", "closed", "a", "fails")] == [2, 2, 1, 1]
    assert log[0] == "opened"
    assert log[-1] == "closed"


def test_a_start_is_refused_naming_every_tool_and_service() -> None:
    """Also those that only a probe or a precondition asks for, and those of a sub-agent of a sub-agent; each once."""

    async def known(key: str, ledger: Ledger) -> ProbeAnswer:
        return DidNotHappen()

    async def same(params: Amount, unwell: Unwell) -> str:
        return ""

    @tool(effect="once", probe=known, precondition=same)
    async def pay(params: Amount, payments: Payments) -> str:
        """Pay."""
        return ""

    def agent(name: str, *tools: Tool) -> Agent:
        return Agent(name=name, instructions="", toolkit=Toolkit.of(*tools), model="scripted:x")

    payer = agent("payer", pay)
    between = agent("between", sub_agent(payer), sub_agent("clerk"))
    clerk = agent("clerk", pay.renamed("pay_cash"))
    registry = svcs.Registry()
    app = App(agents=[agent("front", sub_agent(between)), clerk], services=registry)
    with pytest.raises(MissingServicesError) as refused:
        check_app(app, base=Path.cwd())
    missing = [
        {"tool": name, "service": service}
        for name in ("pay", "pay_cash")
        for service in ("Ledger", "Payments", "Unwell")
    ]
    assert refused.value.details["missing"] == missing
    for named in ("'pay' needs Ledger", "'pay_cash' needs Unwell", "register_factory"):
        assert named in refused.value.message

    for service in (Ledger, Payments, Unwell):
        with pytest.raises(MissingServicesError):
            check_app(app, base=Path.cwd())
        registry.register_value(service, object())
    assert set(check_app(app, base=Path.cwd()).agents) == {"front", "between", "payer", "clerk"}


@pytest.mark.exhaustive
async def test_with_handlers_reaches_sub_agents(client: Client, sqlite: Database, bench: Bench) -> None:
    """A swapped world is swapped wherever the tool is declared; what the models see stays, byte for byte."""

    async def dry(params: Amount) -> dict[str, int]:
        return {"paid": -params.cents}

    pay = replace(bench.pay, ask=False)
    helper = Agent(name="helper", instructions="Help.", toolkit=Toolkit.of(pay), model="scripted:helper")
    front = Agent(name="agent", instructions="", toolkit=Toolkit.of(sub_agent(helper), pay), model="scripted:test")
    swapped = App(agents=[front]).with_handlers({"pay": dry})
    below = swapped.find("helper")
    assert below is not None
    assert (below.version, swapped.agents[0].version) == (helper.version, front.version)
    cast = Cast(
        test=Script(says(call("helper", '{"task": "Pay."}', "h"), call("pay", '{"cents": 1}', "p")), says("Done.")),
        helper=Script(says(call("pay", '{"cents": 2}', "c")), says("Paid.")),
    )
    async with stack(client, sqlite, model=cast, toolkit=swapped.agents[0].toolkit) as engine:
        run = await engine.start()
        child = await engine.child(run, "h")
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["p"] == Ok(value={"paid": -1})
        assert (await engine.results(child))["c"] == Ok(value={"paid": -2})
    assert bench.paid == []


# Order


@pytest.mark.exhaustive
@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (2, 2)])
async def test_calls_run_side_by_side_up_to_the_bound(
    client: Client, sqlite: Database, concurrency: int, most: int
) -> None:
    """One at a time they run in the model's order; a response is logged before its calls start, and the end comes last."""
    running: list[str] = []
    order: list[str] = []
    widths: list[int] = []

    @tool(effect="read", ask=False)
    async def work(params: Name) -> str:
        """Work for a moment."""
        running.append(params.name)
        order.append(params.name)
        widths.append(len(running))
        await asyncio.sleep(0.05)
        running.remove(params.name)
        return params.name

    names = ["a", "b", "c", "d"]
    model = ListModel(says(*(call("work", json.dumps({"name": name}), name) for name in names)), says("Done."))
    async with stack(client, sqlite, work, model=model, limits=Limits(concurrency=concurrency)) as engine:
        run = await engine.ended(await engine.start())
        event_types = [each.type for each in await engine.events(run)]
    assert max(widths) == most
    assert sorted(order) == names
    assert order == names or concurrency > 1
    assert [each.tool_call_id for each in model.seen[1].messages[-1].results] == names
    assert event_types.index("step.responded") < event_types.index("execution.started")
    assert event_types.count("execution.started") == event_types.count("execution.finished") == len(names)
    assert event_types[-2:] == ["step.responded", "run.ended"]


# Kinds that have no handler, and schemas that are no Python types


async def test_a_tool_of_raw_json_schema_at_work(client: Client, sqlite: Database) -> None:
    """Its gate, its arguments as sent, its mistakes and its promise: as any tool's; a result that breaks the promise is a bug."""
    received: list[Any] = []

    async def order(params: dict[str, JsonValue]) -> JsonValue:
        received.append(params)
        return {"ordered": params["count"] if params["count"] != 13 else "thirteen"}

    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"count": {"type": "integer", "minimum": 1}, "at": {"type": "string", "default": "now"}},
        "required": ["count"],
        "additionalProperties": False,
    }
    success: dict[str, JsonValue] = {"type": "object", "properties": {"ordered": {"type": "integer"}}}
    asks = json_schema_tool(
        name="order",
        description="Order.",
        parameters=schema,
        success=success,
        effect="read",
        ask=lambda params: params["count"] > 100,
        handler=order,
    )
    sent = ['{"count": 2}', '{"count": 0, "x": 1}', '{"count": 13}', '{"count": NaN}', '{"count": 101}']
    calls = [call("order", text, f"c{at}") for at, text in enumerate(sent)]
    model = ListModel(says(*calls), says("Done."))
    async with stack(client, sqlite, asks, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        assert request.input == sent[4]
        await engine.decide(request, "edit", args='{"count": 3, "at": "noon"}')
        await engine.ended(run)
        results = await engine.results(run)
    assert [model.seen[0].tools[0].parameters, model.seen[0].tools[0].success] == [schema, success]
    assert results["c0"] == Ok(value={"ordered": 2})
    assert results["c1"].kind == "input_validation_error"
    assert "count: Input is less than the minimum of 1" in results["c1"].reason
    assert results["c1"].fields["problem"] == "wrong_shape"
    assert "effects remain" in results["c2"].reason
    assert results["c3"].fields["problem"] == "malformed_json"
    assert results["c4"] == Ok(value={"ordered": 3})
    assert sorted(each["count"] for each in received) == [2, 3, 13]
    assert {"count": 3, "at": "noon"} in received
