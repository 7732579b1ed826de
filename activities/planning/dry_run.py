"""Planning a dry replay: every call is closed here, with the recorded result of the same call or as a divergence.

Policy is asked as for any run, and what it would have said is kept beside the result; nothing follows from it. No request
is opened, and the workflow is given no call that has not got its result. Redemption refuses the calls of such a run besides.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from activities.engine.rules import RulesInForce
from activities.planning.control_calls import is_finish, read_signal
from activities.planning.planner import MALFORMED_KINDS, Closed, PlannedStep, Planner, planned_row, problem_of
from activities.planning.requests import ready_call
from turngate.domain.agents.app import Agent
from turngate.domain.contract import PlannedCall, StepPlan
from turngate.domain.conversation.messages import Message, ToolCallPart
from turngate.domain.digest import repeat_key
from turngate.domain.policy.judged_verdict import with_judgement
from turngate.domain.policy.policy import Verdict
from turngate.domain.runs.comparison import json_meaning
from turngate.domain.tools import results
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.runs import calls, runs

DIVERGED = "diverged"


class DryPlanner(Planner):
    """Answers the calls of one response from the record."""

    async def plan(
        self,
        conn: Connection,
        run: runs.Run,
        agent: Agent,
        step: int,
        message: Message,
        finish_reason: str,
        corrective: str | None,
    ) -> PlannedStep:
        """Return everything to store for this response's calls, each closed. Reads the store, writes nothing."""
        record = await _record(conn, run, message.calls)
        rules = await self.engine.rules(conn, run)
        planned = PlannedStep(plan=StepPlan(final=False))
        to_settle: list[PlannedCall] = []
        kinds: list[str | None] = []
        for position, (call, recorded) in enumerate(zip(message.calls, record, strict=True)):
            found = self.well_formed(agent, call, position, finish_reason)
            tool, verdict = None, None
            if isinstance(found, Failure):
                # What this code makes of it counts; it is the same when the record has the same kind of failure.
                result, recorded = found, recorded if _is_same_kind(recorded, found) else None  # noqa: PLW2901
            else:
                tool, params = found
                verdict = _judged_then(rules, rules.verdict(tool, params, run, call.input, agent=agent.name), recorded)
                result = results.diverged(call.tool_name)
            row = planned_row(run, step, position, call, Closed(result, verdict), rules.policy.version)
            row = _answered(replace(row, effect="" if tool is None else tool.effect), recorded)
            if tool is not None and recorded is not None:
                row = self._with_signal(row, tool)
                if _is_for_workflow(row, tool) and verdict is not None:
                    to_settle.append(ready_call(row, tool))
            planned.calls.append(row)
            planned.events.append(("call.closed", _told(row, verdict)))
            kinds.append(_unusable(row, found if isinstance(found, Failure) else None))
        malformed = all(kind is not None for kind in kinds)  # an empty response has no calls: malformed too
        wrong = Counter(kind for kind in kinds if kind is not None)
        planned.plan = StepPlan(
            final=False,
            calls=tuple(to_settle),
            malformed=malformed,
            problem=problem_of(wrong, corrective) if malformed else "",
            signals=any(row.signal is not None for row in planned.calls),
        )
        return planned

    def _with_signal(self, row: calls.Call, tool: Tool) -> calls.Call:
        """Return the call with what it asks of the run, when that was done then. A wait is not waited for again."""
        if tool.kind != "signal" or not isinstance(row.settled_result, Ok):
            return row
        signal = read_signal(self.engine, tool, tool.decode(row.input))
        return row if isinstance(signal, WaitUntil) else replace(row, signal=signal.model_dump_json())


async def _record(conn: Connection, run: runs.Run, made: Sequence[ToolCallPart]) -> list[calls.Call | None]:
    """Return for each call the recorded one that answers it: the n-th of its kind is answered by the n-th; None: there is none.

    A recorded call that is still open answers nothing.
    """
    source, keys = run.replay_of_run_id or "", [repeat_key(call.tool_name, call.input) for call in made]
    behind = run.forked_from_step or 0 if run.forked_from_run_id == source else 0
    left: dict[tuple[str, str], deque[calls.Call]] = defaultdict(deque)
    for recorded in await calls.with_repeat_keys(conn, source, keys, after_step=behind):
        left[recorded.tool_name, json_meaning(recorded.input)].append(recorded)
    for before in await calls.with_repeat_keys(conn, run.id, keys):
        _take(left[before.tool_name, json_meaning(before.input)])
    return [_take(left[call.tool_name, json_meaning(call.input)]) for call in made]


def _judged_then(rules: RulesInForce, verdict: Verdict, recorded: calls.Call | None) -> Verdict:
    """Return the verdict with what the judge said of the recorded call: in a dry replay it is not asked anew."""
    if rules.judge is None or recorded is None or not recorded.verdict:
        return verdict
    judgement = Verdict.model_validate_json(recorded.verdict).judged
    return with_judgement(verdict, judgement, rules.judge, digest=recorded.digest)


def _take(left: deque[calls.Call]) -> calls.Call | None:
    found = left.popleft() if left else None
    return found if found is not None and found.result is not None else None


def _is_same_kind(recorded: calls.Call | None, failure: Failure) -> bool:
    then = None if recorded is None else recorded.settled_result
    return isinstance(then, Failure) and then.kind == failure.kind


def _answered(row: calls.Call, recorded: calls.Call | None) -> calls.Call:
    """Return the call with the recorded result, to the byte; the model reads of it what it read then."""
    if recorded is None:
        return row
    return replace(
        row,
        result=recorded.result,
        edited_input=recorded.edited_input,
        presentation=recorded.presentation,
        whole_result=recorded.whole_result,
        recorded_call_id=recorded.tool_call_id,
    )


def _is_for_workflow(row: calls.Call, tool: Tool) -> bool:
    """Tell whether the workflow has to hear of the result: it ends the run, as it did then."""
    return is_finish(row) or tool.fails_run(row.settled_result)


def _unusable(row: calls.Call, closed: Failure | None) -> str | None:
    """Return why nothing came of a call; a model that only diverges is not asked for ever."""
    if row.recorded_call_id is None:
        return DIVERGED if closed is None else closed.kind
    return closed.kind if closed is not None and closed.kind in MALFORMED_KINDS else None


def _told(row: calls.Call, verdict: Verdict | None) -> dict[str, object]:
    result = row.settled_result
    told: dict[str, object] = {"tool_call_id": row.tool_call_id, "tool": row.tool_name}
    told["kind"] = result.kind if isinstance(result, Failure) else "recorded"
    if verdict is not None:
        told["rule"] = verdict.rule
    if row.recorded_call_id is not None:
        told["recorded_call_id"] = row.recorded_call_id
    return told
