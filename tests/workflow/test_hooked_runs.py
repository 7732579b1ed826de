"""Hooks together with something else: interrupts, bounds, retries, control calls, sub-agents, clipping, trimmed conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from support.engine.stack import ListModel, call, says, stack
from support.engine.tools import Amount, Bench
from temporalio.client import Client

from turngate import Agent, Deny, HookedCall, Hooks, Limits, RunScope, ToolFailure, Toolkit, sub_agent, tool
from turngate.activities import run_tool
from turngate.activities.model import model_call
from turngate.activities.runs import step_boundary
from turngate.domain.agents.hooks import Generate
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.toolkits.control_calls import finish

LOOK = call("look", '{"name": "x"}', "l")


class Watch(Hooks):
    """Records what it gets. ``denied``: names of tools that it denies."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.before: list[str] = []
        self.after: list[tuple[str, Ok | Failure]] = []
        self.steps: list[tuple[str, int, list[str]]] = []

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        self.before.append(call.tool_call_id)
        return Deny("Not today.") if call.tool_name in self.denied else None

    async def after_tool(self, scope: RunScope, call: HookedCall, result: Ok | Failure) -> None:
        self.after.append((call.tool_call_id, result))

    async def after_step(self, scope: RunScope, results: Sequence[Message]) -> None:
        answered = [part.tool_call_id for message in results for part in message.results]
        self.steps.append((scope.agent, scope.step, answered))


class HoldsOn(Hooks):
    """Works for an hour and keeps its own cancellation back: then it has no objections."""

    def __init__(self) -> None:
        self.working = asyncio.Event()

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        self.working.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return None
        return None


# before_tool


async def test_i2_a_call_does_not_start_when_the_run_was_interrupted_under_its_hook(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I1, I2: the hook swallows the cancellation that the interrupt sends; the call gets its closure and never starts."""
    hook = HoldsOn()
    async with stack(client, sqlite, bench.look, model=ListModel(says(LOOK)), hooks=[hook]) as engine:
        run = await engine.start()
        await asyncio.wait_for(hook.working.wait(), timeout=60)
        await engine.interrupt(run)
        assert (await engine.ended(run)).status == "interrupted"
        result = (await engine.results(run))["l"]
        assert isinstance(result, Failure)
        assert (result.kind, result.fields["started"]) == ("interrupted", False)
        assert (bench.looked, await engine.executions(run)) == ([], {})


async def test_i2_a_hook_can_deny_an_edited_call_and_what_has_no_handler(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """I2, I6: the hook denies the edited arguments; it would have allowed the model's own.

    A control call is not carried out and a sub-agent's run is not created; the model reads why and the run continues.
    """

    class Cap(Hooks):
        async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
            return Deny("Too much.") if isinstance(call.params, Amount) and call.params.cents > 10 else None

    helper = Agent(
        name="helper", instructions="Help.", toolkit=Toolkit.of(), model="scripted:test", description="Helps."
    )
    watch = Watch("finish", "helper")
    step = says(
        call("helper", '{"task": "Help."}', "h"),
        call("pay", '{"cents": 5}', "p"),
        call("finish", '{"answer": "Early."}', "f"),
    )
    model, tools = ListModel(step, says("Late.")), (finish, sub_agent(helper), bench.pay)
    async with stack(client, sqlite, *tools, model=model, hooks=[Cap(), watch]) as engine:
        run = await engine.start()
        await engine.decide(await engine.request(run), "edit", args='{"cents": 500}')
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert [(results[each].kind, results[each].fields["refused_by"]) for each in "fhp"] == [("denied", "hook")] * 3
        assert (await engine.history(run))[-1].text == "Late."
        assert (len(model.seen), bench.paid) == (2, [])
        assert await engine.executions(run) == {}
        assert (sorted(watch.before), watch.after) == (["f", "h"], []), "no hook sees a call that an earlier one denied"


@pytest.mark.exhaustive
async def test_a_sub_agent_has_hooks_of_its_own(client: Client, sqlite: Database, bench: Bench) -> None:
    """Each agent's hooks see that agent's calls and steps, and no others."""
    above, below = Watch(), Watch("look")
    helper = Agent(
        name="helper",
        instructions="Help.",
        toolkit=Toolkit.of(bench.look),
        model="scripted:test",
        description="Helps.",
        hooks=[below],
    )
    model = ListModel(says(call("helper", '{"task": "Look."}', "h")), says(LOOK), says("No luck."), says("Done."))
    async with stack(client, sqlite, sub_agent(helper), model=model, hooks=[above]) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        await engine.closed(run)
        assert (above.before, below.before) == (["h"], ["l"])
        assert bench.looked == []
        assert above.steps == [("agent", 1, ["h"]), ("agent", 2, [])]
        assert below.steps == [("helper", 1, ["l"]), ("helper", 2, [])]


# after_tool, after_step


class TooMuch(ToolFailure):
    reason: str


async def test_after_tool_sees_failures_and_whole_results_of_what_ran(
    client: Client, sqlite: Database, bench: Bench
) -> None:
    """A declared failure as such, a long result before it is clipped for the model, and nothing of a call that did not run."""

    @tool(effect="once", ask=False, failures=[TooMuch])
    async def fail() -> None:
        """Fail."""
        raise TooMuch(reason="Too much.")

    @tool(effect="read", ask=False)
    async def long() -> str:
        """Say a lot."""
        return "x" * 5_000

    watch = Watch("look")
    step = says(call("fail", "{}", "f"), call("long", "{}", "g"), LOOK, call("nope", "{}", "n"))
    model = ListModel(step, says("Done."))
    tools = [fail, long, bench.look]
    limits = Limits(result_chars=1_000)
    async with stack(client, sqlite, *tools, model=model, limits=limits, hooks=[watch]) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        seen = dict(watch.after)
        assert sorted(seen) == ["f", "g"]
        assert seen["f"] == (await engine.results(run))["f"]
        assert isinstance(seen["f"], Failure)
        assert seen["f"].kind == "too_much"
        assert seen["g"] == Ok(value={"value": "x" * 5_000})
        assert (await engine.results(run))["g"].value["truncated"]


async def test_after_step_is_called_once_for_each_step_and_holds_up_no_one(
    client: Client, sqlite: Database, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the results of all of its calls, the control call's own among them, also for a step that ``finish`` closes.

    A step is closed by the next model call; the attempts of that which fail do not close it again. A hook that hangs holds up
    neither the run nor the hooks after it.
    """
    monkeypatch.setattr(run_tool, "HOOK_SECONDS", 0.1)
    monkeypatch.setattr(step_boundary, "HOOK_SECONDS", 0.1)

    class Hangs(Hooks):
        async def after_tool(self, scope: RunScope, call: HookedCall, result: Ok | Failure) -> None:
            await asyncio.sleep(3600)

        async def after_step(self, scope: RunScope, results: Sequence[Message]) -> None:
            await asyncio.sleep(3600)

    watch = Watch()
    busy = ModelError("busy", error_class="rate_limited", retryable=True, retry_after_seconds=0.05)
    last = says(LOOK.model_copy(update={"tool_call_id": "m"}), call("finish", '{"answer": "So."}', "f"))
    model = ListModel(says(LOOK), busy, last)
    async with stack(client, sqlite, bench.look, finish, model=model, hooks=[Hangs(), watch]) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        await engine.closed(run)
        assert len(model.seen) == 3
        assert [each for each in watch.after if each[0] in "lm"] == [
            (each, Ok(value={"value": "seen x"})) for each in "lm"
        ]
        assert watch.steps == [("agent", 1, ["l"]), ("agent", 2, ["m", "f"])]


# before_model

Change = Callable[[Sequence[Message], Generate], Awaitable[Any]]


class Transform(Hooks):
    def __init__(self, change: Change) -> None:
        self.change = change

    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        changed: Sequence[Message] = await self.change(messages, generate)
        return changed


async def lazily(messages: Sequence[Message], generate: Generate) -> Any:
    """Return an iterator where a sequence is required: an easy mistake."""
    return (message for message in messages if message.role != "system")


async def the_newest(messages: Sequence[Message], generate: Generate) -> Any:
    """A cut that is fine until the newest message holds results: without their calls, nothing of it can be sent."""
    return messages[-1:]


async def never_lets_go(messages: Sequence[Message], generate: Generate) -> Any:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return messages[:1]
    return messages


@pytest.mark.parametrize(
    ("change", "first", "second"),
    [
        (lazily, "user", "user assistant tool"),
        (the_newest, "user", "system user assistant tool"),
        (never_lets_go, "system user", "system user assistant tool"),
    ],
)
async def test_i1_whatever_a_transform_answers_something_can_be_sent(
    client: Client,
    sqlite: Database,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    first: str,
    second: str,
) -> None:
    """I1: messages in any shape are taken as such; an answer that leaves nothing to send, or comes late, changes nothing."""
    monkeypatch.setattr(model_call, "TRANSFORM_SECONDS", 0.1 if change is never_lets_go else 20.0)
    model = ListModel(says(LOOK), says("Done."))
    async with stack(client, sqlite, bench.look, model=model, hooks=[Transform(change)]) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        assert [message.role for message in await engine.history(run)] == ["user", "assistant", "tool", "assistant"]
    sent = [" ".join(message.role for message in request.messages) for request in model.seen]
    assert sent == [first, second]
    assert all(is_reconciled(request.messages) for request in model.seen)
