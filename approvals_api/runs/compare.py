"""Comparing two runs: read from the store, aligned by :mod:`turngate.domain.runs.comparison`. Changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, get_args

from pydantic import JsonValue

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.views import run_detail
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs import comparison
from turngate.domain.runs.budgets import EXTEND_BUDGET
from turngate.domain.runs.comparison import CallFacts, StepFacts, Stretch, json_meaning
from turngate.domain.text.folds import cut_line
from turngate.domain.tools.defaults import constant_text
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Connection, Database
from turngate.store.runs import calls, runs, steps
from turngate.store.runs.calls import Call
from turngate.store.runs.runs import Run
from turngate.wire.calls import CallView
from turngate.wire.comparison import (
    CallPair,
    ComparedRun,
    ComparedStep,
    Comparison,
    DryRunReport,
    OverriddenAspect,
    ReplayedCall,
    RunAspect,
    SharedPast,
    StepPair,
    VerdictChange,
)
from turngate.wire.runs import RunDetail, StepView

# A dry run compared with its record: what matched, what diverged, what was not repeated, what policy judges differently.


MAX_LISTED: Final = 200
MAX_INPUT_CHARS: Final = 200


async def dry_run_report(conn: Connection, source: Run, dry_run: Run) -> DryRunReport:
    """Return how a dry run compares with its record so far. ``source``: the run that was recorded."""
    masks = await Masks.of(conn, [source.id, dry_run.id])
    recorded = await _recorded_calls(conn, source, dry_run, masks)
    repeated = list(map(masks.call, await calls.of_run(conn, dry_run.id)))
    diverged = [each for each in repeated if each.recorded_call_id is None]
    answered = {each.recorded_call_id for each in repeated}
    not_made = [each for name, each in recorded.items() if name not in answered]
    pairs = [(each, recorded[each.recorded_call_id]) for each in repeated if each.recorded_call_id in recorded]
    verdicts = [change for now, then in pairs if (change := _change(now, then)) is not None]
    same_end = (source.status, source.error_class) == (dry_run.status, dry_run.error_class)
    return DryRunReport(
        source_run_id=source.id,
        replay_run_id=dry_run.id,
        matched=len(repeated) - len(diverged),
        diverged=[_listed_call(each) for each in diverged[:MAX_LISTED]],
        diverged_total=len(diverged),
        not_made=[_listed_call(each) for each in not_made[:MAX_LISTED]],
        not_made_total=len(not_made),
        verdicts=verdicts[:MAX_LISTED],
        verdicts_total=len(verdicts),
        same_end=same_end,
        same=not diverged and not not_made and same_end,
    )


async def _recorded_calls(conn: Connection, source: Run, dry_run: Run, masks: Masks) -> dict[str, Call]:
    """Return the calls of the record: those after the step where the dry run begins, without the engine's own."""
    first = (dry_run.forked_from_step or 0) if dry_run.forked_from_run_id == source.id else 0
    return {
        each.tool_call_id: masks.call(each)
        for each in await calls.of_run(conn, source.id)
        if each.step > first and each.tool_name != EXTEND_BUDGET
    }


def _change(now: Call, then: Call) -> VerdictChange | None:
    after, before = _verdict(now), _verdict(then)
    if (after and (after.answer, after.rule)) == (before and (before.answer, before.rule)):
        return None
    return VerdictChange(
        step=now.step,
        tool_call_id=now.tool_call_id,
        recorded_call_id=then.tool_call_id,
        tool_name=now.tool_name,
        was=None if before is None else before.answer,
        was_rule="" if before is None else before.rule,
        now=None if after is None else after.answer,
        now_rule="" if after is None else after.rule,
    )


def _verdict(call: Call) -> Verdict | None:
    return Verdict.model_validate_json(call.verdict) if call.verdict else None


def _listed_call(call: Call) -> ReplayedCall:
    return ReplayedCall(
        step=call.step,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        input=cut_line(call.input, MAX_INPUT_CHARS),
        result=call.result_kind,
    )


RUN_ASPECTS: Final[tuple[RunAspect, ...]] = get_args(RunAspect)
ATTRIBUTES: Final[Mapping[RunAspect, str]] = {"failure": "error_class", "answer": "final_text"}
"""Aspects of a run whose attribute has another name."""
OWN_ASPECTS: Final[tuple[OverriddenAspect, ...]] = get_args(OverriddenAspect)

Wholes = Mapping[tuple[str, str], str]
"""``(run id, tool call id)`` → digest of the whole result, where a view shows a part."""
OwnStep = tuple[str, StepView]
"""A step, with the run that took it."""


async def compare(database: Database, run_id: str, other_id: str) -> Comparison:
    """Return two runs side by side.

    Raises:
        NotFoundError: one of them is not there.
        InvalidInputError: ``same_run``: both are the same run.
    """
    if run_id == other_id:
        message = "a run can only be compared with another run: name two different runs"
        raise InvalidInputError(message, code="same_run", errors=[{"pointer": "/other_id", "message": message}])
    async with database.read() as conn:
        lineages = [await _lineage(conn, await existing_run(conn, each)) for each in (run_id, other_id)]
        apart = comparison.apart(*lineages)
        wanted = {run_id, other_id, *(stretch.run_id for stretch in (*apart.run, *apart.other))}
        details = {each: await run_detail(conn, each) for each in sorted(wanted)}
        wholes = {
            (each, call.tool_call_id): call.whole_result
            for each in details
            for call in await calls.of_run(conn, each)
            if call.whole_result is not None
        }
        shared = None if apart.shared is None else await _shared(conn, apart.shared)
        report = await _dry_run_report(conn, run_id, other_id)
    dry = any(details[each].replay_of_run_id is not None for each in (run_id, other_id))
    run, other = details[run_id], details[other_id]
    # Megabytes of arguments and results are parsed: not on the event loop, where every other request would wait.
    pairs = await asyncio.to_thread(_aligned, _taken(apart.run, details), _taken(apart.other, details), wholes, dry)
    return Comparison(
        run=ComparedRun.model_validate(run),
        other=ComparedRun.model_validate(other),
        differs=[aspect for aspect in RUN_ASPECTS if _of(run, aspect) != _of(other, aspect)],
        shared=shared,
        steps=pairs,
        parts_at=next((place for place, pair in enumerate(pairs, 1) if not pair.same), None),
        replay=report,
    )


async def _dry_run_report(conn: Connection, run_id: str, other_id: str) -> DryRunReport | None:
    """Return how a dry run compares with its record; None: neither run is a dry run of the other."""
    run, other = await existing_run(conn, run_id), await existing_run(conn, other_id)
    if other.replay_of_run_id == run.id:
        return await dry_run_report(conn, run, other)
    return await dry_run_report(conn, other, run) if run.replay_of_run_id == other.id else None


async def _lineage(conn: Connection, run: Run) -> list[Stretch]:
    """Return where a run comes from, as :func:`turngate.domain.runs.comparison.apart` takes it."""
    lineage = [Stretch(run_id=run.id)]
    while run.forked_from_run_id is not None:
        before = await runs.get(conn, run.forked_from_run_id)
        if before is None:
            break
        lineage.append(Stretch(run_id=before.id, through=run.forked_from_step or 0))
        run = before
    return lineage[::-1]


async def _shared(conn: Connection, past: Stretch) -> SharedPast | None:
    """Return the shared past as far as there are responses; None when the run ended before its first one.

    A retry leaves a run at the step where it failed, and the model may have given no response there.
    """
    taken = [each.step for each in await steps.of_run(conn, past.run_id) if each.step <= (past.through or 0)]
    return SharedPast(run_id=past.run_id, through_step=taken[-1]) if taken else None


def _taken(stretches: Sequence[Stretch], details: Mapping[str, RunDetail]) -> list[OwnStep]:
    return [
        (stretch.run_id, step)
        for stretch in stretches
        for step in details[stretch.run_id].steps
        if stretch.after < step.step and (stretch.through is None or step.step <= stretch.through)
    ]


def _aligned(run: Sequence[OwnStep], other: Sequence[OwnStep], wholes: Wholes, dry: bool) -> list[StepPair]:
    """Return the steps side by side. ``dry``: one of the runs decided and ran nothing, so that is not compared."""
    pairs = comparison.align(
        [_step_facts(each, wholes, dry) for each in run], [_step_facts(each, wholes, dry) for each in other]
    )
    return [
        _step_pair(
            pair,
            None if pair.run is None else run[pair.run],
            None if pair.other is None else other[pair.other],
        )
        for pair in pairs
    ]


def _step_pair(pair: comparison.StepPair, run: OwnStep | None, other: OwnStep | None) -> StepPair:
    return StepPair(
        run=_side(run),
        other=_side(other),
        same=pair.same,
        text_differs=pair.text_differs,
        calls=[
            CallPair(run=_call(run, each.run), other=_call(other, each.other), differs=list(each.differs))
            for each in pair.calls
        ],
    )


def _side(step: OwnStep | None) -> ComparedStep | None:
    if step is None:
        return None
    run_id, view = step
    return ComparedStep(run_id=run_id, step=view.step, model=view.model, text=view.text, corrective=view.corrective)


def _call(step: OwnStep | None, place: int | None) -> CallView | None:
    return None if step is None or place is None else step[1].calls[place]


def _step_facts(step: OwnStep, wholes: Wholes, dry: bool) -> StepFacts:
    run_id, view = step
    facts = [_call_facts(call, wholes.get((run_id, call.tool_call_id)), dry) for call in view.calls]
    return StepFacts(text=(view.text, view.corrective), calls=facts)


def _call_facts(call: CallView, whole: str | None, dry: bool) -> CallFacts:
    # An edit belongs to the decision: the model made the same call.
    decisions = tuple((request.kind, request.status, request.verb) for request in call.requests)
    # A value that differs each time, and what a tool makes of it, is no difference.
    of_input = call.defaults if call.edited_input is None else ()
    edited = None if call.edited_input is None else json_meaning(constant_text(call.edited_input, call.defaults))
    return CallFacts(
        tool_name=call.tool_name,
        aspects={
            "arguments": json_meaning(constant_text(call.input, of_input)),
            "verdict": None if call.verdict is None else (call.verdict.answer, call.verdict.rule),
            "decision": None if dry else (decisions, edited),
            "execution": None if dry else call.execution,
            # The shown parts of two large results may be equal although the whole results differ.
            "result": whole or _result_facts(call.result),
        },
    )


def _result_facts(result: Ok | Failure | None) -> Hashable:
    match result:
        case None:
            return None
        case Ok():
            return "ok", _exact(result.value)
        case Failure():
            return "failure", result.kind, result.reason, _exact(result.fields)


def _exact(value: dict[str, JsonValue]) -> str:
    return json.dumps(value, sort_keys=True)


def _of(run: RunDetail, aspect: RunAspect) -> object:
    if aspect in OWN_ASPECTS:
        return None if run.own is None else getattr(run.own, aspect)
    return getattr(run, ATTRIBUTES.get(aspect, aspect))
