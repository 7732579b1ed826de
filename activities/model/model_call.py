"""Asking the model for a step's response: what it sees, which model is asked, how its failures are reported.

Stores nothing of the response. Each attempt that comes this far is a request that is paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import httpx
from temporalio.exceptions import ApplicationError

from turngate.activities.engine.author_code import await_author
from turngate.activities.engine.costs import timed_request
from turngate.activities.engine.engine import Engine
from turngate.activities.engine.error_log import Where, keeping_crashes, quoted, report
from turngate.activities.engine.rules import RulesInForce
from turngate.activities.engine.run_step import RunStep
from turngate.activities.model.compaction import Compactor
from turngate.activities.model.history import Histories, History
from turngate.activities.model.routing import ModelRouter
from turngate.activities.model.streaming import LiveDeltas
from turngate.domain import contract
from turngate.domain.agents.structured_output import checked_output, output_schema
from turngate.domain.contract import ModelFailure
from turngate.domain.conversation.clipping import READ_RESULT
from turngate.domain.conversation.history import mint_call_ids, minted_id, reconcile
from turngate.domain.conversation.malformed import corrective, without_calls
from turngate.domain.conversation.messages import Message, ModelResponse, TextPart
from turngate.domain.conversation.written_calls import checked_text
from turngate.domain.crashes import report_crash
from turngate.domain.errors import ADAPTER_BUG, ConfigurationError, ModelError
from turngate.domain.text.durations import span
from turngate.domain.text.sentences import as_sentence
from turngate.domain.tools.tool import Tool, ToolManifest
from turngate.models.port import LanguageModel, ModelRequest
from turngate.runtime.telemetry import redact_text
from turngate.store.clock import as_text, now
from turngate.store.events import events
from turngate.store.runs import calls

LONGEST_WAIT_SECONDS = 60
"""Before a failed request is sent again, where the provider did not say when."""
TRANSFORM_SECONDS = 300.0
"""Of one hook; it may ask the model for a summary."""
MAX_REASON_CHARS = 16_000
BROKEN_CONNECTION = (OSError, TimeoutError, httpx.TransportError)
"""What an adapter that doesn't translate it may raise of its connection. Anything else is a bug in its code."""


@dataclass(frozen=True)
class Attempt:
    """Which attempt to take a step this is, from 1. ``since``: when the first one was due. ``asked_at``: when this one asked."""

    number: int
    since: datetime
    asked_at: datetime | None = None


@dataclass(frozen=True)
class ModelAnswer:
    """A response, with the corrective that the model gets if it is unusable.

    ``history``: what the step read of its conversation; None: no model was asked. ``asked_at``: when it was.
    """

    response: ModelResponse
    corrective: str | None = None
    history: History | None = None
    asked_at: datetime | None = None


class ModelCall:
    """Asks the models of an engine on behalf of its runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._histories = Histories()
        self._compactor = Compactor(engine)
        self._router = ModelRouter(engine)
        self.live = LiveDeltas(engine.database, on=engine.streaming)

    async def ask(self, step: RunStep, attempt: Attempt) -> ModelAnswer:
        """Return the model's answer."""
        agent = step.agent
        async with self._engine.database.glance() as conn:  # messages are immutable: what is read here stays consistent
            history = await self._histories.load(conn, step.run, agent)
            has_provider_tools = any(tool.kind == "provider" for tool in agent.toolkit)
            rules = await self._engine.rules(conn, step.run) if has_provider_tools else None
        offered = self._offered(step, history, rules)
        while True:
            spec = await self._router.spec_for(step)
            attempt = replace(attempt, asked_at=now())
            try:
                with self._engine.model_span(step.run, step.number):
                    answer = without_calls(await self._ask_model(step, spec, history, offered))
                answer = checked_output(answer, agent.output)
                if agent.output is None:  # an object that fits its schema is what was asked for
                    answer = checked_text(answer, [tool.name for tool in offered])
                break
            except (ConfigurationError, ModelError) as error:
                failure = _with_time_left(step, attempt, error)
                where = Where(run_id=step.run.id, step=step.number, attempt=attempt.number)
                error_id = await report(self._engine, "model failed", error, where, model=spec)
                was_shown = await self._keep_unfinished(step, attempt, error_id)
                run = await self._router.fall_back(step, spec, failure, error_id)
                if run is None:
                    raise await self._failure(step, attempt, failure, error_id, was_shown=was_shown) from None
                step = step.of(run)
        taken = {call.tool_call_id for message in history.messages for call in message.calls}
        if not history.whole and answer.message.calls:
            taken |= await self._taken_before(step, answer.message)
        message = mint_call_ids(answer.message, step=step.number, taken=taken)
        answer = answer.model_copy(update={"message": message, "spec": spec})
        unusable = corrective(answer, [tool.name for tool in offered], as_json=agent.output is not None)
        return ModelAnswer(answer, unusable, history, attempt.asked_at)

    async def _ask_model(
        self, step: RunStep, spec: str, history: History, offered: Sequence[ToolManifest]
    ) -> ModelResponse:
        """Return the answer of the model of this spec. Raises ConfigurationError, ModelError."""
        agent, model = step.agent, await self._router.resolve(step.agent, spec)
        options = agent.options.over(self._engine.profiles.options(spec))
        system = Message(role="system", parts=(TextPart(text=agent.instructions),))

        async def request(fitting: History) -> ModelResponse:
            async with keeping_crashes(self._engine, Where(run_id=step.run.id, step=step.number)):
                messages = await transform(step, [system, *fitting.messages], model)
            # I1: what cannot be sent is repaired, never sent. The stored messages are immutable; the repair is a pure
            # function of them, so every retry sends the same.
            sent = ModelRequest(
                messages=reconcile(messages), tools=offered, output=output_schema(agent.output), options=options
            )
            try:
                with timed_request(self._engine.database.meter, spec):
                    return await self.live.answer(model, sent, step.run.id, step.number)
            except (ConfigurationError, ModelError):
                raise
            except Exception as error:
                raise _adapter_error(error, spec) from error

        asking = step.of(replace(step.run, model=spec))
        return await self._compactor.ask_fitting(asking, history, offered, request)

    async def _taken_before(self, step: RunStep, message: Message) -> set[str]:
        """Return the ids that a response may not use again, of the calls whose messages were not loaded."""
        run_id, minted = step.run.id, {minted_id(step.number, index) for index in range(len(message.parts))}
        async with self._engine.database.read() as conn:
            wanted = {*minted, *(call.tool_call_id for call in message.calls)}
            taken = await calls.ids_taken(conn, run_id, sorted(wanted))
            if taken & minted:  # a model made up the very id that we would mint: the ids after it count, too
                taken |= await calls.ids_like(conn, run_id, minted_id(step.number, ""))
        return taken

    def _offered(self, step: RunStep, history: History, rules: RulesInForce | None) -> list[ToolManifest]:
        """Return the descriptors that the model sees, always in the same order, for its prompt cache.

        A provider runs its own tools before anyone could be asked, so it is only offered those that policy allows, and none
        in a dry run. The tool that reads the rest of a result comes last, and only if there is such a rest.
        """
        toolkit = step.agent.toolkit
        provider_rules = None if step.run.is_dry else rules
        offered = [tool.manifest for tool in toolkit if tool.kind != "provider" or _is_allowed(tool, provider_rules)]
        reader = self._engine.built_in.find(READ_RESULT)
        if history.clipped and reader is not None and toolkit.find(READ_RESULT) is None:
            offered.append(reader.manifest)
        return offered

    async def _keep_unfinished(self, step: RunStep, attempt: Attempt, error_id: str) -> bool:
        """Write down the text that a failed attempt had shown, for people only: it never enters the conversation.

        True: watchers had seen something of the attempt.
        """
        text = self.live.taken_back(step.run.id, step.number)
        if text and text.strip():
            payload = {"step": step.number, "attempt": attempt.number, "text": text, "error_id": error_id}
            async with self._engine.database.write() as conn:
                await events.append(conn, step.run.id, [("model.broke_off", payload)])
        return text is not None

    async def _failure(
        self, step: RunStep, attempt: Attempt, error: ModelError | ConfigurationError, error_id: str, *, was_shown: bool
    ) -> ApplicationError:
        """Write for watchers that the model failed, and return what tells Temporal whether and when to retry.

        ``was_shown``: watchers had seen some of its words.
        """
        message = quoted(error.message, error_id)
        if isinstance(error, ConfigurationError):
            return ApplicationError(message, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True)
        # Temporal's own bounds cover waiting and working together; only we know that all of it was waiting.
        left = _seconds_left(step, attempt)
        retries = error.retryable and left > 0 and (error.retry_after_seconds or 0.0) <= left
        if not retries:
            return ApplicationError(message, error.error_class, type=contract.ERROR_MODEL, non_retryable=True)
        # Ours, not the retry policy's: its interval is for lost workers, who are replaced sooner than a provider recovers.
        wait = float(min(LONGEST_WAIT_SECONDS, 2 ** min(attempt.number - 1, 10)))
        if error.retry_after_seconds is not None:
            wait = error.retry_after_seconds
        payload: dict[str, object] = {"step": step.number, "attempt": attempt.number, "error_class": error.error_class}
        payload |= {"message": message, "retry_in_seconds": wait, "error_id": error_id, "model": step.run.model}
        if attempt.asked_at is not None:
            payload["asked_at"] = as_text(attempt.asked_at)
        if was_shown:
            payload["shown"] = True
        async with self._engine.database.write() as conn:
            await events.append(conn, step.run.id, [("model.retrying", payload)])
        return failed_request(ModelFailure(message=message, error_class=error.error_class, wait_seconds=wait))


def failed_request(failure: ModelFailure) -> ApplicationError:
    """Return what tells Temporal that a request to the model failed, and when to send it again."""
    return ApplicationError(
        failure.message,
        failure.error_class,
        type=contract.ERROR_MODEL,
        next_retry_delay=timedelta(seconds=failure.wait_seconds),
    )


def failure_of(error: ApplicationError) -> ModelFailure | None:
    """Return the failed request that this error is about; None: it is about something else."""
    if error.type != contract.ERROR_MODEL or error.next_retry_delay is None:
        return None
    wait = error.next_retry_delay.total_seconds()
    return ModelFailure(message=error.message, error_class=str(error.details[0]), wait_seconds=wait)


def _with_time_left(
    step: RunStep, attempt: Attempt, error: ModelError | ConfigurationError
) -> ModelError | ConfigurationError:
    """Return the error; no longer retryable if the time for the model is over, and a fallback may answer then.

    It is over, too, where the provider asks to come back too late. A run that may not fall back fails with that reason.
    """
    if isinstance(error, ConfigurationError) or not error.retryable:
        return error
    may_fall_back = step.agent.limits.falls_back_after_retry(attended=step.run.attended)
    left = _seconds_left(step, attempt)
    why = ""
    if error.retry_after_seconds is not None and error.retry_after_seconds > left:
        why = f"It asks to come back in {span(error.retry_after_seconds)}; model_retry allows {span(left)} more"
    elif not left and may_fall_back:
        why = "It failed for as long as model_retry allows"
    if not why:
        return error
    return ModelError(
        f"{as_sentence(error.message)} {why}.",
        error_class=error.error_class,
        retryable=not may_fall_back,
        retry_after_seconds=error.retry_after_seconds,
        status=error.status,
    )


def _seconds_left(step: RunStep, attempt: Attempt) -> float:
    """Return for how long a model that fails is still tried again."""
    return max(0.0, (step.agent.limits.model_retry - (now() - attempt.since)).total_seconds())


def _adapter_error(error: Exception, model: str) -> ModelError:
    """Return what an adapter raised against the port's terms as the error that a run reports, with its text and no keys.

    An answer that it can't read is a ModelError of the adapter's own. Whatever its code raises besides that is a bug, and isn't
    paid for again: the same request fails again.
    """
    reason = redact_text(" ".join(str(error).split()))[:MAX_REASON_CHARS]
    what = f"the adapter of model {model!r} raised {type(error).__name__}: {reason}"
    if isinstance(error, BROKEN_CONNECTION):
        return ModelError(what, error_class="unreachable", retryable=True)
    return ModelError(f"{as_sentence(what)} {ADAPTER_BUG}", error_class="configuration", retryable=False)


def _is_allowed(tool: Tool, rules: RulesInForce | None) -> bool:
    """Tell whether policy allows every call of a tool, whatever its arguments."""
    return rules is not None and rules.verdict(tool, None, None).answer == "allow"


async def transform(step: RunStep, messages: Sequence[Message], model: LanguageModel) -> list[Message]:
    """Return the messages to send, after the agent's before-model hooks in order. The stored conversation stays as it is.

    A hook that fails changes nothing, and is logged.
    """
    sendable = list(messages)

    async def generate(prompt: Sequence[Message]) -> str:
        return (await model.generate(ModelRequest(messages=reconcile(prompt), tools=[]))).message.text  # I1 here, too

    for hook in step.agent.hooks:
        try:
            before_model = hook.before_model(step.scope, tuple(sendable), generate)
            sendable = _sendable(await await_author(before_model, seconds=TRANSFORM_SECONDS))
        except Exception as error:  # noqa: BLE001 - reported, with its traceback
            report_crash("before_model hook failed", error, hook=type(hook).__name__)
    return sendable


def _sendable(answer: Iterable[Message]) -> list[Message]:
    """Return what a hook answered, if reconciling leaves something of it to send.

    A cut to the newest message leaves results whose calls are gone; reconciled, that is nothing, which no provider takes.
    """
    messages = list(answer)
    if not all(isinstance(message, Message) for message in messages) or not reconcile(messages):
        raise TypeError("before_model must return messages, at least one that is not a result without its call")
    return messages
