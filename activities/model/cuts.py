"""Cutting a conversation: a summary, or a note that something is left out, replaces all but its newest messages.

A cut is stored before it is used: a retry, a restart or a fork after it sends the same bytes, which the provider has cached,
and no summary is paid for twice. When to cut: :mod:`turngate.activities.model.compaction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.history import History
from turngate.activities.model.summaries import NoSummaryError, Summariser, Summary
from turngate.domain.agents.context_window import Context, chosen_cut, is_worth_it, message_tokens, safe_cuts
from turngate.domain.conversation.messages import Message
from turngate.domain.conversation.summaries import TASK_CHARS, summary_text, trimmed_text
from turngate.store.events import events
from turngate.store.runs import messages, summaries
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.summaries import Cut
from turngate.store.storable import storable


@dataclass(frozen=True, kw_only=True)
class CutRequest:
    """A history that is to be cut, and why. ``fixed``: estimated tokens of what no cut touches; ``sent``: of all of it.

    ``window``: of the step's model, in tokens; None: it is not known. ``forced``: the provider refused the history.
    """

    step: RunStep
    context: Context
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
    """Makes cuts and stores them. Holds no other state."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._summariser = Summariser(engine)

    async def compact(self, request: CutRequest, *, room: float) -> History | None:
        """Return the history with a summary in it, once that is stored; None: there is none, which an event says."""
        place = _place(request, room=room, keep=request.context.keep)
        try:
            summary = await self._summary(request, place)
        except NoSummaryError as why:
            async with self._engine.database.write() as conn:
                await self._summariser.report_skip(conn, request.step, why, forced=request.forced)
            return None
        assert place is not None  # noqa: S101 - there is no summary without one
        text = summary_text(summary.text, model=summary.answer.model, task=await self._task(request, place))
        return await self._store(request, place, text, summary)

    async def _summary(self, request: CutRequest, place: int | None) -> Summary:
        if place is None:
            raise NoSummaryError("no_place")
        before = [request.root.message] if request.history.whole else request.history.opening
        covered = [*before, *(stored.message for stored in request.candidates[:place])]
        return await self._summariser.summarise(request.step, request.context, covered, window=request.window)

    async def trim(self, request: CutRequest, *, room: float) -> History | None:
        """Return the history without its oldest messages, once that is stored; None: there is no place to cut it."""
        place = _place(request, room=room, keep=1)
        if place is None:
            return None
        before = None if request.history.cut is None else request.history.cut.text
        return await self._store(request, place, trimmed_text(before, task=await self._task(request, place)), None)

    async def _task(self, request: CutRequest, place: int) -> str | None:
        """Return what the run was asked to do; None if the message that says so is still sent."""
        input_id = request.step.run.input_message_id
        if input_id in {request.root.id, *(stored.id for stored in request.candidates[place:])}:
            return None
        async with self._engine.database.read() as conn:
            return (await messages.get(conn, input_id)).text[: 4 * TASK_CHARS]

    async def _store(self, request: CutRequest, place: int, text: str, summary: Summary | None) -> History:
        """Store the cut with what it took and its event, and return the history as it is sent from now on."""
        run, covered = request.step.run, request.candidates[:place]
        cut = Cut(
            head_message_id=run.head_message_id,
            covers=covered[-1].id,
            root_message_id=request.root.id,
            run_id=run.id,
            step=request.step.number,
            kind="trim" if summary is None else "summary",
            forced=request.forced,
            text=storable(text),  # as it comes back: the same bytes now and after a restart
            model="" if summary is None else summary.answer.model,
            input_tokens=0 if summary is None else summary.answer.usage.input_tokens,
            output_tokens=0 if summary is None else summary.answer.usage.output_tokens,
            tokens_before=request.sent,
            tokens_after=0,
            clipped=_is_clipped(request.history, covered),
        )
        after = History(request.candidates[place:], request.root, cut)
        cut = replace(cut, tokens_after=request.fixed + sum(message_tokens(message) for message in after.messages))
        payload = {"step": request.step.number, "covers": cut.covers, "messages": len(covered)}
        payload |= {"forced": request.forced, "tokens_before": cut.tokens_before, "tokens_after": cut.tokens_after}
        event = ("context.trimmed", payload)
        if summary is not None:
            event = ("context.compacted", {**payload, "model": cut.model})
        async with self._engine.database.write() as conn:
            if summary is not None:
                await self._summariser.spend(conn, run, summary.spec, summary.answer)
            if await summaries.keep(conn, cut):
                await events.append(conn, run.id, [event])
                return History(after.recent, request.root, cut)
            recent, stored = await summaries.path_after_cut(conn, run.head_message_id)  # another attempt was first
            return History(recent, request.root, stored)


def _place(request: CutRequest, *, room: float, keep: int) -> int | None:
    """Return where among the candidates to cut; None: nowhere, or not for a gain that is worth it."""
    candidates = request.candidates
    in_order: list[Message] = [stored.message for stored in candidates]
    costs = [message_tokens(message) for message in in_order]
    safe = safe_cuts(in_order, [None if each.step is None else (each.run_id, each.step) for each in candidates])
    always = request.fixed + message_tokens(request.root.message)
    place = chosen_cut(costs, safe, keep=keep, room=room - always)
    if place is None or (not request.forced and not is_worth_it(costs, place, sent=request.sent)):
        return None
    return place


def _is_clipped(history: History, covered: Sequence[StoredMessage]) -> bool:
    results = (part for stored in covered for part in stored.message.results)
    return (history.cut is not None and history.cut.clipped) or any(part.whole_result is not None for part in results)
