"""Planning a dry run: every call is closed here, with the recorded result of the same call or as a divergence.

Policy is asked as for any run, and what it would have said is stored with the result; it has no effect. No request is opened,
and the workflow gets no call that lacks its result. Redemption refuses the calls of such a run, too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from turngate.activities.engine.rules import RulesInForce
from turngate.activities.planning.control_calls import is_finish, read_control_call
from turngate.activities.planning.planner import (
    MALFORMED_KINDS,
    Closed,
    PlannedStep,
    Planner,
    StepResponse,
    WellFormed,
    key_of,
    planned_row,
)
from turngate.activities.planning.requests import ready_call
from turngate.domain.conversation.messages import ToolCallPart
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.runs import calls, runs

DIVERGED = "diverged"


class DryPlanner(Planner):
    """Answers the calls of one response from the record."""

    async def plan(self, conn: Connection, response: StepResponse) -> PlannedStep:
        """Return everything to store for this response's calls, each closed. Reads the store, writes nothing."""
        read = [self.well_formed(response, position) for position in range(len(response.message.calls))]
        record = await _record(conn, response.step.run, list(zip(response.message.calls, read, strict=True)))
        run, number = response.step.run, response.step.number
        rules = await self.engine.rules(conn, run)
        planned, origins = PlannedStep(), self.origins(response)
        for position, recorded in enumerate(record):
            call, well_formed = response.message.calls[position], read[position]
            if isinstance(well_formed, Failure):
                closed = Closed(call, position, well_formed)
                _close(planned, closed, recorded, planned_row(run, number, closed, rules.policy.version))
                continue
            tool, params, defaults = well_formed
            of_call = await origins.for_rules(conn, rules, tool, call.input)
            verdict = rules.verdict(tool, params, call.input, defaults=defaults, origins=of_call)
            verdict = _with_recorded_judgement(rules, verdict, recorded)
            closed = Closed(call, position, results.diverged(call.tool_name), verdict, defaults)
            self._answer(planned, tool, closed, recorded, planned_row(run, number, closed, rules.policy.version))
        planned.calls = [self.with_secrets(response.step, each) for each in planned.calls]
        planned.make_plan(
            response.corrective,
            malformed=all(kind is not None for kind in planned.problems),  # a response without calls is, too
            signals=any(row.signal is not None for row in planned.calls),
        )
        return planned

    def _answer(
        self, planned: PlannedStep, tool: Tool, closed: Closed, recorded: calls.Call | None, row: calls.Call
    ) -> None:
        """Add one call with its recorded result. ``recorded``: the call that has it; None: there is none."""
        row = _with_recorded_result(replace(row, effect=tool.effect), recorded)
        if recorded is not None:
            row = self._with_control_call(row, tool)
            if _is_for_workflow(row, tool):
                planned.to_settle.append(ready_call(row, tool))
        planned.problems.append(_problem(row, None))
        planned.events.append(("call.closed", _payload(row, closed.verdict)))
        planned.calls.append(row)

    def _with_control_call(self, row: calls.Call, tool: Tool) -> calls.Call:
        """Return the call with what it asks of the run, if the recorded run did it. A wait is not waited for again."""
        if tool.kind != "signal" or not isinstance(row.settled_result, Ok):
            return row
        control_call = read_control_call(self.engine, tool, row.decoded_by(tool))
        return row if isinstance(control_call, WaitUntil) else replace(row, signal=control_call.model_dump_json())


def _close(planned: PlannedStep, closed: Closed, recorded: calls.Call | None, row: calls.Call) -> None:
    """Add one call that policy never sees. What this code makes of it counts; the record may have the same kind of failure."""
    row = _with_recorded_result(replace(row, effect=""), recorded if _is_same_kind(recorded, closed.failure) else None)
    planned.problems.append(_problem(row, closed.failure))
    planned.events.append(("call.closed", _payload(row, None)))
    planned.calls.append(row)


async def _record(
    conn: Connection, run: runs.Run, response_calls: Sequence[tuple[ToolCallPart, WellFormed | Failure]]
) -> list[calls.Call | None]:
    """Return for each call the recorded one that answers it, or None. Of equal calls the n-th is answered by the n-th.

    Calls are equal whose tools get the same. A recorded call that is still open answers nothing.
    """
    source = run.replay_of_run_id or ""
    keys = [key_of(*each) for each in response_calls]
    after_step = run.forked_from_step or 0 if run.forked_from_run_id == source else 0
    left: dict[str, deque[calls.Call]] = defaultdict(deque)
    for recorded in await calls.with_repeat_keys(conn, source, keys, after_step=after_step):
        left[recorded.repeat_key].append(recorded)
    for before in await calls.with_repeat_keys(conn, run.id, keys):
        _take(left[before.repeat_key])
    return [_take(left[key]) for key in keys]


def _take(left: deque[calls.Call]) -> calls.Call | None:
    recorded = left.popleft() if left else None
    return recorded if recorded is not None and recorded.result is not None else None


def _with_recorded_judgement(rules: RulesInForce, verdict: Verdict, recorded: calls.Call | None) -> Verdict:
    """Return the verdict with what the judge said about the recorded call: in a dry run it is not asked again."""
    if rules.judge is None or recorded is None or not recorded.verdict:
        return verdict
    judgement = Verdict.model_validate_json(recorded.verdict).judged
    return with_judgement(verdict, judgement, rules.judge, digest=recorded.digest)


def _with_recorded_result(row: calls.Call, recorded: calls.Call | None) -> calls.Call:
    """Return the call with the recorded result, to the byte; the model reads the same of it as it did then."""
    if recorded is None:
        return row
    return replace(
        row,
        result=recorded.result,
        edited_input=recorded.edited_input,
        defaults=row.defaults if recorded.edited_input is None else recorded.defaults,
        presentation=recorded.presentation,
        whole_result=recorded.whole_result,
        recorded_call_id=recorded.tool_call_id,
    )


def _is_same_kind(recorded: calls.Call | None, failure: Failure) -> bool:
    result = None if recorded is None else recorded.settled_result
    return isinstance(result, Failure) and result.kind == failure.kind


def _is_for_workflow(row: calls.Call, tool: Tool) -> bool:
    """Tell whether the workflow needs the result: it ends the run, as it did then."""
    return is_finish(row) or tool.fails_run(row.settled_result)


def _problem(row: calls.Call, failure: Failure | None) -> str | None:
    """Return why a call got nothing from the record; a model that only diverges is not asked forever."""
    if row.recorded_call_id is None:
        return DIVERGED if failure is None else failure.kind
    return failure.kind if failure is not None and failure.kind in MALFORMED_KINDS else None


def _payload(row: calls.Call, verdict: Verdict | None) -> dict[str, object]:
    result = row.settled_result
    payload: dict[str, object] = {"tool_call_id": row.tool_call_id, "tool": row.tool_name}
    payload["kind"] = result.kind if isinstance(result, Failure) else "recorded"
    if verdict is not None:
        payload["rule"] = verdict.rule
    if row.recorded_call_id is not None:
        payload["recorded_call_id"] = row.recorded_call_id
    return payload
