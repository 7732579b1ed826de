"""Declaring tools: ``@tool``, the split form ``declare_tool``, and the kinds that have no handler here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.control_calls import Signal
from turngate.domain.tools.declared_parts import (
    Handler,
    check_params,
    failures_of,
    handler_of,
    parameters_of,
    precondition_of,
    probe_of,
)
from turngate.domain.tools.failures import ToolFailure
from turngate.domain.tools.parameters import ModelParameters, NoParameters, Parameters
from turngate.domain.tools.presentation import Presenter
from turngate.domain.tools.preview import Preview
from turngate.domain.tools.tool import AskPredicate, Effect, FailureMode, Tool

if TYPE_CHECKING:
    from turngate.domain.agents.app import Agent

Shown = Callable[[Any, Path | None], Preview | None]
Params = TypeVar("Params", bound=BaseModel)

DEFAULT_TIMEOUT = timedelta(minutes=10)


def tool(
    *,
    effect: Effect = "once",
    ask: bool | AskPredicate | None = None,
    failures: Sequence[type[ToolFailure]] = (),
    failure_mode: FailureMode = "return",
    timeout: timedelta = DEFAULT_TIMEOUT,
    task_queue: str | None = None,
    strict: bool = False,
    preview: Shown | None = None,
    probe: Callable[..., Any] | None = None,
    precondition: Callable[..., Any] | None = None,
    present: Presenter | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Handler], Tool]:
    """Declare an async function as a tool.

    The first parameter annotated with a pydantic model is its parameters (none: a tool without parameters), one
    annotated :class:`ToolContext` gets the context, every other is a service looked up by type. The return annotation
    is the success type, the docstring the description.

    Args:
        effect: what running twice means; ``once`` (default) is never repeated by the engine.
        ask: whether a person must approve; a predicate gets the decoded parameters, and one that raises means ask.
        failures: the ToolFailure classes the handler may raise.
        failure_mode: ``return`` shows a declared failure to the model, ``raise`` fails the run.
        timeout: 1 s to 7 days, for one execution.
        task_queue: Temporal task queue of the workers that have the handler; None is the app's own.
        strict: ask the provider to hold the model to the schema.
        preview: ``(params, workspace)`` → what will change; runs at planning, must not change anything.
        probe: ``(key: str, …services)`` → :class:`Happened`, :class:`DidNotHappen` or None, for a ``once`` call whose
            worker was lost; ``key`` is the idempotency key the handler had.
        precondition: ``(params, …context, services)`` → any JSON value that the call depends on, such as a file's digest.
            Taken when a person is asked and again before the call runs; when it differs, the person is asked again.
        present: ``(params, result)`` → what people see of the call and its result.
        name: instead of the function's name.
        description: instead of its docstring.

    Raises:
        ConfigurationError: the function cannot be a tool; the message says why.
    """

    def declare(function: Handler) -> Tool:
        handler = handler_of(function, name or str(getattr(function, "__name__", function)))
        if handler.returns is inspect.Signature.empty:
            raise ConfigurationError(f"tool {function.__name__!r}: annotate what it returns")
        if handler.params_type is dict:
            raise ConfigurationError(
                f"tool {function.__name__!r}: annotate {handler.params_name!r} with a pydantic model, "
                "or declare a tool from raw JSON Schema with turngate.toolkits.json_schema"
            )
        return declare_tool(
            name=name or function.__name__,
            description=description or inspect.getdoc(function) or "",
            params=handler.params_type,
            success=handler.returns,
            effect=effect,
            ask=ask,
            failures=failures,
            failure_mode=failure_mode,
            timeout=timeout,
            task_queue=task_queue,
            strict=strict,
            preview=preview,
            probe=probe,
            precondition=precondition,
            present=present,
            handler=function,
        )

    return declare


def declare_tool(
    *,
    name: str,
    description: str,
    params: type[BaseModel] | Parameters | None = None,
    success: Any = dict[str, JsonValue],
    success_schema: dict[str, JsonValue] | None = None,
    effect: Effect = "once",
    ask: bool | AskPredicate | None = None,
    failures: Sequence[type[ToolFailure]] = (),
    failure_mode: FailureMode = "return",
    timeout: timedelta = DEFAULT_TIMEOUT,
    task_queue: str | None = None,
    strict: bool = False,
    preview: Shown | None = None,
    probe: Callable[..., Any] | None = None,
    precondition: Callable[..., Any] | None = None,
    present: Presenter | None = None,
    origin: Mapping[str, str] | None = None,
    handler: Handler | None = None,
) -> Tool:
    """Declare a tool apart from its handler; supply that by ``kit.handlers(name=function)``, or as ``handler``.

    ``params``: a pydantic model, any :class:`Parameters`, or None for a tool that takes nothing. ``success``: the type
    a handler returns; ``success_schema`` is shown in its place when given. The others are as in :func:`tool`.

    Raises:
        ConfigurationError: the name, timeout or handler cannot be; the message says why.
    """
    parameters = parameters_of(params)
    declared = Tool(
        name=name,
        description=description,
        kind="local",
        parameters=parameters,
        success=TypeAdapter(success),
        success_schema=success_schema,
        effect=effect,
        ask=ask,
        failures=failures_of(failures, name),
        failure_mode=failure_mode,
        timeout=timeout,
        task_queue=task_queue,
        strict=strict,
        preview=preview,
        probe=None if probe is None else probe_of(probe, name),
        precondition=None if precondition is None else precondition_of(precondition, parameters, name),
        present=present,
        origin=dict(origin or {}),
        declared_in=_caller(),
    )
    return declared if handler is None else with_handler(declared, handler)


def with_handler(declared: Tool, function: Handler) -> Tool:
    """Return the declared tool with this function as its handler. Everything the model sees stays.

    Raises ConfigurationError when the function is not async, or takes other parameters than the tool declares.
    """
    handler = handler_of(function, declared.name)
    check_params(handler, declared.parameters, tool=declared.name, what="handler")
    return replace(declared, handler=handler)


def interaction_tool(
    *, name: str, description: str, params: type[BaseModel], answer: type[BaseModel], timeout: timedelta | None = None
) -> Tool:
    """Declare a tool that a person answers: it opens a ``question`` request, and the answer is its result.

    ``answer``: the answer's shape; the page makes its form from it. There is no handler: nothing runs.
    """
    return Tool(
        name=name,
        description=description,
        kind="interaction",
        parameters=ModelParameters(params),
        success=TypeAdapter(answer),
        effect="read",
        ask=True,
        timeout=timeout or DEFAULT_TIMEOUT,
        declared_in=_caller(),
    )


def signal_tool(
    *,
    name: str,
    description: str,
    params: type[Params],
    interpret: Callable[[Params], Signal],
    ask: bool | AskPredicate | None = False,
) -> Tool:
    """Declare a tool that the loop around the model interprets: finish, wait, hand off, switch model.

    ``interpret``: decoded parameters → a :data:`Signal`; pure. ``ask``: as for any tool; policy rules hold as well.
    """
    return Tool(
        name=name,
        description=description,
        kind="signal",
        parameters=ModelParameters(params),
        success=TypeAdapter(dict[str, JsonValue]),
        effect="idempotent",
        ask=ask,
        interpret=interpret,
        declared_in=_caller(),
    )


def provider_tool(*, name: str, description: str, provider: Mapping[str, dict[str, JsonValue]]) -> Tool:
    """Declare a tool that the model's provider runs by itself, such as its web search.

    ``provider``: provider name (the part of a model's spec before the colon) → the entry of its ``tools`` list. A model
    of another provider fails the run: the tool is never dropped in silence. Nobody can be asked before the provider
    runs it, so a policy rule that denies it, or asks for it, keeps it from being offered at all.
    """
    return Tool(
        name=name,
        description=description,
        kind="provider",
        parameters=NoParameters(),
        success=TypeAdapter(dict[str, JsonValue]),
        effect="read",
        ask=False,
        provider=dict(provider),
        declared_in=_caller(),
    )


class SubAgentTask(BaseModel):
    """What a sub-agent is asked to do."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(
        min_length=1, description="The whole task. The sub-agent sees nothing else: say all that it needs to know."
    )


def sub_agent(
    agent: Agent | str,
    *,
    name: str | None = None,
    description: str | None = None,
    params: type[BaseModel] = SubAgentTask,
    brief: Callable[[Any], str] | None = None,
    ask: bool | AskPredicate | None = False,
) -> Tool:
    """Declare a tool that another agent answers: a run of its own, with its own tools, limits and inbox requests.

    Its result is the sub-agent's final answer. Interrupting the run interrupts it too.

    Args:
        agent: the agent, or the name of one of the app's (for agents that call each other).
        name: instead of the agent's name (with ``-`` as ``_``).
        description: instead of the agent's description.
        params: what the model sends; ``SubAgentTask`` (one ``task`` text) unless you want more structure.
        brief: decoded parameters → the sub-agent's input message; default: ``task``, or the parameters as JSON.
        ask: whether a person must approve starting it. The sub-agent's own calls are gated by themselves either way.
    """
    agent_name = agent if isinstance(agent, str) else agent.name
    own = "" if isinstance(agent, str) else agent.description
    return Tool(
        name=name or agent_name.replace("-", "_"),
        description=description or own or f"Give a task to the agent {agent_name!r} and get its answer.",
        kind="agent",
        parameters=ModelParameters(params),
        success=TypeAdapter(dict[str, JsonValue]),
        effect="idempotent",
        ask=ask,
        agent=agent,
        brief=brief or _brief,
        declared_in=_caller(),
    )


def _brief(params: BaseModel) -> str:
    return params.task if isinstance(params, SubAgentTask) else params.model_dump_json(indent=1)


def _caller() -> str:
    """Return the module that declares a tool: the first frame outside this one."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))
