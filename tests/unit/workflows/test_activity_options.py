"""Retries and timeouts: one row for each activity the worker registers, each bounded, each with a retry policy."""

from __future__ import annotations

import ast
import inspect
from datetime import timedelta
from typing import Any

import pytest
import svcs
from temporalio import activity
from temporalio.client import Client
from temporalio.common import RetryPolicy

from turngate import worker as composition
from turngate.activities.engine.engine import Engine
from turngate.domain import contract
from turngate.domain.agents.app import Limits
from turngate.domain.contract import PlannedCall, RunLimits
from turngate.domain.policy.policy import Policy
from turngate.models.registry import Models, ModelSettings
from turngate.store.database import Database
from turngate.workflows import activity_options, agent_turn, in_flight, run_control, scheduled_start, step_runner
from turngate.workflows.activity_options import GRACE, OUTAGE, TABLE
from turngate.workflows.lanes import lane_of

WEEK = timedelta(days=7)
LIMITS = RunLimits(model_retry_seconds=600, heartbeat_timeout_seconds=10)
LONGEST_TOOL = PlannedCall(call="c1", timeout_seconds=int(WEEK.total_seconds()))
SHORTEST_TOOL = PlannedCall(call="c1", timeout_seconds=1)

ROWS: dict[str, list[Any]] = {
    contract.CALL_MODEL: [activity_options.call_model(LIMITS), activity_options.call_model(RunLimits())],
    contract.RUN_TOOL: [activity_options.run_tool(call, LIMITS) for call in (LONGEST_TOOL, SHORTEST_TOOL)],
    contract.RECORD_EXPIRY: [activity_options.RECORD_EXPIRY],
    contract.CLIMB_LADDER: [activity_options.CLIMB_LADDER],
    contract.READ_CONTROL: [activity_options.READ_CONTROL],
    contract.INTERRUPT_BELOW: [activity_options.INTERRUPT_BELOW],
    contract.OPEN_SCHEDULED: [activity_options.OPEN_SCHEDULED],
    contract.CLOSE_STEP: [activity_options.CLOSE_STEP],
    contract.SETTLE_CALL: [activity_options.SETTLE_CALL],
}
EACH_ROW = [pytest.param(row, id=f"{name} {place}") for name, rows in ROWS.items() for place, row in enumerate(rows)]


@pytest.mark.parametrize("models_at_once", [None, 1])
async def test_each_activity_of_the_table_is_registered_on_its_lane(
    client: Client, sqlite: Database, models_at_once: int | None
) -> None:
    """No activity is registered without a row, and each row's is registered where the workflow's activities wait."""
    models = Models(ModelSettings())
    engine = Engine(database=sqlite, agents={}, policy=Policy(), services=svcs.Registry(), models=models)
    built = composition.build_worker(
        client, engine, "none", composition.WorkerOptions(model_requests_at_once=models_at_once)
    )
    async with built:  # a worker that is made and never run would hold up the server's end
        configs = [each.config(active_config=True) for each in built.workers]
    registered = {
        (config["task_queue"], activity._Definition.must_from_callable(each).name)
        for config in configs
        for each in config["activities"]
    }
    assert {name for _, name in registered} == set(TABLE) == set(ROWS)
    apart = models_at_once is not None
    assert {(f"none{lane_of(name, models_apart=apart)}", name) for name in TABLE} <= registered


def test_the_workflow_starts_activities_with_their_own_row_only() -> None:
    """Every place in the workflow that starts an activity names one of the table, and unpacks that one's row."""
    started: dict[str, str] = {}
    modules = (agent_turn, in_flight, run_control, scheduled_start, step_runner)
    sources = (inspect.getsource(module) for module in modules)
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in {"start_activity", "execute_activity", "execute_local_activity", "start_local_activity"}:
            name = getattr(contract, ast.unparse(node.args[0]).removeprefix("contract."))
            (options,) = (ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg is None)
            started[name] = options.removeprefix("activity_options.").partition("(")[0]
    assert {name: getattr(activity_options, row) for name, row in started.items()} == TABLE


@pytest.mark.parametrize("row", EACH_ROW)
def test_every_activity_is_bounded_and_has_a_retry_policy(row: Any) -> None:
    """Temporal's default is endless retries: each row bounds one attempt, all attempts together, and the pauses."""
    policy = row["retry_policy"]
    assert isinstance(policy, RetryPolicy)
    attempt, together = row["start_to_close_timeout"], row["schedule_to_close_timeout"]
    assert timedelta(0) < attempt <= together <= 2 * WEEK + GRACE
    assert policy.initial_interval > timedelta(0)
    assert policy.maximum_interval is not None or policy.maximum_attempts > 0
    if policy.maximum_interval is not None:
        assert policy.initial_interval < policy.maximum_interval < together


@pytest.mark.parametrize("name", [contract.CALL_MODEL, contract.RUN_TOOL])
def test_long_activities_heartbeat(name: str) -> None:
    """An activity that may run for minutes is noticed when its worker dies, well before its own timeout."""
    for row in ROWS[name]:
        assert row["heartbeat_timeout"] < row["start_to_close_timeout"]


def test_a_tools_own_timeout_comes_first() -> None:
    """The activity's timeout leaves the executor time to stop the tool and store what it had written."""
    row = activity_options.run_tool(SHORTEST_TOOL, LIMITS)
    assert row["start_to_close_timeout"] == timedelta(seconds=1) + GRACE
    assert row["schedule_to_close_timeout"] >= OUTAGE
    assert row["task_queue"] is None
    elsewhere = SHORTEST_TOOL.model_copy(update={"queue": "gpu"})
    assert activity_options.run_tool(elsewhere, LIMITS)["task_queue"] == "gpu"


def test_model_retry_follows_the_agents_setting() -> None:
    """``model_retry`` comes on top of one full attempt, so a slow last attempt is not cut off."""
    patient = activity_options.call_model(RunLimits(model_retry_seconds=3600))
    assert patient["schedule_to_close_timeout"] == patient["start_to_close_timeout"] + timedelta(hours=1)


def test_default_run_limits_are_the_agents_default_limits() -> None:
    """The wire's defaults are the same as the builder's."""
    limits, wire = Limits(), RunLimits()
    assert (wire.steps, wire.concurrency, wire.malformed_in_a_row) == (
        limits.steps,
        limits.concurrency,
        limits.malformed_in_a_row,
    )
    assert timedelta(seconds=wire.model_retry_seconds) == limits.model_retry
