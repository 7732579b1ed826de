"""Engines whose agents ask real adapters, each at its provider's own loopback server: one engine streams, the other does not.

What a test queues at a server is the model's response; what the server received is the model's request.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from support.engine.stack import Cast, Stack, stack
from support.engine.tools import Bench
from support.servers.fake_provider import FakeProvider, Received, serving_provider
from support.servers.provider_wires import DEVSTRAL, WIRES, Turn, Wire, WireResponse
from temporalio.client import Client
from unit.models.wire.recordings import models_at

from turngate import Agent, Toolkit, tool
from turngate.domain.agents.app import Limits
from turngate.domain.agents.model_profiles import ModelOptions, Profile, Profiles
from turngate.domain.conversation.messages import Message
from turngate.domain.runs.budgets import Price
from turngate.domain.tools.tool import Tool
from turngate.models import Models
from turngate.models.port import LanguageModel
from turngate.store.database import Database
from turngate.store.runs.runs import Run

ALL = (*WIRES, DEVSTRAL)
PATIENCE_SECONDS = 30.0
"""For one request; a machine under load may stall for seconds, and a response that comes too late is lost."""
BOUND = ModelOptions(max_output_tokens=1024)
"""Without a bound Anthropic's client would stream long responses even with streaming off."""


class Wired(Cast):
    """Resolves a wire's name to the model that asks its server."""

    def __init__(self, models: Mapping[str, Models]) -> None:
        super().__init__()
        self._all = models

    def resolve(self, spec: str) -> LanguageModel:
        wire = next(each for each in ALL if each.name == spec)
        return self._all[spec].resolve(wire.spec)


class Nothing(BaseModel):
    """No parameters at all."""


def tools(bench: Bench) -> list[Tool]:
    """In an order that no sorting would give."""

    @tool(effect="read", ask=False)
    async def zebra() -> str:
        """Say which day it is."""
        return "Sunday"

    @tool(effect="read", ask=False)
    async def apple(params: Nothing) -> list[int]:
        """Count."""
        return [1, 2]

    @tool(effect="read", ask=False)
    async def repair() -> None:
        """Repair."""
        raise RuntimeError("no such luck")

    return [zebra, bench.look, apple, bench.pay, repair]


@dataclass
class Played:
    """A run that ended, and what its provider was sent."""

    run: Run
    requests: list[Received]
    history: list[Message]


class Stage:
    """``bench``: the tools of every agent here, and what they did; forget it with :meth:`reset`."""

    def __init__(self, engines: Mapping[bool, Stack], servers: Mapping[str, FakeProvider], bench: Bench) -> None:
        self.engines = engines
        self.servers = servers
        self.bench = bench

    def reset(self) -> None:
        for server in self.servers.values():
            server.reset()
        self.bench.looked.clear()
        self.bench.paid.clear()

    def says(self, wire: Wire, *responses: WireResponse, streamed: bool = True, cut: bool = False) -> FakeProvider:
        """Queue the model's responses. Returns the server."""
        server = self.servers[wire.name]
        for each in responses:
            wire.answer(server, each, streamed=streamed, cut=cut)
        return server

    async def start(self, wire: Wire, *, streamed: bool = True, **options: Any) -> Run:
        return await self.engines[streamed].start(model=wire.name, **options)

    async def ended(self, wire: Wire, run: Run, *, streamed: bool = True) -> Played:
        engine = self.engines[streamed]
        run = await engine.ended(run)
        return Played(run, list(self.servers[wire.name].requests), await engine.history(run))

    async def play(self, wire: Wire, *responses: WireResponse, streamed: bool = True, **options: Any) -> Played:
        """Start a run whose model gives these responses, and wait for its end. The run must use every response."""
        server = self.says(wire, *responses, streamed=streamed)
        before = len(server.requests)
        played = await self.ended(wire, await self.start(wire, streamed=streamed, **options), streamed=streamed)
        played.requests = played.requests[before:]
        assert len(played.requests) == len(responses), played.run.reason
        return played


@asynccontextmanager
async def staged(
    client: Client,
    template: Path,
    folder: Path,
    *,
    limits: Mapping[str, Limits] | None = None,
    fallbacks: Mapping[str, Sequence[str]] | None = None,
    price: Price | None = None,
) -> AsyncIterator[Stage]:
    """``limits``: of further agents, by name. ``fallbacks``: of further agents, by name. ``price``: of every model."""
    bench = Bench()
    kit = tools(bench)
    profiles = Profiles(
        {wire.name: Profile(name=wire.name, model=wire.spec, options=BOUND, price=price) for wire in ALL}
    )
    prices = {wire.name: price for wire in ALL} if price is not None else {}
    names = {*(limits or {}), *(fallbacks or {})}
    agents = [
        Agent(
            name=name,
            instructions="Be brief.",
            toolkit=Toolkit.of(*kit),
            model=WIRES[0].name,
            limits=(limits or {}).get(name, Limits()),
            fallback=(fallbacks or {}).get(name, ()),
        )
        for name in sorted(names)
    ]
    async with AsyncExitStack() as open_parts:
        servers = {wire.name: open_parts.enter_context(serving_provider()) for wire in ALL}
        models = {wire.name: models_at(servers[wire.name], wire.spec, timeout=PATIENCE_SECONDS) for wire in ALL}
        engines: dict[bool, Stack] = {}
        for streamed in (True, False):
            file = shutil.copy(template, folder / f"streamed-{streamed}.db")
            database = Database(f"sqlite:///{file}")
            open_parts.push_async_callback(database.close)
            engine = await open_parts.enter_async_context(
                stack(
                    client,
                    database,
                    *kit,
                    model=Wired(models),
                    agents=agents,
                    profiles=profiles,
                    prices=prices,
                    working=False,
                )
            )
            engine.engine = replace(engine.engine, streaming=streamed)
            await open_parts.enter_async_context(engine.worker(max_cached_workflows=100))
            engines[streamed] = engine
        yield Stage(engines, servers, bench)
        for each in models.values():
            await each.aclose()


def turns_of(wire: Wire, played: Played, place: int = -1) -> list[Turn]:
    """The parsed messages of a run's n-th request; by default of the last."""
    return wire.turns(played.requests[place])


def require_order(turns: Sequence[Turn]) -> None:
    """Fail unless sides take turns, calls are answered directly and in order, ids are unique, and inputs are objects.

    Messages that carry only results are no side: each of OpenAI's, and Google's, which are separate from users' text.
    """
    sides = [(turn.role, bool(turn.results) and not turn.text) for turn in turns]
    assert all(side != following or side[1] for side, following in pairwise(sides)), sides
    waiting: list[str] = []
    seen: set[str] = set()
    for turn in turns:
        if not turn.results:
            assert not waiting, turns
        for call_id, content in turn.results:
            assert call_id == waiting.pop(0), turns
            assert isinstance(content, dict), content
        for call_id, name, arguments in turn.calls:
            assert call_id, turns
            assert name, turns
            assert call_id not in seen, turns
            assert isinstance(arguments, dict), arguments
            waiting.append(call_id)
            seen.add(call_id)
        assert turn.items, turns
    assert not waiting, turns
