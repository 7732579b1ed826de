"""A case's scripted approvers: they watch a run and answer its requests, through the API's own operations.

They are ordinary operators with names: eligibility, quorum and digest apply to them as to everyone. A request that none of
them answers is never approved.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from typing import Final, assert_never

from pydantic import JsonValue

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import decide
from turngate.approvals_api.runs import control
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConflictError, GoneError, TurngateError
from turngate.domain.identity import ROLE_SCOPES
from turngate.domain.requests import Verb
from turngate.domain.runs.inbox import InboxFilter
from turngate.evals.cases import APPROVER, Approver, Case
from turngate.evals.patterns import fits, names_tool
from turngate.evals.report import ApproverDecision
from turngate.evals.stage import Stage
from turngate.store.clock import from_text
from turngate.store.live import watch
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import runs
from turngate.wire.orders import DecisionOrder

POLL_SECONDS: Final = 0.04
MOST_PENDING: Final = 200


class Approvers:
    """Answer the requests of one attempt. ``decisions``: what they did; ``problems``: why the case has already failed."""

    def __init__(self, stage: Stage, services: Services, case: Case) -> None:
        self._stage = stage
        self._services = services
        self._case = case
        self._used: Counter[int] = Counter()
        self._answers: dict[str, Approver | None] = {}
        self._approved: Counter[str] = Counter()
        self.decisions: list[ApproverDecision] = []
        self.problems: list[str] = []

    async def attend(self, run_id: str) -> None:
        """Return when the run has ended: by itself, or interrupted because no approver answers a request."""
        while not await self._ended(run_id):
            for request in await self._pending(run_id):
                await self._answer(request)
            if self.problems:
                await self.stop(run_id, self.problems[0])
                return
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self, run_id: str, reason: str) -> None:
        """Interrupt the run if it is not over, and wait for its end."""
        try:
            await control.stop(self._services, run_id, by=APPROVER, reason=reason[:500])
        except (ConflictError, GoneError):
            return
        await self._until_ended(run_id)

    async def _until_ended(self, run_id: str) -> None:
        # The end is a row in the store, which several processes may write: there is no event to wait for.
        while not await self._ended(run_id):  # noqa: ASYNC110 - as above
            await asyncio.sleep(POLL_SECONDS)

    async def _ended(self, run_id: str) -> bool:
        async with self._stage.database.read() as conn:
            run = await runs.get(conn, run_id)
        return run is None or run.status != "running"

    async def _pending(self, run_id: str) -> list[Request]:
        """Return the pending requests of the run and its sub-agents' runs, oldest first in each."""
        async with self._stage.database.read() as conn:
            pending: list[Request] = []
            for member in await watch.family(conn, run_id):
                for listed in await requests.page(conn, InboxFilter(run_id=member), limit=MOST_PENDING):
                    request = await requests.get(conn, listed.id)
                    if request is not None and request.status == "pending":
                        pending.append(request)
            return pending

    async def _answer(self, request: Request) -> None:
        approver = self._approver(request)
        if approver is None and self._case.unanswered == "fail":
            self.problems.append(
                f"no approver answers: {request.kind} for {request.tool_name} {request.input} (rule {request.rule}); "
                "add an approver for it"
            )
        elif approver is None:
            verb: Verb = "respond" if request.kind == "outcome" else "reject"
            default = Approver(
                do=verb, reason="no approver answers this", outcome="tell_model" if verb == "respond" else None
            )
            await self._decide(request, default, verb)
        elif approver.do == "expire":
            await self._let_expire(request)
        else:
            await self._decide(request, approver, approver.do)

    def _approver(self, request: Request) -> Approver | None:
        """Return the approver that answers the request, or None. It is chosen once."""
        if request.id not in self._answers:
            arguments = _decoded(request.input)
            for place, each in enumerate(self._case.approvers):
                spent = each.times is not None and self._used[place] >= each.times
                if not spent and _is_for(each, request, arguments):
                    self._used[place] += 1
                    self._answers[request.id] = each
                    break
            else:
                self._answers[request.id] = None
        return self._answers[request.id]

    async def _decide(self, request: Request, approver: Approver, verb: Verb) -> None:
        names = approver.by
        place = self._approved[request.id]
        if names is not None and place >= len(names):
            self.problems.append(
                f"too few approvers: {request.tool_name} needs {request.quorum} approvals, and `by` names {len(names)}; "
                "name more people"
            )
            return
        if names is None:
            name = APPROVER if place == 0 else f"{APPROVER}-{place + 1}"
        else:
            name = names[place]
        principal = Principal(name=name, via="session", scopes=ROLE_SCOPES[approver.role], role=approver.role)
        try:
            order = DecisionOrder(
                verb=verb,
                digest=request.digest,
                args=None if approver.args is None else json.dumps(approver.args, ensure_ascii=False),
                message=approver.reason,
                outcome=approver.outcome,
            )
            await decide.submit(self._services, principal, request.id, order)
        except GoneError:
            return
        except TurngateError as error:
            if error.error_code != "already_decided":
                self.problems.append(f"{name}'s {verb} of {request.tool_name} was refused: {error.message}")
            return
        self._approved[request.id] += 1
        self.decisions.append(ApproverDecision(request_id=request.id, tool=request.tool_name, verb=verb, by=name))

    async def _let_expire(self, request: Request) -> None:
        """Let the run's time pass, once every open call in it waits for a request that should expire."""
        if request.expires_at is None or self._stage.clock is None:
            self.problems.append(
                f"the request for {request.tool_name} never expires: give its rule `expires_after_seconds`, or the agent "
                "Limits(request_expiry=…)"
            )
            return
        async with self._stage.database.read() as conn:
            run = await run_views.run_detail(conn, request.run_id)
        waiting = [
            self._answers.get(each.id)
            for step in run.steps
            for call in step.calls
            for each in call.requests
            if each.status == "pending"
        ]
        still_open = [call for step in run.steps for call in step.calls if call.settled_at is None]
        if len(waiting) < len(still_open) or any(each is None or each.do != "expire" for each in waiting):
            return
        life = from_text(request.expires_at) - from_text(request.created_at)
        await self._stage.clock.forward(request.run_id, life + timedelta(seconds=1))


def _is_for(approver: Approver, request: Request, arguments: JsonValue) -> bool:
    return (
        names_tool(approver.tool, request.tool_name)
        and names_tool(approver.agent, request.agent)
        and (_can(approver, request) if approver.kind is None else approver.kind == request.kind)
        and (approver.when is None or fits(approver.when, arguments))
    )


def _can(approver: Approver, request: Request) -> bool:
    """Whether its `do` answers a request of this kind: an approver that approves does not answer a question."""
    match request.kind:
        case "approval":
            return approver.outcome is None
        case "question":
            return approver.outcome is None and approver.do in {"respond", "reject", "expire"}
        case "outcome":
            return approver.outcome is not None
        case _:
            assert_never(request.kind)


def _decoded(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value
