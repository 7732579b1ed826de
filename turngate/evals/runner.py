"""Run cases: planned whole, then in parallel on one server, each attempt judged when it is over."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from approvals_api.principal import OPERATOR_SCOPES, Principal
from approvals_api.runs import start as start_run
from approvals_api.services import Services
from turngate.domain.agents.app import App
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.evals.approvers import Approvers
from turngate.evals.cases import Case
from turngate.evals.expectations import check_reasons, reasons
from turngate.evals.facts import CaseRun, facts_of
from turngate.evals.planning import Planned, plan
from turngate.evals.report import Attempt, MadeDecision, Report
from turngate.evals.stage import Stage, staged
from turngate.models.profiles import found_file, load_profiles
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.app_loader import LoadedApp, check_app
from turngate.runtime.settings import Settings, load_settings
from turngate.store.runs import runs
from turngate.wire.orders import StartOrder

logger = logging.getLogger(__name__)

STARTER: Final = Principal(name="eval-starter", via="session", scopes=OPERATOR_SCOPES)
STOP_SECONDS: Final = 5.0
"""How long an attempt that is out of time, or not wanted any more, may take to be interrupted in order."""

OnAttempt = Callable[[Attempt], None]
"""Is told of each attempt when it is over. Returns at once."""


async def run_cases(
    app: App | LoadedApp,
    cases: Sequence[Case],
    *,
    models: Sequence[str] = (),
    parallel: int = 4,
    repeat: int = 1,
    keep: Path | None = None,
    base: Path | None = None,
    beside: Path | None = None,
    settings: Settings | None = None,
    on_attempt: OnAttempt | None = None,
    stop: asyncio.Event | None = None,
) -> Report:
    """Run cases through the real engine, and report on them.

    Args:
        app: the app, as ``turngate up`` would get it.
        cases: at least one; names are unique.
        models: what to run every case under in place of its own: a spec, for the case's agent; or ``agent=spec`` with commas
            between, sub-agents too, ``*`` for every agent.
        parallel: how many attempts run at a time.
        repeat: how often each case is tried under each model.
        keep: an empty or new directory that the store is left in, for ``turngate up --data-dir``; None: a temporary one.
        base: where relative paths of the app (policy file, scripts) start; None: the current directory.
        beside: where ``module:function`` in a case is looked for first.
        settings: where models are found, and their keys; None: as the environment says.
        on_attempt: is told of each attempt when it is over.
        stop: when it is set, what has not ended is given up, and the report says so.

    Raises:
        ConfigurationError: a case does not fit the app, or the app does not hold; nothing has run.
    """
    loaded = app if isinstance(app, LoadedApp) else check_app(app, base=base or Path.cwd())
    found = _models(settings or load_settings(), loaded.base)
    try:
        planned = plan(loaded.app, cases, found, specs=models, beside=[] if beside is None else [beside])
        if parallel < 1 or repeat < 1:
            raise ConfigurationError("parallel and repeat are at least 1")
        jobs = [_Job(planned=each, attempt=1 + at) for each in planned for at in range(repeat)]
        with _directory(keep) as directory:
            clock = any(approver.do == "expire" for case in cases for approver in case.approvers)
            async with staged(loaded, found, directory, clock=clock) as stage:
                attempts = await _all(stage, jobs, directory, parallel, on_attempt, stop or asyncio.Event())
        return Report(
            attempts=tuple(attempts),
            repeat=repeat,
            interrupted=any(each.status == "not_run" for each in attempts),
            directory=None if keep is None else str(directory),
        )
    finally:
        await found.aclose()


def _models(settings: Settings, base: Path) -> Models:
    """Return the models that a worker of these settings would have."""
    return Models(
        ModelSettings(
            openai_base_url=settings.openai_base_url,
            openai_api_key=settings.openai_api_key,
            script_base=base,
        ),
        load_profiles(found_file(settings.models_file, settings.data_dir, base)),
    )


@dataclass(frozen=True, kw_only=True)
class _Job:
    planned: Planned
    attempt: int

    def ended(self, status: str, run: CaseRun | None = None, why: Sequence[str] = ()) -> Attempt:
        """Return the report's line."""
        named = {"case": self.planned.case.name, "model": self.planned.name, "attempt": self.attempt}
        if run is None:
            return Attempt.model_validate({**named, "status": status, "reasons": tuple(why)})
        return Attempt.model_validate(
            {
                **named,
                "status": status,
                "reasons": tuple(why),
                "outcome": run.outcome,
                "run_ids": tuple(each.id for each in run.runs),
                "steps": run.steps,
                "asks": len(run.asks),
                "decisions": tuple(MadeDecision(**asdict(each)) for each in run.decisions),
                "tokens": run.tokens,
                "cost": run.cost,
                "seconds": round(run.seconds, 3),
                "final_text": run.final_text,
            }
        )


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Give the directory to work in; one that is not kept goes, whatever happens."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="turngate-eval-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigurationError(f"{keep} is not an empty directory: name another one to keep the evaluation in")
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the directory {keep} cannot be made: {error.strerror}") from None
    yield keep.resolve()


async def _all(
    stage: Stage, jobs: Sequence[_Job], directory: Path, parallel: int, told: OnAttempt | None, stop: asyncio.Event
) -> list[Attempt]:
    """Run every job, so many at a time, and return what came of each, in order."""
    done: dict[int, Attempt] = {}
    waiting = iter(enumerate(jobs))

    async def work() -> None:
        for place, job in waiting:
            done[place] = await _attempt(stage, job, directory / "workspaces" / str(place))
            if told is not None:
                told(done[place])

    workers = [asyncio.create_task(work()) for _ in range(min(parallel, len(jobs)))]
    stopped = asyncio.create_task(stop.wait())
    try:
        pending: set[asyncio.Task[None]] = set(workers)
        while pending and not stopped.done():
            ended, _rest = await asyncio.wait([*pending, stopped], return_when=asyncio.FIRST_COMPLETED)
            for each in ended & pending:
                each.result()  # a fault of ours ends the evaluation
            pending -= ended
    finally:
        for task in (*workers, stopped):
            task.cancel()
        await asyncio.gather(*workers, stopped, return_exceptions=True)
    return [done.get(place) or job.ended("not_run") for place, job in enumerate(jobs)]


async def _attempt(stage: Stage, job: _Job, workspace: Path) -> Attempt:
    planned = job.planned
    run_ids: list[str] = []
    problems: list[str] = []
    try:
        async with stage.world(planned.world(), planned.model, planned.models) as services:
            approvers = Approvers(stage, services, planned.case)
            limit = planned.case.timeout_seconds
            place = await _copied(planned.case, workspace)
            began = time.monotonic()
            try:
                async with asyncio.timeout(limit) as clock:
                    await _talk(stage, services, planned, approvers, run_ids, place)
            except TimeoutError:
                if not clock.expired():
                    raise
                problems.append(f"it took longer than {limit:g} s, and was interrupted")
                await _give_up(approvers, run_ids, problems[0])
            except asyncio.CancelledError:
                # Kept on disk, it must not look as if it were still at work.
                await _give_up(approvers, run_ids, "the evaluation was stopped")
                raise
            seconds = time.monotonic() - began
    except TurngateError as error:
        return job.ended("failed", why=[*problems, error.message])
    except Exception as error:
        # What came of the others is worth more than a clean end.
        logger.exception("an attempt could not be made")
        return job.ended("failed", why=[*problems, f"it could not be run: {type(error).__name__}: {error}"])
    if not run_ids:
        return job.ended("failed", why=problems)
    run = await facts_of(
        stage.database,
        run_ids,
        case=planned.case.name,
        model=planned.name,
        attempt=job.attempt,
        decisions=approvers.decided,
        seconds=seconds,
        priced=stage.priced,
    )
    problems += approvers.problems
    # A run that we interrupted is not what anybody expected of it: that it was is the reason.
    if not problems:
        problems += reasons(planned.case.expect, run)
        problems += [] if planned.check is None else await check_reasons(planned.check, run)
    return job.ended("failed" if problems else "passed", run, problems)


async def _talk(
    stage: Stage,
    services: Services,
    planned: Planned,
    approvers: Approvers,
    run_ids: list[str],
    workspace: str | None,
) -> None:
    """Say one message after the other, as long as each run completes."""
    conversation = None
    for text in planned.case.said:
        order = StartOrder(
            agent=planned.agent.name,
            input=text,
            conversation_id=conversation,
            workspace=workspace,
            model=planned.spec,
        )
        start = start_run.start(services, STARTER, order)
        run = await _known(asyncio.create_task(start), run_ids)
        conversation = run.conversation_id
        await approvers.attend(run.id)
        async with stage.database.read() as conn:
            ended = await runs.get(conn, run.id)
        if approvers.problems or ended is None or ended.status != "completed":
            return


async def _known(start: asyncio.Task[runs.Run], run_ids: list[str]) -> runs.Run:
    """Return the run that was started. Who is cancelled meanwhile knows its id all the same, and can interrupt it."""
    try:
        run = await asyncio.shield(start)
    except asyncio.CancelledError:
        run_ids.append((await start).id)
        raise
    run_ids.append(run.id)
    return run


async def _give_up(approvers: Approvers, run_ids: Sequence[str], why: str) -> None:
    with suppress(TimeoutError, TurngateError):
        async with asyncio.timeout(STOP_SECONDS):
            for run_id in run_ids[-1:]:
                await approvers.stop(run_id, why)


async def _copied(case: Case, to: Path) -> str | None:
    """Return a copy of the case's workspace, of the attempt's own."""
    if case.workspace is None:
        return None
    await asyncio.to_thread(shutil.copytree, case.workspace, to, symlinks=True)
    return str(to)
