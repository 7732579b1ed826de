"""Compaction: before a conversation is too long for its model, a summary replaces all but its newest messages.

What cannot be summarised is left out when it has to be; a step never fails because a summariser does. How a cut is made and
stored: :mod:`turngate.activities.model.cuts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.cuts import CutRequest, Cutter
from turngate.activities.model.history import History
from turngate.activities.model.routing import window_of
from turngate.activities.model.summaries import SKIPPED
from turngate.domain.agents.context_window import LEFT_AFTER_A_CUT, message_tokens, text_tokens, tools_tokens
from turngate.domain.errors import ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.store.events import events
from turngate.store.runs import runs, steps, summaries

Result = TypeVar("Result")

STEPS_BEFORE_ANOTHER_TRY: Final = 5
"""A summariser that failed is not asked, and paid, at each step again."""


class Compactor:
    """Makes conversations fit. One per worker process; holds no state: what it did is in the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cutter = Cutter(engine)

    async def ask_fitting(
        self,
        step: RunStep,
        history: History,
        tools: Sequence[ToolManifest],
        ask: Callable[[History], Awaitable[Result]],
    ) -> Result:
        """Ask with a history that fits; and once more, with a shorter one, when the provider refuses it as too long.

        Raises ModelError as ``ask`` does; its class is ``context_length`` when there was nothing shorter, or that was refused
        too.
        """
        fitting = await self.fit(step, history, tools)
        try:
            return await ask(fitting)
        except ModelError as error:
            shorter = None
            if error.error_class == "context_length":
                shorter = await self.shorten(step, fitting, tools)
            if shorter is None:
                raise
        return await ask(shorter)

    async def fit(self, step: RunStep, history: History, tools: Sequence[ToolManifest]) -> History:
        """Return the history to send: with a new cut where it comes near the model's window, else as it is."""
        run, context = step.run, step.agent.context
        shares = [] if context is None else [at for at in (context.compact_at, context.trim_at) if at is not None]
        window = None if context is None else context.window or window_of(self._engine.profiles, run.model)
        if context is None or window is None or not shares:
            return history
        fixed = text_tokens(step.agent.instructions) + tools_tokens(tools)
        sent = await self._estimated(history, fixed)
        if sent < min(shares) * window:
            return history
        current = await self._current(run, history)
        if current is not history:  # cut by an earlier attempt, or for the model that this one replaces
            history, sent = current, await self._estimated(current, fixed)
        request = CutRequest(step=step, context=context, history=history, fixed=fixed, sent=sent, window=window)
        cut = None
        compact_at, trim_at = context.compact_at, context.trim_at
        if compact_at is not None and sent >= compact_at * window and not await self._failed_lately(step):
            cut = await self._cutter.compact(request, room=compact_at * window * LEFT_AFTER_A_CUT)
        if cut is None and trim_at is not None and sent >= trim_at * window:
            cut = await self._cutter.trim(request, room=trim_at * window * LEFT_AFTER_A_CUT)
        return history if cut is None else cut

    async def shorten(self, step: RunStep, history: History, tools: Sequence[ToolManifest]) -> History | None:
        """Return a shorter history after the provider refused this one as too long; None: there is none.

        Once for a step's request: if the store says that this was done before, there is no other.
        """
        run, context = step.run, step.agent.context
        if context is None or (context.compact_at is None and context.trim_at is None):
            return None
        history = await self._current(run, history)
        before = history.cut
        if before is not None and before.forced and (before.run_id, before.step) == (run.id, step.number):
            return None
        fixed = text_tokens(step.agent.instructions) + tools_tokens(tools)
        sent = fixed + sum(message_tokens(message) for message in history.messages)
        window = context.window or window_of(self._engine.profiles, run.model)
        request = CutRequest(
            step=step, context=context, history=history, fixed=fixed, sent=sent, window=window, forced=True
        )
        room = min(sent, window or sent) * LEFT_AFTER_A_CUT
        cut = None if context.compact_at is None else await self._cutter.compact(request, room=room)
        return cut or await self._cutter.trim(request, room=room)

    async def _current(self, run: runs.Run, history: History) -> History:
        """Return the history with the cut at its head as it is now, if it was loaded before that was made."""
        async with self._engine.database.read() as conn:
            cut = await summaries.get(conn, run.head_message_id)
            if cut is None or (history.cut is not None and history.cut.text == cut.text):
                return history
            recent, cut = await summaries.path_after_cut(conn, run.head_message_id)
        return History(recent, history.root or history.recent[0], cut)

    async def _estimated(self, history: History, fixed: int) -> int:
        """Return the tokens that sending this history takes: the last response's own count, and an estimate of what is new.

        All of it is estimated where no response states a count, or the cut came after it.
        """
        cut_at = None if history.cut is None else history.cut.head_message_id
        for place in range(len(history.recent) - 1, -1, -1):
            stored = history.recent[place]
            if stored.id == cut_at:
                break
            if stored.message.role != "assistant" or stored.run_id is None or stored.step is None:
                continue
            async with self._engine.database.read() as conn:
                step = await steps.get(conn, stored.run_id, stored.step)
            if step is None or step.input_tokens == 0:
                break
            new = history.recent[place + 1 :]
            return step.input_tokens + step.output_tokens + sum(message_tokens(each.message) for each in new)
        return fixed + sum(message_tokens(message) for message in history.messages)

    async def _failed_lately(self, step: RunStep) -> bool:
        async with self._engine.database.read() as conn:
            newest = await events.newest(conn, step.run.id, SKIPPED, limit=1)
        return bool(newest) and step.number - int(newest[0].payload["step"]) < STEPS_BEFORE_ANOTHER_TRY
