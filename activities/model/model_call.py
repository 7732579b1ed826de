"""Asking the model for a step's response: what it is shown, which model, how its failures are told.

Stores nothing of the response. Each attempt that comes this far is a request that is paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.engine.author_code import heard
from activities.engine.engine import Engine
from activities.engine.rules import RulesInForce
from activities.model.compaction import Compactor
from activities.model.history import Histories, History
from activities.model.routing import ModelRouter
from activities.model.streaming import LiveDeltas
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import RunScope
from turngate.domain.agents.structured_output import checked_output, output_schema
from turngate.domain.conversation.clipping import READ_RESULT
from turngate.domain.conversation.history import mint_call_ids, minted_id, reconcile
from turngate.domain.conversation.malformed import corrective, without_calls
from turngate.domain.conversation.messages import Message, ModelResponse, TextPart
from turngate.domain.errors import ConfigurationError, ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.models.port import LanguageModel, ModelRequest
from turngate.store.clock import now
from turngate.store.events import events
from turngate.store.runs import calls, runs

LONGEST_WAIT_SECONDS = 60
"""Before a failed request is sent again, where the provider did not say when."""


class ModelAsker:
    """Asks the models of an engine on behalf of its runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._histories = Histories()
        self._compactor = Compactor(engine)
        self._router = ModelRouter(engine)
        self.live = LiveDeltas(engine.database, on=engine.streaming)

    async def ask(self, run: runs.Run, agent: Agent, step: int) -> tuple[ModelResponse, str | None]:
        """Return the model's answer, and what it is told of one that nothing can be made of."""
        async with self._engine.database.glance() as conn:  # messages are immutable: nothing here can come apart
            history = await self._histories.load(conn, run, agent)
            rules = await self._engine.rules(conn, run) if any(t.kind == "provider" for t in agent.toolkit) else None
        offered = self._offered(run, agent, history, rules)
        while True:
            spec = await self._router.spec_for(run, agent, step)
            try:
                answer = without_calls(await self._asked(run, agent, step, spec, history, offered))
                answer = checked_output(answer, agent.output)
                break
            except (ConfigurationError, ModelError) as error:
                other = await self._router.fall_back(run, agent, step, spec, error)
                if other is None:
                    raise await self._reported(run, agent, step, error) from error
                run = other
        taken = {call.tool_call_id for message in history.messages for call in message.calls}
        if not history.whole and answer.message.calls:
            taken |= await self._taken_before(run, step, answer.message)
        message = mint_call_ids(answer.message, step=step, taken=taken)
        answer = answer.model_copy(update={"message": message, "spec": spec})
        return answer, corrective(answer, [tool.name for tool in offered], as_json=agent.output is not None)

    async def _asked(
        self, run: runs.Run, agent: Agent, step: int, spec: str, history: History, offered: Sequence[ToolManifest]
    ) -> ModelResponse:
        """Return the answer of the model of this spec. Raises ConfigurationError, ModelError."""
        model, options = self._router.resolve(agent, spec), self._engine.profiles.options(spec)
        system = Message(role="system", parts=(TextPart(text=agent.instructions),))

        async def request(fitting: History) -> ModelResponse:
            shown = await transformed(agent, run, step, [system, *fitting.messages], model)
            # I1: what cannot be sent is repaired, never sent. The stored messages are immutable; the repair is a pure
            # function of them, so every retry sends the same.
            sent = ModelRequest(
                messages=reconcile(shown), tools=offered, output=output_schema(agent.output), options=options
            )
            return await self.live.answer(model, sent, run.id, step)

        return await self._compactor.asked(replace(run, model=spec), agent, step, history, offered, request)

    async def _taken_before(self, run: runs.Run, step: int, message: Message) -> set[str]:
        """Return the ids that a response may not have again, of the calls whose messages were not loaded."""
        minted = {minted_id(step, index) for index in range(len(message.parts))}
        async with self._engine.database.read() as conn:
            wanted = {*minted, *(call.tool_call_id for call in message.calls)}
            taken = await calls.ids_taken(conn, run.id, sorted(wanted))
            if taken & minted:  # somebody made up the very id that we would mint: what follows it counts, too
                taken |= await calls.ids_like(conn, run.id, minted_id(step, ""))
        return taken

    def _offered(self, run: runs.Run, agent: Agent, history: History, rules: RulesInForce | None) -> list[ToolManifest]:
        """Return the descriptors the model sees, always in the same order, for its prompt cache.

        A provider runs its own tools before anybody could be asked, so it is only told of those that policy allows, and of
        none in a dry replay. The tool that reads the rest of a result comes last, and only where there is such a rest.
        """
        offered = [
            tool.manifest
            for tool in agent.toolkit
            if tool.kind != "provider"
            or (
                rules is not None
                and not run.is_dry
                and rules.verdict(tool, None, run, None, agent=agent.name).answer == "allow"
            )
        ]
        reader = self._engine.built_in.find(READ_RESULT)
        if history.clipped and reader is not None and agent.toolkit.find(READ_RESULT) is None:
            offered.append(reader.manifest)
        return offered

    async def _reported(
        self, run: runs.Run, agent: Agent, step: int, error: ModelError | ConfigurationError
    ) -> ApplicationError:
        """Tell the watchers that the model failed, and Temporal whether and when to try again."""
        if isinstance(error, ConfigurationError):
            return ApplicationError(
                error.message, "configuration", type=contract.ERROR_CONFIGURATION, non_retryable=True
            )
        # Temporal's own bounds hold waiting and working together; only we know that all of it was waiting.
        tried_for = now() - activity.info().scheduled_time
        again = error.retryable and tried_for < agent.limits.model_retry
        # Ours, not the retry policy's: its interval is for lost workers, who are replaced sooner than a provider recovers.
        nth = activity.info().attempt
        wait = float(min(LONGEST_WAIT_SECONDS, 2 ** min(nth - 1, 10)))
        if error.retry_after_seconds is not None:
            wait = error.retry_after_seconds
        if again:
            attempt = {"step": step, "attempt": nth, "error_class": error.error_class}
            async with self._engine.database.write() as conn:
                told = {**attempt, "message": error.message, "retry_in_seconds": wait}
                if self.live.was_shown(run.id, step):
                    told["shown"] = True
                await events.append(conn, run.id, [("model.retrying", told)])
        return ApplicationError(
            error.message,
            error.error_class,
            type=contract.ERROR_MODEL,
            non_retryable=not again,
            next_retry_delay=timedelta(seconds=wait),
        )


# Context transforms: the agent's before-model hooks shape what is sent. The stored conversation stays as it is.


log = structlog.get_logger(__name__)

TRANSFORM_SECONDS = 300.0
"""Of one hook; it may ask the model for a summary."""


async def transformed(
    agent: Agent, run: runs.Run, step: int, messages: Sequence[Message], model: LanguageModel
) -> list[Message]:
    """Return the messages to send, through every hook in order; one that fails changes nothing and is logged."""
    shown = list(messages)

    async def generate(asked: Sequence[Message]) -> str:
        return (await model.generate(ModelRequest(messages=reconcile(asked), tools=[]))).message.text  # I1 here, too

    scope = RunScope(run_id=run.id, agent=agent.name, step=step)
    for hook in agent.hooks:
        try:
            answer = await heard(hook.before_model(scope, tuple(shown), generate), seconds=TRANSFORM_SECONDS)
            shown = _sendable(answer)
        except Exception:
            log.exception("before_model hook failed", hook=type(hook).__name__, run_id=run.id)
    return shown


def _sendable(answer: Iterable[Message]) -> list[Message]:
    """Return what a hook answered, once it is known that reconciling leaves something of it to send.

    A cut to the newest message is results whose calls are gone: no provider takes what is left of that, which is nothing.
    """
    shown = list(answer)
    if not all(isinstance(message, Message) for message in shown) or not reconcile(shown):
        raise TypeError("before_model must return messages, at least one that is not a result without its call")
    return shown
