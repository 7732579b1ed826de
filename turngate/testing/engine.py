"""Run an app inside a test: the real engine, handlers that you replace, a scripted model, decisions from code.

A composition root like the command line (ADR 0009): it starts an embedded Temporal server, a SQLite store and a worker
in this process, in the test's directory. Nothing is simulated: gates wait, decisions go through the workflow.

    async with running_app(app, tmp_path, handlers={"refund": dry_refund}) as engine:
        run = await engine.start("The lamp arrived broken.")
        await engine.decide(await engine.request(run), "reject", message="Ask for a photo first.")
        assert (await engine.ended(run)).final_text
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

import structlog
from pydantic import JsonValue
from temporalio.client import Client

from turngate.approvals_api.requests import decide as decide_request
from turngate.approvals_api.requests.views import request_detail, request_page
from turngate.approvals_api.runs import control
from turngate.approvals_api.runs import start as start_run
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.explain import explain
from turngate.domain.agents.app import App
from turngate.domain.errors import ConfigurationError
from turngate.domain.requests import RequestKind, RequestStatus, Resolution, Verb
from turngate.domain.runs.fixtures import Fixture
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.text.sqlite_urls import sqlite_url
from turngate.domain.text.suggestions import refuse_unknown
from turngate.domain.tools.declared_parts import Handler
from turngate.models.port import LanguageModel
from turngate.models.registry import Models, ModelSettings, build_models
from turngate.models.scripted import ScriptedModel
from turngate.recording import record, request_ids
from turngate.runtime.app_loader import check_app
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.settings import load_settings
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database
from turngate.testing.harness import (
    DEADLINE_SECONDS,
    OPERATOR,
    STARTER,
    TIME_SKIPPING,
    EngineHarness,
    OneModel,
    SkippedTime,
    build_harness,
    until,
)
from turngate.wire.calls import CallView
from turngate.wire.orders import DecisionOrder, StartOrder
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail


@dataclass(frozen=True)
class Decided:
    """Where a request is after a decision. ``missing``: how many more people have to approve it before anything runs."""

    status: RequestStatus
    missing: int

    def __str__(self) -> str:
        """Return it in words: ``pending: one more person has to approve``."""
        return f"{self.status}: {_more(self.missing)}" if self.missing else self.status


def _more(people: int) -> str:
    return "one more person has to approve" if people == 1 else f"{people} more people have to approve"


def _open(request: RequestItem) -> str:
    """Return what an open request needs from a test."""
    some = f" has {request.approvals} of {request.quorum} approvals:" if request.approvals else " needs"
    need = _more(request.quorum - request.approvals) if request.approvals else "engine.decide(…)"
    return f"The {request.kind} of {request.tool_name} ({request.id}){some} {need}."


class RunningApp:
    """A running app. Every method that waits fails after ``deadline`` (seconds) and says what it waited for."""

    def __init__(
        self, harness: EngineHarness, agents: list[str], *, deadline: float, clock: SkippedTime | None = None
    ) -> None:
        self.services = harness.services
        self._agents = agents
        self._deadline = deadline
        self._clock = clock

    async def start(
        self, text: str, *, agent: str | None = None, workspace: Path | None = None, after: str | None = None
    ) -> str:
        """Start a run and return its id. ``agent`` None: the app's first. ``after``: the run whose conversation it continues."""
        place = None if workspace is None else str(workspace)
        conversation = None if after is None else (await self.run(after)).conversation_id
        order = StartOrder(
            agent=agent or self._agents[0],
            input=text,
            workspace=place,
            conversation_id=conversation,
        )
        run = await start_run.start(self.services, STARTER, order)
        return run.id

    async def request(self, run_id: str, *, tool: str | None = None, kind: RequestKind | None = None) -> RequestItem:
        """Return the oldest pending request of the run or its sub-agents' runs, once there is one."""

        async def look() -> RequestItem | None:
            pending = await self.pending(run_id)
            matches = (each for each in pending if tool in {None, each.tool_name} and kind in {None, each.kind})
            return next(matches, None)

        return await until(
            look,
            f"pending request in run {run_id} (tool {tool or 'any'}, kind {kind or 'any'})",
            self._deadline,
            why=partial(self._state, run_id),
        )

    async def pending(self, run_id: str) -> list[RequestItem]:
        """Return the pending requests of the run and its sub-agents' runs, oldest first."""
        async with self.services.database.read() as conn:
            page = await request_page(conn, InboxFilter(), limit=200)
        family = await self._family(run_id)
        return [request for request in page.items if request.run_id in family]

    async def forward(self, run_id: str, by: timedelta) -> bool:
        """Skip time for a run; every timer on the way fires. False: the run ended earlier.

        Needs an app that was started with ``clock=True``. The run's clock moves, and with it
        the one that says whether a request's time is over; the tools' does not.
        """
        if self._clock is None:
            raise ConfigurationError("time cannot be skipped here: start the app with running_app(…, clock=True)")
        return await self._clock.forward(run_id, by)

    async def decide(
        self,
        request: RequestItem,
        verb: Verb,
        *,
        args: JsonValue = None,
        message: str = "",
        outcome: Resolution | None = None,
        by: str = OPERATOR.name,
    ) -> Decided:
        """Decide a request as an operator. ``args``: the edited arguments, or the answer to a question, as a JSON value.

        Returns where the request is now: after one approval of several it is still pending.

        Raises what the API answers with: ForbiddenError, ConflictError, InvalidInputError (a bad edit), …
        """
        order = DecisionOrder(
            verb=verb,
            digest=request.digest,
            args=None if args is None else json.dumps(args),
            message=message,
            outcome=outcome,
        )
        answer = await decide_request.submit(self.services, replace(OPERATOR, name=by), request.id, order)
        if answer.status != "pending":
            return Decided(answer.status, 0)
        async with self.services.database.read() as conn:
            detail = await request_detail(conn, request.id)
        return Decided(detail.status, detail.quorum - detail.approvals if detail.status == "pending" else 0)

    async def interrupt(self, run_id: str, reason: str = "") -> None:
        """Interrupt a run as an operator."""
        await control.stop(self.services, run_id, by=OPERATOR.name, reason=reason)

    async def ended(self, run_id: str) -> RunDetail:
        """Return the run with its steps, once it has ended."""

        async def look() -> RunDetail | None:
            detail = await self.run(run_id)
            return None if detail.status == "running" else detail

        return await until(look, f"end of run {run_id}", self._deadline, why=partial(self._state, run_id))

    async def _state(self, run_id: str) -> str:
        """Return how the run ended, or what it and its sub-agents wait for, and how to continue."""
        explained = await explain(self.services, OPERATOR, run_id)
        if explained.run.status != "running":
            return f"the run is {explained.run.status}: {explained.cause}"
        waits = [each.says for each in explained.waits_for] or [explained.cause]
        waits += [_open(request) for request in await self.pending(run_id)]
        return f"at step {explained.run.step} it waits: {' '.join(waits)}"

    async def run(self, run_id: str) -> RunDetail:
        """Return the run with its steps, as it is now."""
        async with self.services.database.read() as conn:
            return await run_views.run_detail(conn, run_id)

    async def calls(self, run_id: str, tool: str | None = None) -> list[CallView]:
        """Return the run's calls in order, with their results. ``tool``: only this tool's calls."""
        detail = await self.run(run_id)
        return [call for step in detail.steps for call in step.calls if tool in {None, call.tool_name}]

    async def fixture(self, run_id: str) -> Fixture:
        """Return a run that has ended as ``turngate export`` writes it. Raises NotExportableError."""
        run = await self.run(run_id)
        requests = await self.request_details(run)
        async with self.services.database.read() as conn:
            messages = await run_views.conversation_messages(conn, run.conversation_id)
        return record(run, messages, requests)

    async def request_details(self, run: RunDetail) -> dict[str, RequestDetail]:
        """Return request id → its details, for every request that the run's calls opened."""
        async with self.services.database.read() as conn:
            return {each: await request_detail(conn, each) for each in request_ids(run)}

    async def _family(self, run_id: str) -> set[str]:
        async with self.services.database.read() as conn:
            page = await run_views.run_page(conn, limit=200)
        parents = {run.id: run.parent_run_id for run in page.items}
        family = {run_id}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        return family


class AppOptions(TypedDict, total=False):
    """How an app runs in a test, with every agent's own model.

    ``handlers``: tool name → async function that replaces the handler, wherever the tool is declared; what the model and the
    operators see does not change, nor does the gate. ``base``: where relative paths of the app (policy file, scripts) start;
    None: the current directory. ``deadline``: seconds that the app may take for anything that is waited for (20).
    """

    handlers: Mapping[str, Handler] | None
    base: Path | None
    deadline: float


class RunningAppOptions(AppOptions, total=False):
    """What :func:`running_app` takes.

    ``script``: the text of a scripted model (YAML) for every agent; the app's judge is left out. ``model``: any model object,
    for every agent; the judge is left out, too, unless ``answers_judge`` says that the model answers the judge's questions.
    ``clock``: let :meth:`RunningApp.forward` skip time, for expiries and ladders; Temporal calls this experimental.
    """

    script: str | None
    model: LanguageModel | None
    answers_judge: bool
    clock: bool


@asynccontextmanager
async def running_app(app: App, directory: Path, **options: Unpack[RunningAppOptions]) -> AsyncIterator[RunningApp]:
    """Run an app in this process until the block ends.

    Args:
        app: the app, as ``turngate up`` would get it.
        directory: an existing directory for this test (``tmp_path``), for Temporal's and the store's files.
        options: see :class:`RunningAppOptions` and :class:`AppOptions`.

    Raises:
        ConfigurationError: as at a start, such as a missing service or a handler for a tool that does not exist.
        TypeError: there is no such option.
    """
    refuse_unknown(options, {*RunningAppOptions.__optional_keys__, "app", "directory"}, "running_app")
    if not structlog.is_configured():
        # Its default prints a traceback with every local variable: slow enough to lose a heartbeat, and full of secrets.
        plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[structlog.processors.add_log_level, plain])
    script, one = options.get("script"), options.get("model")
    if script is not None:
        one = ScriptedModel.from_text(script, "test")
    # A test's model answers for the agents. It usually has no answers for a judge.
    tested = app if one is None or options.get("answers_judge") else replace(app, judge=None)
    loaded = check_app(tested.with_handlers(options.get("handlers") or {}), base=options.get("base") or Path.cwd())
    # As a worker's would be, so that what an error says to set has an effect; a test's own model needs no settings.
    own_models = Models(ModelSettings()) if one is not None else build_models(load_settings(), script_base=loaded.base)
    database = Database(sqlite_url(directory / "turngate.db"))
    try:
        await database.migrate()
        clock = options.get("clock", False)
        switches = TIME_SKIPPING if clock else ()
        async with EmbeddedTemporal(directory / "temporal", switches=switches, lasting=False) as temporal:
            client = await Client.connect(temporal.address, data_converter=data_converter())
            skipped = SkippedTime.of(client) if clock else None
            models = own_models if one is None else OneModel(one)
            harness = await build_harness(loaded, skipped or client, database, models)
            async with harness.worker(graceful_shutdown_seconds=0.5):
                names = [agent.name for agent in app.agents]
                yield RunningApp(harness, names, deadline=options.get("deadline", DEADLINE_SECONDS), clock=skipped)
    finally:
        await own_models.aclose()
        await database.close()
