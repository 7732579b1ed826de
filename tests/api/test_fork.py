"""Forking over HTTP and in the terminal: a new conversation continues after a closed step, and nothing else changes."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from sqlalchemy import Table, select
from support.api.api_server import Api, token_for
from support.engine.stack import Stack, until
from support.engine.sub_agent_app import World, step, task

from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.runs import fork as fork_run
from turngate.approvals_api.runs import start as start_run
from turngate.approvals_api.runs.order import ForkPoint, record, take_back
from turngate.store import agents
from turngate.store.access import access
from turngate.store.runs import runs
from turngate.store.tables import conversations, events, metadata
from turngate.store.tables import messages as messages_table
from turngate.store.tables import runs as runs_table
from turngate.wire.orders import StartOrder

ADA = Principal(name="ada", via="session", scopes=OPERATOR_SCOPES)
SCOPES: list[access.Scope] = ["runs:write", "runs:all", "requests:read"]
"""Of who types a command."""


async def fetch(api: Api, path: str) -> dict[str, Any]:
    answer = await api.operator.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def forked(api: Api, run_id: str, *, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await api.agent.post(f"/api/v1/runs/{run_id}/fork", json=body, headers=headers)


async def finished(api: Api, run_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run = await fetch(api, f"/runs/{run_id}")
        return run if run["status"] != "running" else None

    return await until(look, f"end of {run_id}")


@pytest.fixture(scope="module")
async def run(api: Api) -> dict[str, Any]:
    """A run that has completed."""
    return await finished(api, (await api.start("hello"))["id"])


async def request_of(api: Api, run_id: str) -> dict[str, Any]:
    """The run's pending request, once it is there."""
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, run_id)
    assert run is not None
    return await fetch(api, f"/requests/{(await api.stack.request(run)).id}")


async def approved(api: Api, run_id: str) -> None:
    answer = await api.decide(await request_of(api, run_id))
    assert answer.status_code == 200, answer.text


async def conversation(api: Api, run: dict[str, Any]) -> list[dict[str, Any]]:
    return (await fetch(api, f"/conversations/{run['conversation_id']}/messages"))["items"]


async def rows(engine: Stack, table: Table) -> set[tuple[Any, ...]]:
    async with engine.database.read() as conn:
        return {tuple(row) for row in await conn.execute(select(table))}


async def paid_twice(office: Api) -> dict[str, Any]:
    """A completed run of three steps: two payments and an answer."""
    run = await office.start(task(step(("pay", {"cents": 1})), step(("pay", {"cents": 2}))))
    await approved(office, run["id"])
    await approved(office, run["id"])
    done = await finished(office, run["id"])
    assert (done["status"], len(done["steps"])) == ("completed", 3)
    return done


@pytest.mark.exhaustive
async def test_a_fork_continues_after_a_closed_step(office: Api, world: World) -> None:
    """After step 1 the fork repeats step 2, asks again, and says where it comes from: in run, list and first event."""
    run = await paid_twice(office)
    answer = await forked(office, run["id"], text="Once more.", step=1)
    assert answer.status_code == 201, answer.text
    fork = answer.json()
    assert answer.headers["location"] == f"/api/v1/runs/{fork['id']}"
    assert fork["conversation_id"] != run["conversation_id"]
    assert (fork["agent"], fork["model"], fork["task"]) == (run["agent"], run["model"], "Once more.")
    await approved(office, fork["id"])
    done = await finished(office, fork["id"])
    assert (done["status"], done["final_text"]) == ("completed", "All done.")
    assert world.paid == [1, 2, 2]
    for view in (
        fork,
        done,
        next(each for each in (await fetch(office, "/runs"))["items"] if each["id"] == fork["id"]),
    ):
        assert (view["forked_from_run_id"], view["forked_from_step"]) == (run["id"], 1)
    async with office.stack.database.read() as conn:
        stored = await runs.get(conn, fork["id"])
    assert stored is not None
    first = (await office.stack.events(stored))[0]
    assert (first.type, first.payload["forked_from"]) == ("run.started", {"run_id": run["id"], "step": 1})


@pytest.mark.exhaustive
async def test_a_fork_shares_its_past_and_touches_nothing(office: Api) -> None:
    """Nothing is copied and nothing changes: every earlier row is still there, and every new row belongs to the fork."""
    run = await paid_twice(office)
    tables = [table for table in metadata.sorted_tables if table.name != "event_counter"]
    before = {table.name: await rows(office.stack, table) for table in tables}
    fork = (await forked(office, run["id"], text="And now?")).json()
    await finished(office, fork["id"])
    for table in tables:
        new = await rows(office.stack, table) - before[table.name]
        assert before[table.name] <= await rows(office.stack, table), table.name
        if "run_id" in table.c:
            assert {row[list(table.c).index(table.c.run_id)] for row in new} <= {fork["id"]}, table.name
    past, conversation_now = await conversation(office, run), await conversation(office, fork)
    assert [each["id"] for each in conversation_now[: len(past)]] == [each["id"] for each in past]
    assert [(each["role"], each["run_id"]) for each in conversation_now[len(past) :]] == [
        ("user", fork["id"]),
        ("assistant", fork["id"]),
    ]
    assert (fork["forked_from_step"], conversation_now[len(past)]["parent_id"]) == (3, past[-1]["id"])


@pytest.mark.exhaustive
async def test_a_fork_may_start_from_a_summary_over_http_and_in_the_terminal(
    office: Api,
) -> None:
    """Its start asks for a summary. This model writes none, which the events say, and the past is shared."""
    run = await paid_twice(office)
    over_http = (await forked(office, run["id"], text="And now?", summarise=True)).json()["id"]
    output = await office.printed("fork", run["id"], "And now?", "--summarise")
    assert "after step 3, and begins with a summary of it" in output
    assert "⇒ the conversation is not summarised: the model failed (JSONDecodeError)" in output
    await finished(office, over_http)
    async with office.stack.database.read() as conn:
        stored = await runs.get(conn, over_http)
    assert stored is not None
    recorded = await office.stack.events(stored)
    assert recorded[0].payload["forked_from"] == {"run_id": run["id"], "step": 3, "summarise": True}
    assert recorded[1].type == "context.compaction_skipped"
    past = await conversation(office, run)
    shared = await conversation(office, await fetch(office, f"/runs/{over_http}"))
    assert [each["id"] for each in shared[: len(past)]] == [each["id"] for each in past]


@pytest.mark.exhaustive
async def test_a_running_run_is_forked_at_a_closed_step(office: Api, world: World) -> None:
    """While step 2 waits for a person, the fork leaves after step 1, the newest closed one; run and fork continue apart."""
    run = await office.start(task(step(("pay", {"cents": 1})), step(("pay", {"cents": 2}))))
    await approved(office, run["id"])
    waiting = await request_of(office, run["id"])
    fork = (await forked(office, run["id"], text="Meanwhile…")).json()
    assert fork["forked_from_step"] == 1
    open_step = await forked(office, run["id"], text="x", step=2)
    assert (open_step.status_code, open_step.json()["code"]) == (422, "no_such_step")
    assert open_step.json()["detail"].endswith("has no closed step 2 to fork from: its one closed step is 1")
    assert (await office.decide(await request_of(office, fork["id"]), "reject")).status_code == 200
    assert (await finished(office, fork["id"]))["status"] == "completed"
    assert (await fetch(office, f"/requests/{waiting['id']}"))["status"] == "pending"
    assert (await office.decide(waiting)).status_code == 200
    assert (await finished(office, run["id"]))["status"] == "completed"
    assert world.paid == [1, 2]


async def test_a_fork_can_be_forked(office: Api) -> None:
    """A fork's steps count from 1; its fork shares both pasts. The answer that a control call gave is part of the past."""
    run = await office.start(task(step(("finish", {"answer": "It is 42."}))))
    await finished(office, run["id"])
    first = await finished(office, (await forked(office, run["id"], text="Why?")).json()["id"])
    second = await finished(office, (await forked(office, first["id"], text="Really?", step=1)).json()["id"])
    messages = await conversation(office, second)
    assert [each["role"] for each in messages] == [
        "user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert messages[3]["parts"][0]["text"] == "It is 42."
    assert [each["run_id"] for each in messages] == [run["id"]] * 4 + [first["id"]] * 2 + [second["id"]] * 2


async def test_another_agent_and_model_may_continue(office: Api, tmp_path: Any) -> None:
    """What is left out stays as in the run; another agent comes with its own model."""
    start = await office.start(task(), workspace=str(tmp_path), model="scripted:other")
    run = await finished(office, start["id"])
    same, other, named = [
        (await forked(office, run["id"], text="x", **body)).json()
        for body in ({}, {"agent": "researcher"}, {"model": "scripted:third", "workspace": "/"})
    ]
    assert (same["agent"], same["model"], same["workspace"]) == ("agent", "scripted:other", str(tmp_path))
    assert (other["agent"], other["model"], other["workspace"]) == ("researcher", "scripted:acting", str(tmp_path))
    assert (named["agent"], named["model"], named["workspace"]) == ("agent", "scripted:third", "/")
    for each in (same, other, named):
        assert (await finished(office, each["id"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"text": "x", "step": 2}, "/step"),
        ({"text": "x", "step": 0}, "/step"),
        ({"text": "x", "step": -1}, "/step"),
        ({"text": "x", "step": 10**30}, "/step"),
        ({"text": "x", "step": True}, "/step"),
        ({"text": "x", "step": "1"}, "/step"),
        ({"text": " \n"}, "/text"),
        ({"text": "a\x00"}, "/text"),
        ({}, "/text"),
        ({"text": "x", "agent": "missing"}, "/agent"),
        ({"text": "x", "model": "nocolon"}, "/model"),
        ({"text": "x", "workspace": "relative"}, "/workspace"),
        ({"text": "x", "tools": ["pay", "nope"]}, "/tools"),
        ({"text": "x", "tools": "pay"}, "/tools"),
        ({"text": "x", "instructions": " "}, "/instructions"),
        ({"text": "x", "instructions": "a\x00"}, "/instructions"),
        ({"text": "x", "policy": "[[rule]]"}, "/policy"),
        ({"text": "x", "policy": "not toml"}, "/policy"),
        ({"text": "x", "plain": 1}, "/plain"),
        ({"text": "x", "started_by": "mallory"}, "/started_by"),
    ],
)
async def test_what_does_not_fit_is_422_and_changes_nothing(
    api: Api, body: dict[str, Any], pointer: str, run: dict[str, Any]
) -> None:
    """422 names the place."""
    before = [await rows(api.stack, table) for table in (runs_table, messages_table, conversations, events)]
    answer = await forked(api, run["id"], **body)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text
    assert [await rows(api.stack, table) for table in (runs_table, messages_table, conversations, events)] == before


@pytest.mark.exhaustive
async def test_a_fork_may_have_its_own_instructions_tools_and_policy(api: Api, tmp_path: Any) -> None:
    """Over HTTP and by `turngate fork`: only an admin may set a policy; run, events, terminal and page display all three."""
    run = await finished(api, (await api.start("hello"))["id"])
    refused = await forked(api, run["id"], text="x", policy="")
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    unknown = (await forked(api, run["id"], text="x", tools=["nope"])).json()
    assert unknown["code"] == "unknown_tool"
    assert "its tools are: pay, pay_shared, ask_person" in unknown["detail"]

    rules, words = tmp_path / "rules.toml", tmp_path / "words.txt"
    rules.write_text('[[rule]]\nname = "open"\nverdict = "allow"\ntools = ["pay"]\nreason = "\u202e<b>"\n')
    words.write_text("Be \u202e<b>bold.")
    options = ["--tools", "pay,ask_person", "--instructions", str(words), "--policy", str(rules)]
    output = await api.printed("fork", run["id"], "pay 5", *options)
    assert "has its own instructions, tools (pay, ask_person), policy (" in output
    fork_id = output.split()[1]
    shown_run = await fetch(api, f"/runs/{fork_id}")
    assert (shown_run["own"]["tools"], shown_run["own"]["policy"]) == (["pay", "ask_person"], rules.read_text())
    assert shown_run["steps"][0]["calls"][0]["verdict"]["rule"] == "open"
    assert (await fetch(api, f"/runs/{run['id']}"))["own"] is None
    rules.write_text("[[rule]]\nname = 1\n")
    assert f"{rules}:2" in await api.printed("fork", run["id"], "x", *options, code=2)

    page = await api.page(f"/runs/{fork_id}")
    assert "Its own policy, instead of all other rules and grants" in page
    assert "<code><bdi lang translate=no>ask_person</bdi></code>" in page
    assert not {"\u202e"} & set(page)
    assert "<b>bold" not in page


@pytest.mark.exhaustive
async def test_a_missing_step_is_answered_with_the_closed_steps(office: Api) -> None:
    """The message lists the closed steps, or says why there are none; an unknown run is 404."""
    run = await paid_twice(office)
    assert "its closed steps are 1 to 3" in (await forked(office, run["id"], text="x", step=9)).json()["detail"]
    live = await office.start(task(step(("pay", {"cents": 1}))))
    await request_of(office, live["id"])
    detail = (await forked(office, live["id"], text="x")).json()["detail"]
    assert detail == f"run {live['id']} has no closed step to fork from: none of its steps is closed yet"
    assert (await forked(office, "run_none", text="x")).status_code == 404


async def test_only_who_may_start_runs_may_fork(api: Api, run: dict[str, Any]) -> None:
    """A token that may only read gets 403, a stranger 401, another site's page 403."""
    reader = await token_for(api.stack.database, "reader", "requests:read")
    path = f"/api/v1/runs/{run['id']}/fork"
    assert (await api.stranger.post(path, json={"text": "x"}, headers=reader)).status_code == 403
    assert (await api.stranger.post(path, json={"text": "x"})).status_code == 401
    elsewhere = {"Origin": "https://elsewhere.test"}
    assert (await api.operator.post(path, json={"text": "x"}, headers=elsewhere)).status_code == 403


async def test_the_same_key_starts_one_fork(api: Api, run: dict[str, Any]) -> None:
    """Idempotency-Key: ten at once start one fork; another step or text with it is 409, and so is a plain run."""
    key = secrets.token_hex(8)
    answers = await asyncio.gather(*(forked(api, run["id"], key=key, text="x") for _ in range(10)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    for body in ({"text": "x", "step": 1}, {"text": "y"}, {"text": "x", "model": "scripted:other"}):
        other = await forked(api, run["id"], key=key, **body)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    plain = {"agent": "agent", "input": "x"}
    reused = await api.agent.post("/api/v1/runs", json=plain, headers={"Idempotency-Key": key})
    assert reused.status_code == 409


@pytest.mark.exhaustive
async def test_the_same_key_means_the_same_fork_after_further_steps(office: Api) -> None:
    """Without a step the newest one counts; sent again after the next step has closed, the key still means the first fork."""
    run = await office.start(task(step(("pay", {"cents": 1})), step(("pay", {"cents": 2}))))
    await approved(office, run["id"])
    await request_of(office, run["id"])
    first = await forked(office, run["id"], key="k", text="x")
    await approved(office, run["id"])
    await finished(office, run["id"])
    again = await forked(office, run["id"], key="k", text="x")
    assert (again.json()["id"], again.json()["forked_from_step"]) == (first.json()["id"], 1)


async def test_without_temporal_nothing_is_forked(cut_off: Api, api: Api, run: dict[str, Any]) -> None:
    """503, and no row is left."""
    before = [await rows(api.stack, table) for table in (runs_table, messages_table, conversations, events)]
    assert (await forked(cut_off, run["id"], text="x")).status_code == 503
    assert [await rows(api.stack, table) for table in (runs_table, messages_table, conversations, events)] == before


async def recorded(api: Api, run: dict[str, Any]) -> runs.Run:
    """A fork of this run that is only in the store, as after a crash."""
    order = await start_run.checked_order(StartOrder(agent="agent", input="x"), ADA)
    async with api.stack.database.write() as conn:
        published, source = await agents.get(conn, "agent"), await runs.get(conn, run["id"])
        assert published is not None
        assert source is not None
        point: ForkPoint = await fork_run.fork_point(conn, source, None)
        return await record(conn, ADA, published, replace(order, forked_from=point))


async def test_a_fork_that_did_not_start_is_removed_alone(api: Api, run: dict[str, Any]) -> None:
    """Temporal went away in between: the fork's rows and conversation are removed, and the shared past stays."""
    before = [await rows(api.stack, table) for table in (runs_table, messages_table, conversations)]
    fork = await recorded(api, run)
    order = await start_run.checked_order(StartOrder(agent="agent", input="x"), ADA)
    async with api.stack.database.write() as conn:
        await take_back(conn, fork, order)
    assert [await rows(api.stack, table) for table in (runs_table, messages_table, conversations)] == before


async def test_i5_a_fork_that_was_only_recorded_is_started_later(api: Api, run: dict[str, Any]) -> None:
    """I5: a crash between the store and Temporal leaves it without a workflow; the sweep at start-up starts it."""
    fork = await recorded(api, run)
    assert await start_run.start_recorded(api.stack.services) >= 1
    assert (await finished(api, fork.id))["status"] == "completed"


@pytest.mark.exhaustive
async def test_page_and_terminal_say_where_a_fork_comes_from(api: Api) -> None:
    """`turngate fork` starts and follows it; story, list and page name run and step, with a link."""
    printed = partial(api.printed, scopes=SCOPES)
    run = await finished(api, (await api.start("hello"))["id"])
    output = await printed("fork", run["id"], "And now?", "--step", "1", "--model", "scripted:other")
    assert f"⇒ forked from run {run['id']} after step 1" in output
    assert f"{api.url}/runs/{run['id']}" in output
    assert "completed after 1 step" in output
    fork_id = (await printed("fork", run["id"], "Again.", "--no-watch")).strip()
    assert (await finished(api, fork_id))["forked_from_run_id"] == run["id"]
    listed = {line.split("\t")[0]: line.split("\t") for line in (await printed("runs")).splitlines()}
    assert listed[fork_id][5] == f"fork of run {run['id']}: Again."
    await printed("fork", run["id"], "x", "--step", "7", code=1)

    assert f'<a href="/runs/{run["id"]}#step-1">' in await api.page(f"/runs/{fork_id}")
    assert "forked from" not in await api.page(f"/runs/{run['id']}")


async def test_a_retry_is_called_a_retry(api: Api) -> None:
    """Page, lists, story and API say which run it retries; none of them calls it a fork."""
    printed = partial(api.printed, scopes=SCOPES)
    started = (await api.start("hello"))["id"]
    await finished(api, started)
    await api.stack.change(runs_table, {"id": started}, status="failed")
    output = await printed("retry", started)
    assert f"⇒ retries run {started}, which ended at step 1" in output
    retry_id = next(line.split("\t")[0] for line in (await printed("runs")).splitlines() if "retry of" in line)
    assert f"retry of run {started}: hello" in await printed("runs")
    retried = await finished(api, retry_id)
    assert (retried["is_retry"], retried["forked_from_run_id"]) == (True, started)

    page = await api.page(f"/runs/{retry_id}")
    assert f'<dt>retries</dt><dd><a href="/runs/{started}">' in page
    assert "forked from" not in page
    assert '<span class="chip retry">retry</span>' in await api.page("/runs")
