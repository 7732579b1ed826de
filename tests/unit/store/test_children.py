"""Sub-agents and control calls in the store: the call that a run answers, the agents above it, what a call requested."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError
from support.stores.stored_requests import live_run

from turngate.domain.runs.run_filter import RunFilter
from turngate.domain.tools.results import Ok
from turngate.store.clock import now
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.runs import calls, messages, runs

SIGNAL = '{"signal":"finish","answer":"é done"}'


async def insert_child(conn: Connection, parent: runs.Run, run_id: str, *, call_id: str = "c1") -> runs.Run:
    """Insert the run that answers a call of the parent, as the engine records it."""
    return await live_run(
        conn,
        run_id,
        task="a task",
        agent="helper",
        workspace="/somewhere",
        started_by=parent.started_by,
        parent_run_id=parent.id,
        parent_tool_call_id=call_id,
        path=f"{parent.path}/helper",
    )


def planned(run: runs.Run, call_id: str, position: int = 0) -> calls.Call:
    return calls.Call(
        run_id=run.id,
        tool_call_id=call_id,
        step=1,
        position=position,
        tool_name="helper",
        input="{}",
        repeat_key="k",
        disposition="run",
        verdict="",
        digest="d",
        policy_version="p",
        effect="idempotent",
    )


async def test_a_run_that_a_person_started_has_no_parent_and_its_own_name_as_path(
    database: Database, run: runs.Run
) -> None:
    """The path is the run's own agent; there is none above it."""
    assert (run.parent_run_id, run.parent_tool_call_id, run.path) == (None, None, "agent")


async def test_tasks_come_from_the_top(database: Database, run: runs.Run) -> None:
    """What a person asked for comes first, then what each agent asked of the next; of many runs in one query."""
    async with database.write() as conn:
        child = await insert_child(conn, run, "run_child")
        below = await insert_child(conn, child, "run_below")
    async with database.read() as conn:
        tasks = await runs.tasks_of(conn, [below.id, run.id])
        assert await runs.tasks_of(conn, []) == {}
    own = runs.RunTask(agent="agent", task=run.task)
    helper = runs.RunTask(agent="helper", task="a task")
    assert tasks == {below.id: [own, helper, helper], run.id: [own]}


async def test_a_child_names_its_call_and_the_agents_above_it(database: Database, run: runs.Run) -> None:
    """Parent run, parent call and path read back as written, three levels deep."""
    async with database.write() as conn:
        child = await insert_child(conn, run, "child")
        grandchild = await insert_child(conn, child, "grandchild", call_id="c7")
    assert (child.parent_run_id, child.parent_tool_call_id, child.path) == (run.id, "c1", "agent/helper")
    assert (grandchild.parent_run_id, grandchild.parent_tool_call_id) == ("child", "c7")
    assert grandchild.path == "agent/helper/helper"
    async with database.read() as conn:
        assert {each.id for each in await runs.page(conn, RunFilter(status="running"), limit=9)} == {
            run.id,
            "child",
            "grandchild",
        }


async def test_a_child_is_recorded_once(database: Database, run: runs.Run) -> None:
    """The same call derives the same run id, so a second recording is refused whole, its conversation included."""
    async with database.write() as conn:
        child = await insert_child(conn, run, "child")
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await insert_child(conn, run, "child")
    async with database.read() as conn:
        assert await runs.get(conn, "child") == child
        assert len(await messages.path_to(conn, child.head_message_id)) == 1


async def test_a_child_ends_independently(database: Database, run: runs.Run) -> None:
    """Ending a child leaves its parent's run live, and vice versa."""
    async with database.write() as conn:
        child = await insert_child(conn, run, "child")
        assert await runs.end(conn, child.id, runs.Ending(status="failed", reason="gone", error_class="workflow_gone"))
        parent = await runs.get(conn, run.id)
        assert parent is not None
        assert parent.status == "running"
        assert await runs.end(conn, run.id, runs.Ending(status="interrupted"))
        ended = await runs.get(conn, child.id)
    assert ended is not None
    assert (ended.status, ended.error_class) == ("failed", "workflow_gone")


async def test_a_call_holds_what_it_asked_for_and_who_answers_it(database: Database, run: runs.Run) -> None:
    """Control call and child are stored with the call, independently, before the call has a result."""
    async with database.write() as conn:
        await calls.insert_planned(conn, [planned(run, "c1"), planned(run, "c2", 1)])
        await calls.set_control_call(conn, run.id, "c1", SIGNAL)
        await calls.set_child(conn, run.id, "c2", "child")
        first, second = await calls.of_step(conn, run.id, 1)
        assert (first.signal, first.child_run_id, first.result) == (SIGNAL, None, None)
        assert (second.signal, second.child_run_id, second.result) == (None, "child", None)
        assert await calls.settle(conn, run.id, "c1", Ok(value={"finished": True}), nonce=run.nonce)
        settled = await calls.get(conn, run.id, "c1")
    assert settled is not None
    assert (settled.signal, settled.settled_result) == (SIGNAL, Ok(value={"finished": True}))


async def test_a_hand_off_keeps_the_agents_above(database: Database, run: runs.Run) -> None:
    """It changes agent, version, model and the last name of the path; the run's parent stays."""
    async with database.write() as conn:
        child = await insert_child(conn, run, "child")
        for each in (run, child):
            await runs.set_lead(conn, each, agent="expert", agent_version="v2", model="scripted:big")
        stored = [await runs.get(conn, each.id) for each in (run, child)]
    changed = {"agent": "expert", "agent_version": "v2", "model": "scripted:big"}
    assert stored == [
        replace(run, **changed, path="expert"),
        replace(child, **changed, path="agent/expert"),
    ]


async def test_a_childs_request_is_in_the_one_inbox_with_its_path(database: Database, run: runs.Run) -> None:
    """Requests of parent and child are one list, oldest first; each names its run and its path."""
    async with database.write() as conn:
        child = await insert_child(conn, run, "child")
        for number, asking in enumerate((child, run)):
            request = requests.Request(
                id=f"rq_{asking.id}",
                run_id=asking.id,
                tool_call_id="p",
                kind="approval",
                status="pending",
                agent=asking.agent,
                tool_name="pay",
                manifest="{}",
                input="{}",
                digest="d",
                rule="r",
                reason="",
                risk="low",
                agent_words="",
                preview_kind=None,
                preview=None,
                not_by=None,
                expires_at=None,
                created_at=f"2026-01-01T00:00:0{number}.000000+00:00",
                urgent_at=f"2026-01-01T00:00:0{number}.000000+00:00",
                path=asking.path,
            )
            await requests.insert_all(conn, [request])
        inbox = await requests.page(conn, limit=9)
        assert [(each.run_id, each.path) for each in inbox] == [("child", "agent/helper"), (run.id, "agent")]
        assert await requests.cancel_pending(conn, run.id, at=now()) == [f"rq_{run.id}"]
        assert [each.run_id for each in await requests.page(conn, limit=9)] == ["child"]
