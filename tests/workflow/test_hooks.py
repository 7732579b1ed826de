"""Hooks: a builder's code around the loop sees everything, may forbid one call more, and can allow nothing (I2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.engine.stack import ListModel, Stack, call, says, stack
from support.engine.tools import Bench
from temporalio.client import Client

from turngate import Deny, Hooks, Policy, Rule
from turngate.activities.engine import author_code
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import user_message
from turngate.domain.tools.results import Failure, Ok
from turngate.models.port import ModelRequest
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.toolkits.context import Inject

LOOK = call("look", '{"name": "x"}', "l")
PAY = call("pay", '{"cents": 5}', "p")


@pytest.fixture(autouse=True)
def log() -> Iterator[list[Any]]:
    """What is logged, unrendered: structlog's default draws tracebacks with every local, which takes long."""
    with capture_logs() as logs:
        yield logs


class Recorder(Hooks):
    """Records what it gets, under its name, in a list that several may share."""

    def __init__(self, noted: list[Any] | None = None, name: str = "hook") -> None:
        self.noted: list[Any] = [] if noted is None else noted
        self.name = name

    async def before_tool(self, scope, call):
        self.noted.append((self.name, "before", scope.step, call.tool_name, call.raw_input, call.params))

    async def after_tool(self, scope, call, result):
        self.noted.append((self.name, "after", scope.step, call.tool_name, call.raw_input, result))

    async def after_step(self, scope, results):
        self.noted.append(
            (self.name, "step", scope.step, [part.tool_call_id for each in results for part in each.results])
        )

    def of(self, what: str) -> list[Any]:
        return [each for each in self.noted if each[1] == what]


class Answering(Hooks):
    """Answers ``before_tool`` for a call of ``look`` by its name: with a value, an awaitable, or by raising it."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def before_tool(self, scope, call):  # type: ignore[override]
        name = "pays" if call.tool_name == "pay" else call.params.name
        return Deny("never awaited") if name == "not-async" else self.answer(self.answers[name])

    async def answer(self, answer):
        if isinstance(answer, BaseException):
            raise answer
        if answer is asyncio.sleep:
            await asyncio.sleep(60)
        if answer is suppress:  # keeps its own cancellation back: then it has no objections
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            return None
        return answer


# before_tool


async def test_i2_a_denied_call_does_not_start(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2, I12: ``denied``, by the hook, with its reason; no execution; an identical repeat opens no request."""

    class NoPaying(Hooks):
        async def before_tool(self, scope, call):
            return Deny("Pay day is Friday.") if call.tool_name == "pay" else None

    model = ListModel(says(LOOK, PAY), says(call("pay", '{"cents":5}', "again")), says("Done."))
    async with stack(client, sqlite, bench.look, bench.pay, model=model, hooks=[NoPaying()]) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert (results["p"].kind, results["p"].fields["refused_by"]) == ("denied", "hook")
        assert "Pay day is Friday." in results["p"].reason
        assert (results["again"].kind, results["again"].fields["repeat"]) == ("denied", True)
        assert (bench.paid, bench.looked) == ([], ["x"])
        assert set(await engine.executions(run)) == {"l"}
        assert [event.payload["kind"] for event in await engine.events(run) if event.type == "call.closed"] == [
            "denied"
        ] * 2


async def test_i2_a_hook_that_fails_hangs_or_answers_junk_stops_the_call(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: every error on the gate path means not executed, for allowed and approved calls; the run continues.

    A hook's consent after its timeout comes too late.
    """
    monkeypatch.setattr(author_code, "AUTHOR_SECONDS", 0.2)
    broken = {
        "raises": RuntimeError("secret"),
        "exits": SystemExit(1),
        "cancels": asyncio.CancelledError(),
        "true": True,
        "allow": "allow",
        "type": Deny,
        "hangs": asyncio.sleep,
        "late": suppress,
        "not-async": None,
    }
    calls = [call("look", f'{{"name": "{name}"}}', name) for name in broken]
    hook, model = Answering(**broken, pays=RuntimeError("secret")), ListModel(says(*calls, PAY), says("Done."))
    async with stack(client, sqlite, bench.look, bench.pay, model=model, hooks=[hook]) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "approve")
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert {name: result.kind for name, result in results.items()} == dict.fromkeys(
            [*broken, "p"], "execution_error"
        )
        assert all("did not run" in result.reason and "before_tool" in result.reason for result in results.values())
        assert all("TimeoutError" in results[name].reason for name in ("hangs", "late"))
        assert "secret" not in str(results)
        assert (bench.paid, bench.looked) == ([], [])
        assert await engine.executions(run) == {}


async def test_i6_a_hook_sees_exactly_what_runs(client: Client, sqlite: Database, bench: Bench) -> None:
    """I2, I6: ungated, approved and edited calls: the very text that runs, decoded; closed calls do not reach it.

    A hook runs after the person's decision, never instead of it: an undecided call does not even reach it.
    """
    seen = Recorder()
    policy = Policy(rule=[Rule(name="no", verdict="deny", tools=["slow"])])
    calls = [LOOK, PAY, call("pay", '{"cents": 7}', "e"), call("pay", '{"cents": 8}', "r")]
    closed = [call("nope", "{}"), call("look", "["), call("slow", "{}")]
    model = ListModel(says(*calls, *closed), says("Done."))
    tools = [bench.look, bench.pay, bench.slow]
    async with stack(client, sqlite, *tools, model=model, hooks=[seen], policy=policy) as engine:
        run = await engine.start()
        await engine.request(run)
        await engine.idle(run)
        assert ([each[3] for each in seen.of("before")], bench.paid) == (["look"], []), "an undecided call reached it"
        for _ in range(3):
            request = await engine.request(run)
            verb = {"5": "approve", "7": "edit", "8": "reject"}[request.input[-2]]
            await engine.decide(request, verb, args='{ "cents" : 6 }' if verb == "edit" else None)
        assert (await engine.ended(run)).status == "completed"
        inputs = {(each[3], each[4]): each[5] for each in seen.of("before")}
        assert set(inputs) == {("look", '{"name": "x"}'), ("pay", '{"cents": 5}'), ("pay", '{ "cents" : 6 }')}
        assert inputs["pay", '{ "cents" : 6 }'].cents == 6
        after = {each[4]: each[5] for each in seen.of("after")}
        assert after == {
            '{"name": "x"}': Ok(value={"value": "seen x"}),
            '{"cents": 5}': Ok(value={"paid": 5}),
            '{ "cents" : 6 }': Ok(value={"paid": 6}),
        }
        assert sorted(bench.paid) == [5, 6]


async def test_hooks_run_in_order_and_the_first_no_counts(client: Client, sqlite: Database, bench: Bench) -> None:
    """Hooks run in the agent's order; after the first denial no other hook runs."""
    noted: list[Any] = []
    first, last = Recorder(noted, "first"), Recorder(noted, "last")

    class DenyPay(Recorder):
        async def before_tool(self, scope, call):
            await super().before_tool(scope, call)
            return Deny("No.") if call.tool_name == "pay" else None

    pay = call("pay", '{"cents": 5}', "p")
    policy = Policy(rule=[Rule(name="free", verdict="allow", tools=["pay"])])
    model = ListModel(says(LOOK), says(pay), says("Done."))
    hooks = [first, DenyPay(noted, "middle"), last]
    async with stack(client, sqlite, bench.look, bench.pay, model=model, hooks=hooks, policy=policy) as engine:
        run = await engine.start()
        await engine.ended(run)
        await engine.closed(run)
        assert [(each[0], each[3]) for each in first.of("before")] == [
            ("first", "look"),
            ("middle", "look"),
            ("last", "look"),
            ("first", "pay"),
            ("middle", "pay"),
        ]
        assert [each[0] for each in first.of("after")] == ["first", "middle", "last"]


# after_tool, after_step


class Breaking(Hooks):
    """Fails after everything, in another way in each step."""

    errors = (RuntimeError("x"), SystemExit(1), asyncio.CancelledError())

    async def after_tool(self, scope, call, result):
        result.value.clear()
        raise self.errors[scope.step - 1]

    async def after_step(self, scope, results):
        raise self.errors[min(scope.step, len(self.errors)) - 1]


async def test_an_after_hook_changes_nothing(client: Client, sqlite: Database, bench: Bench, log: list[Any]) -> None:
    """Whatever it raises or changes: the result was stored before, the run continues, and the error is logged."""
    steps = [says(call("look", f'{{"name": "{number}"}}', f"l{number}")) for number in range(len(Breaking.errors))]
    model = ListModel(*steps, says("Done."))
    async with stack(client, sqlite, bench.look, model=model, hooks=[Breaking()]) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        await engine.closed(run)
        seen = [Ok(value={"value": f"seen {number}"}) for number in range(len(steps))]
        assert list((await engine.results(run)).values()) == seen
        assert bench.looked == ["0", "1", "2"]
        logged = [entry["event"] for entry in log]
        assert logged.count("after_tool hook failed") == len(steps)
        assert logged.count("after_step hook failed") == len(steps) + 1
        sent_results = [request.messages[-1].results[0].result for request in model.seen[1:]]
        assert sent_results == seen, "the model was sent what the hook changed"


# before_model


class Transform(Hooks):
    def __init__(self, change: Any) -> None:
        self.change = change

    async def before_model(self, scope, messages, generate):
        return await self.change(scope, messages, generate)


async def turn(engine: Stack) -> runs.Run:
    run = await engine.start("the task")
    assert (await engine.ended(run)).status == "completed"
    return run


def sent(request: ModelRequest) -> list[str]:
    return [f"{message.role}: {message.text}" if message.text else message.role for message in request.messages]


async def test_a_transform_shapes_what_is_sent_and_not_what_is_stored(
    client: Client, database: Database, bench: Bench
) -> None:
    """Trimmed and injected in order, at the end of every request; the stored conversation is what was really said."""

    async def drop_instructions(scope, messages, generate):
        return [message for message in messages if message.role != "system"]

    async def remind(scope, messages, generate):
        return [*messages, user_message(f"step {scope.step} of {scope.agent}")]

    model = ListModel(says(LOOK), says("Done."))
    hooks = [Transform(drop_instructions), Transform(remind), Inject(lambda scope: f"now: {scope.step}")]
    async with stack(client, database, bench.look, model=model, hooks=hooks) as engine:
        run = await turn(engine)
        assert sent(model.seen[0]) == ["user: the task", "user: step 1 of agent", "user: now: 1"]
        of_step = ["user: step 2 of agent", "user: now: 2"]
        assert sent(model.seen[1]) == ["user: the task", "assistant", "tool", *of_step]
        stored = await engine.history(run)
        assert [message.role for message in stored] == ["user", "assistant", "tool", "assistant"]
        assert not any("step" in message.text or "now:" in message.text for message in stored)


async def test_i1_a_transform_cannot_break_a_conversation(client: Client, sqlite: Database, bench: Bench) -> None:
    """I1: a cut between call and result is repaired: a call without its result is closed, a result alone is left out."""

    async def cut(scope, messages, generate):
        lacks = {2: "tool", 3: "assistant"}.get(scope.step)
        return [message for message in messages if message.role != lacks]

    model = ListModel(says(LOOK), says(call("look", '{"name": "y"}', "m")), says("Done."))
    async with stack(client, sqlite, bench.look, model=model, hooks=[Transform(cut)]) as engine:
        await turn(engine)
    without_results, without_calls = model.seen[1:]
    assert [message.role for message in without_results.messages] == ["system", "user", "assistant", "tool"]
    assert [message.role for message in without_calls.messages] == ["system", "user"]
    assert all(is_reconciled(each.messages) for each in model.seen)


async def fails_in_every_way(scope, messages, generate):
    """Raise in the first steps, and answer junk in the others."""
    errors = (RuntimeError("no"), SystemExit(1), asyncio.CancelledError())
    if scope.step <= len(errors):
        raise errors[scope.step - 1]
    return (None, [], [*messages, "and this"])[scope.step - len(errors) - 1]


async def test_a_failing_transform_changes_nothing(client: Client, sqlite: Database, bench: Bench) -> None:
    """The messages from before it are sent; the hooks after it run as if it did not exist."""

    async def remind(scope, messages, generate):
        return [*messages, user_message("still here")]

    model = ListModel(*steps(5), says("Done."))
    hooks = [Transform(fails_in_every_way), Transform(remind)]
    async with stack(client, sqlite, bench.look, model=model, hooks=hooks) as engine:
        await turn(engine)
    for number, request in enumerate(model.seen):
        looks = [line for each in range(number) for line in (f"assistant: Looking at {each}.", "tool")]
        assert sent(request) == ["system: Be brief.", "user: the task", *looks, "user: still here"], number + 1


async def test_i1_a_transform_that_asks_the_model_sends_a_reconciled_history(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I1: before *every* model request: what a hook gives its own question is repaired like the rest; no tools are offered."""

    async def summarise(scope, messages, generate):
        if scope.step == 1:
            return messages
        words = await generate([messages[-2], user_message("sum up")])  # a call without its result
        return [*messages, user_message(words)]

    model = ListModel(says(LOOK), says("the summary"), says("Done."))
    async with stack(client, sqlite, bench.look, model=model, hooks=[Transform(summarise)]) as engine:
        await turn(engine)
    summary_request = model.seen[1]
    assert [message.role for message in summary_request.messages] == ["assistant", "tool", "user"]
    assert is_reconciled(summary_request.messages)
    assert list(summary_request.tools) == []
    assert sent(model.seen[2])[-1] == "user: the summary"


def steps(count: int) -> list[Any]:
    return [says(f"Looking at {number}.", call("look", f'{{"name": "{number}"}}')) for number in range(count)]


async def test_a_hook_of_a_lost_worker_runs_again_and_there_is_one_result(
    client: Client, database: Database, bench: Bench
) -> None:
    """A hook may be called again for the same call, which still has one result."""

    class Slow(Hooks):
        started = 0
        entered = asyncio.Event()

        async def before_tool(self, scope, call):
            self.started += 1
            self.entered.set()
            if self.started == 1:
                await asyncio.sleep(60)

    slow = Slow()
    async with stack(
        client, database, bench.look, model=ListModel(says(LOOK), says("Done.")), hooks=[slow], working=False
    ) as engine:
        async with engine.worker(graceful_shutdown_seconds=0):
            run = await engine.start()
            await slow.entered.wait()
        assert await engine.executions(run) == {}
        async with engine.worker():
            assert (await engine.ended(run)).status == "completed"
        assert (slow.started, bench.looked) == (2, ["x"])
        assert not isinstance((await engine.results(run))["l"], Failure)
