"""What a declared tool is put together from: its author's functions and failures, each checked where it is declared.

Every function here raises ConfigurationError, with the name of the tool and the fix, for a part that cannot be used.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.failures import ToolFailure
from turngate.domain.tools.injection import Injected, injected
from turngate.domain.tools.parameters import ModelParameters, NoParameters, Parameters
from turngate.domain.tools.results import REFUSALS

Handler = Callable[..., Awaitable[Any]]


def parameters_of(params: Any) -> Parameters:
    """Return what a declaration's ``params`` stand for; None: a tool that takes nothing."""
    if params is None:
        return NoParameters()
    if isinstance(params, type) and issubclass(params, BaseModel):
        return ModelParameters(params)
    if isinstance(params, Parameters):
        return params
    raise ConfigurationError(f"a tool's params are a pydantic model, a Parameters or None, not {params!r}")


def handler_of(function: Handler, name: str) -> Injected:
    """Return a handler with what it asks for. ``name``: its tool's."""
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"tool {name!r}: its handler {getattr(function, '__name__', function)} must be an async function (`async def`)"
        )
    handler = injected(function, what=f"tool {name!r}")
    if handler.key_name is not None:
        raise ConfigurationError(
            f"tool {name!r}: {handler.key_name!r} is annotated str; put the arguments the model sends into one pydantic "
            "model, and annotate one parameter with that"
        )
    return handler


def probe_of(function: Callable[..., Any], name: str) -> Injected:
    """Return a probe with what it asks for: the key and services."""
    probe = injected(function, what=f"the probe of tool {name!r}")
    if probe.params_name is not None or probe.ctx_name is not None:
        raise ConfigurationError(
            f"the probe of tool {name!r} is given the idempotency key (annotate one parameter with str) and services; the "
            "arguments of the call are what its handler has written down under that key"
        )
    return probe


def precondition_of(
    function: Callable[..., Any] | Literal["preview"] | None, parameters: Parameters, name: str
) -> Injected | Literal["preview"] | None:
    """Return a precondition with what it asks for: the tool's parameters, the context and services."""
    if function is None or function == "preview":
        return function
    precondition = injected(function, what=f"the precondition of tool {name!r}")
    if precondition.key_name is not None:
        raise ConfigurationError(
            f"the precondition of tool {name!r} is given the parameters, the context and services: annotate "
            f"{precondition.key_name!r} with one of these, not with str"
        )
    check_params(precondition, parameters, tool=name, what="precondition")
    return precondition


def check_params(function: Injected, parameters: Parameters, *, tool: str, what: str) -> None:
    """Refuse an author's function that takes other parameters than its tool declares."""
    wanted = parameters.python_type
    if function.params_type is not None and function.params_type is not wanted:
        declared = "no parameters" if wanted is type(None) else f"{wanted.__name__} parameters"
        raise ConfigurationError(
            f"tool {tool!r} is declared with {declared}, and its {what} {function.source} takes "
            f"{function.params_type.__name__}: annotate the {what} with what is declared"
        )


def failures_of(failures: Sequence[type[ToolFailure]], name: str) -> tuple[type[ToolFailure], ...]:
    """Return a tool's failures, each of a kind of its own.

    Kinds that say who refused a call, or that no one knows whether it took effect, are the engine's.
    """
    kinds: dict[str, str] = {}
    for failure in failures:
        if not (isinstance(failure, type) and issubclass(failure, ToolFailure) and failure is not ToolFailure):
            raise ConfigurationError(
                f"tool {name!r}: its failures are subclasses of turngate.ToolFailure, not {failure!r}"
            )
        if failure.kind in REFUSALS or failure.kind == "unknown":  # a handler raises OutcomeUnknown for that
            raise ConfigurationError(
                f"tool {name!r}: {failure.__name__} would be of kind {failure.kind!r}, which is the engine's own word; "
                f'rename it, or give it another: `kind = "…"`'
            )
        if failure.kind in kinds:
            raise ConfigurationError(
                f"tool {name!r}: {kinds[failure.kind]} and {failure.__name__} are both of kind {failure.kind!r}; "
                f'give one another: `kind = "…"`'
            )
        kinds[failure.kind] = failure.__name__
    return tuple(failures)
