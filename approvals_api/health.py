"""Health: checks of the store, Temporal, the workers and what waits for them, each with its fix.

The page, the API, ``turngate status`` and ``turngate doctor`` show the same checks. They only read, each within a bound of
time and of rows, so they also end when what they look at is away.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, get_args

from sqlalchemy.exc import SQLAlchemyError

from turngate.approvals_api.gateway.task_queues import QueueLook
from turngate.approvals_api.retention.overview import retention_status
from turngate.approvals_api.runs.stalled import FailingFire, failing_fires, stalled_among, stuck_page
from turngate.approvals_api.services import Services
from turngate.domain.errors import TurngateError, UnavailableError
from turngate.domain.text.durations import span
from turngate.domain.text.sentences import counted
from turngate.domain.tools.external import is_external
from turngate.store import agents
from turngate.store.clock import as_text, from_text, now
from turngate.store.events import deliveries
from turngate.store.events.deliveries import Backlog
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.wire.explanation import WaitKind
from turngate.wire.health import CheckName, HealthCheck, HealthState, HealthView, WaitCount, WorkerPoll
from turngate.wire.retention import RetentionStatus

CHECK_SECONDS: Final = 3.0
"""How long one check may take. Most run at the same time."""
TEMPORAL_ANSWERS_IN: Final = timedelta(seconds=2.5)
RUNS_LOOKED_AT: Final = 100
QUEUES_LOOKED_AT: Final = 20
REQUESTS_LOOKED_AT: Final = 200
NAMES_SHOWN: Final = 5
STILL_FOR: Final = timedelta(seconds=60)
"""How long a person, a tool or a model may take before a run counts as stalled, as in ``runs --stuck``."""
ENDED_WITHIN: Final = timedelta(hours=1)
MANY_FAILED: Final = 3
FAILING_SHARE: Final = 0.25
"""As the alert TurngateRunsFail: fewer are the lot of single tasks."""
LATE_RETENTION: Final = timedelta(hours=6)
"""A run of a large store may take hours."""
LATE_DELIVERY: Final = timedelta(minutes=2)
"""A delivery that is due is sent within seconds."""
FAILED_WITHIN: Final = timedelta(hours=24)
LITTLE_ROOM: Final = 1024**3
NO_ROOM: Final = 200 * 1024**2
CLOCKS_APART: Final = timedelta(seconds=2)
BEATS_EVERY: Final = timedelta(minutes=3)
"""A heartbeat comes each minute, and one that was killed is listed for a little longer: an older one is from a slow clock."""
WRITES_IN: Final = 1.0
WRITES_COUNT_FOR: Final = timedelta(seconds=10)
"""Probes come every few seconds, and many of them; a full disk is noticed within this time."""
TASK_WAITS: Final = timedelta(seconds=10)
"""An idle worker takes a task at once."""
WORST_FIRST: Final = get_args(HealthState)

API_STOPS: Final = HealthCheck(
    name="api",
    state="warning",
    says="This API is stopping: it takes no new connections soon, and finishes what it has begun.",
    fix="Use another API, or start one again. In a rolling restart there is nothing to do: another one takes over.",
    command="turngate api APP",
)
START_WORKER: Final = "turngate worker APP"
WAITS: Final[dict[WaitKind, str]] = {
    "person": "a person",
    "workflow_fails": "a worker whose code can continue them",
    "no_worker": "a worker",
    "workflow_gone": "a workflow that Temporal has lost",
    "temporal_away": "Temporal",
    "model_retrying": "a model that fails and is retried",
    "model": "a model's answer",
    "tool": "a tool that runs",
    "timer": "a timer",
    "sub_agent": "a sub-agent's run",
    "paused": "someone who resumes it",
}
"""What a run waits for, after "waits for"."""


@dataclass(kw_only=True)
class Findings:
    """What the checks found. ``queues``: task queue → who polls it. ``live``, ``looked_at``: numbers of runs."""

    checks: list[HealthCheck] = field(default_factory=list)
    queues: dict[str, QueueLook] = field(default_factory=dict)
    waits: list[WaitCount] = field(default_factory=list)
    live: int = 0
    looked_at: int = 0


async def examine(services: Services, *, away: Collection[CheckName] = (), draining: bool = False) -> HealthView:
    """Run every check and return what they found, the worst first. Never raises for a part that is away.

    ``away``: the store or Temporal, if the caller knows that it does not answer. ``draining``: the API that answers is
    stopping.
    """
    findings = await _reach(services, away)
    if draining:
        findings.checks.append(API_STOPS)
    unreached = {*away, *(each.name for each in findings.checks if each.state != "ok")}
    if "store" not in unreached:
        await _try_to_write(services, findings)
    more = [_in_time(findings, "disk", check_disk(services.settings.disk))]
    if "store" not in unreached:
        more.append(_in_time(findings, "notifications", _outbox(services)))
        more.append(_in_time(findings, "retention", _retention(services)))
        more.append(_in_time(findings, "requests", _requests(services)))
    if "temporal" not in unreached:
        more.append(_in_time(findings, "search_attributes", _search_attributes(services)))
    if not unreached:
        more.append(_in_time(findings, "workers", _workers(services, findings)))
        more.append(_in_time(findings, "runs", _runs(services, findings)))
    await asyncio.gather(*more)
    if "store" not in unreached:
        await _in_time(findings, "clock", _clock(services, findings))
    if not unreached:
        await _in_time(findings, "builds", _builds(services, findings))
    return _view(findings)


async def _try_to_write(services: Services, findings: Findings) -> None:
    """Replace the check of a store that answers, if it takes no writes."""
    answers = [each for each in findings.checks if each.name == "store"]
    await _in_time(findings, "store", _store_writes(services))
    if len([each for each in findings.checks if each.name == "store"]) > len(answers):
        findings.checks = [each for each in findings.checks if each not in answers]


async def reached(services: Services) -> HealthView:
    """Return only whether the store and Temporal answer, as /readyz tells anyone."""
    return _view(await _reach(services, ()))


async def _reach(services: Services, away: Collection[CheckName]) -> Findings:
    findings = Findings()
    checks: dict[CheckName, Callable[[Services], Awaitable[list[HealthCheck]]]] = {
        "store": _store,
        "temporal": _temporal,
    }
    await asyncio.gather(
        *(_in_time(findings, name, check(services)) for name, check in checks.items() if name not in away)
    )
    return findings


async def _in_time(findings: Findings, name: CheckName, check: Awaitable[list[HealthCheck]]) -> None:
    """Add what the check finds; one that fails or takes too long is a finding, too."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            findings.checks += await check
    except TimeoutError:
        says = f"This check took longer than {CHECK_SECONDS:g} s, so its result is unknown."
        fix = "Look again in a moment. If it stays so, look at this machine's load and at the server that it asks."
        findings.checks.append(HealthCheck(name=name, state="warning", says=says, fix=fix, command="turngate doctor"))
    except TurngateError as error:
        says = f"It could not be checked: {error.message}"
        fix = "Check that Temporal and the store can be reached from here."
        findings.checks.append(HealthCheck(name=name, state="warning", says=says, fix=fix, command="turngate doctor"))


def _view(findings: Findings) -> HealthView:
    at = now()
    checks = sorted(findings.checks, key=lambda each: WORST_FIRST.index(each.state))
    return HealthView(
        state=checks[0].state,
        checked_at=as_text(at),
        checks=checks,
        workers=[poll for queue, look in findings.queues.items() for poll in _polls(queue, look)],
        waits=findings.waits,
        live=findings.live,
        looked_at=findings.looked_at,
    )


async def _store(services: Services) -> list[HealthCheck]:
    try:
        await services.feed.last_seq()
    except UnavailableError as error:
        fix = "Start the database, and check TURNGATE_DATABASE_URL. Nothing is lost: runs continue when it is back."
        return [
            HealthCheck(name="store", state="wrong", says=_sentence(error.message), fix=fix, command="turngate doctor")
        ]
    return [HealthCheck(name="store", state="ok", says="The store answers.")]


async def _store_writes(services: Services) -> list[HealthCheck]:
    """Return that nothing can be written, as on a full disk or in a file that is read-only; nothing where it can."""
    try:
        await services.database.try_to_write()
    except (UnavailableError, SQLAlchemyError) as error:
        cause = error.message if isinstance(error, TurngateError) else str(error.__cause__ or error)
        says = f"The store answers, and takes no writes: {cause}. Nothing can be decided and no run continues."
        fix = "Make room on its disk, or make its file and directory writable for the user who runs Turngate. Nothing is lost."
        return [HealthCheck(name="store", state="wrong", says=says, fix=fix, command="turngate doctor")]
    return []


async def store_problem(services: Services) -> str:
    """Return why nothing can be decided, without details: strangers read it. Empty where writes are taken."""
    try:
        await services.feed.last_seq()
        with suppress(TimeoutError):  # someone else may write for long
            async with asyncio.timeout(WRITES_IN):
                await services.database.try_to_write(unless_within=WRITES_COUNT_FOR)
    except (UnavailableError, SQLAlchemyError):
        return "store cannot be reached, or takes no writes"
    return ""


async def _temporal(services: Services) -> list[HealthCheck]:
    if await services.gateway.ready(TEMPORAL_ANSWERS_IN):
        return [HealthCheck(name="temporal", state="ok", says="Temporal answers.")]
    says = "Temporal does not answer: people can decide, but no run starts or continues."
    fix = "Start Temporal, or check TEMPORAL_ADDRESS. Every run continues by itself when it is back."
    return [HealthCheck(name="temporal", state="wrong", says=says, fix=fix, command="turngate doctor")]


async def _search_attributes(services: Services) -> list[HealthCheck]:
    labels = services.gateway.labels
    match await labels.look():
        case "on":
            says, lacks = "Runs can be found in Temporal by agent, source, starter and schedule.", False
        case "off":
            says, lacks = "Search attributes are switched off, so runs are found in Temporal by their id alone.", False
        case "missing":
            named = ", ".join(labels.lacking) or "one"
            says, lacks = f"Temporal's namespace lacks search attributes ({named}), so new runs get none.", True
        case "unknown":
            says, lacks = "Temporal doesn't say which search attributes it has, so new runs get none.", True
    if not lacks:
        return [HealthCheck(name="search_attributes", state="ok", says=says)]
    fix = "Runs work all the same. Add them, or set TURNGATE_SEARCH_ATTRIBUTES to false."
    command = "turngate search-attributes --add"
    return [HealthCheck(name="search_attributes", state="warning", says=says, fix=fix, command=command)]


async def _requests(services: Services) -> list[HealthCheck]:
    """Return that requests that wait were changed in the database; nothing where none was."""
    async with services.database.glance() as conn:
        changed = await requests.changed_pending(conn, limit=REQUESTS_LOOKED_AT)
    if not changed:
        return []
    named = ", ".join(f"{each.request.id} ({each.changed})" for each in changed[:NAMES_SHOWN])
    says = f"{counted(len(changed), 'request that waits was', 'requests that wait were')} changed in the database: {named}."
    fix = "No one can decide them. Find out who can write the database, and interrupt their runs."
    return [HealthCheck(name="requests", state="wrong", says=says, fix=fix, command="turngate audit verify")]


# Workers and builds.


async def _workers(services: Services, findings: Findings) -> list[HealthCheck]:
    async with services.database.glance() as conn:
        published = [each for each in await agents.current(conn) if not is_external(each.name)]
    by_queue: dict[str, list[str]] = defaultdict(list)
    for agent in published:
        by_queue[agent.task_queue].append(agent.name)
    if not by_queue:
        says = "No worker has published an agent yet, so no run can start."
        return [HealthCheck(name="workers", state="warning", says=says, fix="Start a worker.", command=START_WORKER)]
    names = sorted(by_queue)[:QUEUES_LOOKED_AT]
    stopping, seen = await asyncio.gather(
        services.gateway.stopping_workers(names),
        asyncio.gather(*(services.gateway.look_at_queue(each) for each in names)),
    )
    looks = [replace(each, stopping=stopping.get(name, {})) for name, each in zip(names, seen, strict=True)]
    findings.queues.update(zip(names, looks, strict=True))
    at = now()
    checks = [
        each for name, look in zip(names, looks, strict=True) for each in of_queue(name, by_queue[name], look, at)
    ]
    there = {each.identity for look in looks for each in look.present(at)}
    checks += of_stopping(sorted({each for look in looks for each in look.stopping} - there))
    if checks:
        return checks
    return [
        HealthCheck(
            name="workers", state="ok", says=f"{counted(len(there), 'worker polls', 'workers poll')} for tasks."
        )
    ]


def of_stopping(identities: list[str]) -> Iterator[HealthCheck]:
    """Yield that these workers drain, if there are any."""
    if not identities:
        return
    more = len(identities) - NAMES_SHOWN
    names = f"{', '.join(identities[:NAMES_SHOWN])}{f' and {more} more' if more > 0 else ''}"
    says = (
        f"{counted(len(identities), 'worker is', 'workers are')} stopping, or stopped within the last minute: {names}. "
        "A stopping worker takes no new work and finishes what it has begun."
    )
    fix = (
        "In a rolling restart there is nothing to do: other workers take the new work. If one stays, a tool runs longer than "
        "TURNGATE_STOP_GRACE_SECONDS: end its process, and its calls go to another worker."
    )
    yield HealthCheck(name="workers", state="warning", says=says, fix=fix, command="turngate runs --stuck")


def of_queue(name: str, names: list[str], look: QueueLook, at: datetime) -> Iterator[HealthCheck]:
    """Yield what is wrong with one task queue."""
    there = look.builds(at)
    whose = f"the task queue {name!r}, which {_agents(names)}"
    if not there:
        fix = "Start a worker of this app: its runs continue by themselves."
        says = f"No worker polls {whose}."
        if look.stopping:
            says += " Its last one is stopping."
        yield HealthCheck(name="workers", state="wrong", says=says, fix=fix, command=START_WORKER)
        return
    build = look.current_build
    if build not in there:
        yield _no_new_runs(name, build, sorted(each for each in there if each is not None))
    if look.waiting > TASK_WAITS:
        waits = span(look.waiting / timedelta(seconds=1))
        says = f"Tasks have waited {waits} in {whose}: all workers are busy, or have just stopped."
        fix = "Wait for the tools that run, or start more workers."
        yield HealthCheck(name="workers", state="warning", says=says, fix=fix, command=START_WORKER)


def _no_new_runs(queue: str, build: str | None, others: list[str]) -> HealthCheck:
    if build is None:
        says = f"New runs on {queue!r} wait: no build is current, and every worker there has one ({', '.join(others)})."
        fix = "Say which build gets new runs."
        chosen = shlex.quote(others[0]) if len(others) == 1 else "BUILD"
        command = f"turngate builds --set-current {chosen}"
        return HealthCheck(name="builds", state="wrong", says=says, fix=fix, command=command)
    says = f"New runs on {queue!r} wait: build {build} is current there, and none of its workers polls."
    fix = (
        f"Start a worker of build {build}, make another build current with `turngate builds --set-current BUILD`, or give new "
        "runs to workers without a build with `turngate builds --unset-current`."
    )
    command = f"turngate worker APP --build-id {shlex.quote(build)}"
    return HealthCheck(name="builds", state="wrong", says=says, fix=fix, command=command)


async def _builds(services: Services, findings: Findings) -> list[HealthCheck]:
    """Return the builds whose runs no worker can continue."""
    known = await services.gateway.look_at_builds(services.settings.deployment_name)
    at = now()
    there = {build for look in findings.queues.values() for build in look.builds(at)}
    checks = []
    for each in known:
        if each.open_runs and each.build_id not in there:
            stay = f"{counted(each.open_runs, 'run stays', 'runs stay')} with build {each.build_id}"
            fix = "Start a worker of that build, with the code of its release: the runs continue by themselves."
            command = f"turngate worker APP --build-id {shlex.quote(each.build_id)}"
            says = f"{stay}, and none of its workers polls."
            checks.append(HealthCheck(name="builds", state="wrong", says=says, fix=fix, command=command))
    if checks or not known or any(each.name == "builds" for each in findings.checks):
        return checks
    current = next((f"build {each.build_id}" for each in known if each.current), "workers without a build")
    return [HealthCheck(name="builds", state="ok", says=f"New runs go to {current}.")]


def _polls(task_queue: str, look: QueueLook) -> Iterator[WorkerPoll]:
    for build in dict.fromkeys(each.build for each in look.pollers):
        of_build = [each for each in look.pollers if each.build == build]
        yield WorkerPoll(
            task_queue=task_queue,
            build=build,
            gets_new_runs=build == look.current_build,
            workers=len({each.identity for each in of_build}),
            polled_at=as_text(of_build[0].polled_at),
        )


# Runs.


async def _runs(services: Services, findings: Findings) -> list[HealthCheck]:
    async with services.database.glance() as conn:
        findings.live = await runs.count_live(conn)
        ended = await runs.newest_ended(conn, since=as_text(now() - ENDED_WITHIN), limit=RUNS_LOOKED_AT)
    stuck = (await stuck_page(services, limit=RUNS_LOOKED_AT, before=None, still_for=STILL_FOR)).items
    failing = await services.gateway.failing_workflows()
    if failing is not None:
        older = failing.run_ids - {each.run.id for each in stuck}
        stuck += await stalled_among(services, older, STILL_FOR)
    findings.looked_at = min(findings.live, RUNS_LOOKED_AT)
    by_kind = Counter(each.waits_for.kind for each in stuck)
    newest = {each.waits_for.kind: each.run.id for each in reversed(stuck)}
    findings.waits = [
        WaitCount(kind=kind, says=WAITS[kind], runs=many, run_id=newest[kind]) for kind, many in by_kind.most_common()
    ]
    checks = [*of_failed(ended), *(check for each in findings.waits for check in of_wait(each))]
    says = f"{counted(findings.live, 'run is', 'runs are')} live."
    if findings.live > findings.looked_at:
        says += f" Causes are of the newest {findings.looked_at}"
        says += "." if failing is None else ", and of all whose workflow task fails."
    if failing is not None:
        checks += [of_fire(each) for each in await failing_fires(services, failing)]
    return [*checks, HealthCheck(name="runs", state="ok", says=says, href="/runs?status=running")]


def of_failed(ended: Sequence[tuple[str, str]]) -> Iterator[HealthCheck]:
    """Yield that many runs fail. ``ended``: (run's id, status) of those that have ended lately, the newest first."""
    failed = [run_id for run_id, status in ended if status == "failed"]
    if len(failed) < MANY_FAILED or len(failed) < FAILING_SHARE * len(ended):
        return
    says = f"{len(failed)} of the {len(ended)} runs that ended in the last hour failed."
    fix = "See why the newest of them failed; `turngate runs --status failed` lists them."
    state: HealthState = "wrong" if len(failed) == len(ended) else "warning"
    yield HealthCheck(
        name="runs", state=state, says=says, fix=fix,
        command=f"turngate explain {failed[0]}", href="/runs?status=failed",
    )  # fmt: skip


def of_fire(fire: FailingFire) -> HealthCheck:
    """Return that a schedule's run can't start."""
    return HealthCheck(
        name="schedules",
        state="wrong",
        says=fire.says,
        fix=f"{fire.fix} `turngate explain {fire.workflow_id}` says the same.",
        command="turngate worker APP --build-id OLD",
        href=f"/schedules/{fire.schedule_id}",
    )


def of_wait(waits: WaitCount) -> Iterator[HealthCheck]:
    """Yield what must be done about runs that wait for this; nothing where people or time end the wait."""
    says = f"{counted(waits.runs, 'run waits', 'runs wait')} for {waits.says}."
    explained = f"turngate explain {waits.run_id}"
    match waits.kind:
        case "workflow_fails":
            fix = "Start a worker of the release that began them: `turngate worker APP --build-id OLD`. Explain says more."
        case "no_worker":
            fix = "Start the worker that is missing: explain names its build or queue."
        case "workflow_gone":
            fix = "Check that this is the Temporal server and namespace where they were started, then recover them."
            explained = f"turngate recover {waits.run_id}"
        case "model_retrying":
            fix = "Check that the model answers (`turngate models --probe`), or switch the run to another one."
        case _:
            return
    state: HealthState = "wrong" if waits.kind in {"workflow_gone", "workflow_fails"} else "warning"
    yield HealthCheck(name="runs", state=state, says=says, fix=fix, command=explained, href=f"/runs/{waits.run_id}")


# Notifications.


async def _outbox(services: Services) -> list[HealthCheck]:
    at = now()
    async with services.database.glance() as conn:
        backlogs = await deliveries.backlogs(conn, failed_since=at - FAILED_WITHIN)
    checks = [check for each in backlogs for check in of_backlog(each, at)]
    if not checks:
        many = len(services.settings.channels)
        says = f"{counted(many, 'channel is', 'channels are')} notified." if many else "Notifications are off."
        checks.append(HealthCheck(name="notifications", state="ok", says=says, href="/notifications"))
    return checks


def of_backlog(backlog: Backlog, at: datetime) -> Iterator[HealthCheck]:
    """Yield what is wrong with one channel's deliveries."""
    to = f"to {backlog.channel}"
    if backlog.failed:
        says = f"{counted(backlog.failed, 'message')} {to} failed for good in the last 24 hours."
        fix = "Read what the receiver answered, fix the channel, and send them again."
        yield HealthCheck(
            name="notifications", state="warning", says=says, fix=fix,
            command="turngate notify log --status failed", href="/notifications?status=failed",
        )  # fmt: skip
    late = None if backlog.due_since is None else at - from_text(backlog.due_since)
    if late is not None and late > LATE_DELIVERY:
        waits = span(late / timedelta(seconds=1))
        says = f"Messages {to} have been due for {waits}, and nothing sends them."
        fix = "Start an API that has this channel in its TURNGATE_NOTIFICATIONS."
        yield HealthCheck(name="notifications", state="wrong", says=says, fix=fix, command="turngate notify check")
    elif backlog.retried and backlog.oldest_at is not None:
        oldest = span((at - from_text(backlog.oldest_at)) / timedelta(seconds=1))
        says = f"{counted(backlog.retried, 'message')} {to} could not be sent yet, the oldest for {oldest}."
        fix = "Read what the receiver answers."
        yield HealthCheck(
            name="notifications", state="warning", says=says, fix=fix,
            command="turngate notify log --status waiting", href="/notifications?status=waiting",
        )  # fmt: skip


# Retention.


async def _retention(services: Services) -> list[HealthCheck]:
    status = await retention_status(services.database, services.settings.retention, runs=1)
    return [of_retention(status, now())]


def of_retention(status: RetentionStatus, at: datetime) -> HealthCheck:
    """Return whether what is too old goes."""
    last = status.runs[0] if status.runs else None
    if status.problem:
        fix = "Fix the file: it is read again within a minute."
        return HealthCheck(
            name="retention", state="wrong", says=status.says, fix=fix, command="turngate retention check"
        )
    if last is not None and last.problem:
        says = f"Retention ended with a problem: {last.problem}."
        return HealthCheck(
            name="retention",
            state="warning",
            says=says,
            fix="Look for that id in the log of the API.",
            command="turngate retention",
        )
    if last is not None and status.every_seconds is not None:
        late = at - from_text(last.started_at) - timedelta(seconds=status.every_seconds)
        if late > max(LATE_RETENTION, timedelta(seconds=status.every_seconds)):
            says = f"Retention began last {span((at - from_text(last.started_at)) / timedelta(seconds=1))} ago: it is late."
            fix = "Look for 'retention' in the log of the API."
            return HealthCheck(name="retention", state="warning", says=says, fix=fix, command="turngate retention")
    return HealthCheck(name="retention", state="ok", says=status.says)


# The machines.


async def check_disk(directory: Path | None) -> list[HealthCheck]:
    """Look at the room where the store is; nothing when it is on a server of its own."""
    if directory is None:
        return []
    try:
        free = (await asyncio.to_thread(shutil.disk_usage, directory)).free
    except OSError as error:
        says = f"The disk of the store can't be read: {error.strerror}."
        return [
            HealthCheck(
                name="disk", state="warning", says=says, fix="Check the data directory.", command="turngate doctor"
            )
        ]
    says = f"{free / 1024**3:.1f} GiB are free where the store is."
    if free >= LITTLE_ROOM:
        return [HealthCheck(name="disk", state="ok", says=says)]
    fix = "Make room: when the disk is full, nothing can be decided and no run continues."
    state: HealthState = "wrong" if free < NO_ROOM else "warning"
    return [HealthCheck(name="disk", state=state, says=says, fix=fix, command="df -h")]


async def _clock(services: Services, findings: Findings) -> list[HealthCheck]:
    before = now()
    theirs = await services.database.server_time()
    after = now()
    checks = [] if theirs is None else [*apart("database", theirs, before, after)]
    polls = [each.polled_at for look in findings.queues.values() for each in look.pollers]
    # A poll can't be later than now. Whether Temporal's clock is slow can't be seen in this way.
    checks += apart("Temporal server", max(polls), min(before, max(polls)), after) if polls else []
    present = {each.identity for look in findings.queues.values() for each in look.present(after)}
    beats = await services.gateway.worker_clocks() if present else {}
    return of_clocks(checks, present, beats, after)


def of_clocks(
    others: Sequence[HealthCheck], workers: Collection[str], beats: Mapping[str, datetime], at: datetime
) -> list[HealthCheck]:
    """Return whose clock differs. ``others``: those that do and are no worker's. ``workers``: those that are there.

    ``beats``: worker → its last heartbeat, by its clock. It sends one a minute, the first after a minute.
    """
    known = sorted(workers & beats.keys())
    checks = [
        *others,
        *(check for each in known for check in apart(f"worker {each}", beats[each], at - BEATS_EVERY, at)),
    ]
    unknown = counted(len(workers) - len(known), "worker")
    says = "The clocks agree." if len(known) == len(workers) else f"The clocks agree. Not known yet: that of {unknown}."
    return checks or [HealthCheck(name="clock", state="ok", says=says)]


def apart(whose: str, theirs: datetime, before: datetime, after: datetime) -> Iterator[HealthCheck]:
    """Yield the difference between their clock, read between two instants of our clock, and our clock, if it is too much."""
    apart = max(theirs - after, before - theirs)
    if apart <= CLOCKS_APART:
        return
    direction = "fast" if theirs > after else "slow"
    says = f"The {whose}'s clock is {span(apart / timedelta(seconds=1))} {direction}, compared with this machine's."
    fix = "Synchronise the machines' clocks (NTP): deadlines, grace periods and log-ins are measured by them."
    yield HealthCheck(name="clock", state="warning", says=says, fix=fix, command="timedatectl status")


def _agents(names: list[str]) -> str:
    if len(names) == 1:
        return f"the agent {names[0]} needs"
    first, more = sorted(names)[:NAMES_SHOWN], len(names) - NAMES_SHOWN
    return f"the agents {', '.join(first)}{f' and {more} more' if more > 0 else ''} need"


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:].rstrip('.')}."
