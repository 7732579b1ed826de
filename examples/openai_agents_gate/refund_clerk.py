"""An agent of the OpenAI Agents SDK whose refunds wait for a person in Turngate's inbox.

If you stop it while it waits, it continues when you start it again. Turngate runs, too (``turngate up``). The agent's own loop,
model and tools don't change: you add the gate around its tool, and the line that waits. It needs Turngate's extra
``openai-agents``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from agents import Agent, RunConfig, Runner, RunState, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from turngate.bridges.openai_agents_adapter import TurngateGate
from turngate.client import TurngateClient


@function_tool
async def refund(order: int, cents: int) -> str:
    """Give the money for an order back to the customer."""
    return f"{cents} cents for order {order} are on their way."


def practice_model() -> ScriptedModel:
    """Return a model that makes one call and then reports its result, so that you can try this without an account."""

    def next_line(call: ModelCall) -> list[Any]:
        last = call.input[-1] if isinstance(call.input, list) else {}
        if last.get("type") == "function_call_output":
            return [assistant_message(f"Done: {last['output']}")]
        wanted = function_call("refund", '{"order": 1042, "cents": 4900}', call_id=f"call_{uuid4().hex}")
        return [assistant_message("The parcel was lost."), wanted]

    return ScriptedModel([ModelStep.respond(next_line)] * 2)


async def serve(client: TurngateClient, task: str, stored: Path, source: str = "refund-clerk") -> str:
    """Work on the task, or continue the stored run, and return the agent's final answer.

    ``stored``: where the run is stored while people decide.
    """
    gate = TurngateGate(client, source=source)
    model = os.environ.get("CLERK_MODEL")
    agent = Agent(
        name="Clerk",
        instructions="Settle complaints. Be brief.",
        tools=[gate.tool(refund)],
        model=model or practice_model(),
    )
    # The SDK sends traces to OpenAI, which needs a key. The practice model has none.
    config = RunConfig(tracing_disabled=model is None)
    left = read(stored)
    while True:
        waiting = await RunState.from_string(agent, left) if left else None
        # The task, or a stored run with its answers.
        result = await Runner.run(agent, await gate.decided(waiting) if waiting else task, run_config=config)
        if not result.interruptions:
            stored.unlink(missing_ok=True)  # noqa: ASYNC240 - one small file of one conversation
            return str(result.final_output)
        left = keep(stored, result.to_state().to_string())


def read(stored: Path) -> str | None:
    """Return the stored run, or None."""
    return stored.read_text(encoding="utf-8") if stored.exists() else None


def keep(stored: Path, waiting: str) -> str:
    """Replace the stored run. A process that dies in the middle leaves the old one."""
    fresh = stored.with_suffix(".new")
    fresh.write_text(waiting, encoding="utf-8")
    fresh.replace(stored)
    return waiting


async def main() -> None:
    """Serve the task named on the command line."""
    async with TurngateClient(os.environ["TURNGATE_URL"], token=os.environ["TURNGATE_TOKEN"]) as client:
        print(await serve(client, " ".join(sys.argv[1:]) or "Order 1042 never came.", Path("clerk.json")))


if __name__ == "__main__":
    asyncio.run(main())
