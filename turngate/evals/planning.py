"""Check cases before anything runs: the app has every agent, tool, handler, function and model that they name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from turngate.domain.agents.app import Agent, App
from turngate.domain.conversation.clipping import READ_RESULT
from turngate.domain.errors import ConfigurationError
from turngate.domain.runs.budgets import EXTEND_BUDGET, is_free
from turngate.domain.tools.declared_parts import Handler
from turngate.domain.tools.failures import ToolFailure, describe_validation
from turngate.domain.tools.tool import Tool
from turngate.evals.cases import Case, Fails, Returns
from turngate.evals.patterns import names_tool
from turngate.models.port import LanguageModel
from turngate.models.registry import Models

# Which model each agent has in a case: parsed from texts such as ``support=openai:gpt-5``, and put into the app. Pure.


EVERY: Final = "*"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Models to run cases with. ``own``: of a case's own agent, or None; ``named``: agent → its model."""

    words: str
    own: str | None
    named: Mapping[str, str]

    @property
    def specs(self) -> list[str]:
        """The models that it names."""
        return [*([] if self.own is None else [self.own]), *self.named.values()]


def chosen(words: str, app: App) -> Choice:
    """Parse ``MODEL``, or ``AGENT=MODEL`` with commas between several; ``*`` stands for every agent.

    Raises ConfigurationError: the app has no such agent, or one is named twice.
    """
    if "=" not in words.partition(":")[0]:  # a model's own name may contain one
        return Choice(words=words, own=words, named={})
    named: dict[str, str] = {}
    for pair in words.split(","):
        agent, _, spec = pair.partition("=")
        if not spec or agent in named:
            raise ConfigurationError(f"{words!r}: write AGENT=MODEL, each agent once, with commas between")
        named[agent] = spec
    return Choice(words=words, own=None, named=agents_named(named, app, place=repr(words)))


def agents_named(named: Mapping[str, str], app: App, *, place: str) -> dict[str, str]:
    """Return the same mapping with ``*`` replaced by every agent's name. Raises ConfigurationError: no such agent."""
    known = [agent.name for agent in app.all_agents]
    for name in named:
        if name not in {*known, EVERY}:
            raise ConfigurationError(f"{place}: there is no agent {name!r}; the agents are: {', '.join(known)}")
    models = dict.fromkeys(known, named[EVERY]) if EVERY in named else {}
    return models | {name: spec for name, spec in named.items() if name != EVERY}


def with_models(app: App, named: Mapping[str, str]) -> App:
    """Return the app with these models instead of the agents' own, sub-agents included."""
    return app.with_agents(lambda agent: replace(agent, model=named.get(agent.name, agent.model)))


BUILT_IN: Final = (READ_RESULT, EXTEND_BUDGET)
"""The engine's own tools: no app declares them, but a case may name them."""

Handlers = Mapping[str, Handler]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A case that can run. ``spec``: the model to use, None: the agent's own; ``model``: a model object instead.

    ``models``: agent → the model that replaces its own, sub-agents too; empty if all keep their own. ``name``: the model's name
    in the report. ``handlers``: returns the handlers of one attempt.
    """

    case: Case
    agent: Agent
    spec: str | None
    model: LanguageModel | None
    models: Mapping[str, str]
    name: str
    handlers: Callable[[], Handlers]
    check: Callable[..., Any] | None


def plan(
    app: App, cases: Sequence[Case], models: Models, *, specs: Sequence[str] = (), import_dirs: Iterable[Path] = ()
) -> list[Planned]:
    """Return what runs: each case with each of ``specs`` (see :func:`chosen`), or with its own model if there are none.

    ``import_dirs``: directories in which ``module:function`` is looked for, before Python's own path.

    Raises ConfigurationError naming every problem with its place.
    """
    if not cases:
        raise ConfigurationError("there is no case to run")
    choices = [chosen(words, app) for words in specs]
    for choice in choices:
        for spec in choice.specs:
            _require_model(models, spec, "the models to compare")
    sys.path[:0] = [str(each) for each in import_dirs if str(each) not in sys.path]
    problems: list[str] = []
    planned: list[Planned] = []
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            problems.append(f"{case.place}: there is another case of this name; names must be unique")
        seen.add(case.name)
        for under in choices or (None,):
            try:
                planned.append(_Case(app, case, models).planned(under))
            except ConfigurationError as error:
                if error.message not in problems:
                    problems.append(error.message)
    if problems:
        raise ConfigurationError("; ".join(problems), problems=problems)
    return planned


class _Case:
    """One case and its app. Every method raises ConfigurationError with the case's place."""

    def __init__(self, app: App, case: Case, models: Models) -> None:
        self._app = app
        self._case = case
        self._models = models
        self._tools = {tool.name: tool for agent in app.all_agents for tool in agent.toolkit}

    def planned(self, under: Choice | None) -> Planned:
        case = self._case
        agent = self._agent()
        self._require_tools()
        self._require_agents()
        models = agents_named(case.models, self._app, place=f"{case.place}, models")
        model: Any = models.get(agent.name, case.model)
        if under is not None:
            models |= under.named
            model = under.own or under.named.get(agent.name, model)
        spec = model if isinstance(model, str) else None
        instance: LanguageModel | None = None if spec is not None else model
        named = spec or agent.model
        self._require_models(instance, named, models)
        self._require_price(named)
        if case.workspace is not None and not case.workspace.is_dir():
            raise self._wrong("workspace", f"{case.workspace} is not a directory that exists")
        check = self._function(case.check, "check") if isinstance(case.check, str) else case.check
        if under is not None:
            name = under.words
        else:
            name = named if instance is None else instance.name
        return Planned(
            case=case,
            agent=agent,
            spec=spec,
            model=instance,
            # If only the case's own agent has another model, the start order names it, and the app is unchanged.
            models=models if models.keys() - {agent.name} else {},
            name=name,
            handlers=self._handlers(),
            check=check,
        )

    def _require_models(self, instance: LanguageModel | None, named: str, models: Mapping[str, str]) -> None:
        """Refuse models that cannot be used. ``instance``: an object instead of ``named``; ``models``: agent → its model."""
        place = self._case.place
        for other, spec in models.items():
            _require_model(self._models, spec, f"{place}, the model of {other!r}")
        if instance is None:
            _require_model(self._models, named, f"{place}, model")
            return
        if models:
            raise self._wrong(
                "models", "a model object is for every agent: name all models by their specs, or leave `models` out"
            )
        if not callable(getattr(instance, "generate", None)):
            raise self._wrong("model", f"a model must be a spec or an object with `generate`, not {instance!r}")

    def _require_price(self, model: str) -> None:
        """Refuse a limit of cost for a model that has no price."""
        priced = is_free(model) or model in self._models.profiles.prices(self._app.prices)
        if self._case.expect.max_cost is not None and not priced:
            raise self._wrong(
                "expect.max_cost",
                f"{model!r} has no price: set App(prices={{{model!r}: Price(input=…, output=…)}})",
            )

    def _agent(self) -> Agent:
        name = self._case.agent or self._app.agents[0].name
        agent = self._app.find(name)
        if agent is None:
            known = ", ".join(each.name for each in self._app.all_agents)
            raise self._wrong("agent", f"there is no agent {name!r}; the agents are: {known}")
        return agent

    def _require_tools(self) -> None:
        """Refuse a name or pattern that fits no tool: it would wait forever, or forbid nothing."""
        case = self._case
        places = [(f"approvers[{at}].tool", each.tool) for at, each in enumerate(case.approvers)]
        for key, called in (("calls", case.expect.calls), ("not_called", case.expect.not_called)):
            places += [(f"expect.{key}[{at}].tool", each.tool) for at, each in enumerate(called)]
        for place, pattern in places:
            if not any(names_tool(pattern, name) for name in (*self._tools, *BUILT_IN)):
                raise self._wrong(place, f"no agent has a tool {pattern!r}; {self._known_tools()}")

    def _require_agents(self) -> None:
        """Refuse an approver for an agent that does not exist: it would wait forever."""
        known = [agent.name for agent in self._app.all_agents]
        for at, each in enumerate(self._case.approvers):
            if not any(names_tool(each.agent, name) for name in known):
                message = f"there is no agent {each.agent!r}; the agents are: {', '.join(known)}"
                raise self._wrong(f"approvers[{at}].agent", message)

    def _handlers(self) -> Callable[[], Handlers]:
        handlers = self._case.handlers
        if isinstance(handlers, str):
            handlers = self._function(handlers, "handlers")
        if callable(handlers):
            make = handlers

            def fresh() -> Handlers:
                try:
                    mapping = make()
                except Exception as error:  # noqa: BLE001 - a builder's function may raise anything
                    raise self._wrong("handlers", f"{make!r} raised {type(error).__name__}: {error}") from None
                if not isinstance(mapping, Mapping):
                    raise self._wrong("handlers", f"{make!r} returned no mapping of tools to handlers: {mapping!r}")
                return self._checked(mapping)

            fresh()  # a mistake is reported before anything runs
            return fresh
        checked = self._checked(handlers)
        return lambda: checked

    def _checked(self, handlers: Mapping[str, Any]) -> Handlers:
        checked = {name: self._handler(name, each) for name, each in handlers.items()}
        try:
            self._app.with_handlers(checked)
        except ConfigurationError as error:
            raise self._wrong("handlers", error.message) from None
        return checked

    def _handler(self, name: str, form: Any) -> Handler:
        place = f"handlers.{name}"
        tool = self._tools.get(name)
        if tool is None:
            raise self._wrong(place, f"no agent has a tool {name!r}; {self._known_tools()}")
        match form:
            case Returns():
                return self._returning(tool, form, place)
            case Fails():
                return self._failing(tool, form, place)
            case str():
                function: Handler = self._function(form, place)
                return function
            case _:
                return form  # type: ignore[no-any-return]  # the builder's function; with_handlers checks it

    def _returning(self, tool: Tool, form: Returns, place: str) -> Handler:
        try:
            result = tool.success.validate_python(form.returns)
        except ValidationError as error:
            raise self._wrong(
                f"{place}.returns", f"that is not a result of the tool: {describe_validation(error)}"
            ) from None

        async def handler() -> Any:
            return result

        return handler

    def _failing(self, tool: Tool, form: Fails, place: str) -> Handler:
        kind = form.fails.get("kind")
        failure = next((each for each in tool.failures if each.kind == kind), None)
        fields: dict[str, Any] = {key: value for key, value in form.fails.items() if key != "kind"}
        if failure is None:
            known = ", ".join(each.kind for each in tool.failures) or "none"
            raise self._wrong(
                f"{place}.fails.kind", f"{kind!r} is not a failure that the tool declares; it has: {known}"
            )
        try:
            trial: ToolFailure = failure(**fields)
        except (ValidationError, TypeError) as error:
            problem = describe_validation(error) if isinstance(error, ValidationError) else str(error)
            raise self._wrong(f"{place}.fails", f"that is not a valid {kind}: {problem}") from None
        del trial

        async def handler() -> Any:
            raise failure(**fields)

        return handler

    def _function(self, name: str, place: str) -> Any:
        """Return what ``module:function`` names."""
        module_name, colon, attribute = name.partition(":")
        if not colon or not module_name or not attribute:
            raise self._wrong(place, f"{name!r} is not of the form module:function")
        try:
            function = getattr(importlib.import_module(module_name), attribute, None)
        except Exception as error:  # noqa: BLE001 - a builder's module may raise anything
            raise self._wrong(place, f"{module_name} cannot be imported: {type(error).__name__}: {error}") from None
        if not callable(function):
            raise self._wrong(place, f"module {module_name!r} has no function {attribute!r}")
        return function

    def _known_tools(self) -> str:
        return f"the tools are: {', '.join(sorted(self._tools)) or 'none'}"

    def _wrong(self, key: str, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self._case.place}, {key}: {message}")


def _require_model(models: Models, spec: str, place: str) -> None:
    """Refuse a model that cannot be used: it is unknown, or its key or script is missing. Raises ConfigurationError."""
    models.require_known(spec, place=place)
    try:
        models.resolve(spec)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error.message}") from None
