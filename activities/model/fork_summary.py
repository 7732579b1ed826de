"""A fork that begins a fresh conversation with a summary of the other one, in place of sharing its past.

The fork is recorded like any other. Before its first request the summary is written and stored as its conversation's first
message, followed by the message to the fork. Without a summary it stays the fork it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.routing import window_of
from turngate.activities.model.summaries import NoSummaryError, Summariser, Summary
from turngate.domain.agents.context_window import Context
from turngate.domain.conversation.messages import Message, user_message
from turngate.domain.conversation.summaries import carried_over_text
from turngate.domain.digest import derived_id
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import messages, runs, summaries
from turngate.store.runs.messages import StoredMessage


class ForkSummary:
    """Begins forks with a summary of what they were forked from."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._summariser = Summariser(engine)

    async def begin(self, step: RunStep) -> runs.Run:
        """Return the run with the summary that it was to begin with, if any. Safe to repeat."""
        run = step.run
        if step.number != 1 or run.forked_from_run_id is None:
            return run
        async with self._engine.database.read() as conn:
            if not await summaries.wanted(conn, run.id):
                return run
            path, cut = await summaries.path_after_cut(conn, run.head_message_id)
            root = [] if cut is None else [await messages.get(conn, cut.root_message_id), cut.message]
        past, newest = [*root, *(stored.message for stored in path[:-1])], path[-1]
        try:
            summary = await self._summary(step, past, newest)
        except NoSummaryError as why:
            async with self._engine.database.write() as conn:
                if await summaries.clear_wanted(conn, run.id):
                    await self._summariser.report_skip(conn, step, why)
            return run
        async with self._engine.database.write() as conn:
            return await self._begin_with(conn, run, newest, summary, covered=len(past))

    async def _summary(self, step: RunStep, past: Sequence[Message], newest: StoredMessage) -> Summary:
        if newest.id != step.run.input_message_id:
            raise NoSummaryError("moved_on")  # another message came before the fork began
        context = step.agent.context or Context()
        window = context.window or window_of(self._engine.profiles, step.run.model)
        return await self._summariser.summarise(step, context, past, window=window)

    async def _begin_with(
        self, conn: Connection, run: runs.Run, newest: StoredMessage, summary: Summary, *, covered: int
    ) -> runs.Run:
        """Store the summary as the first message, followed by the newest one, and let the run begin there."""
        await self._summariser.spend(conn, run, summary.spec, summary.answer)
        if not await summaries.clear_wanted(conn, run.id):  # another attempt has stored it
            return await runs.get(conn, run.id) or run
        of, model = str(run.forked_from_run_id), summary.answer.model
        text = carried_over_text(summary.text, run_id=of, step=run.forked_from_step or 0, model=model)
        parent_id, digests = None, {}
        for name, message in (("carried-over", user_message(text)), ("said", newest.message)):
            first = messages.NewMessage(
                id=derived_id("msg", run.id, name),
                parent_id=parent_id,
                conversation_id=run.conversation_id,
                run_id=run.id,
                step=None,
                message=message,
            )
            await messages.append(conn, first)
            parent_id, digests[first.id] = first.id, messages.digest(first, run.nonce)
        assert parent_id is not None  # noqa: S101 - two messages were appended
        await runs.begin_at(conn, run, parent_id)
        payload = {"from_run_id": of, "step": run.forked_from_step, "messages": covered, "model": model}
        carried_over = {**payload, **events.digests(message=digests)}
        await events.append(conn, run.id, [("context.carried_over", carried_over)])
        return replace(run, input_message_id=parent_id, head_message_id=parent_id)
