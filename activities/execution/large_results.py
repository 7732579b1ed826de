"""Results too large to show: the part that the model gets, and the engine's own tool ``read_result`` for the rest."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from turngate import ToolContext, ToolFailure, Toolkit, tool
from turngate.activities.engine.engine import Engine
from turngate.activities.planning.budgets import extend_budget_tool
from turngate.domain.conversation.clipping import READ_RESULT, clipped
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.store.runs import messages, runs, whole_results

MAX_CHARS = 20_000


class ReadResultParams(BaseModel):
    """Which part of which result."""

    model_config = ConfigDict(extra="forbid")

    result_id: str = Field(description="The `result_id` of a truncated result.")
    offset: int = Field(default=0, ge=0, description="First character, counting from 0.")
    limit: int = Field(default=10_000, ge=1, le=MAX_CHARS, description="Most characters to return.")


class ResultPart(BaseModel):
    """Part of a result's JSON text. ``next_offset``: where to continue; None at the end."""

    text: str
    offset: int
    total_chars: int
    next_offset: int | None


class NoSuchResult(ToolFailure):
    """No result of this conversation is kept under that id."""

    reason: str


def built_in_toolkit(database: Database) -> Toolkit:
    """Return the engine's own tools, reading from this store."""

    @tool(name=READ_RESULT, effect="read", ask=False, failures=[NoSuchResult])
    async def read_result(params: ReadResultParams, ctx: ToolContext) -> ResultPart:
        """Read part of a result that was too large to be shown whole."""
        async with database.read() as conn:
            run = await runs.get(conn, ctx.run_id)
            path = await messages.path_to(conn, None if run is None else run.head_message_id)
            # Only results of which this conversation has a part: an id is a digest, and guessing one must give nothing.
            readable = {part.whole_result for stored in path for part in stored.message.results}
            text = await whole_results.text_of(conn, params.result_id) if params.result_id in readable else None
        if text is None:
            raise NoSuchResult(reason=f"No result of this conversation is kept under {params.result_id!r}.")
        part = text[params.offset : params.offset + params.limit]
        end = params.offset + len(part)
        return ResultPart(
            text=part, offset=params.offset, total_chars=len(text), next_offset=end if end < len(text) else None
        )

    return Toolkit.of(read_result, extend_budget_tool(database))


def clip_for_model(engine: Engine, run: runs.Run, result: Ok | Failure) -> tuple[Ok | Failure, str | None]:
    """Return what the run's model sees of a result, and the whole text to store if that is only a part."""
    agent = engine.agent(run.agent)
    reads_on = engine.tool(agent, READ_RESULT) is engine.built_in.find(READ_RESULT)
    return clipped(result, limit=agent.limits.result_chars, reads_on=reads_on)
