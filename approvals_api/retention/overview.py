"""What retention has done and will do, and erasing what someone confirmed: for the page and the API."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.retention.apply import Forecast, forecast, next_at, read_rules
from turngate.approvals_api.retention.erase import ErasureOrder, erase, erasure_view, hold_view
from turngate.approvals_api.retention.people import erase_person
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import RetentionSettings
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.retention import erasures, retention_runs
from turngate.store.retention.retention_runs import RetentionRun
from turngate.wire.retention import ErasureDone, RetentionRunView, RetentionStatus, RetentionView, RuleView

NEWEST_RUNS: Final = 10
NEWEST_ERASURES: Final = 50
COUNT_WITHIN: Final = 1.0
"""Seconds, for all rules together."""
CONVERSATION: Final = ("conv_", "run_")
"""How ids of conversations and runs begin; any other target is a person's name."""
NOT_REWRITTEN: Final = (
    "The database's files still hold old bytes until someone runs `turngate erase --scrub`. "
    "That holds others up, so choose a quiet hour."
)


@dataclass(frozen=True, kw_only=True)
class ConfirmedErasure:
    """What is to be erased: a conversation, a run's conversation, or a person by name. ``confirm``: the target, typed again."""

    target: str
    confirm: str
    reason: str
    with_forks: bool = False
    interrupt: bool = False


async def retention_status(database: Database, settings: RetentionSettings | None, *, runs: int) -> RetentionStatus:
    """Return when retention ran, newest first, at most ``runs`` times, and when it runs next."""
    async with database.read() as conn:
        newest = await retention_runs.newest(conn, limit=runs)
    views = [run_view(each) for each in newest]
    if settings is None:
        return RetentionStatus(file=None, every_seconds=None, next_at=None, problem="", runs=views)
    problem = ""
    try:
        await asyncio.to_thread(read_rules, settings.file)
    except ConfigurationError as error:
        problem = error.message
    due = await next_at(database, settings)
    return RetentionStatus(
        file=settings.file.name,
        every_seconds=None if settings.every is None else int(settings.every.total_seconds()),
        next_at=None if due is None else as_text(max(due, now())),
        problem=problem,
        runs=views,
    )


async def retention_view(services: Services) -> RetentionView:
    """Return the rules with what they would erase now, the holds, and what was erased. Bounded in time."""
    database, settings = services.database, services.settings.retention
    status = await retention_status(database, settings, runs=NEWEST_RUNS)
    rules: list[RuleView] = []
    if settings is not None and not status.problem:
        every = await asyncio.to_thread(read_rules, settings.file)
        rules = [rule_view(await forecast(database, each, now(), within=COUNT_WITHIN / len(every))) for each in every]
    async with database.read() as conn:
        newest = await erasures.page(conn, limit=NEWEST_ERASURES)
        holds = await erasures.holds(conn)
    return RetentionView(
        status=status,
        rules=rules,
        holds=[hold_view(each) for each in holds],
        erasures=[erasure_view(each) for each in newest],
    )


def rule_view(forecast: Forecast) -> RuleView:
    """Return a rule with what it would erase as the API shows it."""
    rule = forecast.rule
    return RuleView(
        name=rule.name,
        kind=rule.kind,
        keep_seconds=int(rule.keep.total_seconds()),
        agent=rule.agent,
        tools=None if rule.tools is None else list(rule.tools),
        would_go=forecast.count,
        is_more=not forecast.is_all,
    )


async def erase_confirmed(services: Services, principal: Principal, order: ConfirmedErasure) -> ErasureDone:
    """Erase a conversation, or what is stored of a person. For admins, who typed the id again.

    The database's files are not rewritten: that would hold up everyone else.

    Raises:
        ForbiddenError: not an admin.
        InvalidInputError: ``confirm`` is not the target; the reason is empty or too long.
        NotFoundError: nothing is stored under this id or name.
        ConflictError: as :func:`turngate.approvals_api.retention.erase.erase` does; or the person is the last admin.
    """
    principal.require("admin")
    if order.confirm != order.target:
        message = f"to erase {order.target}, type it again exactly: it can't be undone"
        raise InvalidInputError(
            f"/confirm: {message}", code="not_confirmed", errors=[{"pointer": "/confirm", "message": message}]
        )
    if not order.target.startswith(CONVERSATION):
        erasure = await erase_person(
            services.database, order.target, by=principal.name, reason=order.reason, scrub=False
        )
        return ErasureDone(target=order.target, person=dict(erasure.counts), remains=[erasure.says, NOT_REWRITTEN])
    wish = ErasureOrder(
        target=order.target,
        by=principal.name,
        reason=order.reason,
        with_forks=order.with_forks,
        interrupt=order.interrupt,
        scrub=False,
    )
    result = await erase(services.database, wish, on_interrupt=services.gateway.tell_changed)
    return ErasureDone(target=order.target, erasures=result.erasures, remains=[NOT_REWRITTEN, *result.remains])


def run_view(run: RetentionRun) -> RetentionRunView:
    """Return one application of the rules as the API shows it."""
    state = "ended"
    if run.ended_at is None:
        state = "running" if run.is_held(now()) else "broken off"
    columns = {name: value for name, value in vars(run).items() if name in RetentionRunView.model_fields}
    return RetentionRunView.model_validate({**columns, "state": state, "counts": run.counted})
