"""The OpenAI Agents SDK's own runner and scripted model, with Turngate for the approvals."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from agents import Agent, FunctionTool, RunConfig, Runner, RunState, function_tool
from agents.exceptions import UserError
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from support.api.gate_client import Sender
from support.engine.shop_scenarios import SCENARIOS, Bank, Call, Scenario, approved_past_the_gate, refund

from turngate.bridges.openai_agents_adapter import TurngateGate

OFFLINE = RunConfig(tracing_disabled=True)
"""The SDK would send traces to its maker."""


@dataclass
class Shop:
    """One process. ``stored``: its run state, as JSON."""

    sender: Sender
    bank: Bank
    calls: tuple[Call, ...]
    stored: str = ""
    state: Any = None
    answer: str = ""

    def __post_init__(self) -> None:
        self.gate = TurngateGate(self.sender.client, source=self.sender.source, conversation="7")
        first = [function_call(name, raw, call_id=key) for name, raw, key in self.calls if key != "again"]
        more = [function_call(name, raw, call_id=key) for name, raw, key in self.calls if key == "again"]
        steps = [
            [assistant_message("It is due."), *first],
            *([more] if more else []),
            ModelStep.respond(_what_it_read),
        ]
        self.agent = Agent(
            name="Clerk",
            model=ScriptedModel(steps[1:] if self.stored else steps),
            tools=[self.gate.tool(tool) for tool in self._tools()],
        )

    def _tools(self) -> list[FunctionTool]:
        @function_tool(name_override="refund", failure_error_function=None)
        async def give(cents: int) -> dict[str, int]:
            """Give money back."""
            return self.bank.refund(cents)

        @function_tool
        async def look_up(order: int) -> str:
            """Look an order up."""
            return f"order {order}"

        @function_tool
        async def delete_shop() -> None:
            """Delete everything."""
            self.bank.paid.append(-1)

        return [give, look_up, delete_shop]

    async def ask(self) -> None:
        result = await Runner.run(self.agent, "Refund me.", run_config=OFFLINE)
        self.stored = result.to_state().to_string()

    def restarted(self) -> Shop:
        return replace(self, state=None)

    async def decided(self, **options: Any) -> None:
        self.state = await self.gate.decided(await RunState.from_string(self.agent, self.stored), **options)

    async def continue_run(self) -> str:
        try:
            result = await Runner.run(self.agent, self.state, run_config=OFFLINE)
        except UserError as error:
            raise error.__cause__ or error from None
        if result.interruptions:
            self.stored = result.to_state().to_string()
        return str(result.final_output)


def _what_it_read(call: ModelCall) -> Any:
    read = [str(item["output"]) for item in call.input if item.get("type") == "function_call_output"]
    return [assistant_message(" / ".join(read))]


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_gate(scenario: Scenario, sender: Sender) -> None:
    """Each scenario passes with tools that need approval."""
    bank = Bank()
    await scenario(sender, lambda *calls: Shop(sender, bank, calls), bank)


async def test_a_call_without_arguments(sender: Sender) -> None:
    """It has an empty object as arguments, in the request and when it runs, and comes with its own response's words."""

    @function_tool
    async def ring() -> str:
        """Ring the customer."""
        return "rang"

    @function_tool
    async def look() -> str:
        """Look who waits."""
        return "she"

    gate = TurngateGate(sender.client, source=sender.source)
    steps = [
        [assistant_message("First I look."), function_call("look", "{}", call_id="c0")],
        [assistant_message("She waits."), function_call("ring", "", call_id="c1")],
    ]
    model = ScriptedModel([*steps, ModelStep.respond(_what_it_read)])
    agent = Agent(name="Clerk", model=model, tools=[gate.tool(ring), look])
    waiting = asyncio.create_task(gate.decided((await Runner.run(agent, "Ring.", run_config=OFFLINE)).to_state()))
    request = await sender.decide()
    assert (request["input"], request["agent_words"]) == ("{}", "She waits.")
    assert (await Runner.run(agent, await waiting, run_config=OFFLINE)).final_output == "she / rang"


async def test_i2_approved_past_the_gate(sender: Sender) -> None:
    """An approval by the program itself does not run the tool."""
    bank = Bank()
    shop = Shop(sender, bank, (refund(500),))
    await shop.ask()
    shop.state = await RunState.from_string(shop.agent, shop.stored)
    shop.state.approve(shop.state.get_interruptions()[0])
    await approved_past_the_gate(sender, shop, bank)


async def test_the_rest_of_the_agent_is_left_alone(sender: Sender) -> None:
    """A tool that needs approval but has no gate is left to the program's own answer."""

    @function_tool(needs_approval=True)
    async def ring() -> str:
        """Ring the customer."""
        return "rang"

    gate = TurngateGate(sender.client, source=sender.source)
    model = ScriptedModel([[function_call("ring", "{}", call_id="c1")], ModelStep.respond(_what_it_read)])
    agent = Agent(name="Clerk", model=model, tools=[ring])
    state = await gate.decided((await Runner.run(agent, "Ring her.", run_config=OFFLINE)).to_state())
    assert [item.name for item in (await Runner.run(agent, state, run_config=OFFLINE)).interruptions] == ["ring"]
    state.approve(state.get_interruptions()[0])
    assert (await Runner.run(agent, state, run_config=OFFLINE)).final_output == "rang"
    assert await sender.none_pending()
