"""Declaring tools: ``@tool``, the split form ``declare_tool``, and the kinds that have no handler here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, JsonValue, TypeAdapter
from pydantic.errors import PydanticUserError

from turngate.domain.errors import ConfigurationError
from turngate.domain.text.json_pointers import checked_pointer
from turngate.domain.text.suggestions import refuse_unknown
from turngate.domain.tools.control_calls import ControlCall
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
from turngate.domain.tools.preview import Previewer
from turngate.domain.tools.references import NAME
from turngate.domain.tools.secrets import has_secrets
from turngate.domain.tools.summary import check_template
from turngate.domain.tools.tool import DEFAULT_TIMEOUT, Ask, Confiner, Effect, FailureMode, Place, Summary, Tool

Params = TypeVar("Params", bound=BaseModel)


class _HeldOptions(TypedDict, total=False):
    """The options that a :class:`Tool` holds as they are declared."""

    effect: Effect
    """What running twice means; ``once`` (default) is never repeated by the engine."""
    ask: Ask
    """Whether a person must approve; a predicate gets the decoded parameters, and one that raises means ask."""
    failure_mode: FailureMode
    """``return`` (default) shows a declared failure to the model, ``raise`` fails the run."""
    timeout: timedelta
    """1 s to 7 days, for one execution; default: 10 minutes."""
    task_queue: str | None
    """Temporal task queue of the workers that have the handler; None is the app's own."""
    strict: bool
    """Ask the provider to hold the model to the schema."""
    untrusted: bool
    """Anyone may have written what the tool returns: mail, web pages, tickets. An argument of a later call that comes from
    nowhere else is marked for the person who decides it."""
    summary: Summary | None
    """What a call does, in one sentence for the person who decides it: a text with arguments in braces, such as
    ``"Refund {amount} of order {order_id}"``, or a function of ``params`` that returns one. None: Turngate renders one."""
    check_with: Summary | None
    """How a person checks whether a ``once`` call took effect whose outcome is unknown: a text with arguments in braces, and
    ``{idempotency_key}``, such as ``"Look for {idempotency_key} at https://pay.example/payments"``, or a function of ``params``
    that returns one."""
    preview: Previewer | None
    """``(params, workspace)`` → what will change; runs at planning, must not change anything."""
    present: Presenter | None
    """``(params, result)`` → what people see of the call and its result."""
    precondition_keeps_fresh: bool
    """False: an approval that is too old does not count, even if the precondition is unchanged, because it knows only a part of
    what the call depends on. Default: True."""
    confinement: Confiner | None
    """For a tool that starts processes: ``params`` → how they are confined. People see it; unconfined calls always ask."""


class ToolOptions(_HeldOptions, total=False):
    """What every declaration of a local tool takes. Each may be left out; :class:`Tool` has the defaults."""

    failures: Sequence[type[ToolFailure]]
    """The ToolFailure classes the handler may raise."""
    secret: Sequence[str]
    """JSON pointers of secret places in its arguments and its success, such as ``/token`` or ``/accounts/*/password`` (``*``:
    every member or item). ``SecretStr``, ``format: password`` and ``writeOnly`` in their types declare the same. People see a
    mark in place of what is there; the handler gets the value."""
    references: Sequence[str]
    """Names of the app's secrets (``App(secrets=…)``) that a secret argument may refer to: the model writes
    ``secret("stripe-key")`` in place of the value, which the handler gets, and no one else."""
    probe: Callable[..., Any] | None
    """``(key: str, …services)`` → :class:`Happened`, :class:`DidNotHappen` or None, for a ``once`` call whose outcome
    is unknown; ``key`` is the idempotency key the handler had."""
    precondition: Callable[..., Any] | Literal["preview"] | None
    """``(params, …context, services)`` → any JSON value that the call depends on, such as a file's digest. Taken when a
    person is asked and again before the call runs; when it differs, the person is asked again. ``"preview"``: it is the
    ``depends_on`` of the preview, so what is compared is exactly what the person was shown."""


class SplitToolOptions(ToolOptions, total=False):
    """What a declaration apart from its handler takes on top."""

    origin: Mapping[str, str] | None
    """Where a tool from outside comes from, such as its MCP server; part of what a decision's digest covers."""
    handler: Handler | None
    """The function that runs; None: ``kit.handlers(name=function)`` supplies it."""


def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Handler], Tool]:
    """Declare an async function as a tool.

    The first parameter annotated with a pydantic model is its parameters (none: a tool without parameters), one
    annotated :class:`ToolContext` gets the context, every other is a service looked up by type. The return annotation
    is the success type, the docstring the description.

    Args:
        name: instead of the function's name.
        description: instead of its docstring.
        options: see :class:`ToolOptions`.

    Raises:
        ConfigurationError: the function cannot be a tool; the message says why.
        TypeError: there is no such option.
    """
    refuse_unknown(options, {*ToolOptions.__optional_keys__, "name", "description"}, "tool")

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
            handler=function,
            **options,
        )

    return declare


def declare_tool(
    *,
    name: str,
    description: str,
    params: type[BaseModel] | Parameters | None = None,
    success: Any = dict[str, JsonValue],
    success_schema: dict[str, JsonValue] | None = None,
    **options: Unpack[SplitToolOptions],
) -> Tool:
    """Declare a tool apart from its handler; supply that by ``kit.handlers(name=function)``, or as ``handler``.

    ``params``: a pydantic model, any :class:`Parameters`, or None for a tool that takes nothing. ``success``: the type
    a handler returns; ``success_schema`` is shown in its place when given. The others: see :class:`SplitToolOptions`.

    Raises:
        ConfigurationError: the name, timeout or handler cannot be; the message says why.
        TypeError: there is no such option.
    """
    own = ("name", "description", "params", "success", "success_schema")
    refuse_unknown(options, {*SplitToolOptions.__optional_keys__, *own}, "declare_tool")  # some are fields of a Tool
    parameters = parameters_of(params)
    failures = failures_of(options.pop("failures", ()), name)
    probe = options.pop("probe", None)
    precondition = options.pop("precondition", None)
    origin = options.pop("origin", None)
    handler = options.pop("handler", None)
    secret = tuple(checked_pointer(each) for each in options.pop("secret", ()))
    names = tuple(options.pop("references", ()))
    for each in names:
        if not NAME.fullmatch(each):
            raise ConfigurationError(
                f"tool {name!r}: {each!r} can't be a secret's name: letters, digits and _ . / -, at most 100"
            )
    held: _HeldOptions = options
    try:
        succeeds = TypeAdapter(success)
    except PydanticUserError as error:
        raise ConfigurationError(
            f"tool {name!r} returns {getattr(success, '__name__', success)}, which pydantic can't write as JSON: return a "
            "pydantic model, a dataclass, or plain values such as str, int, list and dict"
        ) from error
    declared = Tool(
        name=name,
        description=description,
        kind="local",
        parameters=parameters,
        success=succeeds,
        success_schema=success_schema,
        failures=failures,
        probe=None if probe is None else probe_of(probe, name),
        precondition=precondition_of(precondition, parameters, name),
        origin=dict(origin or {}),
        secret=secret,
        references=names,
        declared_at=declaring_place(),
        **held,
    )
    if names and not has_secrets(declared.manifest.parameters):
        raise ConfigurationError(
            f"tool {name!r} takes references, and declares no argument secret: no place could hold one"
        )
    if declared.precondition == "preview" and declared.preview is None:
        raise ConfigurationError(
            f'tool {name!r} has precondition="preview" and no preview: give it one that returns Preview(…, depends_on=…)'
        )
    if isinstance(declared.summary, str):
        check_template(declared.summary, declared.manifest.parameters, name)
    if isinstance(declared.check_with, str):
        check_template(declared.check_with, declared.manifest.parameters, name, "check_with")
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
        declared_at=declaring_place(),
    )


def control_call_tool(
    *,
    name: str,
    description: str,
    params: type[Params],
    interpret: Callable[[Params], ControlCall],
    ask: Ask = False,
) -> Tool:
    """Declare a tool whose calls the loop itself carries out: finish, wait, hand off, switch model.

    ``interpret``: decoded parameters → a :data:`ControlCall`; pure. ``ask``: as for any tool; policy rules apply too.
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
        declared_at=declaring_place(),
    )


def provider_tool(*, name: str, description: str, provider: Mapping[str, dict[str, JsonValue]]) -> Tool:
    """Declare a tool that the model's provider runs by itself, such as its web search.

    ``provider``: provider name (the part of a model's spec before the colon) → the entry of its ``tools`` list. A model
    of another provider fails the run: the tool is never dropped in silence. No one can be asked before the provider
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
        declared_at=declaring_place(),
    )


def declaring_place() -> Place | None:
    """Return where a tool is declared: the first frame outside the functions that declare one."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("turngate.domain."):
        frame = frame.f_back
    if frame is None:
        return None
    return Place(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename, frame.f_lineno)
