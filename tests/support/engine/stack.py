"""A whole engine in one process for tests: real store, real Temporal, real worker, the API's inner functions.

Only the model is a script, which is also what a user may choose.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import Table, delete, update
from support.stores.changed_rows import aged, changed
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import UpdateActivityOptionsRequest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.service import RPCError

from turngate.activities.execution.lost_calls import STOPPED_WORKER
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import apply
from turngate.approvals_api.requests import decide as decide_request
from turngate.approvals_api.runs import control
from turngate.approvals_api.runs import start as start_run
from turngate.domain.agents.app import Agent, App, Limits
from turngate.domain.agents.hooks import Hooks
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.agents.schedules import Timetable
from turngate.domain.conversation.messages import Message, ModelResponse, TextPart, ToolCallPart
from turngate.domain.digest import derived_id, framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.identity import ROLE_SCOPES
from turngate.domain.policy.judge import Judge
from turngate.domain.policy.policy import Policy
from turngate.domain.policy.terms import Role
from turngate.domain.requests import Verb
from turngate.domain.runs.budgets import Price
from turngate.domain.tools.references import SecretResolver
from turngate.domain.tools.tool import Tool
from turngate.domain.tools.toolkit import Toolkit
from turngate.models.port import LanguageModel, ModelRequest
from turngate.runtime.app_loader import check_app
from turngate.runtime.worker_group import WorkerGroup
from turngate.store import agents as store_agents
from turngate.store import evidence
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.policy import policies
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, messages, runs
from turngate.store.tables import errors, schedules
from turngate.testing import harness
from turngate.testing.harness import (
    OPERATOR,
    STARTER,
    EngineHarness,
    OneModel,
    SkippedTime,
    Value,
    build_harness,
)
from turngate.wire.orders import DecisionOrder, StartOrder

DEADLINE_SECONDS = 60.0
"""For anything to happen: a test that passes doesn't wait for it, and a machine may be busy."""

DECLARED = [
    f"scripted:{name}"
    for name in ("other", "third", "big", "b", "fast", "now", "lost", "nowhere", "x", "expert", "closer", "q")
]
"""Models that a run of these tests may name, as if an agent of the app had them."""


async def until(look: Callable[[], Awaitable[Value | None]], what: str, seconds: float = DEADLINE_SECONDS) -> Value:
    """Return the first true value that ``look`` returns. Raises AssertionError after ``seconds``, naming ``what``."""
    return await harness.until(look, what, seconds)


def person(name: str, role: Role = "operator", *, machine: bool = False) -> Principal:
    """A user of this role who is logged in, or a token without an owner."""
    return Principal(
        name=name, via="token" if machine else "session", scopes=ROLE_SCOPES[role], role=role, machine=machine
    )


def call(name: str, raw_input: str, call_id: str = "") -> ToolCallPart:
    return ToolCallPart(tool_call_id=call_id, tool_name=name, input=raw_input)


def says(*parts: ToolCallPart | str, finish_reason: str | None = None) -> ModelResponse:
    """A model's response: text and calls."""
    content = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    has_calls = any(isinstance(part, ToolCallPart) for part in content)
    reason = finish_reason or ("tool_calls" if has_calls else "stop")
    return ModelResponse(message=Message(role="assistant", parts=content), finish_reason=reason, model="scripted:test")


class ListModel:
    """Answers the n-th request of a run with the n-th response, and records the requests."""

    name = "scripted:test"

    def __init__(self, *responses: ModelResponse | Exception) -> None:
        self.responses = list(responses)
        self.seen: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.seen.append(request)
        response = self.responses[min(len(self.seen), len(self.responses)) - 1]
        if isinstance(response, Exception):
            raise response
        return response

    async def aclose(self) -> None:
        return None


Line = ModelResponse | Callable[[ModelRequest], Awaitable[ModelResponse]]


class Script:
    """Answers by the number of responses since the last user message, so several runs may share it; the last one repeats."""

    name = "scripted:test"

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.seen: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.seen.append(request)
        question = max(place for place, message in enumerate(request.messages) if message.role == "user")
        responses = sum(message.role == "assistant" for message in request.messages[question:])
        line = self.lines[min(responses, len(self.lines) - 1)]
        return line if isinstance(line, ModelResponse) else await line(request)

    async def aclose(self) -> None:
        return None


class _ShortTasks(Interceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        return _StartWithShortTasks(next)


class _StartWithShortTasks(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 - the SDK's name
        return await super().start_workflow(replace(input, task_timeout=timedelta(seconds=1)))


def with_short_tasks(client: Client) -> Client:
    """A client whose workflows wait a second, not ten, for a worker that leaves a task unanswered, as one that fails it."""
    config = client.config()
    return Client(**{**config, "interceptors": [*config["interceptors"], _ShortTasks()]})


class Cast:
    """Resolves ``scripted:NAME`` to the model of that name, as a registry would; there is no other."""

    declared: Sequence[str] = ()
    """More models that its app declares."""

    def __init__(self, **models: LanguageModel) -> None:
        self._models = models

    def resolve(self, spec: str) -> LanguageModel:
        try:
            return self._models[spec.removeprefix("scripted:")]
        except KeyError:
            raise ConfigurationError(f"there is no model {spec!r}") from None


class Clock:
    """A Temporal server on which each run's time is frozen until a test moves it."""

    def __init__(self, client: Client) -> None:
        self.time = SkippedTime.of(client)

    async def forward(self, run: runs.Run, **by: float) -> bool:
        """Move one run's time, through every timer that comes due; False when the run ended earlier."""
        return await self.time.forward(run.id, timedelta(**by))


class Stack(EngineHarness):
    """One engine under test, and what the store has of its runs.

    ``cached_workflows``: of its workers; 0 in ``tests/workflow``, so that every workflow task replays.
    """

    cached_workflows: ClassVar = 500

    @cached_property
    def changes(self) -> AsyncExitStack:
        """What a test has changed in the database; it is as it was again before the log is asked (I15)."""
        return AsyncExitStack()

    async def change(self, table: Table, row: dict[str, Any], **values: Any) -> None:
        """Change columns of one row for the rest of the test. ``row``: columns that no other row has."""
        await self.changes.enter_async_context(changed(self.database, table, row, **values))

    async def age(self, run: runs.Run, **by: float) -> None:
        """Let the run, and what its log says so far, be older for the rest of the test. ``by``: as of ``timedelta``."""
        await self.changes.enter_async_context(aged(self.database, run.id, timedelta(**by)))

    def worker(self, **options: Any) -> WorkerGroup:
        return super().worker(**{"max_cached_workflows": self.cached_workflows, **options})

    async def start(self, text: str = "go", **options: Any) -> runs.Run:
        by, key = options.pop("by", STARTER), options.pop("idempotency_key", None)
        order = StartOrder(input=text, **{"agent": "agent", **options})
        return await start_run.start(self.services, by, order, idempotency_key=key)

    async def requests_of(self, run: runs.Run) -> list[requests.Request]:
        """Every request of the run, in any state."""
        async with self.database.read() as conn:
            return await requests.of_run(conn, run.id)

    async def request(
        self,
        run: runs.Run,
        *besides: requests.Request,
        kind: str | None = None,
        tool: str | None = None,
        call_id: str | None = None,
        pending: bool = True,
    ) -> requests.Request:
        """The run's pending request, once there is one ``besides`` those.

        ``pending`` False: in any state, as one that may have expired.
        """
        known = {each.id for each in besides}

        def fits(each: requests.Request) -> bool:
            is_wanted = (
                kind in {None, each.kind} and tool in {None, each.tool_name} and call_id in {None, each.tool_call_id}
            )
            return is_wanted and each.id not in known and (each.status == "pending" or not pending)

        async def look() -> requests.Request | None:
            return next((each for each in await self.requests_of(run) if fits(each)), None)

        wanted = f"kind {kind or 'any'}, tool {tool or 'any'}, call {call_id or 'any'}"
        return await until(look, f"pending request ({wanted})")

    async def request_about(self, run: runs.Run, tool_call_id: str) -> requests.Request:
        """The pending request about one call of the run, once there is one."""
        return await self.request(run, call_id=tool_call_id)

    async def started_below(self, run: runs.Run) -> runs.Run:
        """The first run of a sub-agent that answers a call of this run, once there is one."""

        async def look() -> runs.Run | None:
            async with self.database.read() as conn:
                children = [each.child_run_id for each in await calls.of_run(conn, run.id) if each.child_run_id]
                return await runs.get(conn, children[0]) if children else None

        return await until(look, f"sub-agent's run below {run.id}")

    async def decide(self, request: requests.Request, verb: str, **options: Any) -> decide_request.DecisionAnswer:
        by, decision_id = options.pop("by", OPERATOR), options.pop("decision_id", None)
        order = DecisionOrder.model_validate({"verb": verb, "digest": request.digest, **options})
        return await decide_request.submit(self.services, by, request.id, order, decision_id=decision_id)

    async def interrupt(self, run: runs.Run, reason: str = "enough") -> None:
        await control.stop(self.services, run.id, by="operator", reason=reason)

    async def store_rules(self, source: str) -> None:
        """Store the next version of the rules (TOML) unchecked, even if it cannot be read."""
        async with self.database.write() as conn:
            newest = await policies.newest(conn)
            await policies.append_version(
                conn,
                policies.StoredPolicy(
                    version=1 if newest is None else newest.version + 1,
                    source=source,
                    digest=framed_sha256(source),
                    changed_by="admin",
                    comment="",
                ),
            )

    async def ended(self, run: runs.Run, seconds: float = DEADLINE_SECONDS) -> runs.Run:
        """The run, once it has ended."""

        async def look() -> runs.Run | None:
            async with self.database.read() as conn:
                stored = await runs.get(conn, run.id)
            return stored if stored is not None and stored.status != "running" else None

        return await until(look, f"end of run {run.id}", seconds)

    async def child(self, run: runs.Run, tool_call_id: str) -> runs.Run:
        """The run of the sub-agent that answers this call, once there is one."""

        async def look() -> runs.Run | None:
            async with self.database.read() as conn:
                return await runs.get(conn, derived_id("run", run.id, tool_call_id))

        return await until(look, f"sub-agent's run for call {tool_call_id}")

    async def idle(self, run: runs.Run) -> None:
        """Wait until the run's workflow is idle, so that stopping a worker interrupts no task."""

        async def look() -> bool:
            described = (await self.workflow(run).describe()).raw_description
            return not described.HasField("pending_workflow_task") and not described.pending_activities

        await until(look, f"idle workflow of {run.id}")

    async def hurry(self, run: runs.Run, *, heartbeat_seconds: int = 1, retry_ms: int = 100) -> None:
        """Miss heartbeats of the run's pending activities after so long, and try these again soon.

        Raises RPCError when none is pending.
        """
        options = ActivityOptions()
        options.heartbeat_timeout.FromSeconds(heartbeat_seconds)
        options.retry_policy.initial_interval.FromMilliseconds(retry_ms)
        options.retry_policy.maximum_interval.FromMilliseconds(retry_ms)
        paths = ["heartbeat_timeout", "retry_policy.initial_interval", "retry_policy.maximum_interval"]
        await self.client.workflow_service.update_activity_options(
            UpdateActivityOptionsRequest(
                namespace=self.client.namespace,
                execution=WorkflowExecution(workflow_id=run.id),
                activity_options=options,
                update_mask=FieldMask(paths=paths),
                match_all=True,
            )
        )

    async def hurry_next(self, run: runs.Run, *, retry_ms: int = 100) -> None:
        """Hurry the run's pending activities as soon as there are some: one may end while it is looked at."""

        async def hurried() -> bool:
            with suppress(RPCError):
                await self.hurry(run, retry_ms=retry_ms)
                return True
            return False

        await until(hurried, f"pending activity of {run.id}")

    async def closed(self, run: runs.Run) -> WorkflowExecutionStatus:
        """How the run's workflow ended, once it has."""

        async def look() -> WorkflowExecutionStatus | None:
            described = await self.workflow(run).describe()
            return described.status if described.close_time is not None else None

        return await until(look, f"end of the workflow of {run.id}")

    async def history(self, run: runs.Run) -> list[Message]:
        async with self.database.read() as conn:
            stored_run = await runs.get(conn, run.id)
            assert stored_run is not None
            return [row.message for row in await messages.path_to(conn, stored_run.head_message_id)]

    async def results(self, run: runs.Run) -> dict[str, Any]:
        """Tool call id → result."""
        async with self.database.read() as conn:
            return {each.tool_call_id: each.settled_result for each in await calls.of_run(conn, run.id)}

    async def executions(self, run: runs.Run) -> dict[str, executions.Execution]:
        async with self.database.read() as conn:
            return {each.tool_call_id: each for each in await executions.of_run(conn, run.id)}

    async def events(self, run: runs.Run) -> list[events.Event]:
        async with self.database.read() as conn:
            return await events.after(conn, 0, run_id=run.id)

    async def event(self, run: runs.Run, kind: str) -> events.Event:
        async def look() -> events.Event | None:
            return next((each for each in await self.events(run) if each.type == kind), None)

        return await until(look, f"event {kind}")

    async def record(
        self, request: requests.Request, verb: Verb, *, decision_id: str, by: str = "operator", **content: Any
    ) -> None:
        """Leave what a server leaves that dies before its signal: the store has the decision, and the run doesn't know."""
        order = DecisionOrder(verb=verb, digest=request.digest, **content)
        decision = requests.new_decision(order, decision_id=decision_id, request_id=request.id, by=by)
        async with self.database.write() as conn:
            held = await requests.hold(conn, request.id)
            assert held is not None
            await apply.win(conn, held, replace(OPERATOR, name=by), decision)

    def workflow(self, run: runs.Run) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(run.id)


@asynccontextmanager
async def stack(
    server: Client | Clock,
    database: Database,
    *tools: Tool,
    model: LanguageModel | Cast,
    policy: Policy | Path | None = None,
    limits: Limits | None = None,
    services: Any = None,
    working: bool = True,
    toolkit: Toolkit | None = None,
    hooks: Sequence[Hooks] = (),
    agents: Sequence[Agent] = (),
    prices: Mapping[str, Price] | None = None,
    fallback: Sequence[str] = (),
    profiles: Profiles | None = None,
    judge: Judge | None = None,
    secrets: SecretResolver | None = None,
    tampered: str = "",
) -> AsyncIterator[Stack]:
    """An engine with one agent named ``agent``, and more ``agents``; ``working``: a worker runs inside the block.

    ``server``: with its clock, if the test skips time. ``model``: of every agent, or a :class:`Cast` of them, where ``agent`` has
    ``scripted:test``. After the worker has stopped, what the store has of the runs must be what the log says (I15).
    ``tampered``: why it is not, in a test that changes it.
    """
    agent = Agent(
        name="agent",
        instructions="Be brief.",
        toolkit=toolkit or Toolkit.of(*tools),
        model="scripted:test",
        limits=limits or Limits(),
        hooks=hooks,
        fallback=fallback,
    )
    app = check_app(
        App(
            agents=[agent, *agents], policy=policy, services=services, prices=prices or {}, judge=judge, secrets=secrets
        ),
        base=Path.cwd(),
    )
    models = model if isinstance(model, Cast) else OneModel(model)
    built = await build_harness(
        app, server.time if isinstance(server, Clock) else server, database, models, profiles=profiles
    )
    declared = [*DECLARED, *(models.declared if isinstance(models, Cast) else ())]
    async with database.write() as conn:
        await store_agents.publish_model_names(conn, Profiles(), (), task_queue="of the test", declared=declared)
    engine = Stack(built.client, database, replace(built.engine, grace=True), built.task_queue)
    async with AsyncExitStack() as at_work:
        if working:
            await at_work.enter_async_context(engine.worker())
        yield engine
    if not tampered:
        await engine.changes.aclose()
        await require_no_difference(database)


async def require_no_difference(database: Database) -> None:
    """Raise AssertionError, with the first difference, when what is stored of runs is not what the log says."""
    async with database.read() as conn:
        async for run_ids in evidence.batches(conn):
            different = await evidence.first_of_runs(conn, run_ids)
            assert different is None, str(different)


async def killed(engine: Stack) -> None:
    """Forget that the worker had said that it stops: then it is as if it had been killed."""

    async def is_noted() -> bool:
        async with engine.database.write() as conn:
            return bool((await conn.execute(delete(errors).where(errors.c.says == STOPPED_WORKER))).rowcount)

    await until(is_noted, "a worker that stops in order")


async def with_past_instants(database: Database, schedule_id: str) -> datetime:
    """Let a schedule's timetable have each second of an hour, which Temporal does not know; return one some seconds ago."""
    times, since = Timetable(every_seconds=1).model_dump_json(), as_text(now() - timedelta(hours=1))
    async with database.write() as conn:
        own = update(schedules).where(schedules.c.id == schedule_id)
        await conn.execute(own.values(timetable=times, created_at=since, fires_after=since))
    return now().replace(microsecond=0) - timedelta(seconds=10)
