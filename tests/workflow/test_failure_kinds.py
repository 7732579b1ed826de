"""I9: the effects of a failing call: on its run, on a retry, and on the rest of the conversation.

Every failure kind beside calls that succeed: ``test_every_failure_kind.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import ListModel, call, says, stack
from support.engine.tools import Bench
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from turngate import ToolContext, ToolFailure, interaction_tool, tool
from turngate.activities.run_tool import RunTool
from turngate.domain.contract import RunToolInput
from turngate.domain.conversation.history import is_reconciled
from turngate.domain.errors import InvalidInputError
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok
from turngate.store.database import Database


class OutOfStock(ToolFailure):
    reason: str
    left: int


class SoldOut(OutOfStock):
    """Of the declared class, and not declared itself; its name is the engine's word for something else."""

    kind = "denied"


@pytest.mark.parametrize("failure", [OutOfStock, SoldOut])
async def test_a_failure_that_raises_ends_the_run_and_is_the_calls_result(
    client: Client, database: Database, bench: Bench, failure: type[OutOfStock]
) -> None:
    """failure_mode="raise": the run fails with its class and words, and the call's own result says what happened.

    Its execution is known to have failed, and a retry of the activity ends the run too.
    """

    @tool(effect="once", ask=False, failures=[OutOfStock], failure_mode="raise")
    async def reserve() -> None:
        """Reserve."""
        raise failure(reason="sold out", left=0)

    calls = (call("look", '{"name": "x"}', "l"), call("reserve", "", "r"), call("pay", '{"cents": 1}', "p"))
    async with stack(client, database, bench.look, reserve, bench.pay, model=ListModel(says(*calls))) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.status, ended.error_class) == ("failed", "tool_raised")
        assert "'reserve' failed: out_of_stock: sold out" in ended.reason
        results = await engine.results(run)
        assert results["r"] == Failure(kind="out_of_stock", reason="sold out", fields={"reason": "sold out", "left": 0})
        assert (results["p"].kind, bench.paid) == ("cancelled", [])
        assert (await engine.executions(run))["r"].state == "failed"
        assert is_reconciled(await engine.history(run))
        again = RunToolInput(run_id=run.id, call="r", decision_id=None)
        with pytest.raises(ApplicationError, match="sold out") as raised:
            await ActivityEnvironment().run(RunTool(engine.engine).run_tool, again)
        assert (raised.value.type, raised.value.non_retryable) == ("tool_raised", True)


async def test_i8_what_a_raised_failure_says_at_length_stays_out_of_history(client: Client, sqlite: Database) -> None:
    """I8: the run's reason is short however long the failure's words are; the whole is the call's result."""

    @tool(effect="once", ask=False, failures=[OutOfStock], failure_mode="raise")
    async def reserve() -> None:
        """Reserve."""
        raise OutOfStock(reason="x" * 600_000, left=0)

    async with stack(client, sqlite, reserve, model=ListModel(says(call("reserve", "", "r")))) as engine:
        run = await engine.start()
        ended = await engine.ended(run)
        assert (ended.error_class, len(ended.reason)) == ("tool_raised", 500)
        result = (await engine.results(run))["r"]
        assert result.fields["total_chars"] > 600_000
        assert len(result.reason) < 1_000


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


async def test_i1_a_conversation_continues_after_any_result(client: Client, sqlite: Database) -> None:
    """I1, I9: what pydantic writes and cannot read again (200 levels) is refused; what is kept is read, in later runs too."""
    values = {
        "half": {"file": ["a\udcff", float("nan")]},
        "nul": "a\x00b",
        "huge": 10**400,
        "deepest": nested(MAX_DEPTH),
        "deeper": nested(MAX_DEPTH + 1),
        "unreadable": nested(199),
    }

    @tool(effect="read", ask=False)  # of a `once` call a person would be asked what happened
    async def give(ctx: ToolContext) -> Any:
        """Give."""
        return values[ctx.tool_call_id]

    model = ListModel(says(*(call("give", "", key) for key in values)), says("Done."), says("Again."))
    async with stack(client, sqlite, give, model=model) as engine:
        run = await engine.start()
        assert (await engine.ended(run)).status == "completed"
        results = await engine.results(run)
        assert results["half"] == Ok(value={"file": ["a\ufffd", "NaN"]})  # NaN as null would be a value it never was
        assert results["nul"] == Ok(value={"value": "a\x00b"})
        assert results["huge"] == Ok(value={"value": 10**400})
        assert results["deepest"] == Ok(value={"value": nested(MAX_DEPTH)})
        for refused in ("deeper", "unreadable"):
            assert (results[refused].kind, "effects remain" in results[refused].reason) == ("execution_error", True)
        again = await engine.ended(await engine.start("more", conversation_id=run.conversation_id))
        assert again.status == "completed"
        assert [part.result for part in model.seen[2].messages[3].results] == list(results.values())
        assert {execution.attempts for execution in (await engine.executions(run)).values()} == {1}


class Tree(BaseModel):
    tree: Any


async def test_i1_an_answer_too_deep_to_be_read_again_is_refused(client: Client, sqlite: Database) -> None:
    """I1, I4: an operator's answer is a result, too: one that would break the conversation saves nothing."""
    question = interaction_tool(name="ask", description="Ask.", params=Tree, answer=Tree)
    model = ListModel(says(call("ask", '{"tree": 1}', "q")), says("Done."))
    async with stack(client, sqlite, question, model=model) as engine:
        run = await engine.start()
        request = await engine.request(run)
        with pytest.raises(InvalidInputError, match="nests"):
            await engine.decide(request, "respond", args=json.dumps({"tree": nested(150)}))
        await engine.decide(request, "respond", args=json.dumps({"tree": nested(90)}))
        assert (await engine.ended(run)).status == "completed"
        assert (await engine.results(run))["q"] == Ok(value={"tree": nested(90)})
