"""Asking a model for a summary, and counting what it took. A step can do without one, so its caller carries on if there is none.

What a summary is for, and where it goes, is up to its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from temporalio.exceptions import ApplicationError

from turngate.activities.engine.costs import ModelUse, lacks_price, spend, timed_request
from turngate.activities.engine.engine import Engine, resolved
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.routing import window_of
from turngate.domain.agents.context_window import Context, message_tokens, text_tokens
from turngate.domain.conversation.messages import Message, ModelResponse, Usage
from turngate.domain.conversation.summaries import request_for_summary, why_unusable
from turngate.models.port import ModelRequest
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import runs

log = structlog.get_logger(__name__)

RECORD_SHARE: Final = 0.5
"""Of the summarising model's window: how much the record that it reads may take."""
UNKNOWN_WINDOW: Final = 100_000
"""Tokens of a model whose window is not known; only for how much it gets to summarise."""
CHARS_PER_TOKEN: Final = 2.5

SKIPPED: Final = "context.compaction_skipped"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary. ``spec``: the model that wrote it."""

    text: str
    spec: str
    answer: ModelResponse


class NoSummaryError(Exception):
    """There is no summary. ``reason``: in a word; ``answer``: what a model said in place of one, which was paid for."""

    def __init__(
        self, reason: str, *, spec: str = "", error_class: str = "", answer: ModelResponse | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.spec, self.error_class, self.answer = reason, spec, error_class, answer


class Summariser:
    """Asks the models of an engine for summaries."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def summarise(
        self, step: RunStep, context: Context, covered: Sequence[Message], *, window: int | None
    ) -> Summary:
        """Return a summary of these messages. ``window``: of the run's model; None: it is not known.

        Raises:
            NoSummaryError: ``no_price`` (the agent has a limit of cost), ``timeout``, ``error``, or the answer was
                ``cut_off``, ``empty`` or ``too_long``, which it also is when it is as long as what it replaces.
        """
        spec = context.summary_model or step.run.model
        if lacks_price(self._engine, step.agent, spec):
            raise NoSummaryError("no_price", spec=spec, error_class="configuration")
        tokens = window_of(self._engine.profiles, spec) or window or UNKNOWN_WINDOW
        prompt = request_for_summary(covered, most_chars=int(tokens * RECORD_SHARE * CHARS_PER_TOKEN))
        try:
            async with asyncio.timeout(context.summary_timeout.total_seconds()):
                request = ModelRequest(messages=prompt, options=self._engine.profiles.options(spec))
                model = await resolved(self._engine.models, spec)
                with timed_request(self._engine.database.meter, spec):
                    answer = await model.generate(request)
        except TimeoutError as late:
            raise NoSummaryError("timeout", spec=spec) from late
        except Exception as error:  # whatever goes wrong with that model, the step can do without its summary
            kind = getattr(error, "error_class", type(error).__name__)
            raise NoSummaryError("error", spec=spec, error_class=kind) from error
        unusable, text = why_unusable(answer, most_chars=context.summary_chars), answer.message.text.strip()
        if unusable is None and text_tokens(text) >= sum(message_tokens(message) for message in covered):
            unusable = "too_long"
        if unusable is not None:
            raise NoSummaryError(unusable, spec=spec, answer=answer)
        return Summary(text=text, spec=spec, answer=answer)

    async def report_skip(self, conn: Connection, step: RunStep, why: NoSummaryError, *, forced: bool = False) -> None:
        """Log that there is no summary, and why, and write its event; an answer that was paid for counts."""
        run = step.run
        log.warning("no summary", run_id=run.id, reason=why.reason, model=why.spec, error=str(why.__cause__ or ""))
        await self.spend(conn, run, why.spec, why.answer)
        payload = {"step": step.number, "reason": why.reason, "model": why.spec, "error_class": why.error_class}
        await events.append(conn, run.id, [(SKIPPED, {**payload, "forced": forced})])

    async def spend(self, conn: Connection, run: runs.Run, spec: str, answer: ModelResponse | None) -> None:
        """Count what a summary took against the run's budgets; ``answer`` None: nothing.

        Raises ApplicationError ``conflict``, retryable, when the run has ended since: an attempt that was thought lost.
        """
        use = ModelUse(spec, Usage() if answer is None else answer.usage)
        # Counted for the last step that has a response: this one has none yet, and recovery relies on that.
        if not await spend(self._engine, conn, run, run.step, use):
            raise ApplicationError(f"run {run.id} has ended; its conversation is not cut any more", "conflict")
