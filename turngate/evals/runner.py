"""Run cases: planned as a whole, then in parallel on one server; each attempt is judged when it is over."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.runs import start as start_run
from turngate.approvals_api.services import Services
from turngate.domain.agents.app import App
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.evals.approvers import Approvers
from turngate.evals.cases import Case
from turngate.evals.expectations import check_reasons, reasons
from turngate.evals.facts import CaseRun, Play, case_run
from turngate.evals.planning import Planned, plan
from turngate.evals.report import Attempt, Report
from turngate.evals.stage import WORKSPACES, Stage, staged
from turngate.models.registry import Models, build_models
from turngate.runtime.app_loader import LoadedApp, check_app
from turngate.runtime.settings import Settings, load_settings
from turngate.store.runs import runs
from turngate.wire.orders import StartOrder

logger = logging.getLogger(__name__)

STARTER: Final = Principal(name="eval-starter", via="session", scopes=OPERATOR_SCOPES)
STOP_SECONDS: Final = 5.0
"""How long we wait for an interrupted attempt's run to end, after its time is over or the evaluation was stopped."""

OnAttempt = Callable[[Attempt], None]
"""Called with each attempt when it is over. Returns at once."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How cases run.

    Attributes:
        models: what to run every case with instead of its own model: a spec, for the case's agent; or ``agent=spec`` with
            commas between several, sub-agents too, ``*`` for every agent.
        parallel: how many attempts run at a time.
        repeat: how often each case is tried with each model.
        keep: an empty or new directory that the store is left in, for ``turngate up --data-dir``; None: a temporary one.
        base: where relative paths of the app (policy file, scripts) start; None: the current directory.
        import_dir: where ``module:function`` in a case is looked for first.
        settings: where models are found, and their keys; None: from the environment.
    """

    models: Sequence[str] = ()
    parallel: int = 4
    repeat: int = 1
    keep: Path | None = None
    base: Path | None = None
    import_dir: Path | None = None
    settings: Settings | None = None


async def run_cases(
    app: App | LoadedApp,
    cases: Sequence[Case],
    options: EvalOptions | None = None,
    *,
    on_attempt: OnAttempt | None = None,
    stop: asyncio.Event | None = None,
) -> Report:
    """Run cases through the real engine, and return a report.

    Args:
        app: the app, as ``turngate up`` would get it.
        cases: at least one; their names are unique.
        options: how they run; None: the defaults.
        on_attempt: called with each attempt when it is over.
        stop: when it is set, attempts that have not ended are interrupted, and the report says so.

    Raises:
        ConfigurationError: a case does not fit the app, or the app is wrong; nothing has run.
    """
    options = options or EvalOptions()
    loaded = app if isinstance(app, LoadedApp) else check_app(app, base=options.base or Path.cwd())
    models = build_models(options.settings or load_settings(), script_base=loaded.base)
    try:
        planned = _planned(loaded, cases, models, options)
        jobs = [_Job(planned=each, attempt=1 + at) for each in planned for at in range(options.repeat)]
        with _directory(options.keep) as directory:
            clock = any(approver.do == "expire" for case in cases for approver in case.approvers)
            specs = [each.spec for each in planned if each.spec is not None]
            async with staged(loaded, models, directory, specs=specs, clock=clock) as stage:
                attempts = await _Runner(
                    stage=stage,
                    workspaces=directory / WORKSPACES,
                    parallel=options.parallel,
                    on_attempt=on_attempt,
                    stop=stop or asyncio.Event(),
                ).run(jobs)
        return Report(
            attempts=tuple(attempts),
            repeat=options.repeat,
            interrupted=any(each.status == "not_run" for each in attempts),
            directory=None if options.keep is None else str(directory),
        )
    finally:
        await models.aclose()


def _planned(loaded: LoadedApp, cases: Sequence[Case], models: Models, options: EvalOptions) -> list[Planned]:
    import_dirs = [] if options.import_dir is None else [options.import_dir]
    planned = plan(loaded.app, cases, models, specs=options.models, import_dirs=import_dirs)
    if options.parallel < 1 or options.repeat < 1:
        raise ConfigurationError("parallel and repeat must be at least 1")
    return planned


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Yield the directory to work in. A temporary one is always deleted."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="turngate-eval-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ConfigurationError(f"{keep} is not an empty directory: name another one to keep the evaluation in")
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the directory {keep} cannot be made: {error.strerror}") from None
    yield keep.resolve()


@dataclass(frozen=True, kw_only=True)
class _Job:
    planned: Planned
    attempt: int

    def result(self, status: str, run: CaseRun | None = None, why: Sequence[str] = ()) -> Attempt:
        """Return the report's line."""
        fields = {
            "case": self.planned.case.name,
            "model": self.planned.name,
            "attempt": self.attempt,
            "status": status,
            "reasons": tuple(why),
        }
        if run is not None:
            fields |= {
                "outcome": run.outcome,
                "run_ids": tuple(each.id for each in run.runs),
                "steps": run.steps,
                "asks": len(run.asks),
                "decisions": run.decisions,
                "tokens": run.tokens,
                "cost": run.cost,
                "seconds": round(run.seconds, 3),
                "final_text": run.final_text,
            }
        return Attempt.model_validate(fields)


@dataclass(frozen=True, kw_only=True)
class _Runner:
    """Runs jobs. ``workspaces``: where each attempt gets its copy of the case's workspace."""

    stage: Stage
    workspaces: Path
    parallel: int
    on_attempt: OnAttempt | None
    stop: asyncio.Event

    async def run(self, jobs: Sequence[_Job]) -> list[Attempt]:
        """Run every job, ``parallel`` at a time, and return the attempts in the jobs' order."""
        done: dict[int, Attempt] = {}
        queue = iter(enumerate(jobs))

        async def work() -> None:
            for place, job in queue:
                done[place] = await self._attempt(job, self.workspaces / str(place))
                if self.on_attempt is not None:
                    self.on_attempt(done[place])

        workers = [asyncio.create_task(work()) for _ in range(min(self.parallel, len(jobs)))]
        stopped = asyncio.create_task(self.stop.wait())
        try:
            pending: set[asyncio.Task[None]] = set(workers)
            while pending and not stopped.done():
                ended, _rest = await asyncio.wait([*pending, stopped], return_when=asyncio.FIRST_COMPLETED)
                for each in ended & pending:
                    each.result()  # an error of the evaluation itself ends it
                pending -= ended
        finally:
            for task in (*workers, stopped):
                task.cancel()
            await asyncio.gather(*workers, stopped, return_exceptions=True)
        return [done.get(place) or job.result("not_run") for place, job in enumerate(jobs)]

    async def _attempt(self, job: _Job, workspace: Path) -> Attempt:
        planned = job.planned
        problems: list[str] = []
        try:
            async with self.stage.services_for(planned) as services:
                dialogue = _Dialogue(
                    stage=self.stage,
                    services=services,
                    planned=planned,
                    approvers=Approvers(self.stage, services, planned.case),
                    workspace=await _workspace_copy(planned.case, workspace),
                )
                problems += await dialogue.hold()
        except TurngateError as error:
            return job.result("failed", why=[*problems, error.message])
        except Exception as error:
            # The other attempts' results are worth more than a clean end.
            logger.exception("an attempt could not be run")
            return job.result("failed", why=[*problems, f"it could not be run: {type(error).__name__}: {error}"])
        if not dialogue.run_ids:
            return job.result("failed", why=problems)
        play = Play(
            case=planned.case.name,
            model=planned.name,
            attempt=job.attempt,
            run_ids=tuple(dialogue.run_ids),
            decisions=tuple(dialogue.approvers.decisions),
            seconds=dialogue.seconds,
        )
        run = await case_run(self.stage.database, play, self.stage.priced)
        problems += dialogue.approvers.problems
        # A run that we interrupted cannot be as expected: the interrupt is the reason.
        if not problems:
            problems += reasons(planned.case.expect, run)
            problems += [] if planned.check is None else await check_reasons(planned.check, run)
        return job.result("failed" if problems else "passed", run, problems)


@dataclass(kw_only=True)
class _Dialogue:
    """One attempt's conversation with its agent. ``seconds``: how long it took; ``run_ids``: the runs so far."""

    stage: Stage
    services: Services
    planned: Planned
    approvers: Approvers
    workspace: str | None
    run_ids: list[str] = field(default_factory=list)
    seconds: float = 0

    async def hold(self) -> list[str]:
        """Hold the conversation within the case's time, and return what went wrong: it took too long, or nothing."""
        problems: list[str] = []
        limit = self.planned.case.timeout_seconds
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit) as clock:
                await self._send_messages()
        except TimeoutError:
            if not clock.expired():
                raise
            problems.append(f"it took longer than {limit:g} s, and was interrupted")
            await self._stop(problems[0])
        except asyncio.CancelledError:
            # In a store that is kept, the run must not look as if it were still running.
            await self._stop("the evaluation was stopped")
            raise
        self.seconds = time.monotonic() - started
        return problems

    async def _send_messages(self) -> None:
        """Send one message after the other, as long as each run completes."""
        conversation = None
        for text in self.planned.case.prompts:
            order = StartOrder(
                agent=self.planned.agent.name,
                input=text,
                conversation_id=conversation,
                workspace=self.workspace,
                model=self.planned.spec,
            )
            run = await self._started(asyncio.create_task(start_run.start(self.services, STARTER, order)))
            conversation = run.conversation_id
            await self.approvers.attend(run.id)
            async with self.stage.database.read() as conn:
                ended = await runs.get(conn, run.id)
            if self.approvers.problems or ended is None or ended.status != "completed":
                return

    async def _started(self, start: asyncio.Task[runs.Run]) -> runs.Run:
        """Return the run that was started. Its id is noted even if we are cancelled meanwhile, so it can be interrupted."""
        try:
            run = await asyncio.shield(start)
        except asyncio.CancelledError:
            self.run_ids.append((await start).id)
            raise
        self.run_ids.append(run.id)
        return run

    async def _stop(self, why: str) -> None:
        with suppress(TimeoutError, TurngateError):
            async with asyncio.timeout(STOP_SECONDS):
                for run_id in self.run_ids[-1:]:
                    await self.approvers.stop(run_id, why)


async def _workspace_copy(case: Case, to: Path) -> str | None:
    """Return a copy of the case's workspace for one attempt."""
    if case.workspace is None:
        return None
    await asyncio.to_thread(shutil.copytree, case.workspace, to, symlinks=True)
    return str(to)
