"""The built-in agent of a source of external calls: its one tool, and the one response of its runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pydantic import JsonValue, TypeAdapter
from temporalio.exceptions import ApplicationError

from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.conversation.messages import Message, ModelResponse, TextPart, ToolCallPart
from turngate.domain.tools import external
from turngate.domain.tools.results import Failure
from turngate.domain.tools.tool import Tool
from turngate.domain.tools.toolkit import Toolkit
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.runs import external_calls, runs
from turngate.store.runs.external_calls import ExternalCall
from turngate.toolkits.json_schema import JsonSchemaParameters

REJECTION_LASTS: Final = timedelta(hours=1)
"""How long a rejection counts for the same call sent again, if the sender does not name the turn that it belongs to."""
_RESULT: Final[TypeAdapter[dict[str, JsonValue]]] = TypeAdapter(dict[str, JsonValue])


def agent_named(name: str) -> Agent:
    """Return the agent of a source, without the tool: each of its runs has its own."""
    return Agent(
        name=name,
        instructions="Calls that another program makes and runs itself.",
        toolkit=Toolkit.of(),
        model=external.MODEL,
        description=f"Calls of {external.source_of(name)!r}",
    )


def tool_of(call: ExternalCall) -> Tool:
    """Return the call's tool as policy, people and the digest see it; nothing here can run it."""
    declared = call.declared
    return Tool(
        name=declared.name,
        description=declared.description,
        kind="external",
        parameters=JsonSchemaParameters(declared.parameters),
        success=_RESULT,
        effect=declared.effect,
        ask=declared.ask,
        timeout=timedelta(seconds=declared.timeout_seconds),
    )


async def agent_of(conn: Connection, run: runs.Run) -> Agent:
    """Return the agent of an external call's run, with that call's tool."""
    agent, tool = agent_named(run.agent), tool_of(await _call(conn, run))
    return Agent(
        name=agent.name,
        instructions=agent.instructions,
        toolkit=Toolkit.of(tool),
        model=agent.model,
        description=agent.description,
    )


async def external_response(conn: Connection, run: runs.Run, step: int) -> ModelResponse:
    """Return the response of a run that asks no model: the call as it was sent, and after its result an end."""
    call = await _call(conn, run)
    if step > 1:
        end = TextPart(text=f"The call of {external.source_of(run.agent)!r} has its result.")
        return ModelResponse(
            message=Message(role="assistant", parts=(end,)), finish_reason="stop", model=external.MODEL
        )
    sent = ToolCallPart(tool_call_id=call.tool_call_id, tool_name=call.declared.name, input=call.input)
    parts = (TextPart(text=call.context), sent) if call.context else (sent,)
    return ModelResponse(
        message=Message(role="assistant", parts=parts), finish_reason="tool_calls", model=external.MODEL
    )


async def rejected_before(conn: Connection, run: runs.Run) -> Failure | None:
    """Return a person's earlier rejection of the same call in the same turn of the sender; None: there is none (I12)."""
    return await external_calls.rejected_before(conn, await _call(conn, run), since=as_text(now() - REJECTION_LASTS))


async def _call(conn: Connection, run: runs.Run) -> ExternalCall:
    call = await external_calls.get(conn, run.id)
    if call is None:
        why = f"run {run.id!r} bears the name of a source of calls from outside, and the store has no such call for it"
        raise ApplicationError(why, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True)
    return call
