"""Runs over HTTP: starting, dedupe, conversations, interrupting, paging."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from support.api.api_server import Api, token_for
from support.engine.stack import until

from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.runs import start
from turngate.approvals_api.runs.order import keep, record, take_back
from turngate.domain.errors import UnavailableError
from turngate.store import agents
from turngate.store.runs import messages, runs
from turngate.store.tables import conversations
from turngate.store.tables import messages as messages_table
from turngate.store.tables import runs as runs_table
from turngate.wire.orders import StartOrder


async def finished(api: Api, run_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run = (await api.operator.get(f"/api/v1/runs/{run_id}")).json()
        return run if run["status"] != "running" else None

    return await until(look, f"end of {run_id}")


async def counts(api: Api) -> tuple[int, ...]:
    async with api.stack.database.read() as conn:
        return tuple(
            [
                (await conn.execute(select(func.count()).select_from(table))).scalar_one()
                for table in (runs_table, messages_table, conversations)
            ]
        )


async def test_a_run_is_started_and_ends(api: Api, tmp_path: Path) -> None:
    """201 with its Location; it reads back with what was ordered, and completes."""
    answer = await api.agent.post(
        "/api/v1/runs",
        json={"agent": "agent", "input": "hello", "workspace": str(tmp_path), "model": "scripted:other"},
    )
    assert answer.status_code == 201, answer.text
    run = answer.json()
    assert answer.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert (run["status"], run["workspace"], run["model"]) == ("running", str(tmp_path), "scripted:other")
    assert run["started_by"].startswith("bot-")
    done = await finished(api, run["id"])
    assert (done["status"], done["final_text"], len(done["steps"])) == ("completed", "Done.", 1)


async def test_a_run_is_below_its_callers_span(api: Api) -> None:
    """W3C's ``traceparent`` at the start of a run is stored; one that is none changes nothing."""
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    stored: list[str | None] = []
    for header in (caller, caller + "'; DROP TABLE runs", "0" * 5_000):
        body = {"agent": "agent", "input": "hello"}
        started = await api.operator.post("/api/v1/runs", json=body, headers={"traceparent": header})
        assert started.status_code == 201, started.text
        async with api.stack.database.read() as conn:
            run = await runs.get(conn, started.json()["id"])
        assert run is not None
        stored.append(run.traceparent)
    assert stored == [caller, None, None]


async def test_the_same_key_starts_one_run(api: Api) -> None:
    """Idempotency-Key: ten requests at once start one run; the same key with another body is 409."""
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"agent": "agent", "input": "hello"}
    answers = await asyncio.gather(*(api.agent.post("/api/v1/runs", json=body, headers=headers) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await api.agent.post("/api/v1/runs", json={**body, "input": "bye"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


async def test_a_key_belongs_to_the_credential_that_sent_it(api: Api) -> None:
    """Another person, and another token of the same name, use the same key for runs and messages of their own."""
    key = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"agent": "agent", "input": "hello"}
    first = (await api.agent.post("/api/v1/runs", json=body, headers=key)).json()
    twin = await token_for(api.stack.database, first["started_by"], "runs:write", "requests:read")
    answers = [
        await api.operator.post("/api/v1/runs", json=body, headers=key),
        await api.stranger.post("/api/v1/runs", json=body, headers={**key, **twin}),
    ]
    assert [answer.status_code for answer in answers] == [201, 201]
    runs = [first, *(answer.json() for answer in answers)]
    assert len({run["id"] for run in runs}) == 3
    assert runs[2]["started_by"] == first["started_by"]
    again = await api.stranger.post("/api/v1/runs", json=body, headers={**key, **twin})
    assert again.json()["id"] == runs[2]["id"]

    await finished(api, first["id"])
    path, message = f"/api/v1/runs/{first['id']}/messages", {"input": "and then?"}
    followed = await api.agent.post(path, json=message, headers=key)
    assert (followed.status_code, followed.json()["code"]) == (409, "idempotency_key_reused")
    key = {"Idempotency-Key": secrets.token_hex(8)}
    second = (await api.agent.post(path, json=message, headers=key)).json()
    await finished(api, second["id"])
    third = await api.stranger.post(path, json=message, headers={**key, **twin})
    assert third.json()["id"] not in {first["id"], second["id"]}
    await finished(api, third.json()["id"])


async def test_a_key_of_a_queued_message_belongs_to_its_credential(api: Api) -> None:
    """Two tokens of one name send under one key to a live run: two messages; each one's repeat is its own first one."""
    request = await api.gated()
    path, key = f"/api/v1/runs/{request['run_id']}/messages", {"Idempotency-Key": secrets.token_hex(8)}
    starter = (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()["started_by"]
    twin = await token_for(api.stack.database, starter, "runs:write", "requests:read")
    message = {"input": "and then?", "while_running": "inject"}
    for client, more in ((api.agent, {}), (api.stranger, twin), (api.agent, {}), (api.stranger, twin)):
        assert (await client.post(path, json=message, headers={**key, **more})).status_code in {200, 201, 202}
    run = (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()
    assert [each["text"] for each in run["waiting_messages"]] == ["and then?"] * 2
    other = await api.stranger.post(path, json={**message, "input": "or else?"}, headers={**key, **twin})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert (await api.decide(request)).status_code == 200
    await finished(api, request["run_id"])


async def test_a_conversation_continues(api: Api) -> None:
    """The next run of a conversation reads the first one's messages; while one is live, another is 409 run_live."""
    request = await api.gated()
    path = f"/api/v1/runs/{request['run_id']}/messages"
    conversation = (await api.agent.get(f"/api/v1/runs/{request['run_id']}")).json()["conversation_id"]
    body = {"agent": "agent", "input": "and?", "conversation_id": conversation}
    live = await api.agent.post("/api/v1/runs", json=body)
    assert (live.status_code, live.json()["code"]) == (409, "run_live")
    assert live.json()["run_id"] == request["run_id"]
    assert (await api.decide(request)).status_code == 200
    first = await finished(api, request["run_id"])
    second = await api.agent.post(path, json={"input": "thanks"})
    assert second.status_code == 201, second.text
    assert second.json()["conversation_id"] == first["conversation_id"]
    await finished(api, second.json()["id"])
    listed = await api.agent.get(f"/api/v1/conversations/{first['conversation_id']}/messages")
    assert [message["role"] for message in listed.json()["items"]] == [
        "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert (await api.agent.get("/api/v1/conversations/conv_none/messages")).status_code == 404


async def test_a_live_run_takes_messages_and_is_paused_and_resumed(api: Api) -> None:
    """202 with the live run; it lists what waits for it and who paused it; an ended one is 409, nonsense is 422."""
    request = await api.gated()
    path = f"/api/v1/runs/{request['run_id']}"
    sent = await api.agent.post(f"{path}/messages", json={"input": "hurry", "while_running": "inject"})
    assert (sent.status_code, sent.json()["id"]) == (202, request["run_id"])
    nonsense = await api.agent.post(f"{path}/messages", json={"input": "hurry", "while_running": "drop"})
    assert (nonsense.status_code, nonsense.json()["errors"][0]["pointer"]) == (422, "/while_running")
    assert (await api.agent.post(f"{path}/pause", json={"reason": "lunch"})).status_code == 202

    async def held() -> dict[str, Any] | None:
        run = (await api.agent.get(path)).json()
        return run if run["paused_at"] is not None else None

    paused = await until(held, "held run")
    assert (paused["status"], paused["pause_reason"]) == ("running", "lunch")
    assert [each["text"] for each in paused["waiting_messages"]] == ["hurry"]
    assert (await api.decide(request)).status_code == 200
    assert (await api.agent.post(f"{path}/resume")).status_code == 202
    assert (await finished(api, request["run_id"]))["waiting_messages"] == []
    for word in ("pause", "resume"):
        ended = await api.agent.post(f"{path}/{word}")
        assert (ended.status_code, ended.json()["code"]) == (409, "run_ended")
    assert (await api.stranger.post(f"{path}/pause")).status_code == 401


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"agent": "missing", "input": "x"}, "/agent"),
        ({"agent": "agent", "input": " "}, "/input"),
        ({"agent": "agent", "input": "x" * 100_001}, "/input"),
        ({"agent": "agent", "input": "a\x00"}, "/input"),
        ({"agent": "agent", "input": "x", "workspace": "relative"}, "/workspace"),
        ({"agent": "agent", "input": "x", "workspace": "/nowhere/at/all"}, "/workspace"),
        ({"agent": "agent", "input": "x", "model": "nocolon"}, "/model"),
        ({"agent": "agent", "input": "x", "started_by": "mallory"}, "/started_by"),
        ({"agent": "agent", "input": 5}, "/input"),
        ({"agent": "agent"}, "/input"),
    ],
)
async def test_a_run_that_cannot_be_started_is_422_and_leaves_nothing(
    api: Api, body: dict[str, Any], pointer: str
) -> None:
    """422 with a pointer; no run, message or conversation is created."""
    before = await counts(api)
    answer = await api.agent.post("/api/v1/runs", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert await counts(api) == before


async def test_an_unknown_agent_is_answered_with_the_known_ones(api: Api) -> None:
    """The message lists them, and so does GET /agents."""
    answer = await api.agent.post("/api/v1/runs", json={"agent": "missing", "input": "x"})
    assert "the agents are: agent" in answer.json()["detail"]
    listed = (await api.agent.get("/api/v1/agents")).json()["items"]
    assert [(agent["name"], agent["tools"]) for agent in listed] == [("agent", ["pay", "pay_shared", "ask_person"])]


async def test_unknown_runs_and_conversations_are_404(api: Api) -> None:
    """404 as a problem document, for every endpoint under a run."""
    for path in ("/api/v1/runs/run_none", "/api/v1/runs/run_none/events"):
        answer = await api.agent.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    for path in ("/api/v1/runs/run_none/interrupt", "/api/v1/runs/run_none/messages"):
        assert (await api.agent.post(path, json={"input": "x"} if path.endswith("messages") else {})).status_code == 404
    body = {"agent": "agent", "input": "x", "conversation_id": "conv_none"}
    assert (await api.agent.post("/api/v1/runs", json=body)).status_code == 404


async def test_an_ended_run_cannot_be_interrupted(api: Api) -> None:
    """409 run_ended; a live one takes 202, with or without a body."""
    run = await api.start("hello")
    await finished(api, run["id"])
    answer = await api.agent.post(f"/api/v1/runs/{run['id']}/interrupt")
    assert (answer.status_code, answer.json()["code"]) == (409, "run_ended")
    request = await api.gated()
    assert (await api.agent.post(f"/api/v1/runs/{request['run_id']}/interrupt")).status_code == 202
    assert (await finished(api, request["run_id"]))["status"] == "interrupted"


async def test_with_temporal_away_nothing_starts_and_nothing_is_left(cut_off: Api) -> None:
    """503; no run, message or conversation."""
    before = await counts(cut_off)
    answer = await cut_off.agent.post("/api/v1/runs", json={"agent": "agent", "input": "hello"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert await counts(cut_off) == before


async def test_i5_an_interrupt_counts_with_temporal_away(api: Api, cut_off: Api) -> None:
    """I5: the order is stored at once: nothing can be decided any more, and the run stops when Temporal is back."""
    request = await api.gated()
    answer = await cut_off.agent.post(f"/api/v1/runs/{request['run_id']}/interrupt", json={"reason": "stop"})
    assert answer.status_code == 202
    late = await api.decide(request)
    assert (late.status_code, late.json()["code"]) == (410, "run_ended")
    ended = await finished(api, request["run_id"])
    assert (ended["status"], ended["reason"]) == ("interrupted", "stop")


async def test_a_start_that_fails_halfway_is_undone(api: Api, cut_off: Api) -> None:
    """Temporal lost between the check and the start: run, message and conversation are removed, the head moves back."""
    run = await api.start("hello")
    await finished(api, run["id"])
    async with api.stack.database.read() as conn:
        head = await messages.head_of(conn, run["conversation_id"])
        published = await agents.get(conn, "agent")
    assert published is not None
    before = await counts(api)
    principal = Principal(name="ada", via="session", scopes=OPERATOR_SCOPES)
    for conversation_id in (run["conversation_id"], None):
        wanted = StartOrder(agent="agent", input="x", conversation_id=conversation_id)
        order = await start.checked_order(wanted, principal)
        async with api.stack.database.write() as conn:
            recorded = await record(conn, principal, published, order)
        async with api.stack.database.write() as conn:
            await take_back(conn, recorded, order)
    assert await counts(api) == before
    async with api.stack.database.read() as conn:
        assert await messages.head_of(conn, run["conversation_id"]) == head


async def test_i5_a_run_that_a_repeat_has_started_stays(idle: Api) -> None:
    """I5: the first attempt waits for Temporal, a repeat of its key is answered 201, and then the first one gives up."""
    principal = Principal(name="ada", via="session", scopes=OPERATOR_SCOPES)
    wanted = StartOrder(agent="agent", input="pay 5")
    order = await start.checked_order(wanted, principal, idempotency_key="repeated")
    async with idle.stack.database.write() as conn:
        published = await agents.get(conn, "agent")
        assert published is not None
        first = await record(conn, principal, published, order)
    again = await start.start(idle.stack.services, principal, wanted, idempotency_key="repeated")
    assert again.id == first.id
    async with idle.stack.database.write() as conn:
        assert not await take_back(conn, first, order)
    async with idle.stack.worker():
        assert (await idle.decide(await idle.request({"id": first.id}))).status_code == 200
        assert (await finished(idle, first.id))["status"] == "completed"


async def test_a_repeat_of_a_run_that_was_taken_back_says_so(api: Api) -> None:
    """The other order: nothing is there to keep, so the repeat isn't answered with a run that is gone."""
    principal = Principal(name="ada", via="session", scopes=OPERATOR_SCOPES)
    order = await start.checked_order(StartOrder(agent="agent", input="x"), principal)
    async with api.stack.database.write() as conn:
        published = await agents.get(conn, "agent")
        assert published is not None
        first = await record(conn, principal, published, order)
    async with api.stack.database.write() as conn:
        assert await take_back(conn, first, order)
    with pytest.raises(UnavailableError, match="taken back"):
        async with api.stack.database.write() as conn:
            await keep(conn, first)


async def test_i5_a_run_that_was_only_recorded_is_started_later(api: Api) -> None:
    """I5: a crash between the store and Temporal leaves a run without a workflow; the sweep at start-up starts it."""
    async with api.stack.database.write() as conn:
        published = await agents.get(conn, "agent")
        assert published is not None
        principal = Principal(name="ada", via="session", scopes=OPERATOR_SCOPES)
        order = await start.checked_order(StartOrder(agent="agent", input="hello"), principal)
        run = await record(conn, principal, published, order)
    assert await start.start_recorded(api.stack.services) >= 1
    assert (await finished(api, run.id))["status"] == "completed"
    await start.start_recorded(api.stack.services)
    async with api.stack.database.read() as conn:
        again = await runs.get(conn, run.id)
    assert again is not None
    assert again.step == 1


@pytest.mark.exhaustive
async def test_lists_are_paged_by_cursor(api: Api) -> None:
    """Every run once, newest first; every pending request once, oldest first; a bad cursor is 422."""
    started = [(await api.gated())["run_id"] for _ in range(3)]
    for path, newest_first in (("/api/v1/runs", True), ("/api/v1/requests", False)):
        seen: list[dict[str, Any]] = []
        cursor = None
        while True:
            query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = (await api.operator.get(path, params=query)).json()
            assert len(page["items"]) <= 2
            seen += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        keys = [(item["created_at"], item["id"]) for item in seen]
        assert keys == sorted(set(keys), reverse=newest_first)
        assert set(started) <= {item.get("run_id", item["id"]) for item in seen}
        # The last one has characters that no cursor has, as the document says: it is refused before it is read.
        bad = {"x": "bad_cursor", "bm90IGEgY3Vyc29y": "bad_cursor", "fHw": "bad_cursor", "!!!": "invalid_input"}
        for cursor, code in bad.items():
            answer = await api.operator.get(path, params={"cursor": cursor})
            assert (answer.status_code, answer.json()["code"]) == (422, code)
        for limit in ("0", "201", "many"):
            assert (await api.operator.get(path, params={"limit": limit})).status_code == 422


async def test_the_inbox_filters_and_counts(planned: Api) -> None:
    """Pending by default; by status, by run; the count is the number of those."""
    request = await planned.gated()
    before = (await planned.operator.get("/api/v1/requests/count")).json()
    assert before["status"] == "pending"
    assert before["count"] >= 1
    mine = {"run_id": request["run_id"]}
    assert len((await planned.operator.get("/api/v1/requests", params=mine)).json()["items"]) == 1
    assert (await planned.decide(request, "reject")).status_code == 200
    assert (await planned.operator.get("/api/v1/requests/count")).json()["count"] == before["count"] - 1
    assert (await planned.operator.get("/api/v1/requests", params=mine)).json()["items"] == []
    for status, expected in (("rejected", 1), ("all", 1), ("approved", 0)):
        matches = (await planned.operator.get("/api/v1/requests", params={**mine, "status": status})).json()["items"]
        assert len(matches) == expected
    assert (await planned.operator.get("/api/v1/requests", params={"status": "wrong"})).status_code == 422


async def test_a_request_has_what_is_needed_to_decide_it(planned: Api) -> None:
    """The exact call, its manifest, the reason for the gate, the agent's words, and the conversation up to the call."""
    request = await planned.gated()
    assert (request["tool_name"], request["input"], request["kind"]) == ("pay", '{"cents": 5}', "approval")
    assert request["manifest"]["parameters"]["properties"]["cents"]["type"] == "integer"
    assert request["rule"] == "tool:ask"
    assert request["execution"] == "not_started"
    assert request["allowed_verbs"] == ["approve", "edit", "reject", "respond"]
    assert [message["role"] for message in request["messages"]] == ["user", "assistant"]
    assert request["run"]["id"] == request["run_id"]
