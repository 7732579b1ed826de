"""Runs of an encrypted store: what Temporal has of them, and workers without their key."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from support.engine.stack import ListModel, Stack, call, says, stack, until, with_short_tasks
from support.stores.encryption import encrypted
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory

from turngate import Policy, ToolFailure, tool
from turngate.approvals_api.gateway.workflow_status import look_at
from turngate.domain.errors import ModelError
from turngate.runtime.temporal_client import codec_of, with_keys_of
from turngate.runtime.workflow_code import build_replayer
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.workflows.agent_turn import AgentTurn

PLANTED = "Ximena-4711"
"""In the task, an argument, a result, and in what a provider and a tool say of their failures."""


class Note(BaseModel):
    text: str


class Full(ToolFailure):
    """There is no place for it."""

    reason: str


@tool(effect="once", ask=True, failures=[Full], failure_mode="raise")
async def write(params: Note) -> dict[str, str]:
    """Write a note."""
    raise Full(reason=f"no place for {params.text}")


def failing_model() -> ListModel:
    return ListModel(
        ModelError(f"the prompt about {PLANTED} is too long", error_class="context_length", retryable=False)
    )


def writing() -> ListModel:
    return ListModel(says(f"I write {PLANTED}.", call("write", f'{{"text": "{PLANTED}"}}', "c1")))


async def ended_with_failure(engine: Stack, *, gated: bool) -> WorkflowHistory:
    run = await engine.start(f"Write about {PLANTED}.")
    if gated:
        await engine.decide(await engine.request(run), "approve", message=f"{PLANTED} is right.")
    ended = await engine.ended(run)
    assert ended.status == "failed"
    assert PLANTED in str(ended.reason)
    await engine.closed(run)
    return await engine.workflow(run).fetch_history()


def payloads_of(message: Any) -> list[Payload]:
    """All payloads anywhere in a message of Temporal's protocol."""
    if isinstance(message, Payload):
        return [message]
    below: list[Payload] = []
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        values = value if field.is_repeated else [value]
        if field.message_type.GetOptions().map_entry:
            values = [each for each in value.values() if hasattr(each, "ListFields")]
        for each in values:
            below.extend(payloads_of(each))
    return below


@pytest.mark.parametrize("gated", [False, True], ids=["model", "tool"])
async def test_i8_nothing_of_a_failure_is_readable_in_the_history(
    client: Client, sqlite: Database, gated: bool
) -> None:
    """I8: messages and stacks of failures are in Temporal's history; of an encrypted store no one reads them there.

    Labels stay plain, because the server finds runs by them (docs/adr/0058).
    """
    model = writing() if gated else failing_model()
    async with stack(client, sqlite, write, model=model) as engine:
        history = await ended_with_failure(engine, gated=gated)
        plain = b"".join(event.SerializeToString() for event in history.events)
    assert PLANTED.encode() in plain  # that is why they are encrypted
    await encrypted(sqlite)
    model = writing() if gated else failing_model()
    async with stack(client, sqlite, write, model=model) as engine:
        history = await ended_with_failure(engine, gated=gated)
    replayed = WorkflowHistory(
        history.workflow_id, [HistoryEvent.FromString(each.SerializeToString()) for each in history.events]
    )
    history.events[0].workflow_execution_started_event_attributes.ClearField("search_attributes")
    sealed = b"".join(event.SerializeToString() for event in history.events)
    for word in (PLANTED.encode(), b"Traceback", b"run_tool.py", b"model_call.py", b'"agent"'):
        assert word not in sealed
    payloads = [each for event in history.events for each in payloads_of(event)]
    assert len(payloads) > 5
    assert {each.metadata["encoding"] for each in payloads} == {b"binary/encrypted"}
    replayer = build_replayer(AgentTurn, codec=codec_of(sqlite))
    await replayer.replay_workflow(replayed)


async def test_why_a_run_waits_is_read_with_the_key_only(client: Client, sqlite: Database) -> None:
    """The failure of the attempt before is in Temporal, encrypted: pages explain a wait with it."""
    await encrypted(sqlite)
    slow = ModelError(f"slow down, {PLANTED}", error_class="rate_limited", retryable=True, retry_after_seconds=540)
    async with stack(client, sqlite, model=ListModel(slow)) as engine:
        run = await engine.start()

        async def failed_once(client: Client) -> list[str]:
            look = await look_at(client, run.id)
            return [each.last_failure for each in look.activities if each.attempt > 1]

        [reason] = await until(lambda: failed_once(engine.client), "a second attempt")
        assert f"slow down, {PLANTED}" in reason
        assert await failed_once(client) == [""]  # of a process without the key
        await engine.interrupt(run)
        await engine.ended(run)


async def test_i5_a_run_from_before_encryption_continues_after_it(client: Client, sqlite: Database, bench: Any) -> None:
    """I5: a run waits at its gate; every process stops, `keys init` runs, and they start with the key."""
    model = ListModel(says(call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(client, sqlite, bench.pay, model=model, working=False) as engine:
        async with engine.worker():
            run = await engine.start()
            await engine.request(run)
            await engine.idle(run)
        await encrypted(sqlite)
        later = Stack(with_keys_of(client, sqlite), sqlite, engine.engine, engine.task_queue)
        async with later.worker():
            await later.decide(await later.request(run), "approve")
            assert (await later.ended(run)).status == "completed"
    assert bench.paid == [5]


async def test_i5_a_worker_without_the_key_says_so_and_loses_nothing(
    client: Client, sqlite: Database, bench: Any
) -> None:
    """I5: its tasks fail with an error that names the key; a worker with the key then completes the run."""
    await encrypted(sqlite)
    model = ListModel(says(call("pay", '{"cents": 5}', "c1")), says("Done."))
    async with stack(
        with_short_tasks(client), sqlite, bench.pay, model=model, policy=Policy(), working=False
    ) as engine:
        without = Stack(client, sqlite, engine.engine, engine.task_queue)
        async with without.worker():
            run = await engine.start()
            failed = await until(lambda: task_failure(engine, run), "the worker's failure")
        assert "is encrypted with the key" in failed
        assert "this process has no key" in failed
        async with engine.worker():
            await engine.decide(await engine.request(run), "approve")
            assert (await engine.ended(run)).status == "completed"
    assert bench.paid == [5]


async def task_failure(engine: Stack, run: runs.Run) -> str | None:
    history = await engine.workflow(run).fetch_history()
    failures = [event.workflow_task_failed_event_attributes.failure for event in history.events]
    return next((str(each) for each in failures if each.message or each.HasField("cause")), None)
