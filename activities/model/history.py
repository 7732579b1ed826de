"""The part of a conversation that a step reads: what comes after its newest cut, and no more than its agent sends.

A conversation of weeks has tens of thousands of messages, and no model reads them all. If a summary replaces them, or the
agent says how many of the newest it sends, the others are not even loaded. So a step costs the same however long its run
takes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from turngate.domain.agents.app import Agent
from turngate.domain.agents.hooks import Hooks
from turngate.domain.conversation.messages import Message
from turngate.store.database import Connection
from turngate.store.runs import messages, summaries
from turngate.store.runs.messages import StoredMessage
from turngate.store.runs.runs import Run
from turngate.store.runs.summaries import Cut

MAX_ROOTS = 1000
"""First messages kept in memory, of the runs that worked last."""


@dataclass(frozen=True)
class History:
    """What a step reads of its conversation.

    ``root``: the first message of a conversation whose middle is left out; None: nothing is. ``cut``: what replaces the
    middle; None: nothing does. ``recent``: the messages after that, oldest first.
    """

    recent: list[StoredMessage]
    root: StoredMessage | None = None
    cut: Cut | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.root is None

    @property
    def opening(self) -> list[Message]:
        """What is sent before the recent messages when something is left out: the task, and what replaces the rest."""
        root = [] if self.root is None else [self.root.message]
        return root if self.cut is None else [*root, self.cut.message]

    @property
    def messages(self) -> list[Message]:
        """All of it, oldest first."""
        return [*self.opening, *(stored.message for stored in self.recent)]

    @property
    def clipped(self) -> bool:
        """Whether it holds, or replaces, a result of which the model saw only a part."""
        results = (part for stored in self.recent for part in stored.message.results)
        return (self.cut is not None and self.cut.clipped) or any(part.whole_result is not None for part in results)


class Histories:
    """Loads what steps read. One per worker process."""

    def __init__(self) -> None:
        self._roots: OrderedDict[str, StoredMessage] = OrderedDict()

    async def load(self, conn: Connection, run: Run, agent: Agent) -> History:
        """Return the run's conversation without what a cut replaces, or what its agent's first transform leaves out."""
        newest = newest_messages(agent.hooks)
        if agent.context is not None:
            recent, cut = await summaries.path_after_cut(conn, run.head_message_id, newest=newest)
        elif newest is None:
            return History(await messages.path_to(conn, run.head_message_id))
        else:
            recent, cut = await messages.newest_to(conn, run.head_message_id, newest), None
        if cut is None and recent[0].parent_id is None:
            return History(recent)
        return History(recent, await self._root(conn, run, cut), cut)

    async def _root(self, conn: Connection, run: Run, cut: Cut | None) -> StoredMessage:
        """Return the conversation's first message. A run only adds messages after it, so it is looked up once."""
        root = self._roots.pop(run.id, None)
        if root is None:
            # Of a path of one message there is nothing to walk.
            root = await messages.root_of(conn, run.head_message_id if cut is None else cut.root_message_id)
        self._roots[run.id] = root
        while len(self._roots) > MAX_ROOTS:
            self._roots.popitem(last=False)
        return root


def newest_messages(hooks: Iterable[Hooks]) -> int | None:
    """Return how many of the newest messages the first transform among these hooks reads; None: all."""
    for hook in hooks:
        if type(hook).before_model is not Hooks.before_model:
            return hook.newest_messages
    return None
