"""Deciding over HTTP: every status code, first decision wins, nothing changes on refusal."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from support.api.api_server import TOOLS, Api, TextScript, api_on, session_for, token_for
from support.api.store_app import desk_on
from support.engine.stack import stack, until
from support.stores.changed_rows import changed
from temporalio.client import Client

from turngate import Policy, Rule
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import apply, decide
from turngate.domain.identity import ROLE_SCOPES
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.evidence import first_difference
from turngate.store.requests import requests
from turngate.store.runs import calls, runs
from turngate.store.tables import decisions, events
from turngate.store.tables import requests as requests_table
from turngate.wire.orders import DecisionOrder


async def stored(database: Database, request: dict[str, Any]) -> requests.Request:
    async with database.read() as conn:
        stored = await requests.get(conn, request["id"])
    assert stored is not None
    return stored


async def ended(api: Api, request: dict[str, Any]) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run = (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()
        return run if run["status"] != "running" else None

    return await until(look, "end of the run")


async def everything(database: Database, request: dict[str, Any]) -> list[Any]:
    """All rows a decision could change."""
    async with database.read() as conn:
        stored: list[Any] = [
            (await conn.execute(select(requests_table).where(requests_table.c.id == request["id"]))).all()
        ]
        stored.append((await conn.execute(select(decisions).where(decisions.c.request_id == request["id"]))).all())
        stored.append((await conn.execute(select(events).where(events.c.run_id == request["run_id"]))).all())
        stored.append(await calls.of_run(conn, request["run_id"]))
        return stored


async def refused(api: Api, request: dict[str, Any], status: int, code: str, **options: Any) -> dict[str, Any]:
    """Send a decision that must be refused with this status and code, and change nothing."""
    before = await everything(api.stack.database, request)
    answer = await api.decide(request, **options)
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert await everything(api.stack.database, request) == before
    return answer.json()


async def test_an_approval_is_answered_200_and_read_back_at_once(api: Api) -> None:
    """200; the person who decided reads their own write, with the name of their login."""
    request = await api.gated()
    answer = await api.decide(request, key=f"k-{request['id']}")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "request_id": request["id"],
        "decision_id": f"k-{request['id']}",
        "status": "approved",
        "starts_at": None,
        "grant_id": None,
        "answered": [],
    }
    read = (await api.operator.get(f"/api/v1/requests/{request['id']}")).json()
    assert (read["status"], read["verb"]) == ("approved", "approve")
    assert read["decided_by"].startswith("ada-")
    assert read["allowed_verbs"] == []
    run = await ended(api, request)
    assert run["final_text"] == "Done."
    call = run["steps"][0]["calls"][0]
    assert call["execution"] == "succeeded"
    assert call["result"] == {"tag": "ok", "value": {"paid": 5}}
    assert call["requests"][0]["status"] == "approved"


async def test_i4_the_same_decision_id_gets_the_first_answer(api: Api) -> None:
    """I4: an identical repeat is 200 with the first answer, also after the run has ended, and for an edit with content."""
    request = await api.gated()
    body = {"args": {"cents": 7}, "message": "less"}
    first = await api.decide(request, "edit", key=f"once-{request['id']}", **body)
    assert first.status_code == 200, first.text
    await ended(api, request)
    again = await api.decide(request, "edit", key=f"once-{request['id']}", **body)
    assert (again.status_code, again.json()) == (200, first.json())


@pytest.mark.parametrize("sent", ["in time", "too late"])
async def test_i4_a_twin_that_is_late_gets_the_first_answer(sqlite: Database, sent: str) -> None:
    """I4: of two sendings at once, one wins right before the request expires; the other doesn't hear that no one answered.

    It was sent in time and waits for its turn; or its time is over before the one that wins has committed.
    """
    ann = Principal(name="ann", via="session", scopes=ROLE_SCOPES["operator"], session_id="ann's")
    async with desk_on(sqlite) as desk:
        await desk.put(await desk.run(), expires_at=as_text(now() + timedelta(hours=1)))
        async with sqlite.read() as conn:
            seen = await requests.get(conn, "rq")
        assert seen is not None
        order = DecisionOrder(verb="approve", digest=seen.digest)

        def twin_sent() -> asyncio.Task[decide.DecisionAnswer]:
            return asyncio.create_task(decide.submit(desk.services, ann, "rq", order, decision_id="twin"))

        async with sqlite.write() as conn:
            if sent == "in time":
                late = twin_sent()
                await asyncio.wait({late}, timeout=0.2)
            twin = requests.new_decision(
                order, decision_id="twin", request_id="rq", by=ann.name, credential=ann.credential
            )
            assert await apply.approve_as_seen(conn, seen, ann, twin) == "approved"
            await conn.execute(requests_table.update().values(expires_at=as_text(now())))  # its time is over
            if sent == "too late":
                late = twin_sent()
                await asyncio.wait({late}, timeout=0.3)
        assert await late == decide.DecisionAnswer(decision_id="twin", status="approved")


async def test_how_long_a_request_was_looked_at_is_part_of_its_decision(planned: Api) -> None:
    """The two numbers read back as sent; a repeat with others is the same decision; out of bounds is 422; absent is null."""
    request, other = await planned.gated(), await planned.gated()
    assert other["decision"] is None
    for wrong in ({"looked_ms": -1}, {"looked_ms": 86_400_001}, {"looked_ms": 1.5}, {"seen_percent": 101}):
        await refused(planned, request, 422, "invalid_input", **wrong)
    key = f"look-{request['id']}"
    first = await planned.decide(request, key=key, looked_ms=4_321, seen_percent=100)
    assert first.status_code == 200, first.text
    for look in ({"looked_ms": 9_999, "seen_percent": 5}, {}):
        again = await planned.decide(request, key=key, **look)
        assert (again.status_code, again.json()) == (200, first.json())
    assert (await planned.decide(other)).status_code == 200
    reads = [(await planned.operator.get(f"/api/v1/requests/{each['id']}")).json() for each in (request, other)]
    looks = [(each["decision"]["looked_ms"], each["decision"]["seen_percent"]) for each in reads]
    assert looks == [(4_321, 100), (None, None)]
    for each in (request, other):
        async with planned.stack.database.read() as conn:
            assert await first_difference(conn, each["run_id"]) is None


@pytest.mark.exhaustive
async def test_a_reused_decision_id_is_refused(api: Api) -> None:
    """409 idempotency_key_reused: the same id with other content, or for another request, with and without content."""
    one, other = await api.gated(), await api.gated()
    plain, full = f"p-{secrets.token_hex(4)}", f"f-{secrets.token_hex(4)}"
    assert (await api.decide(one, "reject", key=plain)).status_code == 200
    await ended(api, one)
    await refused(api, other, 409, "idempotency_key_reused", verb="reject", key=plain)
    await refused(api, one, 409, "idempotency_key_reused", verb="approve", key=plain)
    assert (await api.decide(other, "reject", key=full, message="no")).status_code == 200
    await ended(api, other)
    await refused(api, other, 409, "idempotency_key_reused", verb="reject", key=full, message="other words")
    third = await api.gated()
    await refused(api, third, 409, "idempotency_key_reused", verb="reject", key=full, message="no")


@pytest.mark.exhaustive
async def test_a_decision_id_belongs_to_the_credential_that_sent_it(api: Api) -> None:
    """The same key from another token is another decision, also of the same person; row and event name the credential."""
    one, other = await api.gated(), await api.gated()
    key = f"k-{secrets.token_hex(4)}"
    assert (await api.decide(one, key=key)).json()["decision_id"] == key
    headers = await token_for(api.stack.database, f"second-{key}", "requests:decide", "requests:read")
    async with httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False) as second:
        late = await api.decide(one, key=key, by=second)
        assert (late.status_code, late.json()["code"], late.json()["decision_id"]) == (409, "already_decided", key)
        mine = await api.decide(other, "reject", key=key, by=second)
        assert (mine.status_code, mine.json()["status"]) == (200, "rejected")
        assert mine.json()["decision_id"] != key
        assert (await api.decide(other, "reject", key=key, by=second)).json() == mine.json()
        reused = await api.decide(other, "reject", key=key, by=second, message="other words")
        assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key_reused")
    async with api.stack.database.read() as conn:
        sent = [await requests.decision(conn, each) for each in (key, mine.json()["decision_id"])]
        decided = select(events.c.payload).where(
            events.c.run_id.in_([one["run_id"], other["run_id"]]), events.c.type == "request.decided"
        )
        logged = {json.loads(payload)["credential"] for payload in (await conn.execute(decided)).scalars()}
    credentials = [each.credential or "" for each in sent if each is not None]
    assert [each.partition(":")[0] for each in credentials] == ["session", "token"]
    assert logged == set(credentials)
    await asyncio.gather(ended(api, one), ended(api, other))


async def test_a_late_decision_learns_who_won(planned: Api) -> None:
    """409 already_decided names the winner, the verb and the time."""
    request = await planned.gated()
    assert (await planned.decide(request, "reject")).status_code == 200
    problem = await refused(planned, request, 409, "already_decided", verb="approve")
    won = await stored(planned.stack.database, request)
    assert (problem["decided_by"], problem["verb"], problem["decided_at"]) == (won.decided_by, "reject", won.decided_at)


async def test_i4_first_decision_wins_under_20_concurrent_deciders(planned: Api) -> None:
    """I4: of 20 operators who decide at once exactly one gets 200; the others get 409 naming that one."""
    request = await planned.gated()
    deciders = []
    for number in range(20):
        headers = await token_for(planned.stack.database, f"op-{number}", "requests:decide")
        deciders.append(httpx.AsyncClient(base_url=planned.url, headers=headers, trust_env=False, timeout=30))
    verbs = ["approve", "reject"] * 10
    try:
        answers = await asyncio.gather(
            *(planned.decide(request, verb, by=decider) for verb, decider in zip(verbs, deciders, strict=True))
        )
    finally:
        for decider in deciders:
            await decider.aclose()
    won = [answer for answer in answers if answer.status_code == 200]
    assert [answer.status_code for answer in answers if answer not in won] == [409] * 19, [a.text for a in answers]
    assert len(won) == 1
    row = await stored(planned.stack.database, request)
    assert row.decision_id == won[0].json()["decision_id"]
    assert row.decided_by == f"op-{answers.index(won[0])}"
    assert {answer.json()["decided_by"] for answer in answers if answer not in won} == {row.decided_by}
    async with planned.stack.database.read() as conn:
        types = (await conn.execute(select(events.c.type).where(events.c.run_id == request["run_id"]))).scalars().all()
    assert list(types).count("request.decided") == 1


async def test_a_decision_for_another_digest_is_refused(planned: Api) -> None:
    """409 digest_differs: only what was displayed runs (I6)."""
    request = await planned.gated()
    await refused(planned, {**request, "digest": "0" * 64}, 409, "digest_differs")
    assert (await planned.decide(request)).status_code == 200


@pytest.mark.exhaustive
async def test_a_request_that_ended_with_its_run_is_gone(api: Api) -> None:
    """410 run_ended after an interrupt."""
    request = await api.gated()
    answer = await api.agent.post(f"/api/v1/runs/{request['run_id']}/interrupt", json={"reason": "stop"})
    assert answer.status_code == 202
    assert (await ended(api, request))["status"] == "interrupted"
    await refused(api, request, 410, "run_ended")


async def test_bad_edits_are_refused_and_nothing_is_saved(api: Api) -> None:
    """422 invalid_edit, with a pointer to each error; the request still waits, and a good edit still wins."""
    request = await api.gated()
    problem = await refused(api, request, 422, "invalid_edit", verb="edit", args={"cents": "many"})
    assert problem["errors"][0]["pointer"] == "/args/cents"
    problem = await refused(api, request, 422, "invalid_edit", verb="edit")
    assert problem["errors"][0]["pointer"] == "/args"
    await refused(api, request, 422, "invalid_edit", verb="edit", args=[5])
    assert (await api.decide(request, "edit", args={"cents": 3})).status_code == 200
    run = await ended(api, request)
    assert run["steps"][0]["calls"][0]["result"]["value"] == {"paid": 3}


async def again(api: Api, request: dict[str, Any]) -> dict[str, Any]:
    """The request that replaces this one, once there is one."""

    async def look() -> dict[str, Any] | None:
        run = (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()
        opened = [each for call in run["steps"][0]["calls"] for each in call["requests"]]
        return next((each for each in opened if each["status"] == "pending" and each["id"] != request["id"]), None)

    replacing = await until(look, "request that replaces another")
    return (await api.operator.get(f"/api/v1/requests/{replacing['id']}")).json()


async def test_i6_an_edit_that_only_the_worker_can_refuse_is_asked_about_again(api: Api) -> None:
    """I6: the schema allows what the tool's own type refuses: nothing runs, and a new request says why and names the call."""
    request = await api.gated()
    assert (await api.decide(request, "edit", args={"cents": 13})).status_code == 200
    new = await again(api, request)
    assert "unlucky" in new["reason"]
    assert (json.loads(new["input"]), new["digest"]) == ({"cents": 5}, request["digest"])
    assert (await api.decide(new, "reject")).status_code == 200
    call = (await ended(api, request))["steps"][0]["calls"][0]
    assert (call["execution"], call["edited_input"], call["result"]["kind"]) == ("not_started", None, "rejected")


@pytest.fixture
async def careful(client: Client, sqlite: Database) -> AsyncIterator[Api]:
    """An API without a worker, whose policy wants two people for large amounts."""
    large = {"at": "/cents", "op": "gt", "value": 10_000}
    rule = {"name": "large", "verdict": "ask", "tools": ["pay"], "args": [large], "quorum": 2}
    policy = Policy(rule=[Rule.model_validate(rule)])
    async with (
        stack(client, sqlite, *TOOLS, model=TextScript(), policy=policy, working=False) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api


async def test_i6_an_edit_that_needs_stricter_terms_is_not_taken(careful: Api) -> None:
    """I6: 409 asked_again names the new request, which asks two people about the edited call; no grant is made."""
    async with careful.stack.worker():
        await not_taken(careful)


async def not_taken(api: Api) -> None:
    request, key = await api.gated(), f"large-{secrets.token_hex(4)}"
    pattern = {"tool": "pay", "fixed": {}, "open": ["cents"]}
    grant = {"pattern": pattern, "scope": "run", "max_uses": 5}
    sent: dict[str, Any] = {"verb": "edit", "args": {"cents": 50_000}, "grant": grant}
    refusal = await api.decide(request, key=key, **sent)
    assert (refusal.status_code, refusal.json()["code"]) == (409, "asked_again"), refusal.text
    assert "2 people must approve it" in refusal.json()["detail"]
    row = await stored(api.stack.database, request)
    assert (row.status, row.decided_by, row.decision_id) == ("superseded", None, None)
    new = await again(api, request)
    assert new["id"] == refusal.json()["asked_again"]
    assert (json.loads(new["input"]), new["rule"], new["quorum"]) == ({"cents": 50_000}, "large", 2)
    for repeated in (await api.decide(request, key=key, **sent), await api.decide(request)):
        assert (repeated.status_code, repeated.json()["asked_again"]) == (409, new["id"])
    assert (await api.operator.get("/api/v1/grants")).json()["items"] == []
    for name in ("ann", "bob"):
        cookies = await session_for(api.stack.database, f"{name}-{api.name}")
        async with httpx.AsyncClient(base_url=api.url, cookies=cookies, headers={"Origin": api.url}) as person:
            answer = await api.decide(new, by=person)
            assert answer.status_code == 200, answer.text
    run = await ended(api, request)
    assert run["steps"][0]["calls"][0]["result"]["value"] == {"paid": 50_000}
    async with api.stack.database.read() as conn:
        assert await first_difference(conn, request["run_id"]) is None


async def test_i6_an_edit_that_waits_for_a_worker_agrees_with_the_log(careful: Api) -> None:
    """I6, I15: without a worker the edit is not taken either; the request opens when one comes, and nothing is lost."""
    async with careful.stack.worker():
        request = await careful.gated()
    refusal = await careful.decide(request, "edit", args={"cents": 50_000})
    assert (refusal.status_code, refusal.json()["code"]) == (409, "asked_again")
    async with careful.stack.database.read() as conn:
        assert await first_difference(conn, request["run_id"]) is None
    async with careful.stack.worker():
        new = await again(careful, request)
        assert new["id"] == refusal.json()["asked_again"]
        assert (await careful.decide(new, "reject")).status_code == 200
        run = await ended(careful, request)
    assert run["steps"][0]["calls"][0]["result"]["kind"] == "rejected"


@pytest.mark.exhaustive
async def test_the_id_of_an_edit_that_did_not_fit_stays_used(api: Api) -> None:
    """Its decision counted, so a repeat gets the first answer; the corrected edit answers the new request under a new id."""
    request, key = await api.gated(), f"e-{secrets.token_hex(4)}"
    first = await api.decide(request, "edit", args={"cents": 13}, key=key)
    new = await again(api, request)
    repeated = await api.decide(request, "edit", args={"cents": 13}, key=key)
    assert (repeated.status_code, repeated.json()) == (200, first.json())
    await refused(api, new, 409, "idempotency_key_reused", verb="edit", args={"cents": 7}, key=key)
    corrected = await api.decide(new, "edit", args={"cents": 7})
    assert (corrected.status_code, corrected.json()["status"]) == (200, "approved")
    run = await ended(api, request)
    assert run["steps"][0]["calls"][0]["result"]["value"] == {"paid": 7}


async def test_i6_edited_arguments_are_kept_byte_for_byte(api: Api) -> None:
    """I6: the text of ``args`` is stored as it was sent, spacing, order and number format included."""
    request = await api.gated()
    text = '{ "note" : "\\u00fc\\n", "cents":1.0e2 }'
    body = f'{{"digest": "{request["digest"]}", "args" : {text} , "decision":"edit"}}'
    answer = await api.operator.post(
        f"/api/v1/requests/{request['id']}/decisions", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    read = (await api.operator.get(f"/api/v1/requests/{request['id']}")).json()
    assert read["decision"]["args"] == text
    run = await ended(api, request)
    assert run["steps"][0]["calls"][0]["edited_input"] == text
    assert json.loads(run["steps"][0]["calls"][0]["input"]) == {"cents": 5}


async def test_verbs_must_fit_the_request(planned: Api) -> None:
    """422 verb_not_allowed for a question; args, message and outcome only where they mean something."""
    question = await planned.gated("ask_person Who?")
    assert question["kind"] == "question"
    await refused(planned, question, 422, "verb_not_allowed", verb="approve")
    await refused(planned, question, 422, "invalid_edit", verb="respond", args={"answer": 5})
    assert (await planned.decide(question, "respond", args={"answer": "me"})).status_code == 200
    request = await planned.gated()
    await refused(planned, request, 422, "invalid_input", verb="respond")
    await refused(planned, request, 422, "invalid_input", verb="approve", args={"cents": 5})
    await refused(planned, request, 422, "invalid_input", verb="approve", outcome="happened")
    await refused(planned, request, 422, "invalid_input", verb="reject", message="x" * 10_001)
    await refused(planned, request, 422, "invalid_input", verb="reject", message="a\x00b")


async def test_bodies_are_strict(planned: Api) -> None:
    """422 with a pointer: unknown members, a name for the decider, wrong types, a name that occurs twice; 400 for no JSON."""
    request = await planned.gated()
    problem = await refused(planned, request, 422, "invalid_input", decided_by="mallory")
    assert problem["errors"][0]["pointer"] == "/decided_by"
    await refused(planned, request, 422, "invalid_input", message=5)
    await refused(planned, request, 422, "invalid_input", verb="maybe")
    path = f"/api/v1/requests/{request['id']}/decisions"
    headers = {"Content-Type": "application/json"}
    broken = await planned.operator.post(path, content='{"decision": "approve",', headers=headers)
    assert (broken.status_code, broken.json()["code"]) == (400, "malformed_json")
    assert broken.headers["content-type"] == "application/problem+json"
    repeated = f'{{"decision": "edit", "digest": "{request["digest"]}", "args": {{"cents": 1, "cents": 2}}}}'
    answer = await planned.operator.post(path, content=repeated, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert "cents" in answer.json()["detail"]
    seen = await planned.operator.get(f"/api/v1/requests/{request['id']}")
    assert seen.json()["status"] == "pending"


async def test_no_one_decides_after_the_expiry(planned: Api) -> None:
    """410 from the instant of the expiry on, also while no worker is there to write it; one that parks waits on."""
    request = await planned.gated()
    database, this, past = planned.stack.database, {"id": request["id"]}, {"expires_at": "2026-01-01T00:00:00Z"}
    async with changed(database, requests_table, this, **past):
        await refused(planned, request, 410, "request_expired")
    async with changed(database, requests_table, this, **past, terms='{"on_expiry":"park"}'):
        assert (await planned.decide(request)).status_code == 200


async def test_an_unknown_request_is_404(planned: Api) -> None:
    """404 for reading and deciding."""
    assert (await planned.operator.get("/api/v1/requests/rq_none")).status_code == 404
    answer = await planned.decide({"id": "rq_none", "digest": "0"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_i10_an_agents_token_cannot_decide(planned: Api) -> None:
    """I10: 403 missing_scope for a token without requests:decide, even for the run it started; nothing changes."""
    request = await planned.gated()
    problem = await refused(planned, request, 403, "missing_scope", by=planned.agent)
    assert problem["needed"] == ["requests:decide"]


async def test_i10_the_starter_can_be_barred(api: Api) -> None:
    """I10: 403 not_eligible for the person who started the run, if the rule wants a second person; another may decide."""
    started = await api.operator.post("/api/v1/runs", json={"agent": "agent", "input": "pay_shared 5"})
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, started.json()["id"])
    assert run is not None
    request = vars(await api.stack.request(run))
    await refused(api, request, 403, "not_eligible")
    headers = await token_for(api.stack.database, "grace", "requests:decide")
    async with httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False) as other:
        assert (await api.decide(request, by=other)).status_code == 200
    assert (await stored(api.stack.database, request)).decided_by == "grace"


async def test_i5_without_a_worker_a_decision_is_final(idle: Api) -> None:
    """I5: 200 while no worker is there; when one comes back the decision takes effect, its content too."""
    async with idle.stack.worker():
        request = await idle.gated()
    key = f"late-{request['id']}"
    answer = await idle.decide(request, "edit", key=key, args={"cents": 9})
    assert (answer.status_code, answer.json()["status"]) == (200, "approved"), answer.text
    repeated = await idle.decide(request, "edit", key=key, args={"cents": 9})
    assert (repeated.status_code, repeated.json()) == (200, answer.json())
    late = await idle.decide(request, "reject")
    assert (late.status_code, late.json()["decision_id"]) == (409, key)
    row = await stored(idle.stack.database, request)
    assert (row.status, row.decision_id) == ("approved", key)
    async with idle.stack.worker():
        run = await ended(idle, request)
    assert run["steps"][0]["calls"][0]["result"]["value"] == {"paid": 9}


async def test_i5_with_temporal_away_a_decision_is_final(api: Api, cut_off: Api) -> None:
    """I5: 200 while Temporal cannot be reached; the run is signalled again later, and the decision takes effect once."""
    request = await api.gated()
    answer = await cut_off.decide(request, "edit", key=f"away-{request['id']}", args={"cents": 4})
    assert (answer.status_code, answer.json()["status"]) == (200, "approved"), answer.text
    row = await stored(api.stack.database, request)
    assert (row.status, row.decision_id) == ("approved", f"away-{request['id']}")
    await refused(api, request, 409, "already_decided", verb="reject")
    run = await ended(api, request)
    assert run["steps"][0]["calls"][0]["result"]["value"] == {"paid": 4}
