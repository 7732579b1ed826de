"""External calls: what was sent, which attempt of the sender may run it, and what that one reported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select, tuple_, update

from turngate.domain.tools.external import CONVERSATION, ExternalMessage, ExternalTool
from turngate.domain.tools.results import TOOL_RESULT, Failure, Ok
from turngate.store.database import Connection
from turngate.store.tables import calls, external_calls, runs


@dataclass(frozen=True, kw_only=True)
class ExternalCall:
    """One call. ``tool_call_id``: the sender's. ``context``: the words that came with it; "" for none.

    ``wanted_by``: the last attempt that asked to start it. ``running_for``: the attempt that may run it, while one may.
    ``deadline_at``: until when that one may report. ``report``: JSON of a tool result; None until it came.
    ``turn``: the turn of the sender's conversation with the call; None: unknown. ``repeat_key``: equal for calls of one turn
    that mean the same. ``source_counts``: rules and grants for its source may allow it; False: the source is only claimed.
    ``conversation``: JSON of what the sender says led to the call.
    """

    run_id: str
    tool_call_id: str
    tool: str
    input: str
    context: str
    wanted_by: str | None = None
    running_for: str | None = None
    deadline_at: str | None = None
    report: str | None = None
    turn: str | None = None
    repeat_key: str = ""
    source_counts: bool = False
    conversation: str | None = None

    @property
    def messages(self) -> tuple[ExternalMessage, ...]:
        """The conversation, decoded; empty: the sender says nothing of it, or it was erased."""
        return () if self.conversation is None else CONVERSATION.validate_json(self.conversation)

    @property
    def declared(self) -> ExternalTool:
        """The tool as its sender described it."""
        return ExternalTool.model_validate_json(self.tool)

    @property
    def reported(self) -> Ok | Failure | None:
        """The reported result, decoded."""
        return None if self.report is None else TOOL_RESULT.validate_json(self.report)


async def get(conn: Connection, run_id: str) -> ExternalCall | None:
    """Return the call that a run represents; None for any other run."""
    row = (await conn.execute(select(external_calls).where(external_calls.c.run_id == run_id))).mappings().one_or_none()
    return ExternalCall(**row) if row else None


async def conversations_of(conn: Connection, run_ids: Collection[str]) -> dict[str, tuple[ExternalMessage, ...]]:
    """Return by run what the senders of these calls say led to them; without those who say nothing."""
    if not run_ids:
        return {}
    rows = await conn.execute(
        select(external_calls.c.run_id, external_calls.c.conversation).where(
            external_calls.c.run_id.in_(run_ids), external_calls.c.conversation.is_not(None)
        )
    )
    return {row.run_id: CONVERSATION.validate_json(row.conversation) for row in rows}


async def open_of(
    conn: Connection, agent: str, started_by: str, *, limit: int, after: tuple[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return ``(created_at, run_id)`` of the calls that this sender's source has open, oldest first."""
    query = (
        select(runs.c.created_at, runs.c.id)
        .join(external_calls, external_calls.c.run_id == runs.c.id)
        .where(runs.c.status == "running", runs.c.agent == agent, runs.c.started_by == started_by)
        .order_by(runs.c.created_at, runs.c.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(runs.c.created_at, runs.c.id) > after)
    return [(row.created_at, row.id) for row in await conn.execute(query)]


async def rejected_before(conn: Connection, call: ExternalCall, *, since: str) -> Failure | None:
    """Return the first rejection by a person of what this call repeats; None: there was none (I12).

    ``since``: rejections before this don't count if the call's turn is unknown.
    """
    query = (
        select(calls.c.result)
        .join(
            external_calls,
            (external_calls.c.run_id == calls.c.run_id) & (external_calls.c.tool_call_id == calls.c.tool_call_id),
        )
        .where(
            external_calls.c.repeat_key.in_([call.repeat_key]),
            external_calls.c.run_id != call.run_id,
            calls.c.result.is_not(None),
        )
        .order_by(calls.c.settled_at)
    )
    if call.turn is None:
        query = query.where(calls.c.settled_at >= since)
    for row in await conn.execute(query):
        result = TOOL_RESULT.validate_json(row.result)
        # Not a rule's: rules are evaluated again each time, and may have changed. Not a repeat's: it would count forever.
        if isinstance(result, Failure) and result.kind == "rejected" and not result.fields.get("repeat"):
            return result
    return None


async def give_up(conn: Connection, run_id: str, attempt: str, *, at: str) -> bool:
    """End the time for a report, because the attempt does not know itself; False as of :func:`report`."""
    query = update(external_calls).where(
        external_calls.c.run_id == run_id, external_calls.c.running_for == attempt, external_calls.c.report.is_(None)
    )
    return (await conn.execute(query.values(deadline_at=at))).rowcount == 1


async def remove(conn: Connection, run_id: str) -> None:
    """Remove the call of a run that did not start."""
    await conn.execute(external_calls.delete().where(external_calls.c.run_id == run_id))


async def want(conn: Connection, run_id: str, attempt: str) -> None:
    """Note which attempt of the sender wants to start the call."""
    await conn.execute(update(external_calls).where(external_calls.c.run_id == run_id).values(wanted_by=attempt))


async def hand_out(conn: Connection, run_id: str, *, deadline_at: str) -> None:
    """Let the attempt that wants the call run it: part of the redemption, so no later attempt takes its place."""
    query = update(external_calls).where(external_calls.c.run_id == run_id)
    await conn.execute(
        query.values(running_for=external_calls.c.wanted_by, wanted_by=None, deadline_at=deadline_at, report=None)
    )


async def hand_over(conn: Connection, run_id: str, attempt: str) -> None:
    """Let another attempt run a call that may be repeated."""
    query = update(external_calls).where(external_calls.c.run_id == run_id, external_calls.c.running_for.is_not(None))
    await conn.execute(query.values(running_for=attempt))


async def take_back(conn: Connection, run_id: str) -> None:
    """Let no attempt run the call any more: the time for a report is over."""
    query = update(external_calls).where(external_calls.c.run_id == run_id)
    await conn.execute(query.values(wanted_by=None, running_for=None))


async def report(conn: Connection, run_id: str, attempt: str, result: Ok | Failure) -> bool:
    """Store an attempt's report; False if another attempt runs the call, or there is a report already."""
    query = update(external_calls).where(
        external_calls.c.run_id == run_id, external_calls.c.running_for == attempt, external_calls.c.report.is_(None)
    )
    return (await conn.execute(query.values(report=result.model_dump_json()))).rowcount == 1
