"""Budgets: a run that has used up its tool calls, tokens or time ends with a clear reason, and can be retried with more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from harness import ListModel, call, says, stack
from temporalio.client import Client
from tools_under_test import Bench

from turngate import Limits
from turngate.domain.history import is_reconciled
from turngate.domain.messages import Usage
from turngate.store.database import Database

LOOK = says("Looking.", call("look", '{"name": "a"}', "a"), call("look", '{"name": "b"}', "b"))


@pytest.mark.parametrize(
    ("limits", "error_class", "said"),
    [
        (Limits(tool_calls=3), "tool_call_cap", "made 4 of the 3 tool calls"),
        (Limits(tokens=2_500), "token_cap", "used 3,000 of the 2,500 tokens"),
        (Limits(wall_time=timedelta(microseconds=1)), "time_cap", "all the time it has"),
    ],
    ids=["tool calls", "tokens", "time"],
)
async def test_a_run_ends_when_a_budget_is_used_up(
    client: Client, database: Database, bench: Bench, limits: Limits, error_class: str, said: str
) -> None:
    """It ends before the next model request, its calls answered; what is left of a budget is used to its end."""
    model = ListModel(LOOK.model_copy(update={"usage": Usage(input_tokens=1_000, output_tokens=500)}))
    async with stack(client, database, bench.look, model=model, limits=limits) as engine:
        run = await engine.ended(await engine.start())
        assert (run.status, run.error_class) == ("failed", error_class)
        assert said in run.reason
        assert len(model.seen) == (0 if error_class == "time_cap" else 2)
        assert is_reconciled(await engine.history(run))


async def test_budgets_that_are_not_reached_change_nothing(client: Client, sqlite: Database, bench: Bench) -> None:
    """A run within all of them completes."""
    limits = Limits(tool_calls=3, tokens=10_000, wall_time=timedelta(hours=1))
    async with stack(client, sqlite, bench.look, model=ListModel(LOOK, says("Done.")), limits=limits) as engine:
        assert (await engine.ended(await engine.start())).status == "completed"
