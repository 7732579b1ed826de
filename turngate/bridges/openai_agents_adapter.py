"""Turngate's gate for agents of the OpenAI Agents SDK: ``needs_approval`` answered by Turngate.

    gate = TurngateGate(client, source="shop")
    agent = Agent(name="Refunds", tools=[gate.tool(refund), look_up])
    result = await Runner.run(agent, "Refund order 1042.")
    while result.interruptions:
        result = await Runner.run(agent, await gate.decided(result.to_state()))

Turns the SDK's interruptions into external calls, and their answers into approvals. Needs the extra ``openai-agents``.
Source: https://openai.github.io/openai-agents-python/human_in_the_loop/.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from turngate.bridges.external_calls import (
    DEFAULT_TIMEOUT,
    ExternalCalls,
    GatedCall,
    MayNotRun,
    Ran,
    text_with_note,
)
from turngate.bridges.reports import ok_of
from turngate.client import TurngateClient
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import MissingExtraError
from turngate.domain.tools import external
from turngate.domain.tools.tool import Effect
from turngate.wire.external_calls import RunOrder

try:
    from agents import (
        FunctionTool,
        ItemHelpers,
        ModelBehaviorError,
        RunState,
        ToolOutputFileContent,
        ToolOutputImage,
        ToolOutputText,
    )
    from agents.tool import (
        maybe_invoke_function_tool_failure_error_function,
        set_function_tool_failure_error_function,
    )
    from agents.tool_context import ToolContext
except ImportError as missing:
    raise MissingExtraError("agents of the OpenAI Agents SDK", "openai-agents") from missing

_ToolOutput = ToolOutputText | ToolOutputImage | ToolOutputFileContent


class TurngateGate:
    """Asks Turngate about each call of its tools, and reports the results.

    The SDK's approval cannot change the arguments, so the gated tool does: an edited call runs with the approved arguments,
    and its result tells the model so.

    Args:
        client: of the API; its token needs the scopes to send calls, and none to decide.
        source: the name of this program in policy and inbox: lower-case letters, digits, ``_`` and ``-``.
        conversation: a prefix for the calls' ids. Set it if the provider's ids repeat between conversations, or if a call that
            a person rejected should be closed when the model repeats it.
        effects: tool name → what running it twice means; ``once`` for every other tool.
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
        self._external = ExternalCalls(
            client, source=source, conversation=conversation, effects=effects, timeout=timeout
        )
        self._tools: dict[str, FunctionTool] = {}
        # Without the conversation's name, the last input could be from any conversation.
        self._known = bool(conversation)

    def tool(self, tool: FunctionTool) -> FunctionTool:
        """Return the tool with the gate: each call needs approval, starts when Turngate allows it, and is reported."""
        # Its errors and its time limit are dealt with here: the SDK would tell the model to try again, whatever has happened.
        bare = set_function_tool_failure_error_function(replace(tool, timeout_seconds=None), None)

        async def start(context: ToolContext[Any], order: RunOrder) -> Any:
            async with asyncio.timeout(tool.timeout_seconds):
                return await bare.on_invoke_tool(context, order.input)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            call = _call(gated, context.tool_call_id, arguments)
            # Usually `decided` has asked before, with more. The SDK has only the run's input here.
            record = await self._external.ask(replace(call, conversation=_conversation(context.turn_input)))
            try:
                # The approved arguments run, byte for byte; a person may have edited them.
                ended = await self._external.run(
                    record, lambda order: start(context, order), to_report=ok_of, declared=(ModelBehaviorError,)
                )
            except Exception as error:
                text = await maybe_invoke_function_tool_failure_error_function(
                    function_tool=tool, context=context, error=error
                )
                if text is None:
                    raise
                return text
            return _with_note(ended) if isinstance(ended, Ran) else ended.text

        gated = replace(tool, on_invoke_tool=invoke, needs_approval=True, timeout_seconds=None)
        self._tools[gated.name] = gated
        return gated

    async def decided(self, state: RunState[Any], *, wait: timedelta | None = None) -> RunState[Any]:
        """Ask about every interruption of a gated tool, wait for the answers, and return the state with them.

        The same state gets the same answers in every process. Interruptions of other tools are left to the caller.

        ``wait``: None: as long as it takes. Raises ConflictError ``undecided`` if the time is over before each call has an
        answer: ask again later.
        """
        waiting = [(item, self._tools[item.name]) for item in state.get_interruptions() if item.name in self._tools]
        if not waiting:
            return state
        stored = state.to_json()
        turn, conversation = _turn(stored) if self._known else "", _conversation(_items(stored))
        calls = [
            replace(
                _call(tool, item.call_id or "", item.arguments),
                context=_words(stored, item.call_id),
                turn=turn,
                conversation=conversation,
            )
            for item, tool in waiting
        ]
        records = [await self._external.ask(call) for call in calls]
        answers = await self._external.all_answers(records, wait=wait)
        for (item, _tool), record in zip(waiting, records, strict=True):
            answer = answers[record]
            if isinstance(answer, MayNotRun):
                state.reject(item, rejection_message=answer.text)
            else:
                state.approve(item)
        return state


def _call(tool: FunctionTool, tool_call_id: str, arguments: str | None) -> GatedCall:
    return GatedCall(
        tool_call_id=tool_call_id,
        name=tool.name,
        input=arguments or "{}",
        description=tool.description,
        parameters=tool.params_json_schema,
    )


def _items(stored: Mapping[str, Any]) -> list[Any]:
    """Return the run's input, and what its model and its tools have added."""
    original = ItemHelpers.input_to_new_input_list(stored["original_input"])
    return [*original, *(each.get("raw_item", {}) for each in stored.get("generated_items", []))]


def _words(stored: Mapping[str, Any], call_id: str | None) -> str:
    """Return what the model said in the response that has this call; empty if it said nothing."""
    for response in stored.get("model_responses", []):
        if any(item.get("call_id") == call_id for item in response["output"]):
            messages = [item for item in response["output"] if item.get("role") == "assistant"]
            return "\n".join(_text(item.get("content")) for item in messages)
    return ""


def _conversation(items: Sequence[Any]) -> list[external.ExternalMessage]:
    """Return what people and tools said: the run's input, and the outputs of the tools that it has run."""
    names = {each.get("call_id"): each.get("name") for each in items if each.get("type") == "function_call"}
    messages: list[external.ExternalMessage] = []
    for each in items:
        if each.get("role") == "user":
            messages.append(external.message("person", _text(each.get("content"))))
        elif each.get("type") == "function_call_output":
            messages.append(
                external.message("tool", _text(each.get("output")), tool=names.get(each.get("call_id")) or "")
            )
    return messages


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(each["text"]) for each in parts if isinstance(each, dict) and "text" in each)


def _turn(stored: Mapping[str, Any]) -> str:
    """Name the run's input, which does not change while it waits; empty if the provider's server stores the conversation."""
    if stored.get("conversation_id") or stored.get("previous_response_id"):
        return ""
    return framed_sha256(json.dumps(stored["original_input"], sort_keys=True))


def _with_note(ran: Ran[Any]) -> Any:
    """Tell the model what ran after an edit: the history keeps the model's own call (I6)."""
    if ran.edited_input is None:
        return ran.result
    parts = ran.result if isinstance(ran.result, list) else [ran.result]
    if all(isinstance(part, _ToolOutput) for part in parts):
        return [ToolOutputText(text=text_with_note("See below.", ran.edited_input)), *parts]
    return text_with_note(ran.result, ran.edited_input)
