"""Trying a call in the worker of ``turngate dev``: it is planned as for a run, by the engine's own planner.

Previews, summaries, predicates and preconditions are the builder's code and run as at any planning; handlers never do. The judge
is not asked. What people would see is put together in a transaction that is always rolled back.
"""

from __future__ import annotations

import contextlib
import secrets

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.history import History
from turngate.activities.planning.planner import PlannedStep, Planner, StepResponse
from turngate.domain.conversation.messages import Message, ToolCallPart, user_message
from turngate.domain.policy.policy import Verdict
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.new_run import NewRun, open_run
from turngate.store.runs.runs import Run
from turngate.wire.playground import Trial, TrialOrder
from turngate.wire.requests import RequestDetail

NO_TASK = "(no task: this call was tried out)"


class _RollBackError(Exception):
    """Ends a transaction whose rows no one may ever see."""


async def try_call(engine: Engine, order: TrialOrder) -> Trial:
    """Return what would happen to a call. Stores nothing, and runs no handler."""
    agent = engine.agents.get(order.agent)
    if agent is None:
        return Trial(problem=f"the app has no agent {order.agent!r}")
    new = _new_run(order, agent.model, agent.version)
    task = new.input_after(None, user_message(new.task))
    run = await _opened(engine, new)
    sent = StoredMessage(
        id=task.id, parent_id=None, run_id=run.id, step=None, created_at=as_text(now()), message=task.message
    )
    call = ToolCallPart(tool_call_id=f"call_{secrets.token_hex(8)}", tool_name=order.tool, input=order.input)
    response = StepResponse(
        step=RunStep(run=run, agent=agent, number=1),
        message=Message(role="assistant", parts=(call,)),
        finish_reason="tool_calls",
        history=History(recent=[sent]),
    )
    async with engine.database.read() as conn:
        planned = await Planner(engine).plan(conn, response)
    (row,) = planned.calls
    verdict = Verdict.model_validate_json(row.verdict) if row.verdict else None
    return Trial(
        answer="" if verdict is None else verdict.answer,
        rule="" if verdict is None else verdict.rule,
        reason="" if verdict is None else verdict.reason,
        risk="" if verdict is None else verdict.risk,
        digest=row.digest,
        failure=row.result or "",
        judged=engine.judge is not None,
        defaults=row.left_out,
        request=await _as_people_see_it(engine, new, planned) if planned.requests else None,
    )


def _new_run(order: TrialOrder, model: str, version: str) -> NewRun:
    mark = secrets.token_hex(8)
    return NewRun(
        id=f"run_{mark}",
        conversation_id=f"conv_{mark}",
        agent=order.agent,
        agent_version=version,
        model=model,
        task=order.task or NO_TASK,
        input_message_id=f"msg_{mark}",
        started_by=order.by,
    )


async def _open(conn: Connection, new: NewRun) -> Run:
    message = new.input_after(None, user_message(new.task))
    return await open_run(conn, new, message, details={}, begins_conversation=True)


async def _opened(engine: Engine, new: NewRun) -> Run:
    """Return a run as it would begin; it is not there."""
    run = None
    with contextlib.suppress(_RollBackError):
        async with engine.database.write() as conn:
            run = await _open(conn, new)
            raise _RollBackError
    if run is None:  # pragma: no cover - the block above ends by its own error only after this
        raise RuntimeError("the run could not be opened")
    return run


async def _as_people_see_it(engine: Engine, new: NewRun, planned: PlannedStep) -> RequestDetail:
    """Return the request as the request page gets it: its rows are written, read, and taken back."""
    from turngate.approvals_api.requests.views import request_detail  # noqa: PLC0415 - slow to import, and few workers need it

    detail = None
    with contextlib.suppress(_RollBackError):
        async with engine.database.write() as conn:
            await _open(conn, new)
            await calls.insert_planned(conn, planned.calls)
            await requests.insert_all(conn, planned.requests)
            await events.append(conn, new.id, planned.events)
            detail = await request_detail(conn, planned.requests[0].id)
            raise _RollBackError
    if detail is None:  # pragma: no cover - as above
        raise RuntimeError("the request could not be read")
    return detail
