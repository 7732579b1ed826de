"""Asking the judge about the calls of a step, before they are planned.

Policy is asked first, in a transaction of its own. Then the judge is asked about all calls that a person would be asked
about, at the same time and outside any transaction. Its answers are stored, once per call, in another transaction. Planning
finds them there, and so does an attempt after a crash: no answer is paid for twice. Whatever goes wrong here is an ``ask``.
All of it is over at the judge's timeout, even if the model has not stopped by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from temporalio.exceptions import ApplicationError

from turngate.activities.engine.author_code import in_own_task, is_from_outside
from turngate.activities.engine.costs import ModelUse, lacks_price, spend
from turngate.activities.engine.engine import Engine, ModelResolver, resolved
from turngate.activities.engine.run_step import RunStep
from turngate.activities.planning.planner import Admitted, Planner, StepResponse, planned_digest
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.conversation.messages import Usage
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.judge import (
    ANSWER_SCHEMA,
    Judge,
    Judgement,
    JudgeProblem,
    JudgeVerdict,
    UnusableResponseError,
    question,
    read_answer,
)
from turngate.domain.policy.judged_verdict import is_for_judge
from turngate.domain.tools.defaults import complete_text, for_readers
from turngate.domain.tools.tool import ToolManifest
from turngate.models.port import ModelRequest
from turngate.store.events import events
from turngate.store.policy import judgements

log = structlog.get_logger(__name__)

JUDGED = "call.judged"
NO_USAGE = Usage()


@dataclass(frozen=True, kw_only=True)
class CallToJudge:
    """One call that the judge is asked about. ``asked_by``: the rule, or the like, that would ask a person.

    ``raw_input``: without its secrets, which are none of the judge's business.
    """

    tool_call_id: str
    tool: ToolManifest
    raw_input: str
    digest: str
    asked_by: str


@dataclass(frozen=True)
class JudgeReply:
    """The judgement of one call, and what it took."""

    judgement: Judgement
    usage: Usage = NO_USAGE


class ModelSource(Protocol):
    """Where models come from; an engine is one."""

    @property
    def models(self) -> ModelResolver:
        """Turns a spec into its model."""

    @property
    def profiles(self) -> Profiles:
        """Models under names that the deployment chose."""


class StepJudge:
    """Asks the engine's judge. One per worker process; holds no state."""

    def __init__(self, engine: Engine, planner: Planner) -> None:
        self._engine = engine
        self._planner = planner

    async def judge_step(self, response: StepResponse) -> None:
        """Record what the judge says about a response's calls, where it may be asked at all. Safe to repeat.

        Raises ApplicationError ``conflict``, retryable, when the run has ended since.
        """
        step, judge = response.step, self._engine.judge
        if judge is None or step.run.is_dry or not response.message.calls:
            return
        waiting = await self._calls_to_judge(response)
        if not waiting:
            return
        unpriced = lacks_price(self._engine, step.agent, judge.model)
        replies = await ask_judge(self._engine, judge, waiting, unpriced=unpriced)
        await self._record(step, judge, replies)

    async def _calls_to_judge(self, response: StepResponse) -> list[CallToJudge]:
        """Return the calls that a person would be asked about and that have no judgement yet."""
        run = response.step.run
        async with self._engine.database.glance() as conn:
            rules, classified = await self._planner.classify(conn, response, self._planner.origins(response))
            if rules.judge is None:
                return []
            candidates = [each for each in classified if isinstance(each, Admitted) and is_for_judge(each.verdict)]
            judged = await judgements.of_calls(conn, run.id, [each.call.tool_call_id for each in candidates])
        return [
            CallToJudge(
                tool_call_id=each.call.tool_call_id,
                tool=each.tool.manifest,
                raw_input=complete_text(
                    each.tool.manifest.masked_input(each.call.input).text, for_readers(each.defaults)
                ),
                digest=planned_digest(run, each, rules.policy.version),
                asked_by=each.verdict.rule,
            )
            for each in candidates
            if each.call.tool_call_id not in judged
        ]

    async def _record(self, step: RunStep, judge: Judge, replies: Mapping[str, JudgeReply]) -> None:
        run = step.run
        usage = Usage(
            input_tokens=sum(each.usage.input_tokens for each in replies.values()),
            output_tokens=sum(each.usage.output_tokens for each in replies.values()),
            cache_read_tokens=sum(each.usage.cache_read_tokens for each in replies.values()),
            cache_write_tokens=sum(each.usage.cache_write_tokens for each in replies.values()),
        )
        async with self._engine.database.write() as conn:
            if not await spend(self._engine, conn, run, step.number, ModelUse(judge.model, usage)):
                raise ApplicationError(
                    f"run {run.id} has ended; step {step.number} is not planned any more", "conflict"
                )
            new = await judgements.record(conn, run.id, {call: each.judgement for call, each in replies.items()})
            await events.append(
                conn, run.id, [(JUDGED, judged_payload(call, judgement)) for call, judgement in new.items()]
            )


def judged_payload(tool_call_id: str, judgement: Judgement) -> dict[str, object]:
    """Return the payload of a judgement's event."""
    shown_fields = {"verdict", "reason", "model", "ms", "mode", "problem"}
    return {"tool_call_id": tool_call_id, **judgement.model_dump(include=shown_fields, exclude_none=True)}


async def ask_judge(
    source: ModelSource, judge: Judge, waiting: list[CallToJudge], *, unpriced: bool = False
) -> dict[str, JudgeReply]:
    """Return the judge's reply about each call, by its id, after the judge's timeout at the latest. Never raises.

    ``unpriced``: the judge may not be asked, because the run's cost is limited and the judge has no price.
    """
    trials = [_Trial(source, judge, call) for call in waiting]
    replies: dict[str, JudgeReply] = {}
    tasks: dict[asyncio.Task[JudgeReply], _Trial] = {}
    for trial in trials:
        if unpriced:
            replies[trial.call_id] = trial.without_verdict("no_price")
        elif len(trial.call.raw_input) > judge.max_argument_chars:
            replies[trial.call_id] = trial.without_verdict("too_long")
        else:
            tasks[asyncio.create_task(trial.ask())] = trial
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=judge.timeout.total_seconds())
    finally:
        # Cancelled and not waited for: a model that suppresses its cancellation would hold up the inbox.
        late = {task for task in tasks if not task.done()}
        for task in late:
            task.cancel()
            task.add_done_callback(_forget)
    for task, trial in tasks.items():
        replies[trial.call_id] = trial.without_verdict("timeout") if task in late else task.result()
    return replies


_REASONS: dict[JudgeProblem, str] = {
    "timeout": "It did not answer in time.",
    "error": "It could not be asked{more}.",
    "unusable": "Its answer was not usable{more}.",
    "too_long": "It was not asked: the arguments are longer than it is shown.",
    "no_price": "It was not asked: the run has a limit of cost, and the judge has no price.",
}


@dataclass(frozen=True)
class _Trial:
    """Asking the judge about one call."""

    source: ModelSource
    judge: Judge
    call: CallToJudge
    began: float = field(default_factory=time.monotonic)

    @property
    def call_id(self) -> str:
        return self.call.tool_call_id

    async def ask(self) -> JudgeReply:
        """Return the judge's reply; whatever goes wrong is a reply too, except a cancellation from outside."""
        judge, call = self.judge, self.call
        try:
            request = ModelRequest(
                messages=question(judge, call.tool, call.raw_input, digest=call.digest),
                output=ANSWER_SCHEMA,
                options=self.source.profiles.options(judge.model),
            )
            answer = await in_own_task((await resolved(self.source.models, judge.model)).generate(request))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_from_outside(error):
                raise
            log.warning("the judge failed", model=judge.model, error=f"{type(error).__name__}: {error}")
            return self.without_verdict("error", f" ({type(error).__name__})")
        try:
            verdict, reason = read_answer(answer)
        except UnusableResponseError as unusable:
            return self.without_verdict("unusable", f": {unusable}", answer.usage)
        return JudgeReply(self._judgement(verdict, reason), answer.usage)

    def without_verdict(self, problem: JudgeProblem, more: str = "", usage: Usage = NO_USAGE) -> JudgeReply:
        """Return the reply of a judge that gave no verdict: a person is asked."""
        return JudgeReply(self._judgement("ask", _REASONS[problem].format(more=more), problem), usage)

    def _judgement(self, verdict: JudgeVerdict, reason: str, problem: JudgeProblem | None = None) -> Judgement:
        try:
            model = self.source.profiles.model(self.judge.model)
        except ConfigurationError:
            model = self.judge.model
        return Judgement(
            verdict=verdict,
            reason=reason,
            model=model,
            ms=round((time.monotonic() - self.began) * 1_000),
            mode=self.judge.mode,
            digest=self.call.digest,
            judge=self.judge.version,
            asked_by=self.call.asked_by,
            problem=problem,
        )


def _forget(task: asyncio.Task[JudgeReply]) -> None:
    """Retrieve the exception of a task that no one awaits, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
