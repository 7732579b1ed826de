"""Turngate's gate for agents of LangChain: its human-in-the-loop middleware, answered by Turngate.

    gate = TurngateMiddleware(client, source="shop", tools=[refund])
    agent = create_agent(model, tools=[refund, look_up], middleware=[gate], checkpointer=saver)
    state = await agent.ainvoke({"messages": [("user", "Refund order 1042.")]}, config)
    while resume := await gate.decided(agent, config):
        state = await agent.ainvoke(resume, config)

Turns interrupts into external calls, and their answers into resumes. Needs the extra ``langchain``.
Source: https://docs.langchain.com/oss/python/langchain/human-in-the-loop.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from turngate.bridges.external_calls import (
    DEFAULT_TIMEOUT,
    ExternalCalls,
    GatedCall,
    MayNotRun,
    MayRun,
    Ran,
    Settled,
    fits,
)
from turngate.bridges.reports import ok_of
from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.domain.text.json_text import arguments_text
from turngate.domain.tools import external
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Effect
from turngate.wire.external_calls import RunOrder

try:
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langchain.agents.middleware.human_in_the_loop import InterruptMode
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.errors import GraphBubbleUp
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.prebuilt.tool_node import TOOL_INVOCATION_ERROR_TEMPLATE
    from langgraph.types import Command, Interrupt
except ImportError as missing:
    raise MissingExtraError("agents of LangChain", "langchain") from missing


_DID_NOT_FIT = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{")[0]


class TurngateMiddleware(HumanInTheLoopMiddleware[Any, Any, Any]):
    """LangChain's human-in-the-loop middleware, with Turngate's gate before each call of its tools.

    Use it instead of HumanInTheLoopMiddleware, before middleware that repeats calls or handles their errors. Needs a
    checkpointer, as that one does, and asynchronous runs (``ainvoke``, ``astream``).

    Args:
        client: of the API; its token needs the scopes to send calls, and none to decide.
        source: the name of this program in policy and inbox: lower-case letters, digits, ``_`` and ``-``.
        tools: the tools whose calls are gated; policy says which calls a person is asked about.
        effects: tool name → what running it twice means; ``once`` for every other tool.
        timeout: how long a tool may run before its call counts as lost.
        interrupt_mode: as of HumanInTheLoopMiddleware.
    """

    def __init__(
        self,
        client: TurngateClient,
        *,
        source: str,
        tools: Sequence[BaseTool],
        effects: Mapping[str, Effect] | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        interrupt_mode: InterruptMode = "batched",
    ) -> None:
        super().__init__(
            {tool.name: {"allowed_decisions": ["approve", "edit", "reject"]} for tool in tools},
            interrupt_mode=interrupt_mode,
        )
        self._external = ExternalCalls(client, source=source, effects=effects, timeout=timeout)
        self._described = {tool.name: convert_to_openai_tool(tool)["function"] for tool in tools}

    async def decided(
        self, agent: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig, *, wait: timedelta | None = None
    ) -> Command[Any] | None:
        """Ask about every call that the agent is interrupted for, wait for the answers, and return the command to resume.

        None: the agent is not interrupted for a gated call. The same state gets the same answers in every process. Other
        interrupts are left to the caller.

        ``wait``: None: as long as it takes. Raises ConflictError ``undecided`` if the time is over before each call has an
        answer: ask again later.
        """
        state = await agent.aget_state(config)
        message = _last_ai_message(state.values)
        waiting = [(interrupt, self._calls_of(interrupt, message)) for interrupt in state.interrupts]
        records = {call["id"]: await self._ask(config, call, state.values) for _, calls in waiting for call in calls}
        answers = await self._external.all_answers(list(records.values()), wait=wait)
        resume = {
            interrupt.id: _resume(interrupt, [_decision(call, answers[records[call["id"]]]) for call in calls])
            for interrupt, calls in waiting
            if calls
        }
        return Command(resume=resume) if resume else None

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Run an approved call when Turngate starts it, and report its result."""
        call = request.tool_call
        if call["name"] not in self.interrupt_on:
            return await handler(request)

        async def start(approved: ToolCallRequest) -> ToolMessage | Command[Any]:
            async def run(order: RunOrder) -> ToolMessage | Command[Any]:
                fits(order, approved.tool_call["args"])
                return await handler(approved)

            record = await self._ask(request.runtime.config, call, request.state)
            # A tool that asks its own question (`interrupt`) runs again from its beginning: that is LangGraph's rule.
            ended = await self._external.run(record, run, to_report=_to_report, declared=(GraphBubbleUp,))
            return ended.result if isinstance(ended, Ran) else _settled(call, ended)

        # The middleware's own part comes first: it interrupts, or replaces the call by an edited one, and then calls `start`.
        return await super().awrap_tool_call(request, start)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Refuse a gated call of an agent that runs synchronously: it would bypass the gate (I2)."""
        if request.tool_call["name"] in self.interrupt_on:
            raise ConfigurationError(
                f"{request.tool_call['name']!r} is gated by Turngate: run its agent with `ainvoke` or `astream`"
            )
        return handler(request)

    async def _ask(self, config: RunnableConfig, call: ToolCall, state: Any) -> str:
        described, message = self._described[call["name"]], _last_ai_message(state)
        prompt = next((each for each in reversed(state.get("messages", [])) if isinstance(each, HumanMessage)), None)
        gated = GatedCall(
            # Some providers count their calls from one in each conversation.
            tool_call_id=f"{config['configurable']['thread_id']}:{call['id']}",
            name=call["name"],
            input=json.dumps(call["args"], ensure_ascii=False),
            description=described.get("description"),
            parameters=described.get("parameters"),
            context=message.text if message else "",
            turn=f"{config['configurable']['thread_id']}:{prompt.id}" if prompt and prompt.id else "",
            conversation=_conversation(state),
        )
        return await self._external.ask(gated)

    def _calls_of(self, interrupt: Interrupt, message: AIMessage | None) -> list[ToolCall]:
        """Return the calls that one interrupt waits for.

        A batch names no ids, but has every gated call in the message's order.
        """
        calls = [call for call in message.tool_calls if call["name"] in self.interrupt_on] if message else []
        value = interrupt.value if isinstance(interrupt.value, dict) else {}
        if value.get("type") == "tool_approval":
            return [call for call in calls if call["id"] == value["tool_call_id"]]
        named = [action["name"] for action in value.get("action_requests", ())]
        return calls if named == [call["name"] for call in calls] else []


def _conversation(state: Any) -> list[external.ExternalMessage]:
    """Return what people and tools said, without what was added after the calls that we ask about."""
    messages: list[external.ExternalMessage] = []
    for each in state.get("messages", []):
        if isinstance(each, HumanMessage):
            messages.append(external.message("person", str(each.text)))
        elif isinstance(each, ToolMessage):
            messages.append(external.message("tool", str(each.text), tool=each.name or ""))
    return messages


def _last_ai_message(state: Any) -> AIMessage | None:
    return next((message for message in reversed(state.get("messages", [])) if isinstance(message, AIMessage)), None)


def _resume(interrupt: Interrupt, decisions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"decisions": decisions} if "action_requests" in interrupt.value else decisions[0]


def _decision(call: ToolCall, answer: MayRun | MayNotRun) -> dict[str, Any]:
    if isinstance(answer, MayNotRun):
        return {"type": "reject", "message": answer.text}
    if answer.edited_input is None:
        return {"type": "approve"}
    return {
        "type": "edit",
        "edited_action": {"name": call["name"], "args": json.loads(arguments_text(answer.edited_input))},
    }


def _settled(call: ToolCall, settled: Settled) -> ToolMessage:
    failed = isinstance(settled.result, Failure)
    return ToolMessage(
        content=settled.text, name=call["name"], tool_call_id=call["id"], status="error" if failed else "success"
    )


def _to_report(result: ToolMessage | Command[Any]) -> Ok | Failure:
    """Return a tool's result as it is reported. A Command changes the agent's state, and its messages are not reported."""
    if isinstance(result, Command):
        return Ok(value={"value": "The tool changed the state of its agent."})
    if result.status == "error":
        # The one error that says that the tool did not run: the arguments don't fit it. Any other may have come after an effect.
        kind = "tool_failure" if result.text.startswith(_DID_NOT_FIT) else "execution_error"
        return Failure(kind=kind, reason=str(result.text))
    return ok_of(result.content)
