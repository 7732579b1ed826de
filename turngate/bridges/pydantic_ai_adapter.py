"""Turngate's gate for agents of pydantic-ai: tools with ``requires_approval=True`` wait for Turngate's answer.

    gate = TurngateGate(client, source="shop")
    agent = Agent(model, tools=[Tool(refund, requires_approval=True)], capabilities=[gate],
                  output_type=[str, DeferredToolRequests])
    result = await agent.run("Refund order 1042.")
    while isinstance(result.output, DeferredToolRequests):
        answers = await gate.decided(result.output)
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)

Turns deferred tool requests into external calls, and answers into their results. Needs the extra ``pydantic-ai``.
Source: https://ai.pydantic.dev/deferred-tools/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from turngate.bridges.external_calls import (
    DEFAULT_TIMEOUT,
    ExternalCalls,
    GatedCall,
    MayNotRun,
    MayRun,
    Ran,
    fits,
    text_with_note,
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
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
    from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn, ToolReturnPart, UserPromptPart
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

RECORD_KEY = "turngate_call"
"""In a request's metadata: the id of the call's record in Turngate."""


_DECLARED = (ToolFailed, ModelRetry, CallDeferred, ApprovalRequired)
"""With these a tool tells its model what to do next: that its call failed, was not made, or is to be made again."""


class TurngateGate(AbstractCapability[Any]):
    """A capability that asks Turngate about each call that needs approval, and reports the results.

    A run asks about all such calls of a step at once. Calls that Turngate answers within ``wait`` continue in that run; for
    the rest the run ends with DeferredToolRequests, and :meth:`decided` waits.

    Args:
        client: of the API; its token needs the scopes to send calls, and none to decide.
        source: the name of this program in policy and inbox: lower-case letters, digits, ``_`` and ``-``.
        conversation: a prefix for the calls' ids. Set it if the provider's ids repeat between conversations.
        effects: tool name → what running it twice means; ``once`` for every other tool.
        timeout: how long a tool may run before its call counts as lost.
        wait: how long a run itself waits for answers; zero: only calls that need no person continue in it.
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
        self._external = ExternalCalls(
            client, source=source, conversation=conversation, effects=effects, timeout=timeout
        )
        self._wait = wait

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask about the calls, note the id of each record, and answer those that are decided within ``wait``."""
        context = next((message.text for message in reversed(ctx.messages) if isinstance(message, ModelResponse)), None)
        conversation = [
            spoken for message in ctx.messages for part in message.parts if (spoken := _spoken(part)) is not None
        ]
        for call in requests.approvals:
            tool = ctx.tools.get(call.tool_name)
            gated = GatedCall(
                tool_call_id=call.tool_call_id,
                name=call.tool_name,
                input=_raw(call),
                description=tool.description if tool else None,
                parameters=tool.parameters_json_schema if tool else None,
                context=context or "",
                turn=_turn(ctx),
                conversation=conversation,
            )
            record = await self._external.ask(gated)
            # The caller stores the metadata, and the tool gets it back: no process has to remember the id.
            requests.metadata[call.tool_call_id] = {**requests.metadata.get(call.tool_call_id, {}), RECORD_KEY: record}
        answers = await self._external.answers(_records(requests), wait=self._wait)
        return _results(requests, answers) if answers else None

    async def decided(self, requests: DeferredToolRequests, *, wait: timedelta | None = None) -> DeferredToolResults:
        """Wait for the answer to every call that needs approval, and return the answers for the next run.

        The same requests get the same answers in every process. Other calls (``requests.calls``) are the caller's: add
        their results.

        ``wait``: None: as long as it takes.

        Raises:
            ConflictError: ``undecided``: the time is over before each call has an answer; ask again later.
            ConfigurationError: the agent that made the requests has no gate among its capabilities.
        """
        return _results(requests, await self._external.all_answers(_records(requests), wait=wait))

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run an approved call when Turngate starts it, and report its result."""
        del tool_def
        if not ctx.tool_call_approved:
            return await handler(args)
        record = (ctx.tool_call_metadata or {}).get(RECORD_KEY)
        if record is None:
            raise ConfigurationError(
                f"call {call.tool_call_id!r} of {call.tool_name!r} was not approved by Turngate, so it does not run: pass "
                "what gate.decided(requests) returns as deferred_tool_results"
            )

        async def run(order: RunOrder) -> Any:
            fits(order, call.args_as_dict())
            try:
                return await handler(args)
            except ModelRetry as retry:
                if isinstance(retry.__context__, TimeoutError):  # pydantic-ai's time limit has the model try again
                    raise retry.__context__ from None
                raise

        ended = await self._external.run(record, run, to_report=_to_report, declared=_DECLARED)
        if isinstance(ended, Ran):
            return _with_note(ended)
        if isinstance(ended.result, Failure):
            raise ToolFailed(ended.text)
        return ended.text


def _spoken(part: object) -> external.ExternalMessage | None:
    """Return what a person or a tool said with a part of a message; None: it is the model's, or the program's own."""
    if isinstance(part, UserPromptPart):
        words = [part.content] if isinstance(part.content, str) else part.content
        return external.message("person", "\n".join(each for each in words if isinstance(each, str)))
    if isinstance(part, ToolReturnPart):
        return external.message("tool", part.model_response_str(), tool=part.tool_name)
    return None


def _turn(ctx: RunContext[Any]) -> str:
    """Name the user's last prompt: a run that continues with answers is still part of its turn."""
    prompts = sum(isinstance(part, UserPromptPart) for message in ctx.messages for part in message.parts)
    return f"{ctx.conversation_id}:{prompts}" if ctx.conversation_id else ""


def _raw(call: ToolCallPart) -> str:
    """Return the arguments as the model sent them."""
    return call.args if isinstance(call.args, str) and call.args.strip() else call.args_as_json_str()


def _records(requests: DeferredToolRequests) -> list[str]:
    try:
        return [requests.metadata[call.tool_call_id][RECORD_KEY] for call in requests.approvals]
    except KeyError:
        raise ConfigurationError(
            "these calls were not sent to Turngate: create the agent with capabilities=[gate]"
        ) from None


def _results(requests: DeferredToolRequests, answers: Mapping[str, MayRun | MayNotRun]) -> DeferredToolResults:
    records = zip(requests.approvals, _records(requests), strict=True)
    approvals = {call.tool_call_id: _result(answers[record]) for call, record in records if record in answers}
    return DeferredToolResults(
        approvals=dict(approvals), metadata={call_id: requests.metadata[call_id] for call_id in approvals}
    )


def _result(answer: MayRun | MayNotRun) -> ToolApproved | ToolDenied:
    if isinstance(answer, MayNotRun):
        return ToolDenied(answer.text)
    return ToolApproved(
        override_args=None if answer.edited_input is None else json.loads(arguments_text(answer.edited_input))
    )


def _to_report(result: Any) -> Ok:
    return ok_of(result.return_value if isinstance(result, ToolReturn) else result)


def _with_note(ran: Ran[Any]) -> Any:
    """Tell the model what ran after an edit: the history keeps the model's own call (I6)."""
    if ran.edited_input is None:
        return ran.result
    if isinstance(ran.result, ToolReturn):
        return replace(ran.result, return_value=text_with_note(ran.result.return_value, ran.edited_input))
    return text_with_note(ran.result, ran.edited_input)
