"""The audit log over HTTP and on its page: who did what, and whether a chain holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from support.api.api_server import Api
from support.api.store_app import Desk, desk_on
from support.engine.stack import until
from support.stores.event_guards import take_guards_away
from support.stores.stored_requests import live_run, request_row

from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import requests

PAGE = {"Accept": "text/html"}


pytestmark = pytest.mark.usefixtures("own_names")


@pytest.fixture
async def desk(sqlite: Database) -> AsyncIterator[Desk]:
    async with desk_on(sqlite) as desk:
        run = await desk.run()
        await desk.put(run)
        yield desk


async def audited(client: httpx.AsyncClient, **filters: Any) -> list[dict[str, Any]]:
    """The items of every page."""
    items, cursor = [], None
    while True:
        answer = await client.get("/api/v1/audit", params=filters | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return items


async def test_i6_the_log_says_who_did_what_to_which_bytes(api: Api) -> None:
    """I6: request, decision and execution have one digest, and an edit has its own; each event names the actor."""
    request = await api.gated()
    assert (await api.decide(request, "edit", args={"cents": 7})).status_code == 200

    async def ended() -> bool:
        return (await api.operator.get(f"/api/v1/runs/{request['run_id']}")).json()["status"] != "running"

    await until(ended, "end of the run")
    items = await audited(api.operator, run_id=request["run_id"])
    assert [each["seq"] for each in items] == sorted((each["seq"] for each in items), reverse=True)
    by_type = {each["type"]: each for each in items}
    ada, bot = f"ada-{api.name}", f"bot-{api.name}"
    assert {kind: by_type[kind]["actor"] for kind in ("run.started", "request.viewed", "request.decided")} == {
        "run.started": bot,
        "request.viewed": ada,
        "request.decided": ada,
    }
    opened, decided, started = (
        by_type[kind]["payload"] for kind in ("request.opened", "request.decided", "execution.started")
    )
    assert (opened["digest"], opened["rule"]) == (request["digest"], "tool:ask")
    assert (decided["digest"], decided["role"], decided["verb"]) == (request["digest"], "operator", "edit")
    assert decided["edited_digest"] not in {None, request["digest"]}
    assert (started["digest"], started["by"]) == (decided["edited_digest"], ada)
    assert started["decision_id"] == decided["decision_id"]
    chain = (await api.operator.get(f"/api/v1/audit/chains/{request['run_id']}")).json()
    assert (chain["length"], chain["head"], chain["broken_at"]) == (len(items), items[0]["hash"], None)


async def test_an_interrupt_says_whose_it_was(api: Api) -> None:
    """The person who interrupts a run cancels its requests and ends it, says the log."""
    request = await api.gated()
    await api.operator.post(f"/api/v1/runs/{request['run_id']}/interrupt", json={"reason": "wrong"})

    async def ends() -> list[dict[str, Any]]:
        items = await audited(api.operator, run_id=request["run_id"])
        return items if items[0]["type"] == "run.ended" else []

    items = {each["type"]: each for each in await until(ends, "end of the run")}
    assert items["run.ended"]["actor"] == items["request.cancelled"]["actor"] == f"ada-{api.name}"


async def test_the_log_is_filtered_and_paged(desk: Desk) -> None:
    """By run, type, actor and time, in pages of any size; a filter that no event could match is refused."""
    ann, bob = await desk.person("ann"), await desk.person("bob")
    before = as_text(now())
    for who in (ann, bob):
        await who.get("/api/v1/requests/rq")
        await who.post("/api/v1/requests/rq/comments", json={"text": "x"})
    ours = [
        ("bob", "request.commented"),
        ("bob", "request.viewed"),
        ("ann", "request.commented"),
        ("ann", "request.viewed"),
    ]
    opened = (None, "request.opened")
    for limit in (1, 3, 200):
        items = await audited(ann, limit=limit, run_id="run_1")
        assert [(each["actor"], each["type"]) for each in items] == [*ours, opened]
    for wanted, expected in (
        ({"type": "request.*", "actor": "ann"}, ours[2:]),
        ({"type": "*.viewed"}, [ours[1], ours[3]]),
        ({"since": before, "type": "request.*"}, ours),
        ({"until": before, "type": "request.*"}, [opened]),
    ):
        assert [(each["actor"], each["type"]) for each in await audited(ann, **wanted)] == expected, wanted
    assert await audited(ann, run_id="system", type="session.*") == []
    for bad in ({"cursor": "x"}, {"cursor": "0"}, {"type": "a'b"}, {"since": "2026-01-01"}, {"limit": "0"}):
        assert (await ann.get("/api/v1/audit", params=bad)).status_code == 422, bad


async def test_only_admins_see_log_ins(desk: Desk) -> None:
    """Only admins see log-ins and people in the log; everyone who reads requests sees changes of grants and policy."""
    ann, admin = await desk.person("ann"), await desk.machine("boss", "admin")
    async with desk.database.write() as conn:
        await events.append(conn, events.SYSTEM, [("policy.changed", {"by": "boss"})])
    types = {each["type"] for each in await audited(admin, run_id="system")}
    assert {"session.opened", "policy.changed"} <= types
    assert {each["type"] for each in await audited(ann, run_id="system")} == {"policy.changed"}


async def test_who_may_read_requests_may_read_the_log(desk: Desk) -> None:
    """A viewer and an admin's token may; a token that only starts runs, or only decides, may not: API and page."""
    for scopes, status in (
        (("requests:read",), 200),
        (("admin",), 200),
        (("runs:write",), 403),
        (("requests:decide",), 403),
    ):
        who = await desk.machine(f"bot-{scopes[0]}".replace(":", "-"), *scopes)
        for path in ("/api/v1/audit", "/api/v1/audit/chains/run_1", "/audit"):
            assert (await who.get(path)).status_code == status, (scopes, path)
    vic = await desk.person("vic", "viewer")
    assert (await vic.get("/audit", headers=PAGE)).status_code == 200
    assert (await vic.get("/api/v1/audit/chains/none")).status_code == 404


async def test_a_chain_that_was_changed_is_reported_as_broken(desk: Desk) -> None:
    """API and page name the first event that does not fit; other chains hold."""
    ann = await desk.person("ann")
    async with desk.database.write() as conn:
        await live_run(conn, "run_2", logged=True)
        await events.append(conn, "run_2", [("thing.happened", {"by": "ann", "next": [as_text(now())]})])
    page = await ann.get("/audit", params={"verify": "run_2"}, headers=PAGE)
    assert "is intact: 2 events" in page.text
    assert "<dt><bdi lang translate=no>next</bdi></dt><dd><code><bdi lang translate=no>[&#34;<time " in page.text
    async with desk.database.write() as conn:
        await take_guards_away(conn)
        await conn.execute(text("UPDATE events SET payload = replace(payload, 'ann', 'eve') WHERE run_id = 'run_2'"))
    chain = (await ann.get("/api/v1/audit/chains/run_2")).json()
    assert (chain["broken_at"], chain["problem"]) == (2, "its content is not what its hash was made over")
    page = await ann.get("/audit", params={"verify": "run_2"}, headers=PAGE)
    assert "is broken" in page.text
    assert "Event 2: its content is not what its hash was made over" in page.text
    assert (await ann.get("/api/v1/audit/chains/system")).json()["broken_at"] is None


async def test_i15_a_planted_request_breaks_its_chain(desk: Desk) -> None:
    """I15: a request that no event opened is reported, by the API and on the page, before anyone has touched it."""
    ann = await desk.person("ann")
    async with desk.database.write() as conn:
        await requests.insert_all(conn, [request_row(await live_run(conn, "run_3"), "planted")])
    chain = (await ann.get("/api/v1/audit/chains/run_3")).json()
    assert chain["problem"] == "requests planted: no event accounts for this row"
    page = await ann.get("/audit", params={"verify": "run_3"}, headers=PAGE)
    assert "requests planted: no event accounts for this row" in page.text


async def test_the_page_links_what_happened_and_escapes_all_of_it(desk: Desk) -> None:
    """Actor, event, run and request; filters stay in the links; an agent's or a person's text stays text."""
    ann = await desk.person("ann")
    await ann.get("/api/v1/requests/rq")
    async with desk.database.write() as conn:
        hostile = {"by": "<b>eve</b>", "tool": "a\u202eb<script>"}
        await events.append(conn, "run_1", [("thing.happened", hostile)] * 60)
    page = await ann.get("/audit", params={"run_id": "run_1"}, headers=PAGE)
    assert page.status_code == 200, page.text
    assert "&lt;b&gt;eve" in page.text
    for never in ("<b>eve", "<script>", "\u202e"):
        assert never not in page.text
    assert 'href="/runs/run_1"' in page.text
    older = page.text.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "run_id=run_1" in older
    second = await ann.get(older, headers=PAGE)
    assert 'href="/requests/rq"' in second.text
    assert "request.viewed" in second.text
    answer = await ann.get(
        "/audit", params={"actor": "stranger", "type": "", "since": "2026-01-01T00:00"}, headers=PAGE
    )
    assert "No events here." in answer.text
    for bad in ({"since": "soon"}, {"type": "'"}):
        assert (await ann.get("/audit", params=bad, headers=PAGE)).status_code == 422
