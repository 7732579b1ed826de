"""Declaring tools: schemas and a policy, with the handler apart.

Owns ``@tool``, the declaration (:class:`Tool`), its wire descriptor (:class:`ToolManifest`), declared failures and the
context a handler gets. Must not run anything: the executor lives in ``activities``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, dataclass_transform, get_type_hints

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError, create_model

from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError

Effect = Literal["read", "idempotent", "once"]
ToolKind = Literal["local", "interaction"]
FailureMode = Literal["return", "raise"]
PreviewKind = Literal["diff", "command", "text"]

NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""What every provider accepts as a function name (OpenAI's is ``^[a-zA-Z0-9_-]{1,64}$``)."""

MAX_REASON_CHARS = 500


class InvalidToolInput(Exception):  # noqa: N818 - it becomes the failure kind input_validation_error, never an error page
    """The model's arguments do not fit; the text is what the model reads."""


@dataclass_transform(kw_only_default=True)
class ToolFailure(Exception):  # noqa: N818 - tool authors name failures after what happened
    """Base of a tool's declared failures: annotate fields, raise it with keywords, and the model reads them.

    ``class RefundDeclined(ToolFailure): reason: str`` gives the failure kind ``refund_declined``; set the class
    variable ``kind`` for another name.
    """

    kind: ClassVar[str] = "tool_failure"
    _model: ClassVar[type[BaseModel]]

    def __init_subclass__(cls) -> None:
        """Build the pydantic model of the annotated fields, so that a wrong field fails where it is raised."""
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        own = {
            name: (annotation, getattr(cls, name, ...))
            for name, annotation in get_type_hints(cls).items()
            if not name.startswith("_") and name != "kind"
        }
        cls._model = create_model(cls.__name__, __config__=ConfigDict(extra="forbid"), **own)  # type: ignore[call-overload]

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, JsonValue] = self._model(**fields).model_dump(mode="json")
        super().__init__(json.dumps(self.fields, ensure_ascii=False))


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What will change, for the operator's eyes.

    ``text`` is a unified diff (``diff``), plain text (``text``), or the words of a command as a JSON array
    (``command``; make it with :meth:`command`): a word may hold spaces and line breaks, and the operator must see which
    is which.
    """

    kind: PreviewKind
    text: str

    @staticmethod
    def command(*words: str) -> Preview:
        """Return the preview of a command that runs with exactly these words as its argument vector."""
        return Preview(kind="command", text=json.dumps(words, ensure_ascii=False))


def command_words(preview_text: str) -> list[str]:
    """Return the words of a stored ``command`` preview; text that is no JSON array of strings is one word."""
    try:
        words = json.loads(preview_text)
    except ValueError:
        return [preview_text]
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return words
    return [preview_text]


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a handler is given besides its parameters.

    ``idempotency_key``: the same on every attempt of one call. ``workspace``: the run's directory, or None when the run
    has none. ``deadline``: aware UTC; the call is cancelled then. ``cancelled``: set when the run is interrupted.
    """

    run_id: str
    tool_call_id: str
    idempotency_key: str
    workspace: Path | None
    deadline: datetime
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    partial: Callable[[str], None] = lambda _text: None
    """Keep this text as the call's partial output, should it be cancelled before it returns."""

    def require_workspace(self) -> Path:
        """Return the workspace; raises ConfigurationError when the run was started without one."""
        if self.workspace is None:
            raise ConfigurationError("this tool needs a workspace: start the run with one (`--workspace DIR`)")
        return self.workspace


class ToolManifest(BaseModel):
    """The wire descriptor of a tool: what the model, the operator and the digest see. JSON Schema draft 2020-12."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    kind: ToolKind
    parameters: dict[str, JsonValue]
    success: dict[str, JsonValue]
    effect: Effect
    failures: tuple[str, ...] = ()
    strict: bool = False

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the canonical JSON; changes when anything the operator was shown changes."""
        return framed_sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")))


AskPredicate = Callable[[Any], bool]
Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One declared capability.

    ``ask``: True / False, or a predicate over the decoded parameters; None leaves it to the default, which is to ask.
    ``services``: handler parameter → type, injected from the app's registry.
    """

    name: str
    description: str
    kind: ToolKind
    params: type[BaseModel] | None
    success: TypeAdapter[Any]
    effect: Effect
    ask: bool | AskPredicate | None
    failures: tuple[type[ToolFailure], ...]
    failure_mode: FailureMode
    timeout: timedelta
    task_queue: str | None
    strict: bool
    preview: Callable[[Any, Path | None], Preview | None] | None
    handler: Handler | None
    params_name: str | None = None
    ctx_name: str | None = None
    services: tuple[tuple[str, type], ...] = ()
    source: str = ""

    @cached_property
    def manifest(self) -> ToolManifest:
        """The wire descriptor. Kept: pydantic builds the schemas anew each time, in half a millisecond."""
        return ToolManifest(
            name=self.name,
            description=self.description,
            kind=self.kind,
            parameters=self.params.model_json_schema() if self.params else {"type": "object", "properties": {}},
            success=self.success.json_schema(),
            effect=self.effect,
            failures=tuple(failure.kind for failure in self.failures),
            strict=self.strict,
        )

    def decode(self, raw_input: str) -> BaseModel | None:
        """Decode the model's raw JSON arguments; an empty text counts as ``{}``.

        Raises InvalidToolInput with ``pointer: message`` for each problem, at most 500 characters.
        """
        text = raw_input.strip() or "{}"
        try:
            if not isinstance(json.loads(text), dict):
                raise InvalidToolInput("arguments must be a JSON object")
        except (ValueError, RecursionError):
            raise InvalidToolInput("arguments are not valid JSON") from None
        if self.params is None:
            return None
        try:
            return self.params.model_validate_json(text)
        except ValidationError as error:
            raise InvalidToolInput(describe_validation(error)) from None

    def renamed(self, name: str) -> Tool:
        """Return the same tool under another name."""
        return replace(self, name=_checked_name(name))


def describe_validation(error: ValidationError) -> str:
    """Return pydantic's complaints as ``a.b: message; c: message``, clipped to 500 characters."""
    lines = [
        f"{'.'.join(str(step) for step in issue['loc']) or 'arguments'}: {issue['msg']}"
        for issue in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "; ".join(lines)[:MAX_REASON_CHARS]


def tool(
    *,
    effect: Effect = "once",
    ask: bool | AskPredicate | None = None,
    failures: Sequence[type[ToolFailure]] = (),
    failure_mode: FailureMode = "return",
    timeout: timedelta = timedelta(minutes=10),
    task_queue: str | None = None,
    strict: bool = False,
    preview: Callable[[Any, Path | None], Preview | None] | None = None,
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
        name: instead of the function's name.
        description: instead of its docstring.

    Raises:
        ConfigurationError: the function cannot be a tool; the message says why.
    """

    def declare(handler: Handler) -> Tool:
        if not inspect.iscoroutinefunction(handler):
            raise ConfigurationError(f"tool {handler!r} must be an async function (`async def`)")
        try:
            hints = get_type_hints(handler)
        except NameError as error:
            raise ConfigurationError(
                f"tool {handler.__name__!r}: its annotations name {error.name!r}, which is not defined in its module; "
                "define or import it at module level (not under TYPE_CHECKING, not inside a function)"
            ) from None
        params_name = ctx_name = None
        params: type[BaseModel] | None = None
        services: list[tuple[str, type]] = []
        for parameter in inspect.signature(handler).parameters:
            hint = hints.get(parameter)
            if hint is None:
                raise ConfigurationError(f"tool {handler.__name__!r}: annotate the parameter {parameter!r} with a type")
            if hint is ToolContext:
                ctx_name = parameter
            elif params is None and isinstance(hint, type) and issubclass(hint, BaseModel):
                params_name, params = parameter, hint
            else:
                services.append((parameter, hint))
        if "return" not in hints:
            raise ConfigurationError(f"tool {handler.__name__!r}: annotate what it returns")
        return Tool(
            name=_checked_name(name or handler.__name__),
            description=description or inspect.getdoc(handler) or "",
            kind="local",
            params=params,
            success=TypeAdapter(hints["return"]),
            effect=effect,
            ask=ask,
            failures=tuple(failures),
            failure_mode=failure_mode,
            timeout=_checked_timeout(timeout),
            task_queue=task_queue,
            strict=strict,
            preview=preview,
            handler=handler,
            params_name=params_name,
            ctx_name=ctx_name,
            services=tuple(services),
            source=f"{handler.__module__}.{handler.__qualname__}",
        )

    return declare


def interaction_tool(
    *, name: str, description: str, params: type[BaseModel], answer: type[BaseModel], timeout: timedelta | None = None
) -> Tool:
    """Declare a tool that a person answers: it opens a ``question`` request, and the answer is its result.

    ``answer``: the answer's shape; the page makes its form from it. There is no handler: nothing runs.
    """
    return Tool(
        name=_checked_name(name),
        description=description,
        kind="interaction",
        params=params,
        success=TypeAdapter(answer),
        effect="read",
        ask=True,
        failures=(),
        failure_mode="return",
        timeout=_checked_timeout(timeout or timedelta(minutes=10)),
        task_queue=None,
        strict=False,
        preview=None,
        handler=None,
        source=f"{params.__module__}.{name}",
    )


def _checked_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigurationError(
            f"tool name {name!r} is not allowed: letters, digits, '_' and '-', beginning with a letter or '_', at most 64"
        )
    return name


def _checked_timeout(timeout: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= timeout <= timedelta(days=7):
        raise ConfigurationError(f"a tool's timeout must be between 1 second and 7 days, not {timeout}")
    return timeout
