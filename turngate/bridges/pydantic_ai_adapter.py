"""Turngate's gate for agents of pydantic-ai: tools with ``requires_approval=True`` wait for Turngate's answer.

    gate = TurngateGate(client, source="shop")
    agent = Agent(model, tools=[Tool(refund, requires_approval=True)], capabilities=[gate],
                  output_type=[str, DeferredToolRequests])
    result = await agent.run("Refund order 1042.")
    while isinstance(result.output, DeferredToolRequests):
        answers = await gate.decided(result.output)
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)

Owns the way from deferred tool requests to calls from outside, and back. Needs the extra ``pydantic-ai``.
Source: https://ai.pydantic.dev/deferred-tools/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from turngate.bridges.external_calls import DEFAULT_TIMEOUT, ExternalCalls, MayNotRun, MayRun, Ran, fits, noted, ok_of
from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Effect
from turngate.wire.external_calls import RunOrder

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn, UserPromptPart
    from pydantic_ai.tools import (
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        ToolApproved,
        ToolDefinition,
        ToolDenied,
    )
except ImportError as missing:
    raise MissingExtraError("agents of pydantic-ai", "pydantic-ai") from missing

KEPT_AS = "turngate_call"
"""In a request's metadata: the id of the call's record at Turngate."""


class TurngateGate(AbstractCapability[Any]):
    """A capability that asks Turngate about each call that needs approval, and reports what came of it.

    A run asks about all such calls of a step at once. What Turngate answers within ``wait`` goes on in that run; for the
    rest the run ends with DeferredToolRequests, and :meth:`decided` waits.

    Args:
        client: of the API; its token needs the scopes of a program that sends calls, none that decides.
        source: the name of this program in policy and inbox: lower-case letters, digits, ``_`` and ``-``.
        conversation: put before each call's id; needed where a provider's ids repeat between conversations.
        effects: tool name → what running it twice means; of others it is ``once``.
        timeout: how long a tool may run before its call counts as lost.
        wait: how long a run itself waits for answers; zero: only what needs no person goes on in it.
    """

    def __init__(
        self,
        client: TurngateClient,
        *,
        source: str,
        conversation: str = "",
        effects: Mapping[str, Effect] | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait: timedelta = timedelta(0),
    ) -> None:
        self._outside = ExternalCalls(
            client, source=source, conversation=conversation, effects=effects, timeout=timeout
        )
        self._wait = wait

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask about the calls, note where each is kept, and answer those that are decided within ``wait``."""
        said = next((message.text for message in reversed(ctx.messages) if isinstance(message, ModelResponse)), None)
        for call in requests.approvals:
            tool = ctx.tools.get(call.tool_name)
            kept = await self._outside.ask(
                call.tool_call_id,
                name=call.tool_name,
                input=_raw(call),
                description=tool.description if tool else None,
                parameters=tool.parameters_json_schema if tool else None,
                context=said or "",
                turn=_turn(ctx),
            )
            # The metadata is part of what the caller stores, and comes back to the tool: no process has to remember it.
            requests.metadata[call.tool_call_id] = {**requests.metadata.get(call.tool_call_id, {}), KEPT_AS: kept}
        answers = await self._outside.answers(_kept(requests), wait=self._wait)
        return _results(requests, answers) if answers else None

    async def decided(self, requests: DeferredToolRequests, *, wait: timedelta | None = None) -> DeferredToolResults:
        """Wait for the answers to every call that needs approval, and return them as the next run takes them.

        The same requests get the same answers in every process. Calls of another kind (``requests.calls``) are the caller's
        own: add their results.

        ``wait``: None: as long as it takes.

        Raises:
            ConflictError: ``undecided``: the time is over before each call has its answer; ask again later.
            ConfigurationError: the agent that made the requests has no gate among its capabilities.
        """
        return _results(requests, await self._outside.all_answers(_kept(requests), wait=wait))

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Have an approved call started by Turngate, run it, and report its result."""
        del tool_def
        if not ctx.tool_call_approved:
            return await handler(args)
        kept = (ctx.tool_call_metadata or {}).get(KEPT_AS)
        if kept is None:
            raise ConfigurationError(
                f"call {call.tool_call_id!r} of {call.tool_name!r} was approved past the gate, so it does not run: pass what "
                "gate.decided(requests) returns as deferred_tool_results"
            )

        async def run(order: RunOrder) -> Any:
            fits(order, call.args_as_dict())
            return await handler(args)

        outcome = await self._outside.run(kept, run, told=_told)
        if isinstance(outcome, Ran):
            return _with_note(outcome)
        if isinstance(outcome.result, Failure):
            raise ToolFailed(outcome.text)
        return outcome.text


def _turn(ctx: RunContext[Any]) -> str:
    """Name what the user last said, of which a run that goes on with answers is a part, too."""
    asked = sum(isinstance(part, UserPromptPart) for message in ctx.messages for part in message.parts)
    return f"{ctx.conversation_id}:{asked}" if ctx.conversation_id else ""


def _raw(call: ToolCallPart) -> str:
    """The arguments as the model sent them."""
    return call.args if isinstance(call.args, str) and call.args.strip() else call.args_as_json_str()


def _kept(requests: DeferredToolRequests) -> list[str]:
    try:
        return [requests.metadata[call.tool_call_id][KEPT_AS] for call in requests.approvals]
    except KeyError:
        raise ConfigurationError(
            "nobody asked Turngate about these calls: make the agent with capabilities=[gate]"
        ) from None


def _results(requests: DeferredToolRequests, answers: Mapping[str, MayRun | MayNotRun]) -> DeferredToolResults:
    kept = zip(requests.approvals, _kept(requests), strict=True)
    found = {call.tool_call_id: _result(answers[kept_as]) for call, kept_as in kept if kept_as in answers}
    return DeferredToolResults(approvals=dict(found), metadata={each: requests.metadata[each] for each in found})


def _result(answer: MayRun | MayNotRun) -> ToolApproved | ToolDenied:
    if isinstance(answer, MayNotRun):
        return ToolDenied(answer.text)
    return ToolApproved(override_args=None if answer.edited_input is None else json.loads(answer.edited_input))


def _told(result: Any) -> Ok:
    return ok_of(result.return_value if isinstance(result, ToolReturn) else result)


def _with_note(ran: Ran[Any]) -> Any:
    """Tell the model what ran after an edit: its own call stays in the history as it was (I6)."""
    if ran.edited_input is None:
        return ran.result
    if isinstance(ran.result, ToolReturn):
        return replace(ran.result, return_value=noted(ran.result.return_value, ran.edited_input))
    return noted(ran.result, ran.edited_input)
