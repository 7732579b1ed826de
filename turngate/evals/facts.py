"""One attempt at a case, read from the store when it is over. A case's ``check`` gets it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from turngate.approvals_api.requests.views import request_page
from turngate.approvals_api.runs import views as run_views
from turngate.domain.runs.budgets import MILLION, is_free
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.runs.outcomes import RunOutcome
from turngate.evals.report import ApproverDecision
from turngate.store.database import Database
from turngate.store.live import watch
from turngate.wire.calls import CallView
from turngate.wire.requests import RequestItem
from turngate.wire.runs import RunDetail

MAX_ASKS = 1_000


@dataclass(frozen=True, kw_only=True)
class Play:
    """An attempt that is over, before its runs are read. ``run_ids``: one per message that was sent, at least one."""

    case: str
    model: str
    attempt: int
    run_ids: tuple[str, ...]
    decisions: tuple[ApproverDecision, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """One attempt at a case.

    ``runs``: one per message that was sent, at least one. ``family``: these and their sub-agents' runs, each after the run
    that started it. ``asks``: every request that was opened in them, oldest first. ``decisions``: those of the case's
    approvers. ``seconds``: from the first message to the last run's end. ``cost`` None: a model that was used has no price.
    """

    case: str
    model: str
    attempt: int
    runs: tuple[RunDetail, ...]
    family: tuple[RunDetail, ...]
    asks: tuple[RequestItem, ...]
    decisions: tuple[ApproverDecision, ...]
    seconds: float
    cost: Decimal | None

    @property
    def outcome(self) -> RunOutcome | None:
        """How the last run ended; None: it has not ended."""
        return self.runs[-1].outcome

    @property
    def final_text(self) -> str:
        """The last run's answer; empty unless it is completed."""
        return self.runs[-1].final_text

    @property
    def calls(self) -> list[CallView]:
        """The models' calls, in order. A sub-agent's calls follow the call that started it."""
        family = {run.id: run for run in self.family}
        calls: list[CallView] = []

        def add(run: RunDetail) -> None:
            for call in (call for step in run.steps for call in step.calls if not call.by_engine):
                calls.append(call)
                if call.child_run_id in family:
                    add(family[call.child_run_id])

        for run in self.runs:
            add(run)
        return calls

    @property
    def steps(self) -> int:
        """Model responses, sub-agents' included."""
        return sum(len(run.steps) for run in self.family)

    @property
    def tokens(self) -> int:
        """Input and output tokens, sub-agents' included."""
        return sum(run.tokens_used for run in self.family)


def _have_prices(specs: set[str], priced: frozenset[str]) -> bool:
    return all(is_free(each) or each in priced for each in specs)


async def case_run(database: Database, play: Play, priced: frozenset[str]) -> CaseRun:
    """Read an attempt's runs from the store. ``priced``: specs of the models that have a price."""
    family: list[RunDetail] = []
    asks: list[RequestItem] = []
    async with database.read() as conn:
        for run_id in play.run_ids:
            ids = await watch.family(conn, run_id)
            family += [await run_views.run_detail(conn, each) for each in ids]
        for run in family:
            page = await request_page(conn, InboxFilter(status="all", run_id=run.id), limit=MAX_ASKS)
            asks += page.items
    asks.sort(key=lambda request: (request.created_at, request.id))
    used = {step.model_spec or run.model for run in family for step in run.steps if step.tokens}
    return CaseRun(
        case=play.case,
        model=play.model,
        attempt=play.attempt,
        runs=tuple(next(run for run in family if run.id == run_id) for run_id in play.run_ids),
        family=tuple(family),
        asks=tuple(asks),
        decisions=play.decisions,
        seconds=play.seconds,
        cost=Decimal(sum(run.cost_micros for run in family)) / MILLION if _have_prices(used, priced) else None,
    )
