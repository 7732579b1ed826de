"""Asking the judge about the calls of a step, before they are planned.

Policy is asked first, in a transaction of its own; then the judge about all calls that a person would be asked about, at the
same time and while nothing is held; what it said is stored, once per call, in another one. Planning finds it there, and so
does an attempt after a crash: nobody pays twice. Whatever goes wrong here is an ``ask``; what no answer can wait for is
over at the judge's timeout, whether the model lets go by then or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from activities.engine.author_code import apart
from activities.engine.costs import lacks_price, spend
from activities.engine.engine import Engine, ModelResolver
from activities.planning.planner import Admitted, Planner, planned_digest
from turngate.domain.agents.app import Agent
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.conversation.messages import Message, ToolCallPart, Usage
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.judge import (
    ANSWER_SCHEMA,
    Judge,
    JudgeAnswer,
    Judgement,
    JudgeProblem,
    UnusableAnswerError,
    question,
    read_answer,
)
from turngate.domain.policy.judged_verdict import is_for_judge
from turngate.domain.tools.tool import ToolManifest
from turngate.models.port import ModelRequest
from turngate.store.events import events
from turngate.store.policy import judgements
from turngate.store.runs import runs

log = structlog.get_logger(__name__)

JUDGED = "call.judged"
NO_USAGE = Usage()


@dataclass(frozen=True, kw_only=True)
class ToJudge:
    """One call that the judge is asked about. ``asked_by``: what would ask a person."""

    tool_call_id: str
    tool: ToolManifest
    raw_input: str
    digest: str
    asked_by: str


@dataclass(frozen=True)
class Heard:
    """What came of asking about one call, and what it took."""

    judgement: Judgement
    usage: Usage = NO_USAGE


class Models(Protocol):
    """The models that there are; an engine has them."""

    @property
    def models(self) -> ModelResolver:
        """Turns a spec into its model."""

    @property
    def profiles(self) -> Profiles:
        """Models under names of one's own."""


class Judging:
    """Asks the engine's judge. One per worker process; holds nothing."""

    def __init__(self, engine: Engine, planner: Planner) -> None:
        self._engine = engine
        self._planner = planner

    async def judge_step(self, run: runs.Run, agent: Agent, step: int, message: Message, finish_reason: str) -> None:
        """Record what the judge says of a response's calls, where it may be asked at all. Safe to repeat.

        Raises ApplicationError ``conflict``, retryable, when the run has ended since.
        """
        judge = self._engine.judge
        if judge is None or run.is_dry or not message.calls:
            return
        waiting = await self._to_judge(run, agent, step, message, finish_reason)
        if not waiting:
            return
        unpriced = lacks_price(self._engine, agent, judge.model)
        heard = await asked_about(self._engine, judge, waiting, unpriced=unpriced)
        await self._record(run, step, judge, heard)

    async def _to_judge(
        self, run: runs.Run, agent: Agent, step: int, message: Message, finish_reason: str
    ) -> list[ToJudge]:
        """Return the calls that a person would be asked about and nothing was said of yet."""
        async with self._engine.database.glance() as conn:
            rules, admissions = await self._planner.admissions(conn, run, agent, step, message, finish_reason)
            if rules.judge is None:
                return []
            asked: list[tuple[ToolCallPart, Admitted]] = [
                (call, admitted)
                for call, admitted in zip(message.calls, admissions, strict=True)
                if isinstance(admitted, Admitted) and is_for_judge(admitted.verdict)
            ]
            known = await judgements.of_calls(conn, run.id, [call.tool_call_id for call, _admitted in asked])
        return [
            ToJudge(
                tool_call_id=call.tool_call_id,
                tool=admitted.tool.manifest,
                raw_input=call.input,
                digest=planned_digest(run, call, admitted, rules.policy.version),
                asked_by=admitted.verdict.rule,
            )
            for call, admitted in asked
            if call.tool_call_id not in known
        ]

    async def _record(self, run: runs.Run, step: int, judge: Judge, heard: Mapping[str, Heard]) -> None:
        usage = Usage(
            input_tokens=sum(each.usage.input_tokens for each in heard.values()),
            output_tokens=sum(each.usage.output_tokens for each in heard.values()),
        )
        too_late = f"step {step} is not planned any more"
        async with self._engine.database.write() as conn:
            await spend(self._engine, conn, run, step=step, spec=judge.model, usage=usage, too_late=too_late)
            new = await judgements.record(conn, run.id, {call: each.judgement for call, each in heard.items()})
            await events.append(conn, run.id, [(JUDGED, told(call, judgement)) for call, judgement in new.items()])


def told(tool_call_id: str, judgement: Judgement) -> dict[str, object]:
    """Return what the event says of a judgement."""
    said = judgement.model_dump(include={"verdict", "reason", "model", "ms", "mode", "problem"}, exclude_none=True)
    return {"tool_call_id": tool_call_id, **said}


async def asked_about(
    engine: Models, judge: Judge, waiting: list[ToJudge], *, unpriced: bool = False
) -> dict[str, Heard]:
    """Return what came of asking about each call, by its id, after the judge's timeout at the latest. Never raises.

    ``unpriced``: it may not be asked, because its run's cost is limited and nobody says what it costs.
    """
    began = time.monotonic()
    outcomes: dict[str, Heard] = {}
    tasks: dict[str, asyncio.Task[Heard]] = {}
    for each in waiting:
        if unpriced:
            outcomes[each.tool_call_id] = Heard(_none(judge, each, engine, "no_price", began))
        elif len(each.raw_input) > judge.max_argument_chars:
            outcomes[each.tool_call_id] = Heard(_none(judge, each, engine, "too_long", began))
        else:
            tasks[each.tool_call_id] = asyncio.create_task(_ask(engine, judge, each, began))
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=judge.timeout.total_seconds())
    finally:
        # Cancelled and not waited for: a model that holds its cancellation back would hold up the inbox with it.
        late = [task for task in tasks.values() if not task.done()]
        for task in late:
            task.cancel()
            task.add_done_callback(_let_go)
    for each in waiting:
        task_of = tasks.get(each.tool_call_id)
        if task_of is None:
            continue
        if task_of in late:
            outcomes[each.tool_call_id] = Heard(_none(judge, each, engine, "timeout", began))
        else:
            outcomes[each.tool_call_id] = task_of.result()
    return outcomes


async def _ask(engine: Models, judge: Judge, call: ToJudge, began: float) -> Heard:
    """Ask about one call; whatever goes wrong is an answer, except a cancellation from outside."""
    try:
        request = ModelRequest(
            messages=question(judge, call.tool, call.raw_input, digest=call.digest),
            output=ANSWER_SCHEMA,
            options=engine.profiles.options(judge.model),
        )
        answer = await apart(engine.models.resolve(judge.model).generate(request))
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _cancelled_from_outside():
            raise
        log.warning("the judge failed", model=judge.model, error=f"{type(error).__name__}: {error}")
        return Heard(_none(judge, call, engine, "error", began, f" ({type(error).__name__})"))
    try:
        verdict, reason = read_answer(answer)
    except UnusableAnswerError as unusable:
        return Heard(_none(judge, call, engine, "unusable", began, f": {unusable}"), answer.usage)
    return Heard(_judgement(judge, call, engine, began, verdict, reason), answer.usage)


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _let_go(task: asyncio.Task[Heard]) -> None:
    """Look at what became of a task that nobody waits for, so that it is not reported as forgotten."""
    if not task.cancelled():
        task.exception()


_SAID: dict[JudgeProblem, str] = {
    "timeout": "It did not answer in time.",
    "error": "It could not be asked{more}.",
    "unusable": "Its answer was not usable{more}.",
    "too_long": "It was not asked: the arguments are longer than it is shown.",
    "no_price": "It was not asked: the run has a limit of cost, and nobody says what the judge costs.",
}


def _none(
    judge: Judge, call: ToJudge, engine: Models, problem: JudgeProblem, began: float, more: str = ""
) -> Judgement:
    return _judgement(judge, call, engine, began, "ask", _SAID[problem].format(more=more), problem)


def _judgement(
    judge: Judge,
    call: ToJudge,
    engine: Models,
    began: float,
    verdict: JudgeAnswer,
    reason: str,
    problem: JudgeProblem | None = None,
) -> Judgement:
    try:
        model = engine.profiles.model(judge.model)
    except ConfigurationError:
        model = judge.model
    return Judgement(
        verdict=verdict,
        reason=reason,
        model=model,
        ms=round((time.monotonic() - began) * 1_000),
        mode=judge.mode,
        digest=call.digest,
        judge=judge.version,
        asked_by=call.asked_by,
        problem=problem,
    )
