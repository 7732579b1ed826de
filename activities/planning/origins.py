"""Where the arguments of a run's calls come from: what its model was sent, loaded for :mod:`turngate.domain.origins`.

The messages are immutable, so the same is found whenever it is looked for: at planning, by a retry, and at the door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from turngate.activities.engine.engine import Engine
from turngate.activities.engine.rules import RulesInForce
from turngate.activities.model.history import History
from turngate.domain.agents.app import Agent
from turngate.domain.digest import derived_id
from turngate.domain.origins.origin import Origins, SourceKind
from turngate.domain.origins.sources import Author, SentMessage, Source, sources_of
from turngate.domain.origins.trace import Tracer
from turngate.domain.tools.external import is_external
from turngate.domain.tools.tool import Tool
from turngate.store.database import Connection
from turngate.store.runs import calls, external_calls, messages, runs
from turngate.store.runs.calls import Call
from turngate.store.runs.messages import StoredMessage

MAX_MESSAGES: Final = 2_000
"""The newest of a conversation that are looked through."""
MAX_AGENTS_ABOVE: Final = 8
QUICK: Final = 40
"""Messages that are looked through on the event loop; more of them in a thread."""


@dataclass
class StepOrigins:
    """Finds origins for the calls of one step. What the model was sent is loaded once, when it is first wanted.

    ``history``: what the model was just sent; None: an earlier attempt asked it.
    """

    engine: Engine
    run: runs.Run
    agent: Agent
    step: int
    history: History | None = None
    _tracer: Tracer | None = field(default=None, init=False)
    _sent: int = field(default=0, init=False)
    _of_inputs: dict[tuple[str, str], Origins] = field(default_factory=dict, init=False)

    async def of(self, conn: Connection, tool: Tool, call: Call) -> Origins | None:
        """Return where the arguments that are to run come from; None: it isn't known what the model was sent."""
        if is_external(self.run.agent):
            return await self._of_external(conn, tool, call)
        if call.edited_input is None:
            return await self.of_input(conn, tool, call.input)
        tracer = await self.tracer(conn)
        tracer = tracer.with_source(Source(kind="edit", content=call.edited_input, tool=call.tool_name))
        return await self.trace(tracer, tool, call.running_input)

    async def of_input(self, conn: Connection, tool: Tool, raw_input: str) -> Origins | None:
        """Return where arguments that the model wrote come from; None: it isn't known what it was sent.

        The program that makes an external call has asked its own model, and no rule believes what it says of that.
        """
        if is_external(self.run.agent):
            return None
        if (tool.name, raw_input) not in self._of_inputs:
            self._of_inputs[tool.name, raw_input] = await self.trace(await self.tracer(conn), tool, raw_input)
        return self._of_inputs[tool.name, raw_input]

    async def _of_external(self, conn: Connection, tool: Tool, call: Call) -> Origins | None:
        """Return where an external call's arguments come from, as the program that makes it tells the conversation."""
        external = await external_calls.get(conn, self.run.id)
        if external is None or not external.messages:
            return None
        sources: list[Source] = []
        personal: SourceKind = "task"
        for each in external.messages:
            if each.author == "tool":
                name = each.tool or "a tool"
                sources.append(Source(kind="result", content=each.text, tool=name, agent=self.run.agent))
            else:
                sources.append(Source(kind=personal, content=each.text, agent=self.run.agent))
                personal = "message"
        self._sent = QUICK + 1  # of any size: not on the loop
        return await self.trace(await asyncio.to_thread(Tracer, sources), tool, call.running_input)

    async def for_rules(self, conn: Connection, rules: RulesInForce, tool: Tool, raw_input: str) -> Origins | None:
        """Return where arguments that the model wrote come from, if a rule about them asks that."""
        return await self.of_input(conn, tool, raw_input) if rules.need_origins(tool) else None

    async def trace(self, tracer: Tracer, tool: Tool, raw_input: str) -> Origins:
        """Return where these arguments come from."""
        schema = tool.manifest.parameters
        if self._sent <= QUICK:
            return tracer.trace(raw_input, schema=schema)
        return await asyncio.to_thread(tracer.trace, raw_input, schema=schema)

    async def tracer(self, conn: Connection) -> Tracer:
        """Return what finds origins in all that the model of this step was sent."""
        if self._tracer is None:
            sources = await self._sources(conn)
            self._tracer = Tracer(sources) if self._sent <= QUICK else await asyncio.to_thread(Tracer, sources)
        return self._tracer

    async def _sources(self, conn: Connection) -> list[Source]:
        sent = [*await self._of_agents_above(conn), *await self._of_run(conn, self.run, self.step, self.history)]
        self._sent = len(sent)
        tools = [tool for agent in self._agents() for tool in agent.toolkit]
        return sources_of(
            sent,
            instructions=self.agent.instructions,
            untrusted={tool.name for tool in tools if self._is_untrusted(tool)},
            answering={tool.name for tool in tools if tool.kind == "interaction"},
        )

    def _agents(self) -> Iterator[Agent]:
        """Yield the run's agent and the app's: another of them may have worked in the conversation before."""
        yield self.agent
        yield from self.engine.agents.values()

    def _is_untrusted(self, tool: Tool, above: tuple[str, ...] = ()) -> bool:
        """Tell whether anyone may have written what a tool returns; of a sub-agent, whether one of its tools is so."""
        if tool.untrusted or tool.kind != "agent" or tool.agent is None or tool.agent in above:
            return tool.untrusted
        below = self.engine.agents.get(tool.agent)
        return below is not None and any(self._is_untrusted(each, (*above, tool.agent)) for each in below.toolkit)

    async def _of_agents_above(self, conn: Connection) -> list[SentMessage]:
        """Return what the models of the agents above were sent before they called the one below, the topmost first."""
        sent: list[SentMessage] = []
        below = self.run
        for _level in range(MAX_AGENTS_ABOVE):
            if below.parent_run_id is None or below.parent_tool_call_id is None:
                break
            parent = await runs.get(conn, below.parent_run_id)
            call = await calls.get(conn, below.parent_run_id, below.parent_tool_call_id)
            if parent is None or call is None:
                break
            sent = [*await self._of_run(conn, parent, call.step, agent=parent.agent), *sent]
            below = parent
        return sent

    async def _of_run(
        self, conn: Connection, run: runs.Run, step: int, history: History | None = None, *, agent: str = ""
    ) -> list[SentMessage]:
        """Return a run's conversation before the response of a step, those parts included that a cut leaves out."""
        if history is not None and history.whole:
            path: Sequence[StoredMessage] = history.recent
        else:
            response_id = derived_id("msg", run.id, str(step), "assistant")
            path = (await messages.newest_to(conn, response_id, MAX_MESSAGES + 1))[:-1]
        others = {each.run_id for each in path if each.message.role == "user" and each.run_id not in {None, run.id}}
        below = await runs.sub_agents_among(conn, sorted(filter(None, others))) if others else set()
        return [
            SentMessage(message=each.message, author=_author(each, run, below), id=each.id, step=each.step, agent=agent)
            for each in path
        ]


def _author(stored: StoredMessage, run: runs.Run, below: Container[str | None]) -> Author:
    """Return who wrote a user message. ``below``: the runs of sub-agents among those that the messages are of."""
    carried_over = derived_id("msg", stored.run_id or "", "carried-over")
    if stored.message.role != "user" or stored.step is not None or stored.id == carried_over:
        return "engine"
    if stored.id == run.input_message_id:
        return "task" if run.parent_run_id is None else "agent"
    return "agent" if stored.run_id in below else "person"
