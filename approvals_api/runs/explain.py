"""Explaining a run: where it broke off and why, or what it waits for, with the steps around it and what to do next.

Reads the store; of a live run it also looks at the workflow. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from approvals_api.runs import views as run_views
from approvals_api.runs.remedies import Remedies, for_stall
from approvals_api.runs.stalled import find_stall
from approvals_api.runs.switch_model import fallbacks_of
from approvals_api.services import Services
from turngate.domain.runs.failure_classes import FailureClass, Meaning, broke_off_at, meaning_of
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.tools.results import Failure
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import steps
from turngate.wire.calls import CallView
from turngate.wire.explanation import Explanation, ModelAttempt, NextAction, WaitReason
from turngate.wire.runs import RunDetail, RunSummary, StepView

ATTEMPTS_SHOWN: Final = 10
PENDING_SHOWN: Final = 128
CLOSED_BY_THE_END: Final = frozenset({"cancelled", "interrupted"})
"""Kinds of failure of calls that the run's own end closed."""


async def explain(services: Services, run_id: str) -> Explanation:
    """Return the explanation of a run; raises NotFoundError. If Temporal is away, that is part of it, no error."""
    async with services.database.read() as conn:
        run = await run_views.run_detail(conn, run_id)
        if run.ended_at is not None:
            return await explained_end(services, conn, run)
        attempts = await _attempts(conn, run)
        fallbacks = await fallbacks_of(conn, run_id)
        pending = await requests.page(conn, InboxFilter(run_id=run_id), limit=PENDING_SHOWN)
    # Not within the transaction: this may wait for a server that is away.
    look = await services.gateway.look(run_id)
    if look.state in {"closed", "gone"}:
        async with services.database.read() as conn:  # it may have ended between the two reads
            run = await run_views.run_detail(conn, run_id)
            if run.ended_at is not None:
                return await explained_end(services, conn, run)
    newest = run.steps[-1].calls if run.steps else []
    waits_for = find_stall(run, newest, {each.tool_call_id: each for each in pending}, look, now=now())
    explained = _live(run, waits_for, attempts, services.settings.temporal_pages)
    return explained.model_copy(update={"model_fallbacks": fallbacks})


async def explained_end(services: Services, conn: Connection, run: RunDetail) -> Explanation:
    """Return the explanation of a run that has ended, whose calls and steps were read on the same connection."""
    page = _page(run, services.settings.temporal_pages)
    remedies = Remedies(run=run, temporal_url=page, temporal=services.gateway.place)
    failure: FailureClass | None = None
    match run.status:
        case "failed":
            meaning = meaning_of(run.error_class)
            step = await _broke_off_at(conn, run, meaning)
            cause, failure, actions = meaning.cause, meaning.failure, remedies.actions(meaning.remedies)
        case "interrupted":
            cause, step = await _interrupted_by(conn, run), run.step or None
            actions = remedies.actions(("send_message", "fork"))
        case _:
            cause, step = "It completed: nothing failed.", run.step or None
            actions = remedies.actions(("fork",))
    return Explanation(
        run=_summary(run),
        cause=cause,
        failure=failure,
        step=step,
        steps=_around(run, step),
        model_attempts=await _attempts(conn, run, step=step),
        waits_for=[],
        temporal_url=page,
        actions=actions,
        model_fallbacks=await fallbacks_of(conn, run.id),
    )


def _live(
    run: RunDetail, waits_for: Sequence[WaitReason], attempts: list[ModelAttempt], temporal_pages: str | None
) -> Explanation:
    actions: list[NextAction] = []
    for each in waits_for:
        action = for_stall(run, each)
        if action is not None and action not in actions:
            actions.append(action)
    return Explanation(
        run=_summary(run),
        cause=waits_for[0].says if waits_for else "It is working: nothing visible holds it up.",
        failure=None,
        step=run.step or None,
        steps=_around(run, run.step or None),
        model_attempts=attempts,
        waits_for=list(waits_for),
        temporal_url=_page(run, temporal_pages),
        actions=actions,
    )


async def _broke_off_at(conn: Connection, run: RunDetail, meaning: Meaning) -> int | None:
    last = await steps.get(conn, run.id, run.step)
    calls = [call for step in run.steps if step.step == run.step for call in step.calls]
    return broke_off_at(
        meaning,
        step=run.step,
        has_response=last is not None,
        planned=last is not None and last.plan is not None,
        all_settled_before=not any(_closed_by_the_end(call) for call in calls),
    )


def _closed_by_the_end(call: CallView) -> bool:
    """Tell whether a call was open when the run ended. One that planning closed never was."""
    if call.disposition == "closed":
        return False
    return call.result is None or (isinstance(call.result, Failure) and call.result.kind in CLOSED_BY_THE_END)


async def _interrupted_by(conn: Connection, run: RunDetail) -> str:
    ended = await events.newest(conn, run.id, "run.ended", limit=1)
    by = str(ended[0].payload.get("by") or "") if ended else ""
    return f"It was interrupted by {by}." if by else "It was interrupted."


async def _attempts(conn: Connection, run: RunDetail, *, step: int | None = None) -> list[ModelAttempt]:
    """Return the newest failed attempts to get a response, oldest first; ``step``: of which; None: the one it is at."""
    retries = await events.newest(conn, run.id, "model.retrying", limit=ATTEMPTS_SHOWN)
    attempts = [ModelAttempt(at=each.created_at, **each.payload) for each in reversed(retries)]
    if step is None:
        step = run.steps[-1].step + 1 if run.steps else 1
    return [each for each in attempts if each.step == step]


def _around(run: RunDetail, step: int | None) -> list[StepView]:
    """Return the step, if it has a response, and the one before it."""
    return [] if step is None else [each for each in run.steps if step - 1 <= each.step <= step]


def _page(run: RunDetail, temporal_pages: str | None) -> str | None:
    return None if temporal_pages is None else f"{temporal_pages}/{quote(run.id, safe='')}"


def _summary(run: RunDetail) -> RunSummary:
    return RunSummary.model_validate(run)
