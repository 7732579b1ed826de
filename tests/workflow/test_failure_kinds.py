"""I9: every way a call can fail, beside calls that succeed: one bad call never harms its neighbours, nor the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from harness import ListModel, Stack, call, says, stack
from pydantic import BaseModel
from structlog.testing import capture_logs
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from tools_under_test import Amount, Bench

from activities.run_tool import RunTool
from turngate import Limits, Policy, Rule, ToolContext, ToolFailure, declare_tool, tool
from turngate.domain.contract import RunToolInput
from turngate.domain.history import is_reconciled
from turngate.domain.results import Failure, Ok
from turngate.domain.tools import Tool
from turngate.store import runs
from turngate.store.database import Database


class OutOfStock(ToolFailure):
    reason: str
    left: int


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my words are broken")

    __repr__ = __str__


class Odd(BaseException):
    """Not an Exception: whoever catches those lets it through."""


async def crashes() -> NoReturn:
    raise RuntimeError("secret detail")


async def exits() -> NoReturn:
    raise SystemExit(2)


async def recurses() -> Any:
    return await recurses()


async def unprintable() -> NoReturn:
    raise UnprintableError


async def odd() -> NoReturn:
    raise Odd("secret detail")


async def declared() -> NoReturn:
    raise OutOfStock(reason="sold out", left=0)


async def undeclared() -> NoReturn:
    class Forgotten(ToolFailure):
        reason: str

    raise Forgotten(reason="secret detail")


async def too_slow() -> None:
    await asyncio.sleep(60)


async def too_slow_and_bitter() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ValueError("not like this") from None


async def cancels_itself() -> NoReturn:
    raise asyncio.CancelledError


async def gives_up() -> Any:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    task.cancel()
    return await task


async def broken_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        group.create_task(crashes())


async def misfit() -> Any:
    return {"not": "an amount"}


async def too_deep() -> Any:
    value: Any = "bottom"
    for _ in range(199):  # what pydantic can write, and not read again
        value = [value]
    return value


@pytest.fixture(autouse=True)
def log() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged, unrendered: structlog's default draws every frame with its locals, which takes seconds."""
    with capture_logs() as logs:
        yield logs


GOES_WRONG: dict[Callable[[], Awaitable[Any]], tuple[str, str]] = {
    crashes: ("execution_error", "'crashes' crashed"),
    exits: ("execution_error", "'exits' crashed"),
    recurses: ("execution_error", "'recurses' crashed"),
    unprintable: ("execution_error", "'unprintable' crashed"),
    odd: ("execution_error", "'odd' crashed"),
    declared: ("out_of_stock", "sold out"),
    undeclared: ("execution_error", "'undeclared' crashed"),
    too_slow: ("timeout", "did not finish within 1 s"),
    too_slow_and_bitter: ("timeout", "did not finish within 1 s"),
    cancels_itself: ("cancelled", "cancelled itself"),
    gives_up: ("cancelled", "cancelled itself"),
    broken_group: ("execution_error", "'broken_group' crashed"),
    misfit: ("execution_error", "Its effects stand"),
    too_deep: ("execution_error", "Its effects stand"),
}


def failing(function: Callable[[], Awaitable[Any]]) -> Tool:
    slow = function.__name__.startswith("too_slow")
    return declare_tool(
        name=function.__name__,
        description="Fail.",
        success=Amount if function is misfit else Any,
        effect="once",
        ask=False,
        failures=[OutOfStock],
        timeout=timedelta(seconds=1 if slow else 60),
        handler=function,
    )


async def test_i9_whatever_goes_wrong_in_a_handler_is_its_own_result(
    client: Client, database: Database, bench: Bench, log: list[MutableMapping[str, Any]]
) -> None:
    """I9: crashes of every sort, failures, timeouts and results that do not fit, in one step: each its own kind.

    The calls between them succeed, nothing secret is told, and nothing is said to be unknown.
    """
    made = [part for function in GOES_WRONG for part in (call(function.__name__, "{}", function.__name__), "")]
    looks = [call("look", f'{{"name": "{place}"}}', f"look-{place}") for place in range(3)]
    response = says(looks[0], *made[: len(made) // 2], looks[1], *made[len(made) // 2 :], looks[2])
    model = ListModel(response, says("Done."))
    tools = [failing(function) for function in GOES_WRONG]
    async with stack(client, database, bench.look, *tools, model=model, limits=Limits(concurrency=8)) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        for function, (kind, words) in GOES_WRONG.items():
            result = results[function.__name__]
            assert isinstance(result, Failure), function
            assert (result.kind, words in result.reason) == (kind, True), result
        assert all(results[f"look-{place}"] == Ok(value={"value": f"seen {place}"}) for place in range(3))
        assert "secret detail" not in str(results)
        states = {key: execution.state for key, execution in (await engine.executions(run)).items()}
        assert {state for key, state in states.items() if key.startswith("look")} == {"succeeded"}
        assert {state for key, state in states.items() if not key.startswith("look")} == {"failed"}
        assert all(execution.attempts == 1 for execution in (await engine.executions(run)).values())
        logged = {entry["tool"] for entry in log if entry["log_level"] == "error"}
        assert logged == {function.__name__ for function, (kind, _) in GOES_WRONG.items() if kind == "execution_error"}
        asked = model.seen[1].messages
        assert is_reconciled(asked)
        assert [part.tool_call_id for part in asked[-1].results] == [part.tool_call_id for part in asked[-2].calls]


class Order(BaseModel):
    lines: list[Amount]


async def test_i9_i12_a_call_that_never_starts_says_who_stopped_it(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I9, I12: the model's mistakes, the rule's, the person's and the clock's no, in one step with calls that run."""

    @tool(effect="once", ask=False)
    async def order(params: Order) -> str:
        """Order."""
        return "ordered"

    elsewhere = declare_tool(name="elsewhere", description="Elsewhere.", ask=False)
    policy = Policy(
        rule=[
            Rule(name="no-shred", verdict="deny", tools=["shred"], reason="Paper is kept."),
            Rule(name="hurry", verdict="ask", tools=["slow"], expires_after_seconds=1),
        ]
    )
    shred = declare_tool(name="shred", description="Shred.", ask=False, handler=crashes)
    model = ListModel(
        says(
            call("look", '{"name": "first"}', "first"),
            call("nope", "{}", "unknown"),
            call("constructor", "{}", "constructor"),
            call("__class__", "{}", "class"),
            call("elsewhere", "{}", "elsewhere"),
            call("order", '{"lines": [{"cents": 1}', "json"),
            call("order", '[{"cents": 1}]', "array"),
            call("order", '{"lines": [{"cents": 1}, {"cents": "many"}]}', "shape"),
            call("shred", "{}", "denied"),
            call("pay", '{"cents": 5}', "rejected"),
            call("slow", "{}", "expired"),
            call("pay", '{"cents": 6}', "approved"),
            call("look", '{"name": "last"}', "last"),
        ),
        says("Done."),
    )
    tools = [bench.look, bench.pay, bench.slow, order, elsewhere, shred]
    async with stack(client, sqlite, *tools, model=model, policy=policy) as engine:
        run = await engine.start()
        for _ in range(2):
            request = await engine.request(run, tool="pay")
            await engine.decide(request, "reject" if "5" in request.input else "approve", message="Too much.")
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        kinds = {key: value.kind for key, value in results.items() if isinstance(value, Failure)}
        assert kinds == {
            "unknown": "unknown_tool",
            "constructor": "unknown_tool",
            "class": "unknown_tool",
            "elsewhere": "non_local_tool",
            "json": "input_validation_error",
            "array": "input_validation_error",
            "shape": "input_validation_error",
            "denied": "denied",
            "rejected": "rejected",
            "expired": "expired",
        }
        assert "'nope'. The tools are: look, pay, slow, order, elsewhere, shred." in results["unknown"].reason
        problems = {key: results[key].fields["problem"] for key in ("json", "array", "shape")}
        assert problems == {"json": "malformed_json", "array": "malformed_json", "shape": "wrong_shape"}
        assert results["shape"].reason.startswith("lines.1.cents: ")
        assert [results[key].fields["refused_by"] for key in ("denied", "rejected", "expired")] == [
            "rule",
            "operator",
            "expiry",
        ]
        assert "Too much." in results["rejected"].reason
        assert bench.paid == [6]
        assert sorted(bench.looked) == ["first", "last"]
        assert set(await engine.executions(run)) == {"first", "last", "approved"}


async def test_an_interrupt_leaves_what_was_settled(client: Client, sqlite: Database, bench: Bench) -> None:
    """``interrupted`` is for what was open: a neighbour's result stays, and each open call says whether it had begun."""
    model = ListModel(
        says(call("look", '{"name": "x"}', "ok"), call("slow", "", "running"), call("pay", '{"cents": 5}', "gated"))
    )
    async with stack(client, sqlite, bench.look, bench.slow, bench.pay, model=model) as engine:
        run = await engine.start()
        await engine.request(run)
        await engine.event(run, "execution.finished")
        await bench.started.wait()
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        results = await engine.results(run)
        assert results["ok"] == Ok(value={"value": "seen x"})
        assert (results["running"].kind, results["running"].fields["started"]) == ("interrupted", True)
        assert (results["gated"].kind, results["gated"].fields["started"]) == ("interrupted", False)
        assert is_reconciled(await engine.history(run))


async def test_an_unknown_outcome_harms_no_neighbour(client: Client, sqlite: Database, bench: Bench) -> None:
    """``unknown``: a call whose worker was lost is handed to the model as that, beside the result of another."""
    model = ListModel(says(call("slow", "", "lost"), call("look", '{"name": "x"}', "ok")), says("Done."))
    async with stack(client, sqlite, bench.look, bench.slow, model=model, working=False) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await bench.started.wait()
            await engine.event(run, "execution.finished")
        async with engine.worker():
            await engine.decide(await engine.request(run, kind="outcome"), "respond", outcome="tell_model")
            assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert results["lost"].kind == "unknown"
        assert results["ok"] == Ok(value={"value": "seen x"})
        assert bench.looked == ["x"]


async def test_a_failure_that_raises_ends_the_run_and_is_the_calls_result(
    client: Client, database: Database, bench: Bench
) -> None:
    """failure_mode="raise": the run fails with its class and words, and the call's own result says what happened.

    Its execution is known to have failed, and a retry of the activity ends the run as well.
    """

    @tool(effect="once", ask=False, failures=[OutOfStock], failure_mode="raise")
    async def reserve() -> None:
        """Reserve."""
        raise OutOfStock(reason="sold out", left=0)

    model = ListModel(
        says(call("look", '{"name": "x"}', "l"), call("reserve", "", "r"), call("pay", '{"cents": 1}', "p"))
    )
    async with stack(client, database, bench.look, reserve, bench.pay, model=model) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.status, ended.error_class) == ("failed", "tool_raised")
        assert "'reserve' failed: out_of_stock: sold out" in ended.reason
        results = await engine.results(run)
        assert results["r"] == Failure(kind="out_of_stock", reason="sold out", fields={"reason": "sold out", "left": 0})
        assert (results["p"].kind, bench.paid) == ("cancelled", [])
        assert (await engine.executions(run))["r"].state == "failed"
        assert is_reconciled(await engine.history(run))
        with pytest.raises(ApplicationError, match="sold out") as again:
            await ActivityEnvironment().run(
                RunTool(engine.engine).run_tool, RunToolInput(run_id=run.id, call="r", decision_id=None)
            )
        assert (again.value.type, again.value.non_retryable) == ("tool_raised", True)


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


async def in_conversation(engine: Stack, text: str, run: runs.Run) -> runs.Run:
    return await engine.ended(await engine.start(text, conversation_id=run.conversation_id))


async def test_i1_a_conversation_goes_on_after_any_result(client: Client, database: Database) -> None:
    """I1, I9: results that JSON, PostgreSQL or a parser choke on are stored, read back and sent, and the next run works."""
    deep: Any = 1
    for _ in range(98):
        deep = [deep]
    values = {
        "nan": {"x": float("nan"), "y": [float("inf")]},
        "surrogate": {"file": ["a\udcff", float("nan")]},
        "nul": "a\x00b",
        "huge": 10**400,
        "deep": deep,
    }

    @tool(effect="read", ask=False)
    async def give(ctx: ToolContext) -> Any:
        """Give."""
        return values[ctx.tool_call_id]

    model = ListModel(says(*(call("give", "", key) for key in values)), says("Done."), says("Again."))
    async with stack(client, database, give, model=model) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert results["nan"] == Ok(value={"x": None, "y": [None]})
        assert results["surrogate"] == Ok(value={"file": ["a\ufffd", None]})
        assert results["nul"] == Ok(value={"value": "a\x00b"})
        assert results["huge"] == Ok(value={"value": 10**400})
        assert results["deep"] == Ok(value={"value": deep})
        assert (await in_conversation(engine, "more", run)).status == "completed"
        assert [part.result for part in model.seen[2].messages[3].results] == list(results.values())
