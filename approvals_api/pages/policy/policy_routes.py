"""The policy page: the rules in force in their order, explaining a call, and changing the stored rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of, number_of, typed_of
from turngate.approvals_api.pages.pictures import plots
from turngate.approvals_api.pages.templating import Frame, render
from turngate.approvals_api.policy import proposals
from turngate.approvals_api.policy import reports as policy_reports
from turngate.approvals_api.policy import rules as policy_rules
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.backlog import waiting_for_rule
from turngate.approvals_api.requests.statistics import MOST_ENDED, MOST_GROUPS, how_people_decide
from turngate.approvals_api.services import Services
from turngate.domain.errors import TurngateError
from turngate.wire.orders import PolicyQuestion
from turngate.wire.policy import Explanation, PolicyVersion, PolicyView
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

VERSIONS: Final = 50
EXPLAINED: Final = ("tool", "args", "agent", "workspace")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A call to explain, with its answer or why there is none. ``words``: what was typed."""

    words: Mapping[str, str] = field(default_factory=dict)
    answer: Explanation | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that was sent and not saved: why, and everything that was typed."""

    status: int = HTTPStatus.OK
    problem: str = ""
    source: str | None = None
    comment: str = ""


ANSWERS: Final[Mapping[str, Callable[[Services, Principal, int], Awaitable[object]]]] = {
    "confirm": proposals.confirm,
    "refuse": proposals.refuse,
}
"""What a button says of a proposal → what does it."""
UNCHANGED: Final = Change()
NO_QUESTION: Final = Question()


@router.get("/policy")
async def policy_page(request: Request, services: ServicesDep, principal: ReaderDep) -> HTMLResponse:
    """Show the rules; with ``tool`` in the URL, also what they say of a call and why."""
    words = {name: request.query_params.get(name, "") for name in EXPLAINED}
    question = await _explained(services, words) if words["tool"] else Question(words=words)
    return await _show(request, services, principal, question, UNCHANGED)


@router.get("/decisions")
async def decisions_page(request: Request, services: ServicesDep, principal: OperatorDep) -> HTMLResponse:
    """Show how people decide, per tool and rule."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        decisions = await how_people_decide(conn)
    return render(
        "decisions.html",
        frame=frame,
        rows=decisions.rows,
        periods=decisions.periods,
        waits=decisions.waits,
        plots=plots,
        most=MOST_ENDED,
        groups=MOST_GROUPS,
    )


@router.post("/policy")
async def change(request: Request, services: ServicesDep, principal: ReaderDep) -> Response:
    """Save rules, restore an earlier version, or answer a proposal. If refused, the page shows again what was typed."""
    typed = await typed_of(request)
    version = number_of(typed, "if_version")
    source = typed.get("source", "").replace("\r\n", "\n")
    comment = typed.get("comment", "").strip()
    try:
        check_form_token(request, typed.get("csrf_token"))
        if typed.get("action") in ANSWERS:
            await ANSWERS[typed["action"]](services, principal, number_of(typed, "proposal") or 0)
        elif typed.get("action") == "revert":
            earlier = number_of(typed, "version") or 0
            await policy_rules.revert(services, principal, version=earlier, if_version=version)
        else:
            await policy_rules.store_rules(services, principal, source=source, comment=comment, if_version=version)
    except TurngateError as error:
        reverting = typed.get("action") in {"revert", *ANSWERS}
        refused = Change(
            status=status_of(error), problem=error.message, source=None if reverting else source, comment=comment
        )
        return await _show(request, services, principal, NO_QUESTION, refused)
    return RedirectResponse("/policy", HTTPStatus.SEE_OTHER)


async def _explained(services: Services, words: Mapping[str, str]) -> Question:
    try:
        question = PolicyQuestion(
            tool=words["tool"].strip(),
            args=words["args"].strip() or "{}",
            agent=words["agent"].strip() or None,
            workspace=words["workspace"].strip() or None,
        )
        answer = await policy_reports.explain_call(services, question)
    except TurngateError as error:
        return Question(words=words, problem=error.message)
    return Question(words=words, answer=answer)


async def _show(
    request: Request, services: Services, principal: Principal, question: Question, refused: Change
) -> HTMLResponse:
    stored_rule = request.query_params.get("stored", "")
    waiting = await _waiting(services, principal, stored_rule) if stored_rule else 0
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        policy = await policy_rules.policy_view(conn)
        versions = await policy_rules.version_page(conn, limit=VERSIONS, before=None)
    return draw_policy(
        frame,
        policy,
        versions.items,
        question,
        refused,
        may_change=principal.may("admin"),
        is_proposer=policy.proposed is not None and proposals.is_own(principal, policy.proposed.proposed_by),
        stored_rule=stored_rule,
        waiting=waiting,
    )


async def _waiting(services: Services, principal: Principal, rule: str) -> int:
    """Return how many requests wait that a rule would answer; 0 where it answers none."""
    try:
        return len((await waiting_for_rule(services, principal, rule)).requests)
    except TurngateError:
        return 0


def draw_policy(
    frame: Frame,
    policy: PolicyView,
    versions: list[PolicyVersion],
    question: Question = NO_QUESTION,
    refused: Change = UNCHANGED,
    *,
    may_change: bool = True,
    is_proposer: bool = False,
    stored_rule: str = "",
    waiting: int = 0,
) -> HTMLResponse:
    """Return the policy page.

    ``is_proposer``: whether they proposed the rules that wait. ``stored_rule``: one that was just stored; ``waiting``:
    requests that it would answer.
    """
    stored = "" if policy.stored is None else policy.stored.source
    return render(
        "policy.html",
        frame=frame,
        status=refused.status,
        policy=policy,
        versions=versions,
        question=question,
        refused=refused,
        source=stored if refused.source is None else refused.source,
        may_change=may_change,
        is_proposer=is_proposer,
        stored_rule=stored_rule,
        waiting=waiting,
    )
