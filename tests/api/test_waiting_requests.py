"""A grant given with an approval answers what waits already: in the API, on the page without JavaScript, and in a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.api.api_server import pay, serving, token_for
from support.api.store_app import desk_on
from support.pages.html_forms import PostedPage
from support.stores.changed_rows import change_request
from support.stores.stored_requests import live_run, open_requests, request_row
from temporalio.client import Client
from typer.testing import CliRunner

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as cli
from turngate.domain.policy.policy import Verdict
from turngate.runtime.temporal_client import data_converter
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.policy import grants
from turngate.store.requests import claims, requests
from turngate.store.runs import calls

FIVE = '{"cents": 5, "note": "a"}'
EXACT = {"tool": "pay", "fixed": {"cents": 5, "note": "a"}}
WIDE = {"tool": "pay", "within": {"cents": {"op": "between", "value": [1, 500]}}, "open": ["note"]}


@pytest.fixture
async def operator(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with desk_on(database) as desk:
        yield await desk.person("ann")


async def plant(database: Database, *inputs: str, run_id: str = "run_1", started_by: str = "starter") -> None:
    """Pending requests ``rq_0``, ``rq_1`` and so on, one for each call of ``pay``, the oldest first."""
    verdict = Verdict(answer="ask", rule="default", reason="", risk="low").model_dump_json(exclude_defaults=True)
    async with database.write() as conn:
        run = await live_run(conn, run_id, started_by=started_by)
        await calls.insert_planned(
            conn,
            [
                calls.Call(
                    run_id=run.id, tool_call_id=f"c{place}", step=1, position=place, tool_name="pay", input=text,
                    repeat_key="", disposition="ask", verdict=verdict, digest="d", policy_version="", effect="once",
                )
                for place, text in enumerate(inputs)
            ],
        )  # fmt: skip
        rows = [
            request_row(
                run, f"rq_{place}", tool_call_id=f"c{place}", input=text, digest=f"d{place}", rule="default",
                manifest=pay.manifest.model_dump_json(),
            )
            for place, text in enumerate(inputs)
        ]  # fmt: skip
        await open_requests(conn, rows)


async def statuses(database: Database, count: int) -> list[str]:
    async with database.read() as conn:
        stored = await requests.get_all(conn, [f"rq_{place}" for place in range(count)])
    return [stored[f"rq_{place}"].status for place in range(count)]


async def decide(
    http: httpx.AsyncClient, pattern: dict[str, Any], *, answer_waiting: bool = True, key: str = "k", **grant: Any
) -> httpx.Response:
    wanted = {"pattern": pattern, "scope": "run", "max_uses": 10, **grant}
    body = {"decision": "approve", "digest": "d0", "grant": wanted, "answer_waiting": answer_waiting}
    return await http.post("/api/v1/requests/rq_0/decisions", json=body, headers={"Idempotency-Key": key})


async def test_an_exact_grant_answers_what_waits_with_the_same_bytes(
    database: Database, operator: httpx.AsyncClient
) -> None:
    """Each by its own decision with the grant as the reason, counted as a use; a repeat decides nothing twice."""
    await plant(database, FIVE, FIVE, '{"cents":5, "note": "a"}', '{"cents": 6, "note": "a"}', FIVE)
    answer = await decide(operator, EXACT)
    assert answer.status_code == 200, answer.text
    grant_id = answer.json()["grant_id"]
    assert [(each["request_id"], each["request_status"]) for each in answer.json()["answered"]] == [
        ("rq_1", "approved"),
        ("rq_4", "approved"),
    ]
    assert await statuses(database, 5) == ["approved", "approved", "pending", "pending", "approved"]
    again = await decide(operator, EXACT)
    assert (again.status_code, again.json()["answered"]) == (200, [])
    async with database.read() as conn:
        stored = await grants.get(conn, grant_id)
        used = await grants.uses_of(conn, grant_id)
        rows = await requests.get_all(conn, ["rq_0", "rq_1", "rq_4"])
        decisions = [await requests.decision(conn, rows[f"rq_{n}"].decision_id or "") for n in (1, 4)]
        assert await events.chain_break(conn, "run_1") is None
        logged = [each.type for each in await events.after(conn, 0, run_id="run_1")]
    assert stored is not None
    assert (stored.uses, {each.tool_call_id for each in used}) == (2, {"c1", "c4"})
    assert {(each.decided_by, each.message) for each in decisions if each is not None} == {
        ("ann", f"Grant {grant_id} covers such calls.")
    }
    assert len({each.decision_id for each in rows.values()}) == 3
    assert logged.count("grant.used") == 2


async def test_nothing_that_waits_is_answered_unless_its_giver_says_so(
    database: Database, operator: httpx.AsyncClient
) -> None:
    """Off by default; and a grant that covers unseen arguments answers none at once: 422, and nothing is saved."""
    await plant(database, FIVE, FIVE)
    wide = await decide(operator, WIDE)
    assert (wide.status_code, wide.json()["errors"][0]["pointer"]) == (422, "/answer_waiting")
    body = {"decision": "approve", "digest": "d0", "answer_waiting": True}
    without = await operator.post("/api/v1/requests/rq_0/decisions", json=body)
    assert (without.status_code, without.json()["errors"][0]["pointer"]) == (422, "/answer_waiting")
    assert await statuses(database, 2) == ["pending", "pending"]
    plain = await decide(operator, EXACT, answer_waiting=False)
    assert (plain.status_code, plain.json()["answered"]) == (200, [])
    assert await statuses(database, 2) == ["approved", "pending"]


async def test_i10_the_giver_decides_only_what_they_may(database: Database, operator: httpx.AsyncClient) -> None:
    """Four eyes, a claim, the end of its time and another run hold; high risk, quorum and a strict rule aren't covered."""
    await plant(database, *[FIVE] * 8)
    await change_request(database, "rq_1", not_by="ann")
    async with database.write() as conn:
        await claims.claim(conn, "rq_2", by="bea", seconds=600, take_over=False)
    await change_request(database, "rq_3", expires_at=as_text(now()))
    await change_request(database, "rq_4", risk="high")
    await change_request(database, "rq_5", quorum=2)
    await change_request(database, "rq_6", rule="strict")
    answer = await decide(operator, EXACT)
    problems = {each["request_id"]: (each["problem"] or {}).get("code") for each in answer.json()["answered"]}
    assert problems == {"rq_1": "not_eligible", "rq_2": "claimed", "rq_3": "request_expired", "rq_7": None}
    assert await statuses(database, 8) == ["approved", *["pending"] * 6, "approved"]
    async with database.read() as conn:
        stored = await grants.get(conn, answer.json()["grant_id"])
    assert stored is not None
    assert stored.uses == 1  # what was not decided took none


async def test_no_more_is_answered_than_the_grant_has_uses(database: Database, operator: httpx.AsyncClient) -> None:
    """The oldest first; of several orders at once the uses are taken once each."""
    await plant(database, *[FIVE] * 10)
    answer = await decide(operator, EXACT, max_uses=3, answer_waiting=False)
    grant_id = answer.json()["grant_id"]
    waiting = (await operator.get(f"/api/v1/grants/{grant_id}/waiting")).json()
    assert [each["request_id"] for each in waiting["requests"]] == ["rq_1", "rq_2", "rq_3"]

    async def order(*places: int) -> list[dict[str, Any]]:
        items = [{"request_id": f"rq_{place}", "digest": f"d{place}"} for place in places]
        body = {"decision": "approve", "items": items, "grant_id": grant_id}
        answer = await operator.post("/api/v1/requests/decisions", json=body)
        decided: list[dict[str, Any]] = answer.json()["items"]
        return decided

    done = await asyncio.gather(order(1, 2, 3, 4), order(5, 6, 7), order(8, 9))
    codes = [(each["problem"] or {}).get("code") for items in done for each in items]
    assert (codes.count(None), codes.count("grant_ended")) == (3, 6)
    assert (await statuses(database, 10)).count("approved") == 4
    async with database.read() as conn:
        stored = await grants.get(conn, grant_id)
        assert len(await grants.uses_of(conn, grant_id)) == 3
    assert stored is not None
    assert stored.uses == 3
    assert (await operator.get(f"/api/v1/grants/{grant_id}/waiting")).json()["requests"] == []


async def test_a_total_counts_what_is_answered(database: Database, operator: httpx.AsyncClient) -> None:
    """Of four calls of 5 cents, a total of 12 answers two; the others wait, and take neither a use nor a share."""
    await plant(database, *[FIVE] * 5)
    total = {"at": "/cents", "most": 12, "per": "week"}
    answer = (await decide(operator, {**EXACT, "total": total})).json()
    codes = [(each["problem"] or {}).get("code") for each in answer["answered"]]
    assert sorted(codes, key=str) == [None, None, "grant_ended", "grant_ended"]
    listed = (await operator.get("/api/v1/grants")).json()["items"]
    assert [(each["uses"], each["total_used"]) for each in listed] == [(2, "10")]


async def test_i10_only_its_giver_answers_with_a_grant(database: Database, operator: httpx.AsyncClient) -> None:
    """Another operator's list is 403 and their decisions fail one by one; a grant that isn't there covers nothing."""
    await plant(database, FIVE, FIVE)
    grant_id = (await decide(operator, EXACT, answer_waiting=False)).json()["grant_id"]
    other = await token_for(database, "bea", "requests:read", "requests:decide")
    operator.cookies.clear()
    refused = await operator.get(f"/api/v1/grants/{grant_id}/waiting", headers=other)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_eligible")
    assert (await operator.get("/api/v1/grants/none/waiting", headers=other)).status_code == 404
    for each in (grant_id, "none"):
        body = {"decision": "approve", "items": [{"request_id": "rq_1", "digest": "d1"}], "grant_id": each}
        (item,) = (await operator.post("/api/v1/requests/decisions", json=body, headers=other)).json()["items"]
        assert (item["status"], item["problem"]["code"]) == (409, "not_covered")
    assert await statuses(database, 2) == ["approved", "pending"]


async def show_pattern(http: httpx.AsyncClient, action: str, **typed: str) -> tuple[httpx.Response, dict[str, str]]:
    """Press the button that shows what a grant would allow; return the page, and what its form sends."""
    page = PostedPage((await http.get("/requests/rq_0")).text)
    response = await http.post(action, data={**page.form("edit").sent, **typed})
    return response, PostedPage(response.text).form("edit").sent


async def test_the_box_of_the_form_answers_what_was_on_the_screen(
    database: Database, operator: httpx.AsyncClient
) -> None:
    """Off by default, counted without the request itself, without JavaScript; each result is listed."""
    await plant(database, FIVE, FIVE, FIVE, '{"cents": 6, "note": "a"}')
    action = "/requests/rq_0/grant"
    pattern_page, form = await show_pattern(operator, action)
    assert "Also approve the 2 other requests that wait with exactly these arguments" in pattern_page.text
    assert "grant-waiting" not in form
    done = await operator.post(action, data={**form, "grant-waiting": "1"})
    assert (done.status_code, "3 of 3 decided" in done.text) == (200, True)
    assert await statuses(database, 4) == ["approved", "approved", "approved", "pending"]


async def test_a_wide_grant_leads_to_the_review_of_each_call(database: Database, operator: httpx.AsyncClient) -> None:
    """Nothing but the request itself is approved before the others were on the screen; then each counts for the grant."""
    await plant(database, FIVE, '{"cents": 6, "note": "<b>"}', '{"cents": 501, "note": "a"}')
    action = "/requests/rq_0/grant"
    wide = {"grant-how-0": "range", "grant-low-0": "1", "grant-high-0": "500", "grant-how-1": "open"}
    pattern_page, form = await show_pattern(operator, action, **wide)
    assert "Then review the other request that waits and that this covers" in pattern_page.text
    led = await operator.post(action, data={**form, **wide, "grant-waiting": "1"})
    assert (led.status_code, led.headers["location"].partition("=")[0]) == (303, "/requests/waiting?grant")
    assert await statuses(database, 3) == ["approved", "pending", "pending"]
    review = (await operator.get(led.headers["location"])).text
    assert "covers these calls" in review
    assert "<b>" not in review
    decide_all = next(
        each for each in PostedPage(review).forms if each.attributes.get("action") == "/requests/bulk/decide"
    )
    assert {name for name in decide_all.sent if name.startswith("pick-")} == {"pick-rq_1"}
    done = await operator.post("/requests/bulk/decide", data={**decide_all.sent, "action": "approve"})
    assert "1 of 1 decided" in done.text
    (grant,) = (await operator.get("/api/v1/grants")).json()["items"]
    assert grant["uses"] == 1
    assert "No other request waits that your grant covers" in (await operator.get(led.headers["location"])).text


async def test_what_waits_is_answered_in_a_terminal(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """`decide --grant --answer-waiting` lists each result; of a wide grant it prints where to review them."""
    await plant(database, FIVE, FIVE, '{"cents": 6, "note": "a"}', '{"cents": 6, "note": "b"}')
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    token = await token_for(database, "ann", "requests:read", "requests:decide")
    monkeypatch.setenv("TURNGATE_TOKEN", token["Authorization"].removeprefix("Bearer "))
    async with serving(create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings())) as url:

        async def run(*arguments: str, code: int = 0) -> str:
            options = ["--answer-waiting", "--yes", "--url", url]
            answer = await asyncio.to_thread(CliRunner().invoke, cli, ["decide", *arguments, *options])
            assert answer.exit_code == code, answer.output
            return answer.output

        assert "goes with --grant" in await run("rq_0", "approve", code=2)
        assert "rq_1  approved" in await run("rq_0", "approve", "--grant", "run", "--uses", "5")
        output = await run("rq_2", "approve", "--grant", "run", "--open", "note", "--uses", "5")
        assert f"{url}/requests/waiting?grant=grant_" in output
    assert await statuses(database, 4) == ["approved", "approved", "approved", "pending"]
