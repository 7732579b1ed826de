"""The engine: everything that activities share, built once per worker process by the composition root."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from temporalio.exceptions import ApplicationError

from turngate import __version__
from turngate.activities.engine.external_agents import agent_named, agent_of
from turngate.activities.engine.overrides import OverridesCache
from turngate.activities.engine.rules import RulesInForce, StoredRules, in_force
from turngate.domain import contract
from turngate.domain.agents.app import Agent
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.policy.judge import Judge
from turngate.domain.policy.policy import Policy
from turngate.domain.runs.budgets import Price
from turngate.domain.tools.external import is_external
from turngate.domain.tools.references import SecretResolver
from turngate.domain.tools.tool import Tool
from turngate.domain.tools.toolkit import Toolkit
from turngate.models.port import LanguageModel
from turngate.runtime.services import svcs
from turngate.runtime.workspaces import Workspaces
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.policy import policies
from turngate.store.runs.runs import Run

if TYPE_CHECKING:
    from turngate.runtime.traces.current import CurrentSpans


class ModelResolver(Protocol):
    """Turns a model's spec (``provider:name``) into the model."""

    def resolve(self, spec: str) -> LanguageModel:
        """Return the model; raises ConfigurationError when there is no such provider."""


async def resolved(models: ModelResolver, spec: str) -> LanguageModel:
    """Return the model of a spec, without blocking the event loop: a script, or a profile of one, is read in a thread.

    Raises ConfigurationError.
    """
    if ":" in spec and not spec.startswith("scripted:"):
        return models.resolve(spec)
    return await asyncio.to_thread(models.resolve, spec)


@dataclass(eq=False)
class OrderLock:
    """Held by the one order that works on a call, or on a step, in this process.

    ``until``: the event loop's time at which the author's code that it runs must have ended; None: there is no bound.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    until: float | None = None

    def bound(self, seconds: float) -> None:
        """Note that author's code runs from now on, and that it may take so long."""
        self.until = asyncio.get_running_loop().time() + seconds


class OrderLocks:
    """Lets orders about the same call, or the same step, work one after the other in this process (I13).

    Of one order there is one attempt at a time. But anyone who reaches Temporal can order a call that runs once more, which
    looks as if its worker had been lost. The second order waits, and then finds how the first one ended.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str | int], OrderLock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, run_id: str, of: str | int) -> AsyncIterator[OrderLock]:
        """Hold the lock of a call (its id) or a step (its number) of a run inside the block.

        Author's code that continues after its time is over, although it was stopped, is not waited for: it counts as lost.
        """
        own, loop = self._locks.setdefault((run_id, of), OrderLock()), asyncio.get_running_loop()
        while own.until is None or own.until > loop.time():
            with suppress(TimeoutError):  # or else the next one in line may have it by now, with a bound of its own
                async with asyncio.timeout_at(own.until):
                    await own.lock.acquire()
                    break
        else:
            yield OrderLock()
            return
        try:
            yield own
        finally:
            own.until = None
            own.lock.release()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The store, the builder's agents and policy (as the app gives it), their services, and the models."""

    database: Database
    agents: Mapping[str, Agent]
    policy: Policy
    services: svcs.Registry
    models: ModelResolver
    prices: Mapping[str, Price] = field(default_factory=dict)
    """What models cost, by ``provider:name`` or a profile's name."""
    profiles: Profiles = field(default_factory=Profiles)
    """Models under names that the deployment chose."""
    streaming: bool = True
    """Whether watchers see a model's answer as it is written, from models that can stream."""
    grace: bool = True
    """Whether an approved call waits for as long as its approval can be taken back; tests and evals need not."""
    judge: Judge | None = None
    """The model that may answer in place of a person, where no rule insists on one."""
    policy_file: Path | None = None
    """The file that ``policy`` was read from; None: it was passed as a value."""
    stored_rules: StoredRules = field(default_factory=StoredRules)
    overrides: OverridesCache = field(default_factory=OverridesCache)
    judged_alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by an attempt that judges what an earlier one lost its worker at."""
    order_locks: OrderLocks = field(default_factory=OrderLocks)
    workspaces: Workspaces = field(default_factory=Workspaces)
    """Where runs may work."""
    secrets: SecretResolver | None = None
    """What references to secrets are resolved by."""
    worker: str = field(default_factory=lambda: f"{os.getpid()}@{socket.gethostname()}")
    """The process, as Temporal's SDK names it, too."""
    build: str = field(default_factory=lambda: f"turngate-{__version__}")
    """The build of the app, where the worker has one; else Turngate's release."""
    tracing: CurrentSpans | None = None
    """What names the current span of a handler; None: no traces are exported."""
    clock: Callable[[], datetime] = now
    """Says whether a request's time is over, or a wait's; no message does. A test that skips time moves it, too."""
    built_in: Toolkit = field(default_factory=Toolkit.of)
    """The engine's own tools, found by every agent under their names unless it declares one of the same name."""

    def call_span(self, run: Run, tool_call_id: str) -> AbstractContextManager[None]:
        """Return what makes the execution of a call the current span."""
        return nullcontext() if self.tracing is None else self.tracing.call(run, tool_call_id)

    def model_span(self, run: Run, step: int) -> AbstractContextManager[None]:
        """Return what makes the request to the model of a step the current span."""
        return nullcontext() if self.tracing is None else self.tracing.model_request(run, step)

    async def rules(self, conn: Connection, run: Run, *, glance: tuple[int, bool] | None = None) -> RulesInForce:
        """Return the rules in force for a run now: the app's, the stored ones and the grants.

        ``glance``: what :func:`turngate.store.policy.policies.glance` returns now; None: it is not known yet.

        A run's own policy replaces all of them. No grant counts with it, nor does the app's judge: they are for calls as
        other rules judge them.
        """
        overrides = await self.overrides.of_run(conn, run)
        if overrides is not None and overrides.policy is not None:
            return RulesInForce(run=run, policy=overrides.policy)
        glance = glance or await policies.glance(conn)
        rules = await in_force(conn, self.policy, self.stored_rules, run, glance=glance, policy_file=self.policy_file)
        return rules if self.judge is None else replace(rules, judge=self.judge)

    def require_due(self, what: str, at: datetime) -> None:
        """Raise ApplicationError, to be retried when it is due, if the time of something has not come by the store's clock.

        Anyone who reaches Temporal can start an activity at any moment, so an activity is no proof that a timer has fired.
        """
        early = at - self.clock()
        if early > timedelta(0):
            raise ApplicationError(f"{what} is due at {as_text(at)}, and that is still to come", next_retry_delay=early)

    def tool(self, agent: Agent, name: str) -> Tool | None:
        """Return the tool of this name: the agent's, or the engine's own; None when there is none."""
        return agent.toolkit.find(name) or self.built_in.find(name)

    async def agent_of(self, conn: Connection, run: Run) -> Agent:
        """Return the agent that works on the run, with the run's overrides. Raises as :meth:`agent`."""
        if is_external(run.agent):
            return await agent_of(conn, run)
        overrides = await self.overrides.of_run(conn, run)
        agent = self.agent(run.agent)
        return agent if overrides is None else overrides.values.seen_by(agent)

    def agent(self, name: str) -> Agent:
        """Return an agent; raises a non-retryable ApplicationError when this worker's app has none of that name."""
        agent = agent_named(name) if is_external(name) else self.agents.get(name)
        if agent is None:
            known = ", ".join(sorted(self.agents))
            raise ApplicationError(
                f"this worker's app has no agent {name!r} (it has: {known})",
                "configuration",
                type=contract.ERROR_CONFIGURATION,
                non_retryable=True,
            )
        return agent
