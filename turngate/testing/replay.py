"""Run an app against a fixture, on the real engine: models, judge, decisions, expiries and results are the recorded ones.

Policy judges the calls, gates wait. No tool runs unless the test names its handler, or wants the app's own
(``results="handlers"``). A request without a recorded decision is not decided: the run is interrupted, and the report names it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Unpack, cast, get_args

from pydantic import ValidationError

from turngate.approvals_api.requests import decide
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.runs import start
from turngate.approvals_api.runs.order import checked_order
from turngate.domain.agents.app import Agent, App
from turngate.domain.agents.no_progress import is_nudge
from turngate.domain.conversation.malformed import is_corrective
from turngate.domain.conversation.messages import Message, ModelResponse, Part, ReasoningPart, TextPart, ToolCallPart
from turngate.domain.errors import ConfigurationError, ModelError, ModelErrorClass, TurngateError
from turngate.domain.policy.judge import ANSWER_SCHEMA, call_in_question
from turngate.domain.runs.fixtures import Fixture, FixtureCall, FixtureDecision, FixtureResponse, parse_fixture
from turngate.domain.text.suggestions import refuse_unknown
from turngate.domain.tools.failures import NothingHappened
from turngate.domain.tools.middleware import Invocation, Proceed
from turngate.domain.tools.results import Ok
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.recording import STARTER_WORD, recorded_end, recorded_responses
from turngate.store.clock import from_text
from turngate.store.runs import messages
from turngate.testing.engine import AppOptions, RunningApp, running_app
from turngate.testing.harness import DEADLINE_SECONDS, OPERATOR, STARTER
from turngate.testing.report import Divergence, Kind, ReplayedRun, ReplayReport, compare
from turngate.text_files import NotTextError, read_text, why_unreadable
from turngate.wire.orders import DecisionOrder, StartOrder
from turngate.wire.requests import RequestDetail, RequestItem
from turngate.wire.runs import RunDetail

# A model that returns a fixture's responses: the n-th request of the run gets the n-th. It answers for the judge, too.


class RecordedModel:
    """Plays a fixture's model.

    The request alone determines the next response, so an activity that is retried gets the same one, and a context
    transform may leave out old messages.
    """

    name = "scripted:recorded"

    def __init__(self, fixture: Fixture) -> None:
        self._responses = fixture.responses
        self._place = {call.id: at for at, response in enumerate(fixture.responses) for call in response.calls}
        self._ended_with = fixture.ended.error_class
        self._past = _answers_since_input(fixture.before) if fixture.input is None else 0
        self._judged: dict[tuple[str, str], bool] = {}
        for call in fixture.calls.values():
            # If the judge let only one of two equal calls run, we cannot know which one: a person is asked.
            self._judged[call.tool, call.input] = call.judged and self._judged.get((call.tool, call.input), True)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the next recorded response.

        Raises:
            ModelError: the fixture has no further response. The recorded run's error, or ``bad_response``; not retryable.
        """
        if request.output == ANSWER_SCHEMA:
            return self._judgement(request.messages)
        at = self._next(request.messages)
        if at < len(self._responses):
            return self._answer(self._responses[at])
        recorded = self._ended_with in get_args(ModelErrorClass)
        raise ModelError(
            f"the fixture holds {len(self._responses)} response(s), and the model was called once more",
            error_class=cast("ModelErrorClass", self._ended_with) if recorded else "bad_response",
            retryable=False,
        )

    async def aclose(self) -> None:
        """Do nothing: the model has nothing to close."""

    def _next(self, messages: Sequence[Message]) -> int:
        """Count from the last response with a call that the fixture knows, or else from the user's message."""
        since = 0
        for message in reversed(messages):
            if message.role == "assistant":
                known = [self._place[call.tool_call_id] for call in message.calls if call.tool_call_id in self._place]
                if known:
                    return known[0] + 1 + since
                since += 1
            elif _is_input(message):
                break
        return max(0, since - self._past)

    def _judgement(self, messages: Sequence[Message]) -> ModelResponse:
        """Return the judge's recorded verdict on a call: ``allow`` if it let the call run, else ``ask``."""
        call = call_in_question(messages)
        verdict = "allow" if self._judged.get((call["tool"], call["arguments"])) else "ask"
        text = json.dumps({"verdict": verdict, "reason": "This is what the judge said in the recorded run."})
        message = Message(role="assistant", parts=(TextPart(text=text),))
        return ModelResponse(message=message, finish_reason="stop", model=self.name)

    def _answer(self, response: FixtureResponse) -> ModelResponse:
        parts: list[Part] = []
        if response.reasoning:
            parts.append(ReasoningPart(text=response.reasoning))
        if response.text:
            parts.append(TextPart(text=response.text))
        parts += [ToolCallPart(tool_call_id=each.id, tool_name=each.tool, input=each.input) for each in response.calls]
        return ModelResponse(
            message=Message(role="assistant", parts=tuple(parts)),
            finish_reason=response.finish_reason,
            model=self.name,
            malformed=response.malformed,
        )


def _is_input(message: Message) -> bool:
    return message.role == "user" and not is_corrective(message) and not is_nudge(message)


def _answers_since_input(messages: Sequence[Message]) -> int:
    """Return how many responses follow the newest message of a person: those that a retry continues after."""
    last = max((place for place, message in enumerate(messages) if _is_input(message)), default=-1)
    return sum(message.role == "assistant" for message in messages[last + 1 :])


POLL_SECONDS: Final = 0.03


ResultsFrom = Literal["recorded", "handlers"]


class ReplayOptions(AppOptions, total=False):
    """What :func:`replay_fixture` takes.

    ``workspace``: the directory to work in; needed if the recorded run had one. ``any_result_of``: tools whose successful
    results may differ (a clock, a search). ``deadline``: within these seconds something must happen. ``results``: where those
    of tools come from that ``handlers`` doesn't name: the fixture (the default), or the app's own handlers.
    """

    workspace: Path | None
    any_result_of: Collection[str]
    results: ResultsFrom


async def replay_fixture(
    app: App, fixture: Fixture | str | Path, directory: Path, **options: Unpack[ReplayOptions]
) -> ReplayReport:
    """Run an app against a recorded run, and report the differences.

    Args:
        app: the app; its agent with the recorded name runs.
        fixture: what ``turngate export`` wrote, or the path of its file.
        directory: an existing directory for this test, for Temporal's and the store's files.
        options: see :class:`ReplayOptions` and :class:`turngate.testing.engine.AppOptions`.

    Raises:
        ConfigurationError: the file is not a fixture, the app has no such agent, or a workspace is missing.
        TypeError: there is no such option.
        AssertionError: nothing happened within ``deadline``.
    """
    refuse_unknown(options, {*ReplayOptions.__optional_keys__, "app", "fixture", "directory"}, "replay_fixture")
    results = options.get("results", "recorded")
    if results not in get_args(ResultsFrom):
        raise ConfigurationError(f"results={results!r}: it is {' or '.join(map(repr, get_args(ResultsFrom)))}")
    recorded = fixture if isinstance(fixture, Fixture) else _read(Path(fixture))
    if app.find(recorded.agent) is None:
        names = ", ".join(agent.name for agent in app.all_agents)
        raise ConfigurationError(f"the fixture is a run of agent {recorded.agent!r}; the app's agents are: {names}")
    workspace = options.get("workspace")
    if recorded.workspace and workspace is None:
        raise ConfigurationError(
            "the recorded run worked in a directory: pass one that holds the same files, as workspace=tmp_path / 'work'"
        )
    deadline = options.get("deadline", DEADLINE_SECONDS)
    if results == "recorded":
        app = _with_recorded_results(app, recorded, own=options.get("handlers") or {})
    async with running_app(
        app,
        directory,
        handlers=options.get("handlers"),
        model=RecordedModel(recorded),
        base=options.get("base"),
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
        replayed = ReplayedRun(
            run_id=run_id,
            responses=actual,
            ended=recorded_end(run),
            reason=run.reason,
            history=[stored.message for stored in history],
            seen=approver.seen,
        )
        return compare(recorded, replayed, any_result_of=options.get("any_result_of", ()))


def _with_recorded_results(app: App, fixture: Fixture, *, own: Collection[str]) -> App:
    """Return the app whose recorded agent's tools answer as recorded; not those that the test has handlers of its ``own`` for.

    A call that has no result of a handler in the fixture fails: its tool must not run by accident.
    """

    def answering(agent: Agent) -> Agent:
        async def answer(invocation: Invocation, proceed: Proceed) -> Any:
            if invocation.tool_name in own:
                return await proceed()
            call = fixture.calls.get(invocation.ctx.tool_call_id)
            tool = agent.toolkit.find(invocation.tool_name)
            if call is None or tool is None or call.tool != invocation.tool_name:
                raise LookupError(f"the fixture has no call {invocation.ctx.tool_call_id} of {invocation.tool_name}")
            return _recorded_answer(tool, call)

        return agent if agent.name != fixture.agent else replace(agent, toolkit=agent.toolkit.wrap(answer))

    return app.with_agents(answering)


def _recorded_answer(tool: Tool, call: FixtureCall) -> Any:
    """Return what the tool's handler returned, or raise the failure that it raised."""
    result = call.result
    if isinstance(result, Ok):
        try:
            return tool.success.validate_python(result.value)
        except ValidationError:
            if result.value.keys() != {"value"}:
                raise
            return tool.success.validate_python(result.value["value"])  # a bare value, which results have wrapped
    if result is not None and result.kind == "nothing_happened":
        raise NothingHappened(result.reason.rpartition(" changed nothing: ")[2])
    declared = next((each for each in tool.failures if result is not None and each.kind == result.kind), None)
    if declared is None or result is None:
        raise LookupError(f"the fixture has no result of {tool.name} for call {call.id}: pass a handler for it")
    raise declared(**result.fields)


def _read(file: Path) -> Fixture:
    try:
        text = read_text(file)
    except (OSError, NotTextError) as error:
        reason = why_unreadable(error)
        raise ConfigurationError(f"the fixture {file} cannot be read: {reason}") from None
    return parse_fixture(text, str(file))


async def _start(engine: RunningApp, fixture: Fixture, workspace: Path | None) -> str:
    """Start the run, after the messages that the recorded run had before it."""
    conversation_id = None
    if fixture.before:
        conversation_id = f"conv_{secrets.token_hex(12)}"
        async with engine.services.database.write() as conn:
            await messages.create_with_past(conn, conversation_id, fixture.before)
    order = StartOrder(
        agent=fixture.agent,
        input=_task(fixture),
        conversation_id=conversation_id,
        workspace=None if workspace is None else str(workspace),
        unattended=fixture.unattended,
    )
    if fixture.input is not None:
        return (await start.start(engine.services, STARTER, order)).id
    async with engine.services.database.read() as conn:
        head = await messages.head_of(conn, str(conversation_id))
    continuing = replace(await checked_order(order, STARTER), begins_at=head)
    return (await start.start_ordered(engine.services, STARTER, fixture.agent, continuing)).id


def _task(fixture: Fixture) -> str:
    """Return what the run was asked to do; that of a retry is in its past."""
    if fixture.input is not None:
        return fixture.input
    return next(each.text for each in reversed(fixture.before) if _is_input(each))


class _Approver:
    """Answers each request as in the recorded run. ``seen``: the requests that it could not answer."""

    def __init__(self, engine: RunningApp, fixture: Fixture, run_id: str, *, deadline: float) -> None:
        self._engine = engine
        self._calls = fixture.calls
        self._run_id = run_id
        self._deadline = deadline
        self._request_of: dict[str, str] = {}
        self._decided: set[str] = set()
        self.seen: list[Divergence] = []

    async def attend(self) -> RunDetail:
        """Return the run when it has ended. Raises AssertionError if nothing happens for too long."""
        state: object = None
        while True:
            run = await self._engine.run(self._run_id)
            if run.status != "running":
                return run
            pending = await self._engine.pending(self._run_id)
            now = (run.step, [(call.execution, call.settled_at) for step in run.steps for call in step.calls], pending)
            if now != state:
                state, last = now, time.monotonic() + self._deadline
            elif time.monotonic() > last:
                raise AssertionError(f"for {self._deadline} s nothing happened in run {self._run_id}: {_status(run)}")
            await self._answer_each(run, pending)
            if self.seen:
                await self._engine.interrupt(self._run_id, "the run differs from its fixture")
                return await self._engine.ended(self._run_id)
            await asyncio.sleep(POLL_SECONDS)

    async def _answer_each(self, run: RunDetail, pending: list[RequestItem]) -> None:
        """Decide the requests that were decided. If only requests that expired are left, skip time."""
        expiring = []
        for request in pending:
            call = self._calls.get(request.tool_call_id) if request.run_id == self._run_id else None
            recorded = None if call is None else call.request
            known = self._request_of.setdefault(request.tool_call_id, request.id) == request.id
            if recorded is None or not known:
                self._differs("unrecorded_request", request, _unrecorded(request, known=known))
            elif recorded.ended == "expired":
                expiring.append(request)
            elif request.id not in self._decided:  # with fewer approvals than it needs, it stays pending
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
            principal = replace(STARTER if name == STARTER.name else OPERATOR, name=name, role="admin")
            try:
                order = DecisionOrder(
                    verb=decision.verb, digest=request.digest, args=decision.args, message=decision.message
                )
                await decide.submit(self._engine.services, principal, request.id, order)
            except TurngateError as error:
                self._differs("decision_refused", request, f"the recorded {decision.verb!r} is now refused: {error}")
                return

    async def _let_expire(self, expiring: list[RequestItem]) -> None:
        lives = []
        for request in expiring:
            if request.expires_at is None:
                self._differs("never_expires", request, "it expired in the recorded run, and now it has no expiry")
                return
            lives.append(from_text(request.expires_at) - from_text(request.created_at))
        await self._engine.forward(self._run_id, max(lives) + timedelta(seconds=1))

    def _differs(self, kind: Kind, request: RequestItem, message: str) -> None:
        call_id, tool = request.tool_call_id, request.tool_name
        self.seen.append(Divergence(kind=kind, message=message, tool_call_id=call_id, tool=tool))


def _status(run: RunDetail) -> str:
    open_calls = [call for step in run.steps for call in step.calls if call.settled_at is None]
    calls = ", ".join(f"{call.tool_call_id} ({call.tool_name}, {call.execution})" for call in open_calls)
    return f"step {run.step}, open calls: {calls or 'none'}"


def _unrecorded(request: RequestItem, *, known: bool) -> str:
    what = "a person is asked again" if not known else f"a person is asked ({request.kind}, rule {request.rule})"
    return (
        f"{what}, and the fixture holds no decision for it. It was not approved automatically: the run was interrupted. "
        "If this gate is intended, record the run again (`turngate export`)"
    )


def _name_of(decision: FixtureDecision, request: RequestDetail, place: int) -> str:
    """Return the name of the person who decides: one of the rule's people if it names people and no roles."""
    terms = request.ask_terms
    if decision.by == STARTER_WORD:
        return STARTER.name
    return terms.people[place % len(terms.people)] if terms.people and not terms.roles else decision.by
