"""A declared tool: schemas and a policy, with the handler apart, and its wire descriptor.

Owns :class:`Tool` and :class:`ToolManifest`; ``declaring`` makes them. Must not run anything: the executor lives in
``activities``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter
from pydantic.errors import PydanticUserError

from turngate.domain.crashes import report_crash
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.text import json_text
from turngate.domain.text.json_text import arguments_text, exact_number
from turngate.domain.text.suggestions import did_you_mean, first_sentence
from turngate.domain.tools import references
from turngate.domain.tools.control_calls import ControlCall
from turngate.domain.tools.defaults import (
    Default,
    Defaults,
    as_trees,
    completed,
    masked,
    of_edit,
    of_model,
    of_nothing,
    of_schema,
)
from turngate.domain.tools.failures import InvalidToolInput, ToolFailure
from turngate.domain.tools.injection import Injected
from turngate.domain.tools.middleware import Middleware
from turngate.domain.tools.parameters import ModelParameters, NoParameters, Parameters, object_text
from turngate.domain.tools.presentation import PRESENTATION, Presentation, Presenter, bounded, default_presentation
from turngate.domain.tools.preview import Previewer
from turngate.domain.tools.results import Failure, Ok
from turngate.domain.tools.secrets import (
    Audience,
    Masked,
    credentials_of,
    declared_places,
    has_secrets,
    mask_json,
    mask_text,
    mask_value,
    masked_strings,
    unmask_json,
    with_secrets,
    without_examples,
)

_T = TypeVar("_T")

Effect = Literal["read", "idempotent", "once"]
ToolKind = Literal["local", "provider", "signal", "interaction", "agent", "external"]
"""``local``: a handler runs. ``provider``: the model's provider runs it. ``signal``: a control call, which the loop carries out.
``interaction``: a person answers. ``agent``: a sub-agent answers. ``external``: the program that made the call runs it."""
FailureMode = Literal["return", "raise"]

NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""What every provider accepts as a function name (OpenAI's is ``^[a-zA-Z0-9_-]{1,64}$``)."""

MAX_NAME: Final = 64
_DIGEST_CHARS: Final = 8


class ToolManifest(BaseModel):
    """The wire descriptor of a tool: what the model, the operator and the digest see. JSON Schema draft 2020-12.

    ``failure_schemas``: failure kind → schema of its fields. ``origin``: where a tool from outside comes from, such as
    its MCP server and the digest of what the server said of it. ``provider``: provider → its entry for a provider tool.
    ``references``: names of the app's secrets that its secret arguments may refer to.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    kind: ToolKind
    parameters: dict[str, JsonValue]
    success: dict[str, JsonValue]
    effect: Effect
    failures: tuple[str, ...] = ()
    strict: bool = False
    failure_schemas: dict[str, dict[str, JsonValue]] = {}
    origin: dict[str, str] = {}
    provider: dict[str, dict[str, JsonValue]] = {}
    references: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the canonical JSON; changes when anything the operator was shown changes."""
        content = self.model_dump(mode="json")
        return framed_sha256(json.dumps(content, sort_keys=True, separators=(",", ":")))

    @cached_property
    def has_secrets(self) -> bool:
        """Whether an argument, or a field of a result, is declared secret."""
        return any(has_secrets(each) for each in (self.parameters, self.success, *self.failure_schemas.values()))

    def masked_input(self, raw_input: str, audience: Audience = "reader") -> Masked:
        """Return a call's arguments as someone sees them."""
        if not self.has_secrets:
            return mask_json(raw_input, audience=audience)
        return mask_json(raw_input, self.parameters, audience=audience, is_plain=self._is_plain)

    def edited_input(self, edited: str, raw_input: str) -> str:
        """Return an edit of a call's arguments with the secrets whose marks it left. Raises ValueError, which says the fix."""
        return unmask_json(edited, raw_input, self.parameters, is_plain=self._is_plain)

    def masked_defaults(self, arguments: JsonValue, defaults: Sequence[Default]) -> Defaults:
        """Return what a call leaves out as it is stored, and as who may decide sees it: without what is declared secret."""
        if not self.has_secrets:
            return tuple(defaults)
        return masked(partial(self.masked_input, audience="decider"), arguments, defaults)

    def defaults_of_edit(self, edited: str, was: str, known: Sequence[Default]) -> Defaults:
        """Return in what an edited call differs from its arguments, as far as it is known without the tool's code.

        ``was``: the arguments before the edit; ``known``: what was known of them.
        """
        try:
            arguments, before = (json.loads(arguments_text(each)) for each in (edited, was))
        except (ValueError, RecursionError):
            return ()
        is_claimed = bool(self.origin) or self.kind == "external" or any(each.source == "server" for each in known)
        values = of_edit(arguments, self.parameters, before, known, is_claimed=is_claimed)
        return self.masked_defaults(arguments, values)

    @property
    def _is_plain(self) -> Callable[[str], bool] | None:
        """What tells whether a secret argument needs no mark; None: each does."""
        return self._is_reference if self.references else None

    def _is_reference(self, raw: str) -> bool:
        """Tell whether a secret argument only names a secret that the tool may refer to."""
        return references.referred_name(raw) in self.references

    def references_in(self, raw_input: str) -> tuple[str, ...]:
        """Return the names that a call's secret arguments refer to; empty: its tool takes no references."""
        return references.names_in(declared_places(raw_input, self.parameters)) if self.references else ()

    def with_values(self, raw_input: str, values: Mapping[str, str]) -> str:
        """Return a call's arguments with the values in place of the references to them."""
        if not values:
            return raw_input
        return references.with_values(raw_input, declared_places(raw_input, self.parameters), values)

    def masked_answer(self, raw: str) -> Masked:
        """Return a value of its success type as people see it: an answer, or the result of a lost call."""
        return mask_json(raw, self.success, self._wrapped) if self.has_secrets else mask_json(raw)

    def declared_values(self, raw_input: str, result: Ok | Failure | None) -> frozenset[str]:
        """Return the texts that the tool declares secret in a call's arguments and result."""
        values = self.masked_input(raw_input, "decider").values
        if result is None or not self.has_secrets:
            return values
        if isinstance(result, Ok):
            return values | mask_value(result.value, self.success, self._wrapped, audience="decider")[1]
        return values | mask_value(result.fields, self.failure_schemas.get(result.kind, {}), audience="decider")[1]

    def masked_result(self, result: Ok | Failure, values: frozenset[str]) -> tuple[Ok | Failure, frozenset[str]]:
        """Return a call's result as people see it, and the secret texts in it. ``values``: those of its arguments."""
        if isinstance(result, Ok):
            value, own = self._masked_value(result.value, self.success, self._wrapped)
            masked = masked_strings(value, values | own)
            return Ok(value=masked if isinstance(masked, dict) else {}), own
        fields, own = self._masked_value(result.fields, self.failure_schemas.get(result.kind, {}))
        masked = masked_strings(fields, values | own)
        reason = mask_text(result.reason, values | own)
        return Failure(kind=result.kind, reason=reason, fields=masked if isinstance(masked, dict) else {}), own

    def _masked_value(
        self, value: dict[str, JsonValue], *schemas: Mapping[str, JsonValue]
    ) -> tuple[JsonValue, frozenset[str]]:
        return mask_value(value, *schemas) if self.has_secrets else (value, credentials_of(value))

    @property
    def _wrapped(self) -> dict[str, JsonValue]:
        """The schema of a success that is no object, as results have it."""
        return {"properties": {"value": self.success}}

    @cached_property
    def without_examples(self) -> ToolManifest:
        """The descriptor without values that its schemas give for secret places: defaults, examples, constants."""
        if not self.has_secrets:
            return self
        failures = {kind: without_examples(schema) for kind, schema in self.failure_schemas.items()}
        own = {name: without_examples(getattr(self, name)) for name in ("parameters", "success")}
        return self.model_copy(update={**own, "failure_schemas": failures})


UNDECLARED: Final = ToolManifest(name="", description="", kind="local", parameters={}, success={}, effect="once")
"""Of a call whose tool is not known, or declares no secret: what is masked of it is what looks like a credential."""


class ProcessConfinement(BaseModel):
    """How the processes that a tool starts are confined on this machine.

    ``confined``: what they can reach is bounded. ``text``: a sentence for the person who decides the call. ``network_asked``: the
    call asks for the network, which its tool does not declare. A call that is not confined, or asks for the network, always asks
    a person, whatever rules and grants say.
    """

    model_config = ConfigDict(frozen=True)

    confined: bool
    text: str
    network_asked: bool = False

    @property
    def always_asks(self) -> bool:
        """Whether each such call needs a person."""
        return not self.confined or self.network_asked

    def wider_than(self, earlier: ProcessConfinement | None) -> str | None:
        """Return in what a call may reach more than one that was shown, in words for people; None: in nothing.

        ``earlier``: how that one was confined. What differs in words only may be wider: a tool may give more than the network.
        """
        if self == earlier:
            return None
        if not self.confined and (earlier is None or earlier.confined):
            return "it runs unconfined"
        if self.network_asked and (earlier is None or not earlier.network_asked):
            return "it gets the network"
        gives_less = earlier is not None and earlier.always_asks and not self.always_asks
        return None if gives_less else "its processes are confined otherwise than was shown"


Confiner = Callable[[Any], ProcessConfinement]
"""Decoded parameters → how the processes of the call are confined."""

Summarizer = Callable[[Any], str]
"""Decoded parameters → what the call does, in one sentence."""
Summary = str | Summarizer
"""``"Refund {amount} of order {order_id}"``, or a function that returns such a sentence."""

AskPredicate = Callable[[Any], bool]
Ask = bool | AskPredicate | None
"""True, False, or a predicate over the decoded parameters; None leaves it to the default, which is to ask."""

DEFAULT_TIMEOUT: Final = timedelta(minutes=10)


class Place(NamedTuple):
    """Where a tool is declared: the module's name, its file and the line, from 1."""

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}, line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One declared capability.

    ``success_schema``: shown in place of the success type's own, when that is not known as a Python type.
    ``handler``: of kind ``local`` only; None when it was declared apart and is not here. ``interpret``: of kind
    ``signal``: decoded parameters → the control call. ``agent``, ``brief``: of kind ``agent``: the name of
    the agent that answers, and decoded parameters → the task as the sub-agent reads it. ``brings``: that agent itself,
    unless the app has it anyway; an App resolves the name, and knows what is brought. ``confinement``: of a tool that starts
    processes: decoded parameters → how this machine confines them. ``precondition_keeps_fresh``: whether an unchanged
    precondition lets an old approval count. ``untrusted``: anyone may have written what it returns. ``secret``: JSON pointers of
    secret places in its arguments and its success, besides those that their types declare. ``references``:
    names of the app's secrets that its secret arguments may refer to. ``summary``: what a call
    does, in one sentence; None: Turngate renders one (:mod:`turngate.domain.tools.summary`). ``check_with``: how a person checks
    whether a lost call took effect; None: it does not say.
    """

    name: str
    description: str
    kind: ToolKind
    parameters: Parameters
    success: TypeAdapter[Any]
    effect: Effect = "once"
    success_schema: dict[str, JsonValue] | None = None
    ask: Ask = None
    failures: tuple[type[ToolFailure], ...] = ()
    failure_mode: FailureMode = "return"
    timeout: timedelta = DEFAULT_TIMEOUT
    task_queue: str | None = None
    strict: bool = False
    untrusted: bool = False
    summary: Summary | None = None
    check_with: Summary | None = None
    secret: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    preview: Previewer | None = None
    probe: Injected | None = None
    precondition: Injected | Literal["preview"] | None = None
    precondition_keeps_fresh: bool = True
    present: Presenter | None = None
    confinement: Confiner | None = None
    handler: Injected | None = None
    middleware: tuple[Middleware, ...] = ()
    interpret: Callable[[Any], ControlCall] | None = None
    agent: str | None = None
    brings: object = None
    brief: Callable[[Any], str] | None = None
    provider: Mapping[str, dict[str, JsonValue]] = field(default_factory=dict)
    origin: Mapping[str, str] = field(default_factory=dict)
    declared_at: Place | None = None

    def __post_init__(self) -> None:
        """Refuse a name no provider takes, and options of a wrong type or out of bounds."""
        if not NAME_PATTERN.fullmatch(self.name):
            raise ConfigurationError(
                f"tool name {self.name!r} is not allowed: letters, digits, '_' and '-', beginning with a letter or '_', "
                "at most 64"
            )
        self._require_one_of("effect", get_args(Effect))
        self._require_one_of("failure_mode", get_args(FailureMode))
        if not isinstance(self.timeout, timedelta):
            raise ConfigurationError(
                f"tool {self.name!r}: timeout is a timedelta, such as timedelta(seconds=30), not {self.timeout!r}"
            )
        if not timedelta(seconds=1) <= self.timeout <= timedelta(days=7):
            raise ConfigurationError(
                f"tool {self.name!r}: its timeout must be between 1 second and 7 days, not {self.timeout}"
            )
        if not (self.ask is None or isinstance(self.ask, bool) or callable(self.ask)):
            raise ConfigurationError(
                f"tool {self.name!r}: ask is True, False, or a function of the parameters that returns one of these, "
                f"not {self.ask!r}"
            )
        for option in ("preview", "present", "confinement"):
            value = getattr(self, option)
            if not (value is None or callable(value)):
                raise ConfigurationError(f"tool {self.name!r}: {option} is a function, not {value!r}")
        for option in ("ask", "preview", "present", "confinement", "summary", "check_with"):
            if inspect.iscoroutinefunction(getattr(self, option)):
                raise ConfigurationError(f"tool {self.name!r}: {option} is a plain function (`def`), not an async one")

    def _require_one_of(self, option: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, option)
        if value not in allowed:
            raise ConfigurationError(
                f"tool {self.name!r}: {option} is one of {', '.join(allowed)}, not {value!r}."
                f"{did_you_mean(str(value), allowed)}"
            )

    @cached_property
    def manifest(self) -> ToolManifest:
        """The wire descriptor. Kept: pydantic builds the schemas again each time, in half a millisecond.

        Raises ConfigurationError when one of its types has no JSON Schema, or is defined nowhere. Where annotations are read as
        late as possible (Python 3.14), only this finds out.
        """
        try:
            return self._described()
        except PydanticUserError as error:
            raise ConfigurationError(
                f"tool {self.name!r}{self.where} cannot be shown to a model: {first_sentence(error.message)}. "
                'Give that type a schema: Annotated[…, WithJsonSchema({"type": "string"})] (pydantic)'
            ) from error

    @property
    def where(self) -> str:
        """File and line of its declaration, as errors add them after its name; empty: not known."""
        return "" if self.declared_at is None else f" ({self.declared_at})"

    def _described(self) -> ToolManifest:
        parameters = self.parameters.json_schema()
        success = self.success.json_schema() if self.success_schema is None else self.success_schema
        for pointer in self.secret:
            in_parameters, in_success = with_secrets(parameters, pointer), with_secrets(success, pointer)
            if in_parameters is None and in_success is None:
                raise ConfigurationError(
                    f"tool {self.name!r}{self.where} has nothing at {pointer!r}, which its secret= names: write the JSON "
                    'pointer of an argument or of a field of its success, such as "/token" or "/accounts/*/password"'
                )
            parameters, success = in_parameters or parameters, in_success or success
        return ToolManifest(
            name=self.name,
            description=self._full_description,
            references=self.references,
            kind=self.kind,
            parameters=parameters,
            success=success,
            effect=self.effect,
            failures=tuple(failure.kind for failure in self.failures),
            strict=self.strict,
            failure_schemas={failure.kind: failure.json_schema() for failure in self.failures},
            origin=dict(self.origin),
            provider=dict(self.provider),
        )

    @property
    def _full_description(self) -> str:
        """Its description, with the references that it takes: the model reads nothing else about them."""
        if not self.references:
            return self.description
        known = ", ".join(f'secret("{name}")' for name in self.references)
        return (
            f"{self.description}\n\nA secret argument may be one of these texts, in place of a value: {known}".strip()
        )

    @property
    def source(self) -> str:
        """Where its handler is defined, or its declaration when the handler is elsewhere."""
        declared = "" if self.declared_at is None else self.declared_at.module
        return self.handler.source if self.handler is not None else declared

    @property
    def services(self) -> tuple[type, ...]:
        """The types that handler, probe and precondition want injected from the app's registry, each once."""
        asking = [each for each in (self.handler, self.probe, self.precondition) if isinstance(each, Injected)]
        return tuple(dict.fromkeys(service for each in asking for _, service in each.services))

    @cached_property
    def has_planning_code(self) -> bool:
        """Whether code that isn't the engine's may run when a call is planned: validators, predicates, previews and the like."""
        own = (self.preview, self.precondition, self.confinement, self.interpret)
        if callable(self.ask) or callable(self.summary) or any(each is not None for each in own):
            return True
        match self.parameters:
            case ModelParameters():
                return self.parameters.calls_python
            case NoParameters():
                return False
            case _:
                return True

    def decode(self, raw_input: str, defaults: Defaults = ()) -> Any:
        """Decode the model's raw JSON arguments; an empty text counts as ``{}``.

        ``defaults``: of the call, as they are on record: what its handler gets, though a factory would make another value now.

        Raises InvalidToolInput with ``place: message`` for each problem, at most 500 characters.
        """
        params = self._guarded(lambda: self.parameters.decode(raw_input))
        if not defaults or not self._fills_in_by_code:
            return params
        now = {each.at: each.value for each in self.defaults_of(raw_input, params)}
        others = [each for each in defaults if each.is_known and now.get(each.at) != each.value]
        return self._decoded_with(others, raw_input, params) if others else params

    def decode_new(self, raw_input: str) -> tuple[Any, Defaults]:
        """Return what :meth:`decode` does for a call that is new, and its defaults to be put on record.

        A value that differs each time is made here, once for the call, if its type can be read from JSON again.
        """
        params = self.decode(raw_input)
        defaults = self.defaults_of(raw_input, params)
        if not defaults or not self._fills_in_by_code:
            return params, defaults
        again = {each.at: each.value for each in self.defaults_of(raw_input, self.decode(raw_input))}
        varying = {each.at for each in defaults if each.at not in again or again[each.at] != each.value}
        if not varying:
            return params, defaults
        params = self.decode(raw_input, defaults)
        stable = {each.at: each.value for each in self.defaults_of(raw_input, params)}
        return params, tuple(
            _varying(each, is_stable=stable.get(each.at) == each.value) if each.at in varying else each
            for each in defaults
        )

    def defaults_of(self, raw_input: str, params: Any) -> Defaults:
        """Return in what a call's arguments differ from what its handler or its server gets, without secrets.

        Raises InvalidToolInput.
        """
        read: Callable[[JsonValue], Defaults]
        match self.parameters:
            case NoParameters():
                read = of_nothing
            case ModelParameters():
                read = partial(of_model, params=params)
            case _:
                read = partial(of_schema, schema=self.manifest.parameters)
        has_model = isinstance(self.parameters, ModelParameters)
        arguments = json.loads(arguments_text(raw_input), parse_float=exact_number if has_model else None)
        values = self._guarded(lambda: read(arguments))
        return self.manifest.masked_defaults(arguments, values) if values else ()

    @property
    def _fills_in_by_code(self) -> bool:
        return isinstance(self.parameters, ModelParameters) and self.parameters.calls_python

    def _decoded_with(self, values: Sequence[Default], raw_input: str, params: Any) -> Any:
        """Return parameters with these values in place of those that decoding filled in; as they are where that can't be."""
        parsed = json_text.parse(object_text(raw_input))
        if parsed is None or parsed.doubled:
            return params
        text = json_text.dump(completed(parsed.tree, as_trees(values)))
        try:
            fixed = self.parameters.decode(text)
        except Exception:  # noqa: BLE001 - a value of the author's that their own types don't take
            return params
        if isinstance(fixed, BaseModel) and isinstance(params, BaseModel):
            fixed.__pydantic_fields_set__ &= params.model_fields_set  # the model didn't set them
        return fixed

    def _guarded(self, read: Callable[[], _T]) -> _T:
        """Return what code of the tool's author reads from a call."""
        try:
            return read()
        except InvalidToolInput:
            raise
        except (Exception, SystemExit) as bug:  # noqa: BLE001 - the author's validator; planning must come to its end (I9)
            report_crash("parameters could not be validated", bug, tool=self.name)
            why = f"arguments cannot be read: the tool's own validation failed ({type(bug).__name__})"
            raise InvalidToolInput(why) from None

    def fails_run(self, result: Ok | Failure | None) -> bool:
        """Tell whether this result of a call ends its run: a declared failure of a tool that is declared to raise."""
        declared = {failure.kind for failure in self.failures}
        return self.failure_mode == "raise" and isinstance(result, Failure) and result.kind in declared

    def presentation_of(self, params: Any, result: Ok | Failure) -> Presentation:
        """Return what people see of a settled call: by the tool's presenter, else the default; always bounded.

        ``params``: decoded. A presenter that raises, or returns anything but blocks, is logged. Never raises. Blocking, as
        the author's code is: call it from a thread.
        """
        if self.present is not None:
            try:
                if blocks := PRESENTATION.validate_python(self.present(params, result)):
                    return bounded(blocks)
            except Exception as error:  # noqa: BLE001 - the author's code: whatever it raises, the result is still shown
                report_crash("presenter failed", error, tool=self.name)
        return default_presentation(result)

    def renamed(self, name: str) -> Tool:
        """Return the same tool under another name."""
        return replace(self, name=name)


def acceptable_name(name: str, *, distinct: bool = False) -> str:
    """Return a name from elsewhere as one that a tool may have: other characters as ``_``, cut where it is too long.

    ``distinct``: if anything had to be changed, the name ends in a digest of the whole; else only if it was cut.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    safe = safe if re.match(r"[A-Za-z_]", safe) else f"_{safe}"
    if (safe == name and len(name) <= MAX_NAME) or (not distinct and len(safe) <= MAX_NAME):
        return safe
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{safe[: MAX_NAME - _DIGEST_CHARS - 1]}_{digest}"


def _varying(default: Default, *, is_stable: bool) -> Default:
    if default.source == "read":
        return default if is_stable else Default(at=default.at, source="opaque")
    return default.model_copy(update={"source": "made"}) if is_stable else Default(at=default.at, source="later")
