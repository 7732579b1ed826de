"""LangChain's own agent and human-in-the-loop middleware, with Turngate for the answers."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from support.api.gate_client import Sender
from support.engine.shop_scenarios import (
    SCENARIOS,
    Bank,
    Call,
    Scenario,
    approved_past_the_gate,
    edited,
    refund,
    several_at_once,
)

from turngate.bridges.langchain_adapter import TurngateMiddleware
from turngate.domain.errors import ConfigurationError

CONFIG = {"configurable": {"thread_id": "42"}}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep LangSmith's tracing off, whatever the developer's environment says."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "false")


class Clerk(BaseChatModel):
    """A model that makes its calls at once, then repeats the results that it read."""

    calls: tuple[Call, ...]

    @property
    def _llm_type(self) -> str:
        return "clerk"

    def bind_tools(self, tools: Sequence[Any], **_options: Any) -> Clerk:
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> ChatResult:
        read = [str(message.content) for message in messages if isinstance(message, ToolMessage)]
        calls = [
            {"name": name, "args": json.loads(raw), "id": call_id}
            for name, raw, call_id in self.calls
            if (call_id == "again") == bool(read)
        ]
        over = read and not (calls and len(read) < len(self.calls))
        message = AIMessage(" / ".join(read)) if over else AIMessage("It is due.", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Shop:
    """One process. ``saver``: what it stores, a thread's checkpoints."""

    def __init__(self, sender: Sender, bank: Bank, calls: tuple[Call, ...], saver: InMemorySaver, mode: Any) -> None:
        self.again = functools.partial(Shop, sender, bank, calls, mode=mode)
        self.saver = saver
        self.resume: Command[Any] | None = None
        tools = [
            StructuredTool.from_function(bank.refund, description="Give money back."),
            tool(look_up),
            StructuredTool.from_function(lambda: bank.paid.append(-1), name="delete_shop", description="Delete all."),
        ]
        self.gate = TurngateMiddleware(sender.client, source=sender.source, tools=tools, interrupt_mode=mode)
        self.agent = create_agent(Clerk(calls=calls), tools=tools, middleware=[self.gate], checkpointer=saver)

    async def ask(self) -> None:
        await self.agent.ainvoke({"messages": [("user", "Refund me.")]}, CONFIG)

    def restarted(self) -> Shop:
        return self.again(saver=copy.deepcopy(self.saver))

    async def decided(self, **options: Any) -> None:
        self.resume = await self.gate.decided(self.agent, CONFIG, **options)

    async def continue_run(self) -> str:
        state = await self.agent.ainvoke(self.resume, CONFIG)
        return str(state["messages"][-1].content)


def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


PER_CALL = (edited, several_at_once)
"""Where a call's own interrupt goes another way than a turn's."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("scenario", "mode"),
    [*((each, "batched") for each in SCENARIOS), *((each, "per_call") for each in PER_CALL)],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_gate(scenario: Scenario, mode: str, sender: Sender) -> None:
    """Each scenario passes with the middleware, whether it interrupts once per turn or once per call."""
    bank = Bank()
    await scenario(sender, lambda *calls: Shop(sender, bank, calls, InMemorySaver(), mode), bank)


async def test_i2_approved_past_the_gate(sender: Sender) -> None:
    """An approval by the program itself does not run the tool; nor does a synchronous run, which can't ask."""
    bank = Bank()
    shop = Shop(sender, bank, (refund(500),), InMemorySaver(), "batched")
    await shop.ask()
    shop.resume = Command(resume={"decisions": [{"type": "approve"}]})
    again = shop.restarted()
    with pytest.raises(ConfigurationError, match="ainvoke"):
        await asyncio.to_thread(again.agent.invoke, shop.resume, CONFIG)
    await approved_past_the_gate(sender, shop, bank)


async def test_the_rest_of_the_agent_is_left_alone(sender: Sender) -> None:
    """A tool without a gate runs without Turngate, and Turngate doesn't answer the tool's own interrupt."""

    @tool
    def ring(minutes: int) -> str:
        """Ring the customer."""
        return f"rang after {interrupt({'ask': 'Now?', 'minutes': minutes})}"

    gate = TurngateMiddleware(sender.client, source=sender.source, tools=[tool(look_up)])
    agent = create_agent(
        Clerk(calls=(("ring", '{"minutes": 5}', "c1"),)), tools=[ring], middleware=[gate], checkpointer=InMemorySaver()
    )
    await agent.ainvoke({"messages": [("user", "Ring her.")]}, CONFIG)
    assert await gate.decided(agent, CONFIG) is None
    state = await agent.ainvoke(Command(resume="an hour"), CONFIG)
    assert state["messages"][-1].text == "rang after an hour"
    assert await sender.none_pending()
