"""Many decisions at once: each item has its own answer."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, planned_on, token_for
from support.stores.changed_rows import changed

from turngate.client import TurngateClient
from turngate.store import tables
from turngate.store.database import Database
from turngate.store.requests import requests


@pytest.fixture(scope="module")
async def api(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """The API with an inbox of its own, whose calls never run."""
    file = shutil.copy(sqlite_template, tmp_path_factory.mktemp("bulk") / "turngate.db")
    database = Database(f"sqlite:///{file}")
    async with planned_on(database) as api:
        yield api
    await database.close()


async def bulk(
    api: Api, *targets: dict[str, Any], decision: str = "approve", key: str | None = None, by: Any = None, **body: Any
) -> httpx.Response:
    items = [{"request_id": each["id"], "digest": each["digest"]} for each in targets]
    headers = {} if key is None else {"Idempotency-Key": key}
    sent = {"decision": decision, "items": items, **body}
    return await (by or api.operator).post("/api/v1/requests/decisions", json=sent, headers=headers)


async def gated(api: Api, *texts: str) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(api.gated(text) for text in texts)))


async def statuses(api: Api, *targets: dict[str, Any]) -> list[str]:
    async with api.stack.database.read() as conn:
        stored = [await requests.get(conn, each["id"]) for each in targets]
    return [each.status for each in stored if each is not None]


async def test_i4_each_item_is_answered_and_a_repeat_gets_the_same_answers(api: Api) -> None:
    """I4: won, lost, another digest and no such request side by side; the same body and key again change nothing."""
    won, lost, stale, also = await gated(api, "pay 1", "pay 2", "pay 3", "pay 4")
    assert (await api.decide(lost, "reject")).status_code == 200
    sent = [won, lost, {**stale, "digest": "0" * 64}, {"id": "rq_none", "digest": "0"}, also]
    key = f"bulk-{won['id']}"
    answer = await bulk(api, *sent, key=key)
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    assert [each["request_id"] for each in items] == [each["id"] for each in sent]
    summary = [(each["status"], each["request_status"], (each["problem"] or {}).get("code")) for each in items]
    assert summary == [
        (200, "approved", None),
        (409, None, "already_decided"),
        (409, None, "digest_differs"),
        (404, None, "not_found"),
        (200, "approved", None),
    ]
    assert items[1]["problem"]["decided_by"].startswith("ada-")
    assert len({each["decision_id"] for each in items}) == 5
    assert await statuses(api, won, lost, stale, also) == ["approved", "rejected", "pending", "approved"]
    assert (await bulk(api, *sent, key=key)).json() == answer.json()
    # Another message is another decision with the same id: refused, item by item.
    other = (await bulk(api, won, also, key=key, message="changed my mind")).json()["items"]
    assert {(each["status"], each["problem"]["code"]) for each in other} == {(409, "idempotency_key_reused")}
    # Another person's keys are theirs alone.
    headers = await token_for(api.stack.database, f"bea-{won['id']}", "requests:decide")
    async with httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False) as second:
        late = (await bulk(api, won, key=key, by=second)).json()["items"][0]
    assert (late["status"], late["problem"]["code"]) == (409, "already_decided")


async def test_each_call_has_its_own_grace(api: Api) -> None:
    """Calls that are approved together wait each on their own terms, and one approval is taken back without the others."""
    slow, slower, plain = await gated(api, "pay 6", "pay 7", "pay 8")
    database, terms = api.stack.database, '{"grace_seconds": 3600}'
    async with (
        changed(database, tables.requests, {"id": slow["id"]}, terms=terms),
        changed(database, tables.requests, {"id": slower["id"]}, terms=terms),
    ):
        items = (await bulk(api, slow, slower, plain)).json()["items"]
        assert [each["request_status"] for each in items] == ["approved"] * 3
        assert [each["starts_at"] is None for each in items] == [False, False, True]
        assert (await api.operator.delete(f"/api/v1/requests/{slow['id']}/approval")).status_code == 204
        seen = [(await api.operator.get(f"/api/v1/requests/{each['id']}")).json() for each in (slow, slower)]
        assert [each["replaced_by"] is None for each in seen] == [False, True]
        assert await statuses(api, slow, slower, {"id": seen[0]["replaced_by"]}) == ["approved", "approved", "pending"]
        assert (await api.operator.delete(f"/api/v1/requests/{plain['id']}/approval")).status_code == 409


async def test_each_item_may_have_its_own_decision_id(api: Api) -> None:
    """An item's own id is its Idempotency-Key, as if it were decided alone."""
    (request,) = await gated(api, "pay 5")
    items = [{"request_id": request["id"], "digest": request["digest"], "decision_id": f"own-{request['id']}"}]
    body = {"decision": "reject", "message": "no", "items": items}
    first = (await api.operator.post("/api/v1/requests/decisions", json=body)).json()["items"][0]
    assert (first["decision_id"], first["request_status"]) == (f"own-{request['id']}", "rejected")
    alone = await api.decide(request, "reject", key=f"own-{request['id']}", message="no")
    assert (alone.status_code, alone.json()["decision_id"]) == (200, first["decision_id"])


async def test_each_item_has_its_own_look(api: Api) -> None:
    """How long and how much of each was looked at is stored with its own decision."""
    one, two = await gated(api, "pay 6", "pay 7")
    looks = [{"looked_ms": 4_000, "seen_percent": 100}, {"looked_ms": 4_000, "seen_percent": 30}]
    items = [
        {"request_id": each["id"], "digest": each["digest"], **look}
        for each, look in zip((one, two), looks, strict=True)
    ]
    sent = {"decision": "reject", "items": items}
    answer = await api.operator.post("/api/v1/requests/decisions", json=sent)
    assert [each["status"] for each in answer.json()["items"]] == [200, 200], answer.text
    reads = [(await api.operator.get(f"/api/v1/requests/{each['id']}")).json()["decision"] for each in (one, two)]
    assert [{name: each[name] for name in looks[0]} for each in reads] == looks
    wrong = {**sent, "items": [{**items[0], "seen_percent": 101}]}
    assert (await api.operator.post("/api/v1/requests/decisions", json=wrong)).status_code == 422


async def test_what_needs_its_own_decision_does_not_hold_up_the_others(api: Api) -> None:
    """Two tools and rules are approved together; high risk, a quorum and a question say that they are decided alone."""
    one, shared, risky, several, question = await gated(
        api, "pay 1", "pay_shared 3", "pay 4", "pay 5", "ask_person Which colour?"
    )
    async with (
        changed(api.stack.database, tables.requests, {"id": risky["id"]}, risk="high"),
        changed(api.stack.database, tables.requests, {"id": several["id"]}, quorum=2),
    ):
        items = (await bulk(api, risky, one, several, question, shared)).json()["items"]
        assert [(each["status"], (each["problem"] or {}).get("code")) for each in items] == [
            (422, "decide_alone"),
            (200, None),
            (422, "decide_alone"),
            (422, "decide_alone"),
            (200, None),
        ]
        assert "high risk" in items[0]["problem"]["detail"]
        assert "2 people" in items[2]["problem"]["detail"]
        waiting = await statuses(api, one, shared, risky, several, question)
        assert waiting == ["approved", "approved", "pending", "pending", "pending"]
        rejected = (await bulk(api, risky, several, question, decision="reject", message="no")).json()["items"]
        assert [each["request_status"] for each in rejected] == ["rejected"] * 3


async def test_a_list_that_names_no_requests_is_refused(api: Api) -> None:
    """A request twice, none, too many: 422, and every request still waits."""
    (one,) = await gated(api, "pay 1")
    too_many = [{"id": f"rq_{number}", "digest": "0"} for number in range(101)]
    for targets, pointer in (([one, one], "/items/1/request_id"), ([], "/items"), (too_many, "/items")):
        refused = await bulk(api, *targets)
        assert refused.status_code == 422, refused.text
        assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    assert await statuses(api, one) == ["pending"]


async def test_i10_an_agent_decides_none_of_many(api: Api) -> None:
    """I10: a token that can't decide one can't decide many; nor can the starter, if a rule bars them."""
    (request,) = await gated(api, "pay_shared 5")
    refused = await bulk(api, request, by=api.agent)
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    async with changed(api.stack.database, tables.requests, {"id": request["id"]}, not_by=f"ada-{api.name}"):
        barred = (await bulk(api, request)).json()["items"][0]
    assert (barred["status"], barred["problem"]["code"]) == (403, "not_eligible")
    assert await statuses(api, request) == ["pending"]


@pytest.mark.parametrize("decision", ["edit", "respond", "maybe"])
async def test_many_can_only_be_approved_or_rejected(api: Api, decision: str) -> None:
    """An edit or an answer is about one call."""
    refused = await bulk(api, {"id": "rq_none", "digest": "0"}, decision=decision)
    assert refused.status_code == 422


@pytest.mark.exhaustive
async def test_a_dozen_are_decided_by_the_client(api: Api) -> None:
    """The typed client decides twelve requests with one call; it says why it could not decide one."""
    targets = await gated(api, *(["pay 9"] * 12))
    token = (await token_for(api.stack.database, f"many-{api.name}", "requests:decide"))["Authorization"]
    digests = {each["id"]: each["digest"] for each in targets}
    digests[targets[0]["id"]] = "0" * 64
    async with TurngateClient(api.url, token=token.removeprefix("Bearer ")) as client:
        answer = await client.decide_requests(digests, verb="reject", message="not today")
    assert [each.status for each in answer.items] == [409] + [200] * 11
    assert answer.items[0].problem is not None
    assert await statuses(api, *targets) == ["pending"] + ["rejected"] * 11
