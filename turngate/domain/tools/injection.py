"""What an author's function asks for, read from its signature: parameters, context, services by type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

from pydantic import BaseModel

from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.context import ToolContext

BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True, kw_only=True)
class Injected:
    """A function with what it is called with: ``None`` names are not asked for. ``services``: parameter → type."""

    function: Callable[..., Any]
    params_name: str | None = None
    params_type: type | None = None
    ctx_name: str | None = None
    key_name: str | None = None
    services: tuple[tuple[str, type], ...] = ()
    returns: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as a test of a tool does: ``await refund.handler(params=…, payments=…)``."""
        return self.function(*args, **kwargs)

    @property
    def source(self) -> str:
        """Where it is defined: ``module.qualname``."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def is_async(self) -> bool:
        """Whether it is an ``async def``."""
        return inspect.iscoroutinefunction(self.function)


def injected(function: Callable[..., Any], *, what: str) -> Injected:
    """Read a function's signature. ``what`` names it in errors, such as ``tool 'refund'``.

    The first parameter annotated with a pydantic model (or ``dict``) gets the tool's parameters, one annotated
    :class:`ToolContext` the context, a ``str`` the idempotency key (of a probe), every other is a service by type.

    Raises:
        ConfigurationError: an annotation is missing or names something that is not defined, or a parameter cannot be given.
    """
    try:
        hints = get_type_hints(function)
        whole = get_type_hints(function, include_extras=True)  # an Annotated may say how a success is written
    except NameError as error:
        raise ConfigurationError(
            f"{what}: its annotations name {error.name!r}, which is not defined in its module; "
            "define or import it at module level (not under TYPE_CHECKING, not inside a function)"
        ) from None
    params_name = params_type = ctx_name = key_name = None
    services: list[tuple[str, type]] = []
    for parameter, declared in inspect.signature(function).parameters.items():
        hint = hints.get(parameter)
        if hint is None:
            raise ConfigurationError(f"{what}: annotate the parameter {parameter!r} with a type")
        if declared.kind not in BY_NAME:
            raise ConfigurationError(f"{what}: {declared} cannot be given by name, and every parameter is")
        if (hint is ToolContext and ctx_name is not None) or (hint is str and key_name is not None):
            raise ConfigurationError(f"{what}: two parameters are annotated {hint.__name__}; there is one to give")
        if hint is ToolContext:
            ctx_name = parameter
        elif hint is str:
            key_name = parameter
        elif params_name is None and _is_parameters(hint):
            params_name, params_type = parameter, get_origin(hint) or hint
        else:
            services.append((parameter, hint))
    return Injected(
        function=function,
        params_name=params_name,
        params_type=params_type,
        ctx_name=ctx_name,
        key_name=key_name,
        services=tuple(services),
        returns=whole.get("return", inspect.Signature.empty),
    )


def _is_parameters(hint: Any) -> bool:
    return (get_origin(hint) or hint) is dict or (isinstance(hint, type) and issubclass(hint, BaseModel))
