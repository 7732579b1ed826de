"""A builder's whole program: ``App`` with its agents, one importable value, the way an ASGI app is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from turngate.domain.agents.context_window import Context
from turngate.domain.agents.hooks import Hooks
from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.agents.no_progress import NoProgress
from turngate.domain.agents.structured_output import ANSWER_TOOL
from turngate.domain.contract import RunLimits
from turngate.domain.conversation.clipping import MAX_WHOLE_CHARS
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.judge import Judge
from turngate.domain.policy.policy import Policy
from turngate.domain.requests import WhileRunning
from turngate.domain.runs.budgets import EXTEND_BUDGET, Price, WhenUsedUp, is_free
from turngate.domain.text.suggestions import did_you_mean
from turngate.domain.tools.declare import declaring_place
from turngate.domain.tools.declared_parts import Handler
from turngate.domain.tools.external import AGENT_PREFIX, is_external
from turngate.domain.tools.external import MODEL as EXTERNAL_MODEL
from turngate.domain.tools.known_tools import KnownTool, known
from turngate.domain.tools.parameters import ModelParameters
from turngate.domain.tools.references import SecretResolver
from turngate.domain.tools.tool import Ask, Tool
from turngate.domain.tools.toolkit import Toolkit

if TYPE_CHECKING:
    import svcs

RESERVED_TOOLS = (EXTEND_BUDGET, ANSWER_TOOL)
"""Names that a model's or the engine's own calls bear. An agent may declare a ``read_result``: its own then stands for ours."""
AGENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


FallbackAfterRetry = Literal["unattended", "always", "never"]
"""``unattended``: a run that is attended fails instead, so that its person may decide."""


class Limits(BaseModel):
    """What one run may use. Carried into the workflow's input, so a change reaches the next run, not a live one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=100, ge=1, le=100_000)
    """Model responses in one run; those of its sub-agents' runs are their own."""
    tool_calls: int | None = Field(default=None, ge=1)
    """Tool calls in one run and its sub-agents', whatever happened to them; None: as many as the steps make."""
    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens of one run and its sub-agents' together, as the provider counts them; None: no bound."""
    cost: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What the tokens of one run and its sub-agents may cost, by the app's prices (``App(prices=…)``); None: no bound."""
    wall_time: timedelta | None = Field(default=None, gt=timedelta(0))
    """How long one run and its sub-agents may work. While all of it waits for a person or a timer, or is paused, no time
    passes; None: no bound. Looked at before each model request."""
    deadline: timedelta | None = Field(default=None, gt=timedelta(0))
    """From a run's start to its last model request or a sub-agent's, the time that people take included; None: no bound."""
    when_used_up: WhenUsedUp = "end"
    """Whether a budget that is used up (steps, tool calls, tokens, cost, time) ends the run, or a person is asked for more."""
    concurrency: int = Field(default=4, ge=1, le=64)
    """Tool calls of one step that run at the same time; a call that waits for a person holds no place."""
    malformed_in_a_row: int = Field(default=3, ge=1, le=100)
    """Responses in a row that no call could be run from, before the run ends."""
    no_progress: NoProgress | None = NoProgress()
    """When a run that makes the same calls with the same results is nudged, and then ended; None: never."""
    model_retry: timedelta = Field(default=timedelta(minutes=10), gt=timedelta(0))
    """How long a model that is unreachable or overloaded is tried again before a fallback is asked, or the run fails."""
    fallback_after_retry: FallbackAfterRetry = "unattended"
    """Which runs ask a fallback after that; the others fail. In any run, a fallback answers for a model that can't be used."""
    request_expiry: timedelta | None = None
    """How long a request waits for an answer before it expires (which refuses); None waits forever."""
    result_chars: int = Field(default=50_000, ge=1_000, le=MAX_WHOLE_CHARS)
    """Characters of one tool result that the model is shown; a longer one is stored whole and shown head and tail."""

    def falls_back_after_retry(self, *, attended: bool) -> bool:
        """Tell whether a run asks a fallback once its model was away for as long as ``model_retry``."""
        return self.fallback_after_retry == "always" or (self.fallback_after_retry == "unattended" and not attended)

    def for_run(self) -> RunLimits:
        """Return the limits as a run's workflow carries them."""
        return RunLimits(
            steps=self.steps,
            concurrency=self.concurrency,
            malformed_in_a_row=self.malformed_in_a_row,
            model_retry_seconds=max(1, round(self.model_retry.total_seconds())),
            budgets_ask=self.when_used_up == "ask",
        )


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One agent: instructions, tools and a model (``provider:name``, such as ``openai:gpt-5``, or a profile's name).

    ``fallback``: models that answer, in this order, if the run's can't be used (no key, no credit, no such model). The
    fallbacks of its profile come first.
    """

    name: str
    instructions: str
    toolkit: Toolkit
    model: str
    limits: Limits = field(default_factory=Limits)
    description: str = ""
    hooks: Sequence[Hooks] = ()
    while_running: WhileRunning = "queue"
    """What happens to a message that is sent to a run of this agent while it is live; the sender may say otherwise."""
    fallback: Sequence[str] = ()
    context: Context | None = field(default_factory=Context)
    """What happens to conversations that come near the model's window; None: they are sent as they are."""
    options: ModelOptions = field(default_factory=ModelOptions)
    """How any model is to answer as this agent; what it leaves out is as the profile says."""
    output: type[BaseModel] | None = None
    """The schema of the final answer. If the model's JSON doesn't fit, it is asked again. None: free text."""

    def __post_init__(self) -> None:
        """Refuse a name that can't be used in a URL or a rule, and values of other types than the fields have."""
        _require_types(
            f"agent {self.name!r}",
            {
                "name": (self.name, str, 'a text, such as "support"'),
                "instructions": (self.instructions, str, "a text"),
                "toolkit": (self.toolkit, Toolkit, "a Toolkit: toolkit=Toolkit.of(tool, …)"),
                "model": (self.model, str, 'a text: "provider:name", or a profile\'s name'),
                "limits": (self.limits, Limits, "Limits(steps=…, …)"),
                "options": (self.options, ModelOptions, "ModelOptions(top_p=…, …)"),
                "context": (self.context, Context | None, "Context(…), or None"),
            },
        )
        if not AGENT_NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"agent name {self.name!r} is not allowed: lower-case letters, digits, '_' and '-', at most 64"
            )
        if is_external(self.name) and self.model != EXTERNAL_MODEL:
            raise ConfigurationError(
                f"agent name {self.name!r} is not allowed: names that begin with {AGENT_PREFIX!r} are those of calls from outside"
            )
        if self.while_running not in get_args(WhileRunning):
            raise ConfigurationError(
                f"agent {self.name!r}: while_running is one of {', '.join(get_args(WhileRunning))}, not "
                f"{self.while_running!r}.{did_you_mean(str(self.while_running), get_args(WhileRunning))}"
            )
        if self.output is not None and not (isinstance(self.output, type) and issubclass(self.output, BaseModel)):
            raise ConfigurationError(f"agent {self.name!r}: output is a pydantic model (a class), not {self.output!r}")
        for name in RESERVED_TOOLS:
            if self.toolkit.find(name) is not None:
                raise ConfigurationError(
                    f"agent {self.name!r}: the name {name!r} is the engine's own; call the tool something else"
                )

    @property
    def version(self) -> str:
        """Twelve hex digits over instructions, model, output and every tool manifest; changes when the agent does."""
        manifests = [tool.manifest.digest for tool in self.toolkit]
        output = [json.dumps(self.output.model_json_schema(), sort_keys=True)] if self.output is not None else []
        return framed_sha256(self.name, self.instructions, self.model, *manifests, *output)[:12]


def _require_types(what: str, wanted: Mapping[str, tuple[object, Any, str]]) -> None:
    """Refuse a field of another type. ``wanted``: field → its value, its type, and what it takes, in words."""
    for name, (value, expected, words) in wanted.items():
        if not isinstance(value, expected):
            raise ConfigurationError(f"{what}: {name} must be {words}, not of type {type(value).__name__}")


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
    ask: Ask = False,
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
    brings = None if isinstance(agent, str) else agent
    agent_name = agent if isinstance(agent, str) else agent.name
    own = "" if brings is None else brings.description
    return Tool(
        name=name or agent_name.replace("-", "_"),
        description=description or own or f"Give a task to the agent {agent_name!r} and get its answer.",
        kind="agent",
        parameters=ModelParameters(params),
        success=TypeAdapter(dict[str, JsonValue]),
        effect="idempotent",
        ask=ask,
        agent=agent_name,
        brings=brings,
        brief=brief or _brief,
        declared_at=declaring_place(),
    )


def _brief(params: BaseModel) -> str:
    return params.task if isinstance(params, SubAgentTask) else params.model_dump_json(indent=1)


@dataclass(frozen=True, kw_only=True)
class App:
    """Agents, the services their tools need, and the policy they live under.

    ``policy``: a Policy, or the path of a TOML file, relative to the directory the app's module lies in. It is read by
    the process that runs the app (``turngate.runtime.app_loader``), because nothing here does I/O. ``prices``: what models
    cost (``provider:name`` → price), for agents with a ``Limits(cost=…)``. ``judge``: a model that may say of calls that a
    person would be asked about whether they may run without one; None: no one but people says so. ``secrets``: a function,
    also an async one, from the name of a secret to its value (None: there is none), for tools with ``references=``.
    """

    agents: Sequence[Agent]
    services: svcs.Registry | None = None
    policy: Policy | str | Path | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    judge: Judge | None = None
    secrets: SecretResolver | None = None

    def __post_init__(self) -> None:
        """Refuse an app without agents, with two of one name, or with a tool that names an agent there is not."""
        self._require_types()
        every = list({id(agent): agent for agent in self._reachable()}.values())
        names = [agent.name for agent in every]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"agent {name!r} is declared {names.count(name)} times; rename one")
        named = {agent.name: agent for agent in every}
        for agent in named.values():
            for tool in agent.toolkit:
                if tool.agent is not None and tool.agent not in named:
                    raise ConfigurationError(
                        f"tool {tool.name!r} of agent {agent.name!r} is answered by an agent {tool.agent!r}, and there is "
                        f"none; the agents are: {', '.join(named)}"
                    )
                if tool.references and self.secrets is None:
                    raise ConfigurationError(
                        f"tool {tool.name!r} of agent {agent.name!r} takes references, and nothing resolves them: "
                        "App(secrets=function from a name to a value)"
                    )
            if agent.limits.cost is not None:
                self._require_prices(agent, named)
                self._require_judges_price(agent)

    def _require_types(self) -> None:
        """Refuse values of other types than the fields have, and an app without agents."""
        if isinstance(self.agents, Agent):
            raise ConfigurationError("an App takes a list of agents: App(agents=[agent])")
        for agent in self.agents:
            if not isinstance(agent, Agent):
                raise ConfigurationError(f"an App's agents are made with Agent(…), and {repr(agent)[:80]} is not")
        if not self.agents:
            raise ConfigurationError("an App needs at least one agent: App(agents=[Agent(name=…, …)])")
        _require_types("the app", {"policy": (self.policy, Policy | str | Path | None, "a Policy or a file's path")})

    def _require_prices(self, limited: Agent, named: Mapping[str, Agent]) -> None:
        """Refuse a limit of cost on an agent where no one says what its model costs, or that of a sub-agent of it."""
        waiting, seen = [limited], {limited.name}
        while waiting:
            agent = waiting.pop()
            if self._lacks_price(agent.model):  # a profile may bring its own price
                below = "" if agent is limited else f", which its sub-agent {agent.name!r} uses"
                raise ConfigurationError(
                    f"agent {limited.name!r} has a limit of cost, and no one says what {agent.model!r} costs{below}: "
                    f"App(prices={{{agent.model!r}: Price(input=…, output=…)}}), per million tokens"
                )
            for tool in agent.toolkit:
                sub = None if tool.agent is None else named.get(tool.agent)
                if sub is not None and sub.name not in seen:
                    seen.add(sub.name)
                    waiting.append(sub)

    def _lacks_price(self, spec: str) -> bool:
        return ":" in spec and spec not in self.prices and not is_free(spec)

    def _require_judges_price(self, limited: Agent) -> None:
        """Refuse a limit of cost beside a judge where no one says what that costs; a profile may bring its own price."""
        judge = self.judge
        if judge is not None and self._lacks_price(judge.model):
            raise ConfigurationError(
                f"agent {limited.name!r} has a limit of cost, and no one says what the judge's {judge.model!r} costs: "
                f"App(prices={{{judge.model!r}: Price(input=…, output=…)}}), per million tokens"
            )

    @property
    def all_agents(self) -> list[Agent]:
        """The app's agents, then the sub-agents their toolkits bring along, each once."""
        return list({agent.name: agent for agent in self._reachable()}.values())

    @property
    def callers(self) -> dict[str, list[str]]:
        """Sub-agent → the agents whose toolkits call it; without those that the app offers to people itself."""
        offered = {agent.name for agent in self.agents}
        callers: dict[str, list[str]] = {}
        for agent in self.all_agents:
            for tool in agent.toolkit:
                if tool.agent is None or tool.agent in offered:
                    continue
                of_tool = callers.setdefault(tool.agent, [])
                if agent.name not in of_tool:
                    of_tool.append(agent.name)
        return callers

    def _reachable(self) -> Iterator[Agent]:
        waiting = list(self.agents)
        seen: set[int] = set()
        yield from waiting
        while waiting:
            agent = waiting.pop(0)
            if id(agent) in seen:
                continue
            seen.add(id(agent))
            for tool in agent.toolkit:
                if isinstance(tool.brings, Agent):
                    yield tool.brings
                    waiting.append(tool.brings)

    def find(self, name: str) -> Agent | None:
        """Return the agent of this name, sub-agents included, or None."""
        return next((agent for agent in self.all_agents if agent.name == name), None)

    @property
    def known_tools(self) -> list[KnownTool]:
        """What others may know of the app's tools: each once, with the agents that have it, in the app's order."""
        agents_of: dict[KnownTool, list[str]] = {}
        for agent in self.all_agents:
            for tool in agent.toolkit:
                agents_of.setdefault(known(tool), []).append(agent.name)
        return [tool.model_copy(update={"agents": tuple(agents)}) for tool, agents in agents_of.items()]

    def with_handlers(self, handlers: Mapping[str, Handler]) -> App:
        """Return the app with these handlers (tool name → async function) wherever the tool is declared.

        For tests and evals: the world is swapped under the same descriptors, sub-agents' included.

        Raises:
            ConfigurationError: no agent has such a tool, it has no handler to swap, or the function does not fit it.
        """
        known = {tool.name for agent in self.all_agents for tool in agent.toolkit}
        unknown = [name for name in handlers if name not in known]
        if unknown:
            raise ConfigurationError(f"no agent has a tool {unknown[0]!r}; the tools are: {', '.join(sorted(known))}")

        def swapped(agent: Agent) -> Agent:
            fitting = {name: function for name, function in handlers.items() if agent.toolkit.find(name)}
            return replace(agent, toolkit=agent.toolkit.handlers(fitting))

        return self.with_agents(swapped)

    def with_agents(self, change: Callable[[Agent], Agent]) -> App:
        """Return the app with each agent, sub-agents included, as ``change`` returns it. Each is changed once."""
        done: dict[int, Agent] = {}

        def changed(agent: Agent) -> Agent:
            if id(agent) not in done:
                tools = [_bringing(tool, changed) for tool in agent.toolkit]
                done[id(agent)] = change(replace(agent, toolkit=Toolkit.from_list(tools)))
            return done[id(agent)]

        return replace(self, agents=[changed(agent) for agent in self.agents])


def _bringing(tool: Tool, changed: Callable[[Agent], Agent]) -> Tool:
    """Return the tool with the agent it brings, if any, as ``changed`` returns it."""
    return replace(tool, brings=changed(tool.brings)) if isinstance(tool.brings, Agent) else tool
