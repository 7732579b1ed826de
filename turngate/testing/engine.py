"""Running an app inside a test: the real engine, your handlers swapped, a scripted model, decisions from code.

A composition root like the command line (ADR 0009): it starts an embedded Temporal server, a SQLite store and a worker
in this process, in a directory of the test's own. Nothing is simulated: gates wait, decisions go through the workflow.

    async with running_app(app, tmp_path, handlers={"refund": dry_refund}) as engine:
        run = await engine.start("The lamp arrived broken.")
        await engine.decide(await engine.request(run), "reject", message="Ask for a photo first.")
        assert (await engine.ended(run)).final_text
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import structlog
from pydantic import JsonValue
from temporalio.client import Client
from temporalio.testing import TimeSkipper, TimeSkippingConfig

from approvals_api.requests import decide as decide_request
from approvals_api.requests.views import request_detail, request_page
from approvals_api.runs import start as start_run
from approvals_api.runs import views as run_views
from turngate.domain.agents.app import App
from turngate.domain.contract import InterruptInput
from turngate.domain.errors import ConfigurationError
from turngate.domain.requests import RequestKind, Resolution, Verb
from turngate.domain.runs.fixtures import Fixture
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.tools.declared_parts import Handler
from turngate.models.port import LanguageModel
from turngate.models.registry import Models, ModelSettings
from turngate.models.scripted import ScriptedModel
from turngate.recording import record, request_ids
from turngate.runtime.app_loader import check_app
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database
from turngate.testing.harness import OPERATOR, STARTER, TIME_SKIPPING, EngineHarness, OneModel, build_harness, until
from turngate.wire.calls import CallView
from turngate.wire.orders import DecisionOrder, StartOrder
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail


class RunningApp:
    """An app at work. Every waiting method fails after ``deadline`` (seconds) with what it waited for."""

    def __init__(
        self, harness: EngineHarness, agents: list[str], *, deadline: float, clock: TimeSkipper | None = None
    ) -> None:
        self.services = harness.services
        self._agents = agents
        self._deadline = deadline
        self._clock = clock

    async def start(
        self, text: str, *, agent: str | None = None, workspace: Path | None = None, after: str | None = None
    ) -> str:
        """Start a run and return its id. ``agent`` None: the app's first. ``after``: a run, whose conversation goes on."""
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
        """Return the oldest request that waits in the run or in a sub-agent's, once there is one."""

        async def look() -> RequestItem | None:
            waiting = await self.pending(run_id)
            fitting = (each for each in waiting if tool in {None, each.tool_name} and kind in {None, each.kind})
            return next(fitting, None)

        return await until(
            look, f"pending request in run {run_id} (tool {tool or 'any'}, kind {kind or 'any'})", self._deadline
        )

    async def pending(self, run_id: str) -> list[RequestItem]:
        """Return the requests that wait in the run and in its sub-agents' now, oldest first."""
        async with self.services.database.read() as conn:
            page = await request_page(conn, InboxFilter(), limit=200)
        family = await self._family(run_id)
        return [request for request in page.items if request.run_id in family]

    async def forward(self, run_id: str, by: timedelta) -> bool:
        """Let time pass for a run, through every timer that comes due on the way; False when it ended before.

        Needs an app that was started with ``clock=True``. Only the run's own clock moves: tools and the store keep theirs.
        """
        if self._clock is None:
            raise ConfigurationError("time passes by itself here: start the app with running_app(…, clock=True)")
        return await self._clock.fast_forward(self._clock.client.get_workflow_handle(run_id), by)

    async def decide(
        self,
        request: RequestItem,
        verb: Verb,
        *,
        args: JsonValue = None,
        message: str = "",
        outcome: Resolution | None = None,
        by: str = OPERATOR.name,
    ) -> None:
        """Decide a request as an operator. ``args``: the edited arguments, or the answer to a question, as a JSON value.

        Raises what the API answers with: ForbiddenError, ConflictError, InvalidInputError (a bad edit), …
        """
        order = DecisionOrder(
            verb=verb,
            digest=request.digest,
            args=None if args is None else json.dumps(args),
            message=message,
            outcome=outcome,
        )
        await decide_request.submit(self.services, replace(OPERATOR, name=by), request.id, order)

    async def interrupt(self, run_id: str, reason: str = "") -> None:
        """Interrupt a run as an operator."""
        await self.services.gateway.interrupt(run_id, InterruptInput(by=OPERATOR.name, reason=reason))

    async def ended(self, run_id: str) -> RunDetail:
        """Return the run with its steps, once it is not running any more."""

        async def look() -> RunDetail | None:
            detail = await self.run(run_id)
            return None if detail.status == "running" else detail

        return await until(look, f"end of run {run_id}", self._deadline)

    async def run(self, run_id: str) -> RunDetail:
        """Return the run with its steps, as it is now."""
        async with self.services.database.read() as conn:
            return await run_views.run_detail(conn, run_id)

    async def calls(self, run_id: str, tool: str | None = None) -> list[CallView]:
        """Return the run's calls in order, of one tool if it is named; each with its result."""
        detail = await self.run(run_id)
        return [call for step in detail.steps for call in step.calls if tool in {None, call.tool_name}]

    async def fixture(self, run_id: str) -> Fixture:
        """Return a run that has ended as ``turngate export`` writes it down. Raises NotExportableError."""
        run = await self.run(run_id)
        requests = await self.request_details(run)
        async with self.services.database.read() as conn:
            messages = await run_views.conversation_messages(conn, run.conversation_id)
        return record(run, messages, requests)

    async def request_details(self, run: RunDetail) -> dict[str, RequestDetail]:
        """Return request id → everything about it, of every request that the run's calls opened."""
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


@asynccontextmanager
async def running_app(
    app: App,
    directory: Path,
    *,
    handlers: Mapping[str, Handler] | None = None,
    script: str | None = None,
    model: LanguageModel | None = None,
    base: Path | None = None,
    deadline: float = 20.0,
    clock: bool = False,
    answers_judge: bool = False,
) -> AsyncIterator[RunningApp]:
    """Run an app in this process until the block ends.

    Args:
        app: the app, as ``turngate up`` would get it.
        directory: one of the test's own that exists (``tmp_path``), for Temporal's and the store's files.
        handlers: tool name → async function that takes the place of the handler, wherever the tool is declared. What the
            model and the operators see stays, and so does the gate.
        script: text of a scripted model (YAML), for every agent, and the app's judge is left out; None: their own models.
        model: any model object, for every agent, and as ``script`` without the judge.
        base: where relative paths of the app (policy file, scripts) start; None: the current directory.
        deadline: seconds that anything waited for may take.
        answers_judge: ``model`` knows what a judge is asked, too, so that the app's judge stays.
        clock: let :meth:`RunningApp.forward` move the runs' time, for expiries and ladders; Temporal calls it experimental.

    Raises:
        ConfigurationError: as at a start, such as a missing service or handlers for a tool that is not there.
    """
    if not structlog.is_configured():
        # Left alone, it draws a traceback with every local variable: slow enough to lose a heartbeat, and full of secrets.
        plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[structlog.processors.add_log_level, plain])
    one = ScriptedModel.from_text(script, "test") if script is not None else model
    # The model of a test speaks for the agents: it has no answer to what a judge is asked.
    tested = app if one is None or answers_judge else replace(app, judge=None)
    loaded = check_app(tested.with_handlers(handlers or {}), base=base or Path.cwd())
    own_models = Models(ModelSettings(script_base=loaded.base))
    database = Database(f"sqlite:///{directory / 'turngate.db'}")
    try:
        await database.migrate()
        switches = TIME_SKIPPING if clock else ()
        async with EmbeddedTemporal(directory / "temporal", switches=switches, lasting=False) as temporal:
            client = await Client.connect(temporal.address, data_converter=data_converter())
            skipper = TimeSkipper(client, config=TimeSkippingConfig(enabled=False)) if clock else None
            client = client if skipper is None else skipper.client
            models = own_models if one is None else OneModel(one)
            harness = await build_harness(loaded, client, database, models)
            async with harness.worker(graceful_shutdown_seconds=0.5):
                names = [agent.name for agent in app.agents]
                yield RunningApp(harness, names, deadline=deadline, clock=skipper)
    finally:
        await own_models.aclose()
        await database.close()
