"""pydantic-ai's own agent and test model, with Turngate for its deferred tools."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from support.api.gate_client import Sender
from support.engine.shop_scenarios import SCENARIOS, Bank, Call, Scenario, approved_past_the_gate, refund

from turngate.bridges.pydantic_ai_adapter import TurngateGate
from turngate.domain.errors import ConfigurationError

REQUESTS: TypeAdapter[DeferredToolRequests] = TypeAdapter(DeferredToolRequests)


@dataclass
class Shop:
    """One process. ``messages`` and ``requests``: what it stores."""

    sender: Sender
    bank: Bank
    calls: tuple[Call, ...]
    messages: bytes = b""
    requests: bytes = b""
    results: DeferredToolResults | None = None
    wait: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        self.gate = TurngateGate(self.sender.client, source=self.sender.source, wait=self.wait)
        self.agent = Agent(
            FunctionModel(self._model),
            tools=[
                Tool(self.bank.refund, requires_approval=True, description="Give money back."),
                Tool(self.look_up, requires_approval=True),
                Tool(self.delete_shop, requires_approval=True),
            ],
            capabilities=[self.gate],
            output_type=[str, DeferredToolRequests],
        )

    def _model(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        read = [str(part.content) for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
        calls = [ToolCallPart(*call) for call in self.calls if (call[2] == "again") == bool(read)]
        if read and not (calls and len(read) < len(self.calls)):
            return ModelResponse(parts=[TextPart(" / ".join(read))])
        return ModelResponse(parts=[TextPart("It is due."), *calls])

    def look_up(self, order: int) -> str:
        """Look an order up."""
        return f"order {order}"

    def delete_shop(self) -> None:
        """Delete everything."""
        self.bank.paid.append(-1)

    async def ask(self) -> None:
        self._keep(await self.agent.run("Refund me."))

    def _keep(self, result: AgentRunResult[Any]) -> None:
        self.messages, self.answer = result.all_messages_json(), result.output
        waits = isinstance(result.output, DeferredToolRequests)
        self.requests = REQUESTS.dump_json(result.output) if waits else b""

    def restarted(self) -> Shop:
        return replace(self, results=None)

    async def decided(self, **options: Any) -> None:
        if self.requests:
            self.results = await self.gate.decided(REQUESTS.validate_json(self.requests), **options)

    async def continue_run(self) -> str:
        if not self.requests:
            return str(self.answer)
        history = ModelMessagesTypeAdapter.validate_json(self.messages)
        self._keep(await self.agent.run(message_history=history, deferred_tool_results=self.results))
        return str(self.answer)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_gate(scenario: Scenario, sender: Sender) -> None:
    """Each scenario passes with deferred tools."""
    bank = Bank()
    await scenario(sender, lambda *calls: Shop(sender, bank, calls), bank)


async def test_i2_approved_past_the_gate(sender: Sender) -> None:
    """An approval by the program itself does not run the tool, with the call's record and without it."""
    bank = Bank()
    shop = Shop(sender, bank, (refund(500),))
    await shop.ask()
    shop.results = DeferredToolResults(approvals={"c1": True})
    with pytest.raises(ConfigurationError, match="was not approved by Turngate"):
        await shop.continue_run()
    shop.results.metadata = REQUESTS.validate_json(shop.requests).metadata
    await approved_past_the_gate(sender, shop, bank)


async def test_a_run_may_wait_by_itself(sender: Sender) -> None:
    """A run with a ``wait`` continues by itself, and needs no deferred requests if the answer comes in time."""
    bank = Bank()
    shop = Shop(sender, bank, (refund(500),), wait=timedelta(seconds=10))
    running = asyncio.create_task(shop.ask())
    await sender.decide("edit", args={"cents": 300})
    await running
    assert "ran_with" in str(shop.answer)
    assert bank.paid == [300]
