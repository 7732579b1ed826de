"""The part of a conversation that a step looks at: all of it, or no more than the agent's own transform keeps.

A conversation of weeks has tens of thousands of messages, and no model reads them all. Where the agent says how many of
the newest it sends, the others are not even loaded, so a step costs the same however long its run goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from turngate.domain.agents import Agent
from turngate.domain.hooks import Hooks
from turngate.domain.messages import Message
from turngate.store import messages
from turngate.store.database import Connection
from turngate.store.runs import Run

MAX_ROOTS = 1000
"""First messages kept in memory, of the runs that worked last."""


@dataclass(frozen=True)
class History:
    """What a step looks at of its conversation, oldest first. ``whole``: nothing is left out."""

    messages: list[Message]
    whole: bool


class Histories:
    """Loads what a step looks at. One per worker process."""

    def __init__(self) -> None:
        self._roots: OrderedDict[str, Message] = OrderedDict()

    async def load(self, conn: Connection, run: Run, agent: Agent) -> History:
        """Return the run's conversation, oldest first, without the middle that the agent's first transform leaves out."""
        newest = newest_messages(agent.hooks)
        if newest is None:
            return History([stored.message for stored in await messages.path_to(conn, run.head_message_id)], whole=True)
        recent = await messages.newest_to(conn, run.head_message_id, newest)
        shown = [stored.message for stored in recent]
        if recent[0].parent_id is None:
            return History(shown, whole=True)
        return History([await self._root(conn, run), *shown], whole=False)

    async def _root(self, conn: Connection, run: Run) -> Message:
        """Return the conversation's first message. A run only ever adds behind it, so it is looked for once."""
        root = self._roots.pop(run.id, None)
        if root is None:
            root = (await messages.root_of(conn, run.head_message_id)).message
        self._roots[run.id] = root
        while len(self._roots) > MAX_ROOTS:
            self._roots.popitem(last=False)
        return root


def newest_messages(hooks: Iterable[Hooks]) -> int | None:
    """Return how many of the newest messages the first transform among these hooks looks at; None: all."""
    for hook in hooks:
        if type(hook).before_model is not Hooks.before_model:
            return hook.newest_messages
    return None
