"""Turngate's gate for agents of the OpenAI Agents SDK: ``needs_approval`` answered by Turngate.

    gate = TurngateGate(client, source="shop")
    agent = Agent(name="Refunds", tools=[gate.tool(refund), look_up])
    result = await Runner.run(agent, "Refund order 1042.")
    while result.interruptions:
        result = await Runner.run(agent, await gate.decided(result.to_state()))

Owns the way from the SDK's interruptions to calls from outside, and back. Needs the extra ``openai-agents``.
Source: https://openai.github.io/openai-agents-python/human_in_the_loop/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from turngate.bridges.external_calls import DEFAULT_TIMEOUT, ExternalCalls, MayNotRun, Ran, noted, ok_of
from turngate.client import TurngateClient
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import MissingExtraError
from turngate.domain.tools.tool import Effect

try:
    from agents import (
        FunctionTool,
        RunState,
        ToolOutputFileContent,
        ToolOutputImage,
        ToolOutputText,
    )
    from agents.tool_context import ToolContext
except ImportError as missing:
    raise MissingExtraError("agents of the OpenAI Agents SDK", "openai-agents") from missing

_Shown = ToolOutputText | ToolOutputImage | ToolOutputFileContent


class TurngateGate:
    """Asks Turngate about each call of the tools it is given, and reports what came of it.

    The SDK's approval takes no other arguments than the model's. The tool does: an edited call runs with the arguments that
    were approved, and its result tells the model so.

    Args:
        client: of the API; its token needs the scopes of a program that sends calls, none that decides.
        source: the name of this program in policy and inbox: lower-case letters, digits, ``_`` and ``-``.
        conversation: put before each call's id; needed where a provider's ids repeat between conversations, and to close a call
            that a person rejected when the model makes it again.
        effects: tool name → what running it twice means; of others it is ``once``.
        timeout: how long a tool may run before its call counts as lost.
    """

    def __init__(
        self,
        client: TurngateClient,
        *,
        source: str,
        conversation: str = "",
        effects: Mapping[str, Effect] | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._outside = ExternalCalls(
            client, source=source, conversation=conversation, effects=effects, timeout=timeout
        )
        self._tools: dict[str, FunctionTool] = {}
        # Without the conversation's name, what was said last could have been said in any of them.
        self._known = bool(conversation)

    def tool(self, tool: FunctionTool) -> FunctionTool:
        """Return the tool behind the gate: each call needs approval, starts with Turngate's leave, and is reported."""
        inner = tool.on_invoke_tool

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            kept = await self._ask(gated, context.tool_call_id, arguments)
            # What was approved runs, byte for byte; it may have been edited.
            outcome = await self._outside.run(kept, lambda order: inner(context, order.input), told=ok_of)
            return _with_note(outcome) if isinstance(outcome, Ran) else outcome.text

        gated = replace(tool, on_invoke_tool=invoke, needs_approval=True)
        self._tools[gated.name] = gated
        return gated

    async def decided(self, state: RunState[Any], *, wait: timedelta | None = None) -> RunState[Any]:
        """Ask about every interruption of a gated tool, wait for the answers, and return the state with them in it.

        The same state gets the same answers in every process. Interruptions of other tools are left to the caller.

        ``wait``: None: as long as it takes. Raises ConflictError ``undecided`` when the time is over before each call has its
        answer: ask again later.
        """
        waiting = [(item, self._tools[item.name]) for item in state.get_interruptions() if item.name in self._tools]
        turn = _turn(state) if self._known and waiting else ""
        kept = [await self._ask(tool, item.call_id or "", item.arguments or "", turn) for item, tool in waiting]
        answers = await self._outside.all_answers(kept, wait=wait)
        for (item, _tool), kept_as in zip(waiting, kept, strict=True):
            answer = answers[kept_as]
            if isinstance(answer, MayNotRun):
                state.reject(item, rejection_message=answer.text)
            else:
                state.approve(item)
        return state

    async def _ask(self, tool: FunctionTool, tool_call_id: str, arguments: str, turn: str = "") -> str:
        return await self._outside.ask(
            tool_call_id,
            name=tool.name,
            input=arguments or "{}",
            description=tool.description,
            parameters=tool.params_json_schema,
            turn=turn,
        )


def _turn(state: RunState[Any]) -> str:
    """Name what the run was started with, which stays as it is while it waits; empty where its maker's server keeps the rest."""
    kept = state.to_json()
    if kept.get("conversation_id") or kept.get("previous_response_id"):
        return ""
    return framed_sha256(json.dumps(kept["original_input"], sort_keys=True))


def _with_note(ran: Ran[Any]) -> Any:
    """Tell the model what ran after an edit: its own call stays in the history as it was (I6)."""
    if ran.edited_input is None:
        return ran.result
    parts = ran.result if isinstance(ran.result, list) else [ran.result]
    if all(isinstance(part, _Shown) for part in parts):
        return [ToolOutputText(text=noted("See below.", ran.edited_input)), *parts]
    return noted(ran.result, ran.edited_input)
