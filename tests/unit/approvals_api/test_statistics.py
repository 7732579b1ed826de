"""How people decide is counted per tool and rule, of the newest approvals, and names no one."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from support.planted.pages import pages_of
from support.planted.text import Filling
from support.stores.stored_requests import AT, live_run, open_requests, request_row

from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.requests.statistics import MOST_ENDED, Decisions, Statistics, how_people_decide
from turngate.domain.policy.terms import Role
from turngate.domain.requests import STATUS_OF_VERB, Verb
from turngate.store.access import sessions
from turngate.store.clock import as_text
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.runs.runs import Run
from turngate.store.tables import executions
from turngate.wire.orders import DecisionOrder


async def end(conn: Connection, run: Run, request_id: str, verb: Verb | None, *, after: int, **more: Any) -> None:
    """Insert a request that ended so many seconds after it was opened. ``verb`` None: it expired."""
    await open_requests(conn, [request_row(run, request_id, **more)])
    status = "expired" if verb is None else STATUS_OF_VERB[verb]
    by = {} if verb is None else {"decision_id": f"d_{request_id}", "verb": verb, "by": "ann"}
    ending = requests.Ending(status=status, at=AT + timedelta(seconds=after), **by)  # type: ignore[arg-type]
    assert await requests.settle(conn, request_id, ending)


async def test_decisions_are_counted_per_tool_and_rule(database: Database) -> None:
    """Each verb, what no one answered, the median times of the decided to answer and of looks, and calls that went wrong."""
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        await end(conn, run, "a", "approve", after=10)
        await end(conn, run, "b", "approve", after=30)
        await end(conn, run, "c", "edit", after=50)
        await end(conn, run, "d", "reject", after=20)
        await end(conn, run, "e", None, after=9_000)
        await end(conn, run, "f", "respond", after=5, rule="four-eyes")
        await end(conn, run, "g", "respond", after=5, kind="question")
        await open_requests(conn, [request_row(run, "h")])
        for request_id, state in (("a", "failed"), ("b", "succeeded"), ("c", "unknown"), ("d", "failed")):
            call = {"run_id": run.id, "tool_call_id": f"call of {request_id}", "state": state, "digest": "d"}
            more = {"idempotency_key": request_id, "attempts": 1, "started_at": as_text(AT)}
            await conn.execute(insert(executions).values(**call, **more))
        for request_id, looked in (("a", 4_000), ("c", 9_000), ("d", None)):
            order = DecisionOrder(verb="approve", digest="d", looked_ms=looked)
            decision = requests.new_decision(order, decision_id=f"d_{request_id}", request_id=request_id, by="ann")
            await requests.add_decision(conn, decision)
        pay, four_eyes = (await how_people_decide(conn)).rows
    assert (pay.tool_name, pay.rule, pay.count) == ("pay", "default", 5)
    assert (pay.approved, pay.edited, pay.rejected, pay.answered, pay.unanswered) == (2, 1, 1, 0, 1)
    assert (pay.median_seconds, pay.median_looked_seconds, pay.regrets) == (25.0, 6.5, 2)
    assert four_eyes.median_looked_seconds is None
    assert (four_eyes.rule, four_eyes.count, four_eyes.answered, four_eyes.regrets) == ("four-eyes", 1, 1, 0)
    assert not {each.name for each in fields(Statistics)} & {"decided_by", "operator", "name"}


async def test_an_approval_that_was_taken_back_is_no_approval(database: Database) -> None:
    """It is counted on its own; one that no longer counted for another reason stays an approval."""
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        for request_id, reason in (
            ("a", f"ann{requests.TOOK_BACK} default"),
            ("b", "its precondition changed"),
            ("c", ""),
        ):
            await end(conn, run, request_id, "approve", after=10)
            first = await requests.get(conn, request_id)
            assert first is not None
            if reason:
                again = replace(request_row(run, requests.again_id(first)), reason=reason)
                await open_requests(conn, [replace(again, tool_call_id=first.tool_call_id)])
        decisions = await how_people_decide(conn)
    (row,) = decisions.rows
    assert (row.count, row.approved, row.taken_back) == (3, 2, 1)
    assert [each.counts["taken_back"] for each in decisions.periods] == [1]


async def test_only_the_newest_approvals_count(database: Database) -> None:
    """However many there are, the newest are read and no more."""
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        ended = [
            request_row(run, f"rq_{n}", status="rejected", verb="reject", decided_at=as_text(AT + timedelta(seconds=n)))
            for n in range(MOST_ENDED + 3)
        ]
        ended[0] = request_row(
            run, "rq_oldest", tool_name="old", status="rejected", verb="reject", decided_at=as_text(AT)
        )
        await open_requests(conn, ended)
        (row,) = (await how_people_decide(conn)).rows
    assert (row.tool_name, row.rejected) == ("pay", MOST_ENDED)


async def test_no_approvals_make_no_rows(database: Database) -> None:
    """Before anyone has decided there is nothing to count."""
    async with database.read() as conn:
        assert await how_people_decide(conn) == Decisions(rows=[], periods=[], waits=[])


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 200), ("admin", 200)])
async def test_those_who_decide_see_the_page(sqlite_template: Path, tmp_path: Path, role: Role, status: int) -> None:
    """Operators and admins; the policy page leads them there."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / role) as served:
        async with served.database.write() as conn:
            cookie = {"Cookie": f"{SESSION_COOKIE}={await sessions.begin(conn, f'a {role}', role=role)}"}
        assert (await served.client.get("/decisions", headers=cookie)).status_code == status
        policy = await served.client.get("/policy", headers=cookie)
        assert ('href="/decisions"' in policy.text) == (status == HTTPStatus.OK)
