"""Retention over HTTP and on its page: only admins, with a reason, and only after the id was typed again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, session_for, token_for

from turngate.store.events import events
from turngate.store.retention import erasures
from turngate.store.runs import runs

BASE = "/api/v1/retention"
WHY = "Ticket 812"


@pytest.fixture
async def admin(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    headers = await token_for(api.stack.database, "root", "admin")
    async with httpx.AsyncClient(base_url=api.operator.base_url, headers=headers) as client:
        yield client


async def ended_run(api: Api) -> dict[str, Any]:
    """A run that ended, with content."""
    request = await api.gated("pay 5")
    await api.decide(request, "reject", message="no")
    run: dict[str, Any] = (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()
    async with api.stack.database.read() as conn:
        stored = await runs.get(conn, run["id"])
    assert stored is not None
    await api.stack.ended(stored)
    return run


async def newest(api: Api, kind: str, run_id: str = events.SYSTEM) -> dict[str, Any]:
    async with api.stack.database.read() as conn:
        return dict((await events.newest(conn, run_id, kind, limit=1))[0].payload)


async def test_an_admin_erases_what_they_typed_twice_and_the_log_says_who(api: Api, admin: httpx.AsyncClient) -> None:
    """Without the id again 422, under a hold 409, then 200; the log, the list and the run's page say who and why."""
    run = await ended_run(api)
    conversation = run["conversation_id"]
    seen = (await admin.post(f"{BASE}/erasures/preview", json={"target": run["id"]})).json()
    assert seen["conversation_id"] == conversation
    assert seen["counts"]["messages"] > 1
    body = {"target": conversation, "confirm": run["id"], "reason": WHY}
    refused = await admin.post(f"{BASE}/erasures", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "not_confirmed")
    hold = await admin.post(f"{BASE}/holds", json={"target": conversation, "reason": "a lawsuit"})
    assert hold.status_code == 201
    assert (await newest(api, "hold.added"))["by"] == "root"
    body["confirm"] = conversation
    held = await admin.post(f"{BASE}/erasures", json=body)
    assert (held.status_code, held.json()["code"]) == (409, "held")
    view = (await admin.get(BASE)).json()
    assert hold.json() in view["holds"]
    assert view["status"]["file"] is None
    assert conversation not in {each["conversation_id"] for each in view["erasures"]}
    release = f"{BASE}/holds/{hold.json()['id']}/release"
    assert (await admin.post(release, json={"reason": "settled"})).json()["removed_by"] == "root"
    again = await admin.post(release, json={"reason": "settled"})
    assert (again.status_code, again.json()["code"]) == (409, "hold_ended")
    done = await admin.post(f"{BASE}/erasures", json=body)
    assert done.status_code == 200, done.text
    assert done.json()["erasures"][0]["erased_by"] == "root"
    assert any("turngate erase --scrub" in each for each in done.json()["remains"])
    logged = await newest(api, "conversation.erased", run["id"])
    assert (logged["by"], logged["reason"], logged["intact"]) == ("root", WHY, True)
    assert (await admin.get(BASE)).json()["erasures"][0]["conversation_id"] == conversation
    assert (await api.operator.get(f"/api/v1/runs/{run['id']}")).json()["erased"]["erased_by"] == "root"


async def test_an_admin_erases_a_person(api: Api, admin: httpx.AsyncClient) -> None:
    """What is stored beside the log goes; a name under which nothing is stored is 404."""
    await session_for(api.stack.database, "gone")
    body = {"target": "gone", "confirm": "gone", "reason": WHY}
    done = await admin.post(f"{BASE}/erasures", json=body)
    assert done.status_code == 200, done.text
    assert done.json()["person"]
    logged = await newest(api, "person.erased")
    assert (logged["by"], logged["why"]) == ("root", WHY)
    missing = await admin.post(f"{BASE}/erasures", json=body)
    assert missing.status_code == 404


async def test_no_one_but_an_admin_reads_or_erases(planned: Api) -> None:
    """Operators and agents get 403 on every route, and an admin 422 without a reason: the log has to say why."""
    run = await planned.start("pay 5")
    target = {"target": run["conversation_id"]}
    whole = {**target, "confirm": run["conversation_id"], "reason": WHY}
    routes = (
        ("POST", f"{BASE}/erasures", whole),
        ("POST", f"{BASE}/erasures/preview", target),
        ("POST", f"{BASE}/holds", {**target, "reason": WHY}),
        ("POST", f"{BASE}/holds/hold_1/release", {"reason": WHY}),
        ("GET", BASE, None),
    )
    for client in (planned.operator, planned.agent):
        for method, path, body in routes:
            assert (await client.request(method, path, json=body)).status_code == 403, path
    root = await token_for(planned.stack.database, "root", "admin")
    for reason in ("", "  "):
        sent = await planned.stranger.post(f"{BASE}/erasures", json={**whole, "reason": reason}, headers=root)
        assert sent.status_code == 422, sent.text
    async with planned.stack.database.read() as conn:
        assert await erasures.newest_of(conn, run["conversation_id"]) is None
