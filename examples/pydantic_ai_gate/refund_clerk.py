"""A pydantic-ai agent whose refunds wait for a person in Turngate's inbox. If you stop it while it waits, it continues later.

Turngate runs, too (``turngate up``). The agent's own loop, model and tools don't change: you add the gate to its capabilities,
and the two lines that wait. It needs Turngate's extra ``pydantic-ai``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests

from turngate.bridges.pydantic_ai_adapter import TurngateGate
from turngate.client import TurngateClient

REQUESTS = TypeAdapter(DeferredToolRequests)


async def refund(order: int, cents: int) -> str:
    """Give the money for an order back to the customer."""
    return f"{cents} cents for order {order} are on their way."


def practice_model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Play a model that makes one call and then reports its result, so that you can try this without an account."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"Done: {last.content}")])
    return ModelResponse(
        parts=[TextPart("The parcel was lost."), ToolCallPart("refund", '{"order": 1042, "cents": 4900}')]
    )


async def serve(client: TurngateClient, task: str, stored: Path, source: str = "refund-clerk") -> str:
    """Work on the task, or continue the stored conversation, and return the agent's final answer.

    ``stored``: where the conversation is stored while people decide.
    """
    gate = TurngateGate(client, source=source)
    agent = Agent(
        os.environ.get("CLERK_MODEL") or FunctionModel(practice_model),
        instructions="Settle complaints. Be brief.",
        tools=[Tool(refund, requires_approval=True)],
        capabilities=[gate],
        output_type=[str, DeferredToolRequests],
    )
    left = read(stored)
    while True:
        if left is None:
            result = await agent.run(task)
        else:
            answers = await gate.decided(REQUESTS.validate_python(left["requests"]))
            history = ModelMessagesTypeAdapter.validate_python(left["messages"])
            result = await agent.run(message_history=history, deferred_tool_results=answers)
        if not isinstance(result.output, DeferredToolRequests):
            stored.unlink(missing_ok=True)  # noqa: ASYNC240 - one small file of one conversation
            return result.output
        messages = json.loads(result.all_messages_json())
        left = keep(stored, {"messages": messages, "requests": REQUESTS.dump_python(result.output, mode="json")})


def read(stored: Path) -> dict[str, Any] | None:
    """Return the stored conversation, or None."""
    return json.loads(stored.read_bytes()) if stored.exists() else None


def keep(stored: Path, waiting: dict[str, Any]) -> dict[str, Any]:
    """Replace the stored conversation. A process that dies in the middle leaves the old one."""
    fresh = stored.with_suffix(".new")
    fresh.write_text(json.dumps(waiting), encoding="utf-8")
    fresh.replace(stored)
    return waiting


async def main() -> None:
    """Serve the task named on the command line."""
    async with TurngateClient(os.environ["TURNGATE_URL"], token=os.environ["TURNGATE_TOKEN"]) as client:
        print(await serve(client, " ".join(sys.argv[1:]) or "Order 1042 never came.", Path("clerk.json")))


if __name__ == "__main__":
    asyncio.run(main())
