"""A LangChain agent whose refunds wait for a person in Turngate's inbox. If you stop it while it waits, it continues later.

Turngate runs, too (``turngate up``). The agent's own loop, model and tools don't change: you add the middleware, instead of
LangChain's human-in-the-loop one, and the line that waits. It needs Turngate's extra ``langchain``.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from turngate.bridges.langchain_adapter import TurngateMiddleware
from turngate.client import TurngateClient


@tool
async def refund(order: int, cents: int) -> str:
    """Give the money for an order back to the customer."""
    return f"{cents} cents for order {order} are on their way."


class PracticeModel(BaseChatModel):
    """Plays a model that makes one call and then reports its result, so that you can try this without an account."""

    @property
    def _llm_type(self) -> str:
        return "practice"

    def bind_tools(self, tools: Any, **_options: Any) -> PracticeModel:
        """Accept any tools: the model always makes the same call."""
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_options: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(f"Done: {messages[-1].text}")
        else:
            call = {"name": "refund", "args": {"order": 1042, "cents": 4900}, "id": f"call_{uuid4().hex}"}
            answer = AIMessage("The parcel was lost.", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class FileSaver(InMemorySaver):
    """Keeps threads in one small file, to try this; for real use, take ``langgraph-checkpoint-sqlite`` or the like."""

    def __init__(self, stored: Path) -> None:
        super().__init__()
        self._stored = stored
        if stored.exists():
            threads, writes, blobs = pickle.loads(stored.read_bytes())  # noqa: S301 - we wrote it ourselves
            self.storage.update({thread: defaultdict(dict, points) for thread, points in threads.items()})
            self.writes.update(writes)
            self.blobs.update(blobs)

    async def aput(self, *args: Any, **options: Any) -> RunnableConfig:
        """Keep a checkpoint."""
        config = await super().aput(*args, **options)
        self._keep()
        return config

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        """Keep a step's writes, such as that it waits."""
        await super().aput_writes(*args, **options)
        self._keep()

    def _keep(self) -> None:
        threads = {thread: dict(points) for thread, points in self.storage.items()}
        fresh = self._stored.with_suffix(".new")  # a process that dies in the middle leaves the old file
        fresh.write_bytes(pickle.dumps((threads, dict(self.writes), dict(self.blobs))))
        fresh.replace(self._stored)


async def serve(
    client: TurngateClient, task: str, thread: str, saver: BaseCheckpointSaver[Any], source: str = "refund-clerk"
) -> str:
    """Work on a thread's task, or continue it, and return the agent's final answer.

    ``saver``: stores threads while people decide. Another process can continue from the same saver.
    """
    gate = TurngateMiddleware(client, source=source, tools=[refund])
    agent = create_agent(
        init_chat_model(os.environ["CLERK_MODEL"]) if os.environ.get("CLERK_MODEL") else PracticeModel(),
        tools=[refund],
        system_prompt="Settle complaints. Be brief.",
        middleware=[gate],
        checkpointer=saver,
    )
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    if not (await agent.aget_state(config)).next:
        await agent.ainvoke({"messages": [("user", task)]}, config)
    while resume := await gate.decided(agent, config):
        await agent.ainvoke(resume, config)
    return str((await agent.aget_state(config)).values["messages"][-1].text)


async def main() -> None:
    """Serve the task named on the command line."""
    async with TurngateClient(os.environ["TURNGATE_URL"], token=os.environ["TURNGATE_TOKEN"]) as client:
        stored = Path("clerk.pickle")
        print(await serve(client, " ".join(sys.argv[1:]) or "Order 1042 never came.", "1042", FileSaver(stored)))
        stored.unlink()  # noqa: ASYNC240 - one small file of one conversation


if __name__ == "__main__":
    asyncio.run(main())
