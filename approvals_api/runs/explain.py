"""Explaining a run: where it broke off and why, or what it waits for, with the steps around it and what to do next.

Reads the store; of a live run it also looks at the workflow. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final
from urllib.parse import quote

from turngate.approvals_api.gateway.workflow_status import WorkflowLook
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.remedies import Remedies, for_stall, plays_script
from turngate.approvals_api.runs.stalled import failing_fires, find_stall
from turngate.approvals_api.runs.switch_model import fallbacks_of
from turngate.approvals_api.services import Services
from turngate.domain.errors import NotFoundError, UnavailableError
from turngate.domain.runs.failure_classes import FailureClass, Meaning, broke_off_at, meaning_of
from turngate.domain.tools.results import Failure
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.requests.requests import ListedRequest
from turngate.store.runs import errors, runs, steps
from turngate.store.runs.errors import StoredError
from turngate.wire.calls import CallView
from turngate.wire.explanation import ErrorView, Explanation, ModelAttempt, NextAction, UnfinishedAnswer, WaitReason
from turngate.wire.runs import RunDetail, RunSummary, StepView

ATTEMPTS_SHOWN: Final = 10
ERRORS_OF_RUN: Final = 10
"""The newest ones, on a run's page and in its explanation."""
DETAILS: Final = ("message", "traceback", "worker", "build")
CLOSED_BY_THE_END: Final = frozenset({"cancelled", "interrupted"})
"""Kinds of failure of calls that the run's own end closed."""


async def explain(services: Services, reader: Principal, run_id: str) -> Explanation:
    """Return the explanation of a run; raises NotFoundError. If Temporal is away, that is part of it, no error."""
    try:
        return await _explain(services, reader, run_id)
    except NotFoundError:
        if may_read_details(reader):
            await _require_no_failing_fire(services, run_id)
        raise


async def _require_no_failing_fire(services: Services, workflow_id: str) -> None:
    """Raise NotFoundError that says why, if this is a fire of a schedule that can't start its run, or such a schedule."""
    with suppress(UnavailableError):
        failing = await services.gateway.failing_workflows()
        for fire in [] if failing is None else await failing_fires(services, failing):
            if workflow_id in {fire.workflow_id, fire.schedule_id}:
                raise NotFoundError(f"there is no run yet. {fire.says} {fire.fix}")


async def _explain(services: Services, reader: Principal, run_id: str) -> Explanation:
    async with services.database.read() as conn:
        run = await run_views.run_detail(conn, run_id)
        if run.ended_at is not None:
            return await explained_end(services, conn, reader, run)
        attempts, unfinished = await _attempts(conn, run), await _unfinished(conn, run)
        fallbacks = await fallbacks_of(conn, run_id)
        run_errors = await errors_of_run(conn, reader, run_id)
        pending = await requests.pending_of(conn, [run_id])
    waits_for = await waits_of(services, run, pending)
    if waits_for is None:
        async with services.database.read() as conn:
            return await explained_end(services, conn, reader, await run_views.run_detail(conn, run_id))
    explained = _live(run, waits_for, attempts, services.settings.temporal_pages)
    more = {"model_fallbacks": fallbacks, "errors": run_errors, "unfinished": unfinished}
    return explained.model_copy(update=more)


async def explained_end(services: Services, conn: Connection, reader: Principal, run: RunDetail) -> Explanation:
    """Return the explanation of a run that has ended, whose calls and steps were read on the same connection."""
    page = _page(run, services.settings.temporal_pages)
    remedies = Remedies(run=run, temporal_url=page, temporal=services.gateway.place)
    failure: FailureClass | None = None
    run_errors = await errors_of_run(conn, reader, run.id)
    match run.status:
        case "failed":
            meaning = meaning_of(run.error_class)
            step = await _broke_off_at(conn, run, meaning)
            cause, failure, actions = _cause(run, meaning), meaning.failure, remedies.actions(meaning.remedies)
        case "interrupted":
            cause, step = await _interrupted_by(conn, run), run.step or None
            actions = remedies.actions(("send_message", "fork"))
        case _:
            cause, step = _completed(run_errors), run.step or None
            actions = remedies.actions(("fork",))
    if run.erased is not None:
        cause, actions = f"{cause} {run.erased.says}", []
    return Explanation(
        run=_summary(run),
        cause=cause,
        failure=failure,
        step=step,
        steps=_around(run, step),
        model_attempts=await _attempts(conn, run, step=step),
        waits_for=[],
        unfinished=await _unfinished(conn, run, step=step),
        temporal_url=page,
        actions=actions,
        model_fallbacks=await fallbacks_of(conn, run.id),
        errors=run_errors,
    )


def _completed(run_errors: Sequence[ErrorView]) -> str:
    if not run_errors:
        return "It completed: nothing failed."
    first, count = run_errors[0], len(run_errors)
    what = " ".join(part for part in (first.says, first.about) if part)
    at = f" at step {first.step}" if first.step else ""
    more = f", and {count - 1} more" if count > 1 else ""
    return f"It completed, in spite of an error on the way: {what}{at}{more}."


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


async def waits_of(
    services: Services, run: RunDetail, pending: Sequence[ListedRequest], *, within: timedelta | None = None
) -> list[WaitReason] | None:
    """Return what a live run waits for, first what needs help; None: it has ended meanwhile.

    Not within a transaction: this may wait for a server that is away. ``within``: how long at most; None: as a look does.
    """
    try:
        async with asyncio.timeout(None if within is None else within.total_seconds()):
            look = await services.gateway.look(run.id)
    except TimeoutError:
        look = WorkflowLook(state="away")
    if look.state in {"closed", "gone"}:
        async with services.database.read() as conn:  # it may have ended between the two reads
            if not await runs.live_among(conn, [run.id]):
                return None
    newest = run.steps[-1].calls if run.steps else []
    return find_stall(run, newest, {each.tool_call_id: each for each in pending}, look, now=now())


def _cause(run: RunDetail, meaning: Meaning) -> str:
    if run.error_class == "bad_response" and plays_script(run):
        return "The script that plays the model has no answer here."
    return meaning.cause


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
    return [each for each in attempts if each.step == _step_at(run, step)]


async def _unfinished(conn: Connection, run: RunDetail, *, step: int | None = None) -> list[UnfinishedAnswer]:
    """Return the newest answers that broke off, oldest first, without secrets. ``step``: as of :func:`_attempts`."""
    newest = await events.newest(conn, run.id, "model.broke_off", limit=ATTEMPTS_SHOWN)
    answers = [UnfinishedAnswer(at=each.created_at, **each.payload) for each in reversed(newest)]
    of_step = [each for each in answers if each.step == _step_at(run, step)]
    if not of_step:
        return []
    masks = (await Masks.of_each(conn, {run.id})).get(run.id, Masks())
    return [masks.view(each, "text") for each in of_step]


def _step_at(run: RunDetail, step: int | None) -> int:
    """Return the step that is explained; None: the one that a live run is at."""
    if step is not None:
        return step
    return run.steps[-1].step + 1 if run.steps else 1


def _around(run: RunDetail, step: int | None) -> list[StepView]:
    """Return the step, if it has a response, and the one before it."""
    return [] if step is None else [each for each in run.steps if step - 1 <= each.step <= step]


def _page(run: RunDetail, temporal_pages: str | None) -> str | None:
    return None if temporal_pages is None else f"{temporal_pages}/{quote(run.id, safe='')}"


def _summary(run: RunDetail) -> RunSummary:
    return RunSummary.model_validate(run)


# Errors. A traceback says what the builder's code and a provider say to each other, so it is for those who decide requests,
# never for what starts runs (I13). Secrets are masked as everywhere.


def may_read_details(reader: Principal) -> bool:
    """Tell whether a reader sees what an error says: one that decides requests. What starts runs never does (I10)."""
    return reader.may("requests:decide")


async def errors_of_run(conn: Connection, reader: Principal, run_id: str) -> list[ErrorView]:
    """Return the newest errors of a run, oldest first."""
    stored = await errors.newest(conn, run_id=run_id, limit=ERRORS_OF_RUN)
    return await _views(conn, reader, stored[::-1])


async def newest_errors(services: Services, reader: Principal, *, run_id: str | None, limit: int) -> list[ErrorView]:
    """Return the newest errors, the newest first. ``run_id`` None: of every run. Raises ForbiddenError."""
    reader.require("requests:decide")
    async with services.database.read() as conn:
        return await _views(conn, reader, await errors.newest(conn, run_id=run_id, limit=limit))


async def error_by_id(services: Services, reader: Principal, typed: str) -> ErrorView:
    """Return the error of an id as a person types it. Raises NotFoundError, ForbiddenError."""
    reader.require("requests:decide")
    error_id = errors.read_id(typed)
    async with services.database.read() as conn:
        stored = None if error_id is None else await errors.get(conn, error_id)
        if stored is None:
            raise NotFoundError(f"there is no error {typed!r}: an error's id is like err-4k7mp-2xq9t")
        return (await _views(conn, reader, [stored]))[0]


async def _views(conn: Connection, reader: Principal, stored: Sequence[StoredError]) -> list[ErrorView]:
    views = [ErrorView.model_validate(each) for each in stored]
    if not may_read_details(reader):
        return [each.model_copy(update=dict.fromkeys(DETAILS)) for each in views]
    masks = await Masks.of_each(conn, {each.run_id for each in views})
    return [masks.get(each.run_id, Masks()).view(each, "message", "traceback") for each in views]
