"""I8 in long conversations: where the agent sends the newest messages only, a step loads no more than those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from support.engine.stack import ListModel, call, says, stack
from support.stores.sql_census import SqlCensus
from temporalio.client import Client

from turngate import Hooks, Limits, RunScope, tool
from turngate.domain.agents.hooks import Generate
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.conversation.messages import Message
from turngate.domain.tools.tool import Tool
from turngate.store.database import Database
from turngate.toolkits.context import KeepRecent


class LooksAtAll(KeepRecent):
    """Sends what its parent sends, and has the engine load the whole conversation for it."""

    def __init__(self, messages: int) -> None:
        super().__init__(messages)
        self.newest_messages = None


class Watches(Hooks):
    """Shapes nothing, so it asks for nothing."""

    async def after_step(self, scope: RunScope, results: Sequence[Message]) -> None:
        del scope, results


class Rewrites(Hooks):
    """Rewrites the messages without declaring which it reads: it must get all of them."""

    seen = 0

    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        del scope, generate
        self.seen = max(self.seen, len(messages))
        return messages


def look() -> Tool:
    @tool(effect="read", ask=False)
    async def look() -> dict[str, int]:
        """Look."""
        return {"seen": 1}

    return look


SAME_CALLS = Limits(no_progress=None)
SCRIPT = [says(call("look", "{}", "same")) for _ in range(9)]


async def sent(client: Client, database: Database, *hooks: Hooks) -> list[list[Message]]:
    """What the model is sent, request by request, in the second run of a conversation. Every call has the same id."""
    model = ListModel(*SCRIPT[:4], says("First."), *SCRIPT[4:], says("Done."))
    async with stack(client, database, look(), model=model, hooks=hooks, limits=SAME_CALLS) as engine:
        first = await engine.start("the task")
        await engine.ended(first)
        run = await engine.start("and then?", conversation_id=first.conversation_id)
        assert (await engine.ended(run)).status == "completed"
        assert len(await engine.results(run)) == 5, "repeated ids are replaced, also those of what was not loaded"
    return [list(request.messages) for request in model.seen[5:]]


def walks(census: SqlCensus) -> dict[str, int]:
    """How often a conversation was walked: as a whole, to its newest messages, or to its first one."""
    statements = [each for transaction in census.of_product for each in transaction.statements]
    return dict(
        Counter(
            "newest" if ":newest" in each else "first" if each.endswith("path.parent_id IS NULL") else "whole"
            for each in statements
            if each.startswith("WITH RECURSIVE path(")
        )
    )


async def test_i8_a_step_loads_what_its_agent_sends(client: Client, sqlite: Database) -> None:
    """I8: the same messages are sent whether the whole is loaded or only the newest, and then no path is walked whole."""
    with SqlCensus(sqlite) as census:
        whole = await sent(client, sqlite, LooksAtAll(3))
    assert walks(census) == {"whole": 11}
    with SqlCensus(sqlite) as census:
        bounded = await sent(client, sqlite, Watches(), KeepRecent(3))
    assert walks(census) == {"newest": 11, "first": 2}, "the first message is looked for once in a run"
    assert [_shape(request) for request in bounded] == [_shape(request) for request in whole]
    assert all(is_reconciled(request) for request in bounded)


@pytest.mark.exhaustive
async def test_a_transform_that_says_nothing_is_given_everything(client: Client, sqlite: Database) -> None:
    """A hook that shapes what is sent before the one that cuts it sees the whole conversation."""
    rewrites = Rewrites()
    requests = await sent(client, sqlite, rewrites, KeepRecent(3))
    assert rewrites.seen == 22, "instructions, two user messages, an answer, nine calls with their results"
    assert len(requests[-1]) == 4


def _shape(request: Sequence[Message]) -> list[tuple[str, str, int]]:
    return [(message.role, message.text, len(message.calls) or len(message.results)) for message in request]


@pytest.mark.exhaustive
async def test_an_id_is_minted_past_those_that_were_not_loaded(client: Client, sqlite: Database) -> None:
    """A model that made up the ids that the engine would mint later gets others then, though their messages are far back."""
    ids = ["call_6_0", "call_6_0_2", "a", "b", "c", ""]
    model = ListModel(*(says(call("look", "{}", each)) for each in ids), says("Done."))
    async with stack(client, sqlite, look(), model=model, hooks=[KeepRecent(2)], limits=SAME_CALLS) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        assert list(await engine.results(run)) == [*ids[:-1], "call_6_0_3"]
