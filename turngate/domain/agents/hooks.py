"""Hooks: a builder's code around the loop, declared on the agent, run in activities.

A hook sees what happens. It may forbid a call that policy allowed, and shape what is sent to the model. It can't allow
anything: a hook never replaces a gate, and what it returns never replaces what happened in the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turngate.domain.conversation.messages import Message
from turngate.domain.tools.results import Failure, Ok


@dataclass(frozen=True, kw_only=True)
class RunScope:
    """The run a hook is called for. ``step``: from 1."""

    run_id: str
    agent: str
    step: int


@dataclass(frozen=True, kw_only=True)
class HookedCall:
    """One call. ``params``: decoded from ``raw_input``, the exact text that runs (after an edit, the edited one)."""

    tool_name: str
    tool_call_id: str
    raw_input: str
    params: Any


@dataclass(frozen=True)
class Deny:
    """A before-hook's no; ``reason`` is for the model."""

    reason: str


Generate = Callable[[Sequence[Message]], Awaitable[str]]
"""Ask the run's own model for a text, without tools: for a transform that summarises."""


class Hooks:
    """Base of a builder's hooks: override what you need. ``Agent(hooks=[…])`` runs them in order.

    Every method may be called again for the same thing, because activities are retried.
    """

    newest_messages: int | None = None
    """How many of the newest messages :meth:`before_model` looks at, besides the instructions and the first one.

    If no earlier hook shapes what is sent, the engine doesn't load the others, so a step of a run that lasts for weeks costs
    what its first steps did. None: the hook looks at all of them.
    """

    async def before_tool(self, scope: RunScope, call: HookedCall) -> Deny | None:
        """Look at a call that policy and people let through, just before it starts; :class:`Deny` stops it.

        Raising stops it too. Not called for calls that are closed without running.
        """
        del scope, call
        return None

    async def after_tool(self, scope: RunScope, call: HookedCall, result: Ok | Failure) -> None:
        """Look at a result after the call has run. It is stored whatever happens here; raising is only logged."""

    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        """Return the messages to send: trim, summarise, inject. The stored conversation stays as it is.

        What comes out is reconciled again, so a transform cannot break a conversation: a call that lost its result gets
        a closure, a result that lost its call is left out. Raising leaves the messages as they were, and is logged.
        """
        del scope, generate
        return messages

    async def model_for_step(self, scope: RunScope, model: str) -> str | None:
        """Return which model answers this step (``provider:name`` or a profile's name), None for ``model``.

        ``model``: the run's own, or what a hook before this one chose. Not called once a person has switched the run's
        model, or another stands in for one that could not be used; nor for a step that a dry run does over. Raising
        leaves the model as it was, and is logged.
        """
        del scope, model
        return None

    async def after_step(self, scope: RunScope, results: Sequence[Message]) -> None:
        """Look at a step whose every call has its result. ``results``: the message of them, empty when none was made."""
