"""Context transforms: the agent's before-model hooks shape what is sent. The stored conversation stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from activities.engine.author_code import heard
from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import RunScope
from turngate.domain.conversation.history import reconcile
from turngate.domain.conversation.messages import Message
from turngate.models.port import LanguageModel, ModelRequest
from turngate.store.runs import runs

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
