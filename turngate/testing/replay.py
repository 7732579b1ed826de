"""An app run against a fixture, on the real engine: models, judge, decisions and expiries are the recorded ones.

Tools run (swap the handlers of those that must not), policy is asked, gates wait. What nobody decided then is not decided
now either: the run is interrupted, and the report names the request.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from approvals_api.requests import decide
from approvals_api.requests.views import request_detail
from approvals_api.runs import start
from turngate.domain.agents.app import App
from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.domain.runs.fixtures import Fixture, FixtureDecision, parse_fixture
from turngate.domain.tools.declared_parts import Handler
from turngate.recording import STARTER_WORD, recorded_end, recorded_responses
from turngate.store.clock import from_text
from turngate.store.runs import messages
from turngate.testing.engine import OPERATOR, STARTER, RunningApp, running_app
from turngate.testing.recorded_model import RecordedModel
from turngate.testing.report import Divergence, Kind, ReplayReport, compared
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail

LOOK_SECONDS: Final = 0.03


async def replay_fixture(
    app: App,
    fixture: Fixture | str | Path,
    directory: Path,
    *,
    handlers: Mapping[str, Handler] | None = None,
    workspace: Path | None = None,
    any_result_of: Collection[str] = (),
    base: Path | None = None,
    deadline: float = 20.0,
) -> ReplayReport:
    """Run an app against a recorded run, and say what differs.

    Args:
        app: the app; its agent of the recorded name runs.
        fixture: what ``turngate export`` wrote, or the path of its file.
        directory: one of the test's own that exists, for Temporal's and the store's files.
        handlers: tool name → function that takes the place of the handler, as of :func:`running_app`.
        workspace: the directory to work in; needed when the recorded run had one.
        any_result_of: tools whose successful results may differ (a clock, a search).
        base: where relative paths of the app start; None: the current directory.
        deadline: seconds in which something has to happen.

    Raises:
        ConfigurationError: the file is no fixture, the app has no such agent, or a workspace is missing.
        AssertionError: nothing happened within ``deadline``.
    """
    recorded = fixture if isinstance(fixture, Fixture) else _read(Path(fixture))
    if app.find(recorded.agent) is None:
        names = ", ".join(agent.name for agent in app.all_agents)
        raise ConfigurationError(f"the fixture is a run of agent {recorded.agent!r}; the app's agents are: {names}")
    if recorded.workspace and workspace is None:
        raise ConfigurationError(
            "the recorded run worked in a directory: give one that holds the same files, as workspace=tmp_path / 'work'"
        )
    model = RecordedModel(recorded)
    async with running_app(
        app,
        directory,
        handlers=handlers,
        model=model,
        base=base,
        deadline=deadline,
        clock=recorded.expires,
        answers_judge=True,
    ) as engine:
        run_id = await _start(engine, recorded, workspace)
        approver = _Approver(engine, recorded, run_id, deadline=deadline)
        run = await approver.attend()
        async with engine.services.database.read() as conn:
            history = await messages.path_to(conn, await messages.head_of(conn, run.conversation_id))
        actual = recorded_responses(run, await engine.request_details(run))
        return compared(
            recorded,
            run_id=run_id,
            responses=actual,
            ended=recorded_end(run),
            reason=run.reason,
            history=[stored.message for stored in history],
            seen=approver.seen,
            any_result_of=any_result_of,
        )


def _read(file: Path) -> Fixture:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"the fixture {file} cannot be read: {reason}") from None
    return parse_fixture(text, str(file))


async def _start(engine: RunningApp, fixture: Fixture, workspace: Path | None) -> str:
    """Start the run, behind the messages that the recorded one found."""
    conversation_id = None
    if fixture.before:
        conversation_id = f"conv_{secrets.token_hex(12)}"
        async with engine.services.database.write() as conn:
            await messages.plant(conn, conversation_id, fixture.before)
    run = await start.start(
        engine.services,
        STARTER,
        agent=fixture.agent,
        text=fixture.input,
        conversation_id=conversation_id,
        workspace=None if workspace is None else str(workspace),
        unattended=fixture.unattended,
    )
    return run.id


class _Approver:
    """Answers each request as it was answered then. ``seen``: what could not be."""

    def __init__(self, engine: RunningApp, fixture: Fixture, run_id: str, *, deadline: float) -> None:
        self._engine = engine
        self._calls = fixture.calls
        self._run_id = run_id
        self._deadline = deadline
        self._request_of: dict[str, str] = {}
        self._decided: set[str] = set()
        self.seen: list[Divergence] = []

    async def attend(self) -> RunDetail:
        """Return the run when it has ended. Raises AssertionError when nothing happens for too long."""
        state: object = None
        while True:
            run = await self._engine.run(self._run_id)
            if run.status != "running":
                return run
            waiting = await self._engine.pending(self._run_id)
            now = (run.step, [(call.execution, call.settled_at) for step in run.steps for call in step.calls], waiting)
            if now != state:
                state, last = now, time.monotonic() + self._deadline
            elif time.monotonic() > last:
                raise AssertionError(
                    f"for {self._deadline} s nothing happened in run {self._run_id}: {self._stands(run)}"
                )
            await self._answer_each(run, waiting)
            if self.seen:
                await self._engine.interrupt(self._run_id, "the replay went another way than its fixture")
                return await self._engine.ended(self._run_id)
            await asyncio.sleep(LOOK_SECONDS)

    async def _answer_each(self, run: RunDetail, waiting: list[RequestItem]) -> None:
        """Decide what was decided; when nothing but what expired then is left to wait for, let time pass."""
        expiring = []
        for request in waiting:
            call = self._calls.get(request.tool_call_id) if request.run_id == self._run_id else None
            recorded = None if call is None else call.request
            known = self._request_of.setdefault(request.tool_call_id, request.id) == request.id
            if recorded is None or not known:
                self._differs("unrecorded_request", request, _nobody(request, known=known))
            elif recorded.ended == "expired":
                expiring.append(request)
            elif request.id not in self._decided:  # with fewer approvals than it needs it goes on waiting
                self._decided.add(request.id)
                await self._decide(request, recorded.decisions)
        open_calls = {call.tool_call_id for step in run.steps for call in step.calls if call.settled_at is None}
        if expiring and not self.seen and open_calls == {request.tool_call_id for request in expiring}:
            await self._let_expire(expiring)

    async def _decide(self, request: RequestItem, recorded: tuple[FixtureDecision, ...]) -> None:
        async with self._engine.services.database.read() as conn:
            detail = await request_detail(conn, request.id)
        for place, decision in enumerate(recorded):
            name = _name_of(decision, detail, place)
            somebody = replace(STARTER if name == STARTER.name else OPERATOR, name=name, role="admin")
            try:
                await decide.submit(
                    self._engine.services,
                    somebody,
                    request_id=request.id,
                    verb=decision.verb,
                    digest=request.digest,
                    args=decision.args,
                    message=decision.message,
                )
            except TurngateError as error:
                self._differs("decision_refused", request, f"the recorded {decision.verb!r} is refused now: {error}")
                return

    async def _let_expire(self, expiring: list[RequestItem]) -> None:
        lives = []
        for request in expiring:
            if request.expires_at is None:
                self._differs("never_expires", request, "it expired then, and now it has no expiry")
                return
            lives.append(from_text(request.expires_at) - from_text(request.created_at))
        await self._engine.forward(self._run_id, max(lives) + timedelta(seconds=1))

    def _differs(self, kind: Kind, request: RequestItem, message: str) -> None:
        call_id, tool = request.tool_call_id, request.tool_name
        self.seen.append(Divergence(kind=kind, message=message, tool_call_id=call_id, tool=tool))

    @staticmethod
    def _stands(run: RunDetail) -> str:
        open_calls = [call for step in run.steps for call in step.calls if call.settled_at is None]
        calls = ", ".join(f"{call.tool_call_id} ({call.tool_name}, {call.execution})" for call in open_calls)
        return f"step {run.step}, open calls: {calls or 'none'}"


def _nobody(request: RequestItem, *, known: bool) -> str:
    what = "it is asked for again" if not known else f"a person is asked ({request.kind}, rule {request.rule})"
    return (
        f"{what}, and the fixture holds no decision for it. It was not approved by itself: the run was interrupted. "
        "If this gate is meant, record the run again (`turngate export`)"
    )


def _name_of(decision: FixtureDecision, request: RequestDetail, place: int) -> str:
    """Return who decides in the role's name: where a rule names people and no roles, one of them."""
    terms = request.ask_terms
    if decision.by == STARTER_WORD:
        return STARTER.name
    return terms.people[place % len(terms.people)] if terms.people and not terms.roles else decision.by
