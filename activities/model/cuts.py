"""Cutting a conversation: a summary, or a note that something is left out, in place of all but its newest messages.

A cut is stored before it is used: a retry, a restart or a fork behind it sends the same bytes, which the provider has
cached, and nobody pays for a summary twice. When to cut is :mod:`activities.model.compaction`'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from activities.engine.engine import Engine
from activities.model.history import History
from activities.model.summaries import NoSummaryError, Summariser, Summary
from turngate.domain.agents.app import Agent
from turngate.domain.agents.context_window import Context, chosen_cut, is_worth_it, message_tokens, safe_cuts
from turngate.domain.conversation.messages import Message
from turngate.domain.conversation.summaries import TASK_CHARS, summary_text, trimmed_text
from turngate.store.events import events
from turngate.store.runs import messages, runs, summaries
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.summaries import Cut
from turngate.store.storable import storable


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a step is about to ask. ``fixed``: estimated tokens of what no cut touches; ``sent``: of all of it."""

    run: runs.Run
    agent: Agent
    context: Context
    step: int
    history: History
    fixed: int
    sent: int
    window: int | None
    forced: bool = False

    @property
    def candidates(self) -> list[StoredMessage]:
        """The messages that a cut may cover: all but the first, which is always sent."""
        return self.history.recent[1:] if self.history.whole else self.history.recent

    @property
    def root(self) -> StoredMessage:
        """The conversation's first message."""
        return self.history.root or self.history.recent[0]


class Cutter:
    """Makes cuts and stores them. Holds nothing else."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._summariser = Summariser(engine)

    async def compacted(self, asked: Request, *, room: float) -> History | None:
        """Return the history with a summary in it, once that is stored; None: there is none, which is logged and told."""
        place = _place(asked, room=room, keep=asked.context.keep)
        try:
            summary = await self._summary(asked, place)
        except NoSummaryError as why:
            async with self._engine.database.write() as conn:
                await self._summariser.tell_skipped(conn, asked.run, asked.step, why, forced=asked.forced)
            return None
        assert place is not None  # noqa: S101 - there is no summary without one
        text = summary_text(summary.text, model=summary.answer.model, task=await self._task(asked, place))
        return await self._kept(asked, place, text, summary)

    async def _summary(self, asked: Request, place: int | None) -> Summary:
        if place is None:
            raise NoSummaryError("no_place")
        before = [asked.root.message] if asked.history.whole else asked.history.opening
        covered = [*before, *(stored.message for stored in asked.candidates[:place])]
        return await self._summariser.summary_of(asked.run, asked.agent, asked.context, covered, window=asked.window)

    async def trimmed(self, asked: Request, *, room: float) -> History | None:
        """Return the history without its oldest messages, once that is stored; None: there is no place to cut it."""
        place = _place(asked, room=room, keep=1)
        if place is None:
            return None
        before = None if asked.history.cut is None else asked.history.cut.text
        return await self._kept(asked, place, trimmed_text(before, task=await self._task(asked, place)), None)

    async def _task(self, asked: Request, place: int) -> str | None:
        """Return what the run was asked to do, unless the message that says so is still sent."""
        input_id = asked.run.input_message_id
        if input_id in {asked.root.id, *(stored.id for stored in asked.candidates[place:])}:
            return None
        async with self._engine.database.read() as conn:
            return (await messages.get(conn, input_id)).text[: 4 * TASK_CHARS]

    async def _kept(self, asked: Request, place: int, text: str, summary: Summary | None) -> History:
        """Store the cut with what it took and what is told of it, and return the history as it is sent from now on."""
        run, covered = asked.run, asked.candidates[:place]
        made = Cut(
            head_message_id=run.head_message_id,
            covers=covered[-1].id,
            root_message_id=asked.root.id,
            run_id=run.id,
            step=asked.step,
            kind="trim" if summary is None else "summary",
            forced=asked.forced,
            text=storable(text),  # as it comes back: the same bytes now and after a restart
            model="" if summary is None else summary.answer.model,
            input_tokens=0 if summary is None else summary.answer.usage.input_tokens,
            output_tokens=0 if summary is None else summary.answer.usage.output_tokens,
            tokens_before=asked.sent,
            tokens_after=0,
            clipped=_clipped(asked.history, covered),
        )
        shown = History(asked.candidates[place:], asked.root, made)
        made = replace(made, tokens_after=asked.fixed + sum(message_tokens(message) for message in shown.messages))
        numbers = {"tokens_before": made.tokens_before, "tokens_after": made.tokens_after}
        told = {"step": asked.step, "covers": made.covers, "messages": len(covered), "forced": asked.forced, **numbers}
        event = ("context.trimmed", told)
        if summary is not None:
            event = ("context.compacted", {**told, "model": made.model})
        async with self._engine.database.write() as conn:
            if summary is not None:
                await self._summariser.spend(conn, run, summary.spec, summary.answer)
            if await summaries.keep(conn, made):
                await events.append(conn, run.id, [event])
                return History(shown.recent, asked.root, made)
            recent, cut = await summaries.path_behind(conn, run.head_message_id)  # another attempt was first
            return History(recent, asked.root, cut)


def _place(asked: Request, *, room: float, keep: int) -> int | None:
    """Return where among the candidates to cut; None: nowhere, or not for a gain that is worth it."""
    placed = asked.candidates
    shown: list[Message] = [stored.message for stored in placed]
    costs = [message_tokens(message) for message in shown]
    safe = safe_cuts(shown, [None if each.step is None else (each.run_id, each.step) for each in placed])
    always = asked.fixed + message_tokens(asked.root.message)
    place = chosen_cut(costs, safe, keep=keep, room=room - always)
    if place is None or (not asked.forced and not is_worth_it(costs, place, sent=asked.sent)):
        return None
    return place


def _clipped(history: History, covered: Sequence[StoredMessage]) -> bool:
    shown = (part for stored in covered for part in stored.message.results)
    return (history.cut is not None and history.cut.clipped) or any(part.whole_result is not None for part in shown)
