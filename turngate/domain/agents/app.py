"""A builder's whole program: ``App`` with its agents, one importable value, the way an ASGI app is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.agents.budgets import EXTEND_BUDGET, Price, WhenUsedUp
from turngate.domain.agents.context_window import Context
from turngate.domain.agents.hooks import Hooks
from turngate.domain.agents.judge import Judge
from turngate.domain.agents.no_progress import NoProgress
from turngate.domain.agents.structured_output import ANSWER_TOOL
from turngate.domain.contract import RunLimits
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.policy import Policy
from turngate.domain.runs.steering import WhileRunning
from turngate.domain.tools.declared_parts import Handler
from turngate.domain.tools.external import AGENT_PREFIX, is_external
from turngate.domain.tools.external import MODEL as EXTERNAL_MODEL
from turngate.domain.tools.toolkit import Toolkit

if TYPE_CHECKING:
    import svcs

RESERVED_TOOLS = (EXTEND_BUDGET, ANSWER_TOOL)
"""Names that a model's or the engine's own calls bear. An agent may declare a ``read_result``: its own then stands for ours."""
AGENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Limits(BaseModel):
    """What one run may use. Carried into the workflow's input, so a change reaches the next run, not a live one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=100, ge=1, le=100_000)
    """Model responses in one run; those of its sub-agents' runs are their own."""
    tool_calls: int | None = Field(default=None, ge=1)
    """Tool calls in one run and its sub-agents', whatever became of them; None: as many as the steps make."""
    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens of one run and its sub-agents' together, as the provider counts them; None: no bound."""
    cost: Decimal | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What the tokens of one run and its sub-agents may cost, by the app's prices (``App(prices=…)``); None: no bound."""
    wall_time: timedelta | None = Field(default=None, gt=timedelta(0))
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
    """How long a model that is unreachable or overloaded is tried again before the run fails."""
    request_expiry: timedelta | None = None
    """How long a request waits for an answer before it expires (which refuses); None waits for ever."""
    result_chars: int = Field(default=50_000, ge=1_000, le=10_000_000)
    """Characters of one tool result that the model is shown; a longer one is stored whole and shown head and tail."""

    def for_run(self) -> RunLimits:
        """Return the limits as a run's workflow carries them."""
        return RunLimits(
            steps=self.steps,
            concurrency=self.concurrency,
            malformed_in_a_row=self.malformed_in_a_row,
            model_retry_seconds=max(1, round(self.model_retry.total_seconds())),
            budgets_ask=self.when_used_up == "ask",
            marks_gates=True,
        )


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One agent: instructions, tools and a model (``provider:name``, such as ``openai:gpt-5``, or a profile's name).

    ``fallback``: models that answer, in this order, when the run's cannot be used (no key, no credit, no such model), behind
    those of its profile.
    """

    name: str
    instructions: str
    toolkit: Toolkit
    model: str
    limits: Limits = field(default_factory=Limits)
    description: str = ""
    hooks: Sequence[Hooks] = ()
    while_running: WhileRunning = "queue"
    """What becomes of a message that is sent to a run of this agent while it is live; the sender may say otherwise."""
    fallback: Sequence[str] = ()
    context: Context | None = field(default_factory=Context)
    """What becomes of conversations that come near the model's window; None: they are sent as they are."""
    output: type[BaseModel] | None = None
    """What the final answer has to be, as JSON; one that is not is told so, and made again. None: free text."""

    def __post_init__(self) -> None:
        """Refuse a name that could not stand in a URL or a rule."""
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
                f"agent {self.name!r}: while_running is one of {', '.join(get_args(WhileRunning))}, not {self.while_running!r}"
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


@dataclass(frozen=True, kw_only=True)
class App:
    """Agents, the services their tools need, and the policy they live under.

    ``policy``: a Policy, or the path of a TOML file, relative to the directory the app's module lies in. It is read by
    the process that runs the app (``turngate.runtime.app_loader``), because nothing here does I/O. ``prices``: what models
    cost (``provider:name`` → price), for agents with a ``Limits(cost=…)``. ``judge``: a model that may say of calls that a
    person would be asked about whether they may run without one; None: nobody but people says so.
    """

    agents: Sequence[Agent]
    services: svcs.Registry | None = None
    policy: Policy | str | Path | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    judge: Judge | None = None

    def __post_init__(self) -> None:
        """Refuse an app without agents, with two of one name, or with a tool that names an agent there is not."""
        if not self.agents:
            raise ConfigurationError("an App needs at least one agent: App(agents=[Agent(name=…, …)])")
        every = list({id(agent): agent for agent in self._reachable()}.values())
        names = [agent.name for agent in every]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"agent {name!r} is declared {names.count(name)} times; rename one")
        named = {agent.name: agent for agent in every}
        for agent in named.values():
            for tool in agent.toolkit:
                if isinstance(tool.agent, str) and tool.agent not in named:
                    raise ConfigurationError(
                        f"tool {tool.name!r} of agent {agent.name!r} is answered by an agent {tool.agent!r}, and there is "
                        f"none; the agents are: {', '.join(named)}"
                    )
            if agent.limits.cost is not None:
                self._require_prices(agent, named)
                self._require_judges_price(agent)

    def _require_prices(self, limited: Agent, named: Mapping[str, Agent]) -> None:
        """Refuse a limit of cost on an agent where nobody says what its model costs, or that of a sub-agent of it."""
        waiting, seen = [limited], {limited.name}
        while waiting:
            agent = waiting.pop()
            if ":" in agent.model and agent.model not in self.prices:  # a profile may bring its own price
                below = "" if agent is limited else f", which its sub-agent {agent.name!r} uses"
                raise ConfigurationError(
                    f"agent {limited.name!r} has a limit of cost, and nobody says what {agent.model!r} costs{below}: "
                    f"App(prices={{{agent.model!r}: Price(input=…, output=…)}}), per million tokens"
                )
            for tool in agent.toolkit:
                found = named.get(tool.agent) if isinstance(tool.agent, str) else tool.agent
                if found is not None and found.name not in seen:
                    seen.add(found.name)
                    waiting.append(found)

    def _require_judges_price(self, limited: Agent) -> None:
        """Refuse a limit of cost beside a judge where nobody says what that costs; a profile may bring its own price."""
        judge = self.judge
        if judge is not None and ":" in judge.model and judge.model not in self.prices:
            raise ConfigurationError(
                f"agent {limited.name!r} has a limit of cost, and nobody says what the judge's {judge.model!r} costs: "
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
        found: dict[str, list[str]] = {}
        for agent in self.all_agents:
            for tool in agent.toolkit:
                name = tool.agent.name if isinstance(tool.agent, Agent) else tool.agent
                if name is not None and name not in offered and agent.name not in found.setdefault(name, []):
                    found[name].append(agent.name)
        return found

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
                if isinstance(tool.agent, Agent):
                    yield tool.agent
                    waiting.append(tool.agent)

    def find(self, name: str) -> Agent | None:
        """Return the agent of this name, sub-agents included, or None."""
        return next((agent for agent in self.all_agents if agent.name == name), None)

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
        done: dict[int, Agent] = {}

        def swapped(agent: Agent) -> Agent:
            if id(agent) not in done:
                fitting = {name: function for name, function in handlers.items() if agent.toolkit.find(name)}
                tools = [
                    replace(tool, agent=swapped(tool.agent)) if isinstance(tool.agent, Agent) else tool
                    for tool in agent.toolkit.handlers(fitting)
                ]
                done[id(agent)] = replace(agent, toolkit=Toolkit.from_list(tools))
            return done[id(agent)]

        return replace(self, agents=[swapped(agent) for agent in self.agents])
