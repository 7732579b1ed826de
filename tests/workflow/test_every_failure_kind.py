"""I9, I12: every way in which a call can go wrong, through the engine; one bad call never harms its neighbours."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import anyio
import pytest
import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Amount, Bench
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from turngate import Limits, Policy, Rule, ToolFailure, Toolkit, declare_tool, interaction_tool, tool
from turngate.activities.run_tool import RunTool
from turngate.domain.contract import RunToolInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import GoneError, InvalidInputError
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok, wire_text
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database

SECRET = "hunter2"


class OutOfStock(ToolFailure):
    """A declared failure."""

    reason: str
    left: int


class Gone(OutOfStock):
    """Of the declared class, and not declared itself; its name is the engine's word for something else."""

    kind = "denied"


class UnspeakableError(Exception):
    """Has no words, not even to say so."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


def broken_validator(_sent: Any) -> int:
    raise KeyError(SECRET)


class Fragile(BaseModel):
    """Parameters whose own code breaks on any input, in a way pydantic does not catch."""

    at: Annotated[int, BeforeValidator(broken_validator), WithJsonSchema({"type": "integer"})]


class FormValue(BaseModel):
    """Writes NaN unquoted, where the encoder allows it."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    value: float


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """What is logged, written out as a worker does it; the default, for terminals, takes a second for each traceback."""
    lines: list[Any] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        lines.append(event)
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, keep])
    yield lines
    structlog.reset_defaults()


def read(function: Callable[..., Awaitable[Any]], **options: Any) -> Tool:
    return tool(effect="read", ask=False, **options)(function)


async def exits() -> str:
    """Ask the process to exit."""
    sys.exit(SECRET)


async def recurses() -> str:
    """Never stop."""
    return await recurses()


async def unspeakable() -> str:
    """Raise what cannot be printed."""
    raise UnspeakableError


async def crashes() -> str:
    """Raise."""
    raise RuntimeError(SECRET)


async def crashes_where_it_may_raise() -> str:
    """Raise what was not declared, as a tool whose declared failures end the run."""
    raise RuntimeError(SECRET)


async def group_breaks() -> str:
    """Lose an inner task, whose group then breaks."""

    async def bad() -> None:
        raise ValueError(SECRET)

    async with asyncio.TaskGroup() as group:
        group.create_task(bad())
        await asyncio.sleep(60)
    return ""


async def gives_up() -> str:
    """Raise the exception of a cancellation that no one requested."""
    raise asyncio.CancelledError


async def inner_cancelled() -> str:
    """Await a task that is cancelled from outside."""
    inner = asyncio.create_task(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner
    return ""


async def scope_left_open() -> str:
    """Enter a cancel scope and never leave it, as a client closed elsewhere does: it cancels forever."""

    async def bad() -> None:
        raise ValueError(SECRET)

    group = anyio.create_task_group()
    await group.__aenter__()
    group.start_soon(bad)
    await asyncio.sleep(60)
    return ""


async def cancels_its_task() -> str:
    """Cancel the task it runs in, and return all the same."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "done"


async def hangs() -> str:
    """Take too long."""
    await asyncio.sleep(60)
    return ""


async def hangs_and_breaks() -> str:
    """Break while it is being stopped."""
    try:
        await asyncio.sleep(60)
    finally:
        raise RuntimeError(SECRET)


async def declines(params: Amount) -> str:
    """Decline."""
    raise OutOfStock(reason="sold out", left=params.cents)


async def declines_as_another() -> str:
    """Decline in the words of a class that is not declared."""
    raise Gone(reason="sold out for good", left=0)


async def undeclared() -> str:
    """Raise a failure that was not declared."""
    raise OutOfStock(reason=SECRET, left=1)


async def fragile(params: Fragile) -> str:
    """Never run."""
    return SECRET


async def forbidden() -> str:
    """Never run."""
    return SECRET


async def returns_nothing() -> Amount:
    """Forget to return."""
    return None


async def returns_another() -> Amount:
    """Return what does not fit."""
    return {"cents": "many"}


async def endless_number() -> int:
    """Return more digits than Python writes."""
    return 10**5_000


async def itself() -> list[Any]:
    """Return a list that holds itself."""
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return cyclic


FAILING: list[Callable[..., Awaitable[Any]]] = [
    exits,
    recurses,
    unspeakable,
    crashes,
    group_breaks,
    gives_up,
    inner_cancelled,
    scope_left_open,
]
FAILING += [cancels_its_task, undeclared, fragile, forbidden, returns_nothing, returns_another, endless_number, itself]
ELSEWHERE = declare_tool(name="elsewhere", description="Elsewhere.", params=Amount, ask=False)
BRIEF = timedelta(seconds=1)

BAD = {
    "constructor": (call("constructor", "{}"), "unknown_tool"),
    "dunder": (call("__class__", "{}"), "unknown_tool"),
    "other-case": (call("Look", '{"name": "x"}'), "unknown_tool"),
    "half-a-name": (call("look\ud800", "{}"), "unknown_tool"),
    "elsewhere": (call("elsewhere", '{"cents": 1}'), "non_local_tool"),
    "cut-off": (call("look", '{"name": '), "input_validation_error"),
    "no-object": (call("look", '["x"]'), "input_validation_error"),
    "nan": (call("declines", '{"cents": NaN}'), "input_validation_error"),
    "half-a-character": (call("look", '{"name": "\ud800"}'), "input_validation_error"),
    "nul": (call("look", '{"name": "a\x00b"}'), "input_validation_error"),
    "misspelled": (call("look", '{"nme": "x"}'), "input_validation_error"),
    "mistyped": (call("declines", '{"cents": "many"}'), "input_validation_error"),
    "fragile": (call("fragile", '{"at": 1}'), "input_validation_error"),
    "exits": (call("exits", ""), "execution_error"),
    "recurses": (call("recurses", ""), "execution_error"),
    "unspeakable": (call("unspeakable", ""), "execution_error"),
    "crashes": (call("crashes", ""), "execution_error"),
    "crashes-raising": (call("crashes_where_it_may_raise", ""), "execution_error"),
    "group": (call("group_breaks", ""), "execution_error"),
    "undeclared": (call("undeclared", ""), "execution_error"),
    "nothing": (call("returns_nothing", ""), "execution_error"),
    "another": (call("returns_another", ""), "execution_error"),
    "endless": (call("endless_number", ""), "execution_error"),
    "itself": (call("itself", ""), "execution_error"),
    "gives-up": (call("gives_up", ""), "cancelled"),
    "inner": (call("inner_cancelled", ""), "cancelled"),
    "scope": (call("scope_left_open", ""), "cancelled"),
    "own-task": (call("cancels_its_task", ""), "cancelled"),
    "declared": (call("declines", '{"cents": 3}'), "out_of_stock"),
    "of-the-declared": (call("declines_as_another", ""), "out_of_stock"),
    "timeout": (call("hangs", ""), "timeout"),
    "timeout-breaks": (call("hangs_and_breaks", ""), "timeout"),
    "denied": (call("forbidden", ""), "denied"),
}
NEVER_STARTED = {"unknown_tool", "non_local_tool", "input_validation_error", "denied"}


async def test_i9_one_bad_call_never_harms_its_neighbours(
    client: Client, sqlite: Database, bench: Bench, logged: list[Any]
) -> None:
    """I9: of every kind there is, each in its place, between calls that succeed; the model reads all of them."""
    kit = Toolkit.of(
        bench.look,
        ELSEWHERE,
        *(read(each) for each in FAILING),
        *(read(each, failures=[OutOfStock]) for each in (declines, declines_as_another)),
        *(read(each, timeout=BRIEF) for each in (hangs, hangs_and_breaks)),
        read(crashes_where_it_may_raise, failures=[OutOfStock], failure_mode="raise"),
    )
    calls = []
    for place, (bad, _kind) in BAD.items():
        calls += [bad.model_copy(update={"tool_call_id": place}), call("look", f'{{"name": "{place}"}}', f"ok-{place}")]
    model = ListModel(says(*calls), says("Done."))
    policy = Policy(rule=[Rule(name="not-that", verdict="deny", tools=["forbidden"], reason="Never.")])
    limits = Limits(concurrency=16)
    async with stack(client, sqlite, model=model, toolkit=kit, policy=policy, limits=limits) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results, started = await engine.results(run), await engine.executions(run)
        history = await engine.history(run)

    assert {place: each.kind for place, each in results.items() if isinstance(each, Failure)} == {
        place: kind for place, (_bad, kind) in BAD.items()
    }
    assert sorted(bench.looked) == sorted(BAD)
    assert all(results[f"ok-{place}"] == Ok(value={"value": f"seen {place}"}) for place in BAD)
    assert set(started) == {f"ok-{place}" for place in BAD} | {
        place for place, (_bad, kind) in BAD.items() if kind not in NEVER_STARTED
    }
    assert {each.state for each in started.values()} == {"succeeded", "failed"}
    assert is_reconciled(history)
    parts = model.seen[1].messages[-1].results
    assert [each.tool_call_id for each in parts] == [each.tool_call_id for each in calls]  # in the model's order
    for each in parts:
        assert each.result == results[each.tool_call_id]
        assert SECRET not in wire_text(each.result)
        if isinstance(each.result, Failure):
            error = json.loads(wire_text(each.result))["error"]
            assert (error["kind"], error["message"]) == (each.result.kind, each.result.reason)
            assert error["message"]
    reasons = {place: results[place].reason for place in BAD}
    assert all(name in reasons[place] for place in ("constructor", "dunder") for name in ("look", "elsewhere"))
    problems = {place: results[place].fields["problem"] for place, (_bad, kind) in BAD.items() if "input" in kind}
    assert {place for place, problem in problems.items() if problem == "wrong_shape"} == {
        *("misspelled", "mistyped", "fragile")
    }
    assert reasons["misspelled"] == "name: Field required"
    assert reasons["mistyped"].startswith("cents: ")
    assert "KeyError" in reasons["fragile"]
    assert results["declared"].fields == {"reason": "sold out", "left": 3}
    assert reasons["of-the-declared"] == "sold out for good"
    assert "1 s" in reasons["timeout"]
    assert results["denied"].fields == {"refused_by": "rule", "rule": "not-that"}
    # The author's validator crashed, too, though the model reads that its arguments are wrong.
    crashed = ["fragile", *(place for place, (_bad, kind) in BAD.items() if kind == "execution_error")]
    assert sorted(line["tool"] for line in logged) == sorted(BAD[place][0].tool_name for place in crashed)
    assert all(line["kind"] and SECRET not in repr(line) for line in logged)
    assert all("effects remain" in reasons[place] for place in ("nothing", "another", "endless", "itself"))


async def odd_values() -> dict[str, Any]:
    """Return what JSON has no words for, or hardly."""
    return {
        "nan": float("nan"),
        "infinite": float("-inf"),
        "half": "a\ud800b",
        "nul": "a\x00b",
        "huge": 10**4_000,
        "set": {"only"},
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("1.10"),
        "bytes": b"abc",
        "model": Amount(cents=1),
    }


async def nan_itself() -> FormValue:
    """Return NaN in a type that writes it."""
    return FormValue(value=float("nan"))


async def a_dict() -> Amount:
    """Return a dict instead of the model."""
    return {"cents": "5"}


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


async def deepest() -> Any:
    """Return what is as deep as may be."""
    return nested(MAX_DEPTH)


async def deeper() -> Any:
    """Return what is deeper."""
    return nested(MAX_DEPTH + 1)


async def unreadable() -> Any:
    """Return what pydantic writes and cannot read again."""
    return nested(199)


async def nothing() -> Amount | None:
    """Return nothing, as declared."""
    return None


async def odd_failure() -> str:
    """Fail with what JSON has no words for."""
    raise OddFailure(reason="a\ud800\x00b", value=float("nan"), at=datetime(2026, 1, 2, tzinfo=UTC))


class OddFailure(ToolFailure):
    reason: str
    value: float
    at: datetime


async def test_odd_values_are_stored_and_read_back(client: Client, database: Database) -> None:
    """Whatever a tool returns becomes JSON that both databases hold, and the model reads the same that was stored.

    I1, I9: what can't be read again is refused; what is kept is read, in later runs of the conversation, too.
    """
    kit = Toolkit.of(*(read(each) for each in (odd_values, nan_itself, a_dict, nothing, deepest, deeper, unreadable)))
    kit = Toolkit.compose(kit, Toolkit.of(read(odd_failure, failures=[OddFailure])))
    model = ListModel(says(*(call(name, "", name) for name in kit.names)), says("Done."), says("Again."))
    async with stack(client, database, model=model, toolkit=kit) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        again = await engine.ended(await engine.start("more", conversation_id=run.conversation_id))
        assert again.status == "completed"
        assert [part.result for part in model.seen[2].messages[3].results] == list(results.values())
        assert {execution.attempts for execution in (await engine.executions(run)).values()} == {1}
    odd = dict(results["odd_values"].value)
    assert odd.pop("huge") == 10**4_000
    assert odd == {
        "nan": "NaN",
        "infinite": "-Infinity",
        "half": "a\ufffdb",
        "nul": "a\x00b",  # escaped in the stored JSON, so it needs no replacement
        "set": ["only"],
        "at": "2026-01-02T03:04:05Z",
        "price": "1.10",
        "bytes": "abc",
        "model": {"cents": 1},
    }
    assert results["nan_itself"] == Ok(value={"value": "NaN"})
    assert results["a_dict"] == Ok(value={"cents": 5})
    assert results["nothing"] == Ok(value={"value": None})
    assert results["deepest"] == Ok(value={"value": nested(MAX_DEPTH)})
    for refused in ("deeper", "unreadable"):
        assert (results[refused].kind, "effects remain" in results[refused].reason) == ("execution_error", True)
    failed = results["odd_failure"]
    assert failed.fields == {"reason": "a\ufffd\x00b", "value": "NaN", "at": "2026-01-02T00:00:00Z"}
    assert failed.kind == "odd_failure"
    model_results = model.seen[1].messages[-1].results
    assert [json.loads(wire_text(each.result)) for each in model_results]
    assert {each.tool_call_id: each.result for each in model_results} == results


# Runs of their own


def paying(*neighbours: str) -> ModelResponse:
    looks = [call("look", f'{{"name": "{name}"}}', name) for name in neighbours]
    return says(call("pay", '{"cents": 5}', "bad"), *looks)


async def outcome(engine: Stack, run: Any, bench: Bench) -> Failure:
    """The bad call's failure, once the run is over; its neighbour has succeeded by then."""
    await engine.ended(run)
    results = await engine.results(run)
    assert results["x"] == Ok(value={"value": "seen x"})
    assert bench.looked == ["x"]
    assert isinstance(results["bad"], Failure)
    return results["bad"]


async def test_expired(client: Client, sqlite: Database, bench: Bench) -> None:
    """No one decided in time: the call did not run, the model reads that no one answered, and a late decision is refused."""
    limits = Limits(request_expiry=timedelta(seconds=1))
    options: dict[str, Any] = {"model": ListModel(paying("x"), says("Ok.")), "limits": limits}
    async with stack(client, sqlite, bench.pay, bench.look, **options) as engine:
        failure = await outcome(engine, run := await engine.start(), bench)
        assert (failure.kind, failure.fields["refused_by"]) == ("expired", "expiry")
        assert await engine.executions(run) == {"x": (await engine.executions(run))["x"]}
        with pytest.raises(GoneError):
            await engine.decide(await engine.request(run, pending=False), "approve")


async def test_i2_a_number_that_is_none_passes_no_gate(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2: NaN is not JSON. A predicate such as ``p.euros > 50`` is False for it, which would have let it through."""

    class Price(BaseModel):
        euros: float

    async def buy(params: Price) -> str:
        """Buy."""
        bench.looked.append("bought")
        return ""

    buy.__annotations__["params"] = Price
    buying = tool(effect="once", ask=lambda price: price.euros > 50)(buy)
    sent = ("NaN", "-Infinity", "Infinity")
    calls = [call("buy", f'{{"euros": {each}}}', each) for each in sent]
    model = ListModel(says(*calls, call("look", '{"name": "x"}')), says("Done."))
    async with stack(client, sqlite, buying, bench.look, model=model) as engine:
        run = await engine.ended(await engine.start())
        results = await engine.results(run)
        for each in sent:
            failure = results[each]
            assert (failure.kind, failure.fields["problem"]) == ("input_validation_error", "malformed_json")
            assert each in failure.reason
        assert bench.looked == ["x"]


async def test_a_failure_that_raises_ends_the_run_and_is_the_calls_result(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """failure_mode="raise": the run fails with its class and words, and the call's own result says what happened.

    The same for a class of the declared one. Its execution is known to have failed, and a retry of the activity ends the run too.
    """

    @tool(effect="once", ask=False, failures=[OutOfStock], failure_mode="raise")
    async def reserve() -> None:
        """Reserve."""
        raise Gone(reason="sold out", left=0)

    calls = (call("look", '{"name": "x"}', "l"), call("reserve", "", "r"), call("pay", '{"cents": 1}', "p"))
    async with stack(client, sqlite, bench.look, reserve, bench.pay, model=ListModel(says(*calls))) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.status, ended.error_class) == ("failed", "tool_raised")
        assert "'reserve' failed: out_of_stock: sold out" in ended.reason
        results = await engine.results(run)
        assert results["r"] == Failure(kind="out_of_stock", reason="sold out", fields={"reason": "sold out", "left": 0})
        assert (results["p"].kind, bench.paid) == ("cancelled", [])
        assert (await engine.executions(run))["r"].state == "failed"
        assert is_reconciled(await engine.history(run))
        again = RunToolInput(run_id=run.id, call="r", decision_id=None)
        with pytest.raises(ApplicationError, match="sold out") as raised:
            await ActivityEnvironment().run(RunTool(engine.engine).run_tool, again)
        assert (raised.value.type, raised.value.non_retryable) == ("tool_raised", True)


async def test_i8_what_a_raised_failure_says_at_length_stays_out_of_history(client: Client, sqlite: Database) -> None:
    """I8: the run's reason is short however long the failure's words are; the whole is the call's result."""

    @tool(effect="once", ask=False, failures=[OutOfStock], failure_mode="raise")
    async def reserve() -> None:
        """Reserve."""
        raise OutOfStock(reason="x" * 600_000, left=0)

    async with stack(client, sqlite, reserve, model=ListModel(says(call("reserve", "", "r")))) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.error_class, len(ended.reason)) == ("tool_raised", 500)
        result = (await engine.results(run))["r"]
        assert result.fields["total_chars"] > 600_000
        assert len(result.reason) < 1_000


class Tree(BaseModel):
    tree: Any


async def test_i1_an_answer_too_deep_to_be_read_again_is_refused(client: Client, sqlite: Database) -> None:
    """I1, I4: an operator's answer is a result, too: one that would break the conversation saves nothing."""
    question = interaction_tool(name="ask", description="Ask.", params=Tree, answer=Tree)
    model = ListModel(says(call("ask", '{"tree": 1}', "q")), says("Done."))
    async with stack(client, sqlite, question, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        with pytest.raises(InvalidInputError, match="nests"):
            await engine.decide(request, "respond", args=json.dumps({"tree": nested(150)}))
        await engine.decide(request, "respond", args=json.dumps({"tree": nested(90)}))
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["q"] == Ok(value={"tree": nested(90)})
