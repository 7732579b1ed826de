"""A dry replay beside its record: what matched, what diverged, what was not done again, what policy judges otherwise."""

from __future__ import annotations

from typing import Final

from turngate.domain.agents.budgets import EXTEND_BUDGET
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools.results import Ok
from turngate.store.database import Connection
from turngate.store.runs import calls
from turngate.store.runs.calls import Call
from turngate.store.runs.runs import Run
from turngate.wire.replays import DryReplayReport, ReplayedCall, VerdictChange

SHOWN: Final = 200
MAX_INPUT_CHARS: Final = 200


async def replay_report(conn: Connection, source: Run, replay: Run) -> DryReplayReport:
    """Return what became of a dry replay so far. ``source``: the run whose record it goes by."""
    behind = (replay.forked_from_step or 0) if replay.forked_from_run_id == source.id else 0
    recorded = {
        each.tool_call_id: each
        for each in await calls.of_run(conn, source.id)
        if each.step > behind and each.tool_name != EXTEND_BUDGET  # that one is the engine's own
    }
    made = await calls.of_run(conn, replay.id)
    diverged = [each for each in made if each.recorded_call_id is None]
    answered = {each.recorded_call_id for each in made}
    not_made = [each for name, each in recorded.items() if name not in answered]
    pairs = [(each, recorded[each.recorded_call_id]) for each in made if each.recorded_call_id in recorded]
    verdicts = [change for now, then in pairs if (change := _change(now, then)) is not None]
    same_end = (source.status, source.error_class) == (replay.status, replay.error_class)
    return DryReplayReport(
        source_run_id=source.id,
        replay_run_id=replay.id,
        matched=len(made) - len(diverged),
        diverged=[_shown(each) for each in diverged[:SHOWN]],
        diverged_total=len(diverged),
        not_made=[_shown(each) for each in not_made[:SHOWN]],
        not_made_total=len(not_made),
        verdicts=verdicts[:SHOWN],
        verdicts_total=len(verdicts),
        same_end=same_end,
        same=not diverged and not not_made and same_end,
    )


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


def _shown(call: Call) -> ReplayedCall:
    result = call.settled_result
    return ReplayedCall(
        step=call.step,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        input=call.input[:MAX_INPUT_CHARS],
        result=None if result is None else "ok" if isinstance(result, Ok) else result.kind,
    )
